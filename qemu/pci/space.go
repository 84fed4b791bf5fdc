package pci

import (
	"encoding/binary"
	"fmt"
)

// IDs are the numbers by which a driver recognizes the function.
type IDs struct {
	Vendor, Device       uint16
	SubVendor, SubDevice uint16
	Revision             uint8
}

// BAR is a memory window of the function.
type BAR struct {
	Size     uint64 // in bytes, a power of two from 16 on; 0: no BAR
	Wide     bool   // 64-bit: also occupies the next BAR
	Prefetch bool
}

// Interrupts describes the interrupts of a function.
type Interrupts struct {
	Vectors int  // 1 to 128 with MSI-X, 1 to 32 with MSI
	MSI     bool // use MSI instead of MSI-X
	BAR     int  // of the MSI-X tables
}

// Offsets of the MSI-X tables in their BAR, which has TablesSize bytes for up to 128 vectors.
const (
	tableOffset   = 0
	PendingOffset = 0x800
	TablesSize    = 0x1000
)

// Endpoint describes a PCI Express endpoint for its configuration space.
type Endpoint struct {
	IDs        IDs
	BARs       [6]BAR
	Interrupts Interrupts
	Serial     uint64 // device serial number
}

func (e *Endpoint) check() error {
	for i, b := range e.BARs {
		switch {
		case b.Size == 0:
		case b.Size < 16 || b.Size&(b.Size-1) != 0:
			return fmt.Errorf("pci BAR%d: %d bytes, want a power of two from 16 on", i, b.Size)
		case b.Wide && (i == 5 || e.BARs[i+1].Size != 0):
			return fmt.Errorf("pci BAR%d is 64-bit, and BAR%d is not free", i, i+1)
		case !b.Wide && b.Size > 1<<31:
			return fmt.Errorf("pci BAR%d: %d bytes need a 64-bit BAR", i, b.Size)
		}
	}
	limit := 128
	if e.Interrupts.MSI {
		limit = 32
	}
	if v := e.Interrupts.Vectors; v < 1 || v > limit {
		return fmt.Errorf("pci: %d interrupt vectors, want 1 to %d", v, limit)
	}
	return nil
}

// Space is a configuration space.
type Space struct {
	regs    registers
	initial [Size]byte
	express int // offset of the PCI Express capability
}

// New returns the configuration space of a function.
func New(e *Endpoint) (*Space, error) {
	if err := e.check(); err != nil {
		return nil, err
	}
	s := &Space{regs: registers{last: offCaps, end: 0x40}}
	r := &s.regs
	r.header(e)
	s.express = r.addExpress()
	if e.Interrupts.MSI {
		r.addMSI(e.Interrupts.Vectors)
	} else {
		r.addMSIX(e.Interrupts)
	}
	r.addSerial(e.Serial)
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

// Size is the length of a PCI Express configuration space in bytes.
const Size = 4096

// registers holds the bytes of a configuration space (b), the mask of writable bits, and the end of
// the capability list while the space is built.
type registers struct {
	b, mask [Size]byte
	last    int // offset of the "next" of the capability added last
	end     int // first free byte
}

func (r *registers) put16(off int, v uint16)  { binary.LittleEndian.PutUint16(r.b[off:], v) }
func (r *registers) put32(off int, v uint32)  { binary.LittleEndian.PutUint32(r.b[off:], v) }
func (r *registers) free16(off int, m uint16) { binary.LittleEndian.PutUint16(r.mask[off:], m) }
func (r *registers) free32(off int, m uint32) { binary.LittleEndian.PutUint32(r.mask[off:], m) }

// add begins a capability of n bytes and returns its offset.
func (r *registers) add(id byte, n int) (at int) {
	at = r.end
	r.b[r.last], r.b[at] = byte(at), id
	r.last = at + 1
	r.end = (at + n + 3) &^ 3
	return at
}

// Offsets of the header, PCI 3.0 §6.1.
const (
	offVendor    = 0x00
	offDevice    = 0x02
	offCommand   = 0x04
	offStatus    = 0x06
	offRevision  = 0x08
	offClass     = 0x09
	offCacheLine = 0x0c
	offBAR0      = 0x10
	offSubVendor = 0x2c
	offSubDevice = 0x2e
	offCaps      = 0x34
	offIRQLine   = 0x3c

	commandBits  = 0x0547 // memory, bus master, parity, SERR, INTx disable, I/O
	statusCaps   = 0x0010
	classNetwork = 0x020000 // Ethernet controller
	barMem64     = 4
	barPrefetch  = 8
)

// header writes the first 64 bytes.
func (r *registers) header(e *Endpoint) {
	r.put16(offVendor, e.IDs.Vendor)
	r.put16(offDevice, e.IDs.Device)
	r.put16(offSubVendor, e.IDs.SubVendor)
	r.put16(offSubDevice, e.IDs.SubDevice)
	r.b[offRevision] = e.IDs.Revision
	r.b[offClass], r.b[offClass+1], r.b[offClass+2] = classNetwork&0xff, classNetwork>>8&0xff, classNetwork>>16
	r.put16(offStatus, statusCaps)
	r.free16(offCommand, commandBits)
	r.mask[offCacheLine] = 0xff
	r.mask[offIRQLine] = 0xff
	for i, b := range e.BARs {
		r.bar(offBAR0+4*i, b)
	}
}

func (r *registers) bar(off int, b BAR) {
	if b.Size == 0 {
		return
	}
	var kind uint32
	if b.Prefetch {
		kind |= barPrefetch
	}
	address := ^(b.Size - 1)
	r.free32(off, uint32(address))
	if b.Wide {
		kind |= barMem64
		r.free32(off+4, uint32(address>>32))
	}
	r.put32(off, kind)
}
