package pci

// Space is a configuration space.
type Space struct {
	regs    registers
	initial [Size]byte
	express int // offset of the PCI Express capability
}

// New returns the configuration space of a function.
func New(f *Function) (*Space, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	s := &Space{regs: registers{last: offCaps, end: 0x40}}
	r := &s.regs
	r.header(f)
	s.express = r.addExpress()
	if f.Interrupts.MSI {
		r.addMSI(f.Interrupts.Vectors)
	} else {
		r.addMSIX(f.Interrupts)
	}
	r.addSerial(f.Serial)
	s.initial = r.b
	return s, nil
}

// Read reads len(b) bytes from off on. Bytes past the end read as zero.
func (s *Space) Read(off uint64, b []byte) {
	clear(b)
	copy(b, s.regs.b[min(off, Size):])
}

// Write writes the writable bits. It reports whether the write requests a reset of the function.
func (s *Space) Write(off uint64, b []byte) (reset bool) {
	for i, v := range b {
		at := off + uint64(i)
		if at >= Size {
			break
		}
		if at == uint64(s.express)+expressControl+1 && v&(expressReset>>8) != 0 {
			reset = true // the bit itself always reads as zero
		}
		s.regs.b[at] = s.regs.b[at]&^s.regs.mask[at] | v&s.regs.mask[at]
	}
	return reset
}

// Reset restores the initial values, also of BARs, interrupt line and cache line size. QEMU keeps
// its own copies of those and writes them again after a function level reset.
func (s *Space) Reset() { s.regs.b = s.initial }
