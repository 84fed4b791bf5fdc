package pci

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// Size is the length of a PCI Express configuration space in bytes.
const Size = 4096

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

// IDs are what a driver binds by.
type IDs struct {
	Vendor, Device       uint16
	SubVendor, SubDevice uint16
	Revision             uint8
}

// BAR is a memory window of the function.
type BAR struct {
	Size     uint64 // bytes, a power of two from 16 on; 0: there is none
	Wide     bool   // 64-bit: takes the next BAR's place too
	Prefetch bool
}

// Interrupts say how a function interrupts.
type Interrupts struct {
	Vectors int  // of MSI-X: 1 to 2048
	MSI     bool // by MSI instead, which has at most 32
	BAR     int  // with the tables of MSI-X
}

// Where the tables of MSI-X are in their BAR, which has TablesSize bytes for up to 128 vectors.
const (
	tableOffset   = 0
	PendingOffset = 0x800
	TablesSize    = 0x1000
)

// Function says what a configuration space is to show.
type Function struct {
	IDs        IDs
	BARs       [6]BAR
	Interrupts Interrupts
	Serial     uint64 // device serial number
}

// Space is a configuration space.
type Space struct {
	b, mask [Size]byte // what is read; the bits that can be written
	initial [Size]byte
	express int // offset of the PCI Express capability
	last    int // offset of the "next" of the capability added last
	end     int // first free byte
}

// New makes the configuration space of a function.
func New(f *Function) (*Space, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	s := &Space{last: offCaps, end: 0x40}
	s.header(f)
	s.addExpress()
	if f.Interrupts.MSI {
		s.addMSI(f.Interrupts.Vectors)
	} else {
		s.addMSIX(f.Interrupts)
	}
	s.addSerial(f.Serial)
	s.initial = s.b
	return s, nil
}

func (f *Function) check() error {
	for i, b := range f.BARs {
		switch {
		case b.Size == 0:
		case b.Size < 16 || b.Size&(b.Size-1) != 0:
			return fmt.Errorf("pci BAR%d: %d bytes, want a power of two from 16 on", i, b.Size)
		case b.Wide && (i == 5 || f.BARs[i+1].Size != 0):
			return fmt.Errorf("pci BAR%d is 64-bit, and BAR%d is not free", i, i+1)
		case !b.Wide && b.Size > 1<<31:
			return fmt.Errorf("pci BAR%d: %d bytes need a 64-bit BAR", i, b.Size)
		}
	}
	limit := 128
	if f.Interrupts.MSI {
		limit = 32
	}
	if v := f.Interrupts.Vectors; v < 1 || v > limit {
		return fmt.Errorf("pci: %d interrupt vectors, want 1 to %d", v, limit)
	}
	return nil
}

func (s *Space) put16(off int, v uint16)  { binary.LittleEndian.PutUint16(s.b[off:], v) }
func (s *Space) put32(off int, v uint32)  { binary.LittleEndian.PutUint32(s.b[off:], v) }
func (s *Space) free16(off int, m uint16) { binary.LittleEndian.PutUint16(s.mask[off:], m) }
func (s *Space) free32(off int, m uint32) { binary.LittleEndian.PutUint32(s.mask[off:], m) }

func (s *Space) header(f *Function) {
	s.put16(offVendor, f.IDs.Vendor)
	s.put16(offDevice, f.IDs.Device)
	s.put16(offSubVendor, f.IDs.SubVendor)
	s.put16(offSubDevice, f.IDs.SubDevice)
	s.b[offRevision] = f.IDs.Revision
	s.b[offClass], s.b[offClass+1], s.b[offClass+2] = classNetwork&0xff, classNetwork>>8&0xff, classNetwork>>16
	s.put16(offStatus, statusCaps)
	s.free16(offCommand, commandBits)
	s.mask[offCacheLine] = 0xff
	s.mask[offIRQLine] = 0xff
	for i, b := range f.BARs {
		s.bar(offBAR0+4*i, b)
	}
}

func (s *Space) bar(off int, b BAR) {
	if b.Size == 0 {
		return
	}
	var kind uint32
	if b.Prefetch {
		kind |= barPrefetch
	}
	address := ^(b.Size - 1)
	s.free32(off, uint32(address))
	if b.Wide {
		kind |= barMem64
		s.free32(off+4, uint32(address>>32))
	}
	s.put32(off, kind)
}

// Read reads n bytes; what lies past the end is zero.
func (s *Space) Read(off uint64, b []byte) {
	clear(b)
	if off < Size {
		copy(b, s.b[off:])
	}
}

// Write writes what can be written. It reports whether that was the order to reset the function.
func (s *Space) Write(off uint64, b []byte) (reset bool) {
	for i, v := range b {
		at := off + uint64(i)
		if at >= Size {
			break
		}
		if at == uint64(s.express)+expressControl+1 && v&(expressReset>>8) != 0 {
			reset = true // the bit itself always reads as zero
		}
		s.b[at] = s.b[at]&^s.mask[at] | v&s.mask[at]
	}
	return reset
}

// Reset puts back what was there first. BARs, interrupt line and cache line size survive a function
// level reset only where the bus's emulation has its own; QEMU does, and writes them again.
func (s *Space) Reset() { s.b = s.initial }

// add begins a capability of n bytes and returns its offset.
func (s *Space) add(id byte, n int) (at int) {
	at = s.end
	s.b[s.last], s.b[at] = byte(at), id
	s.last = at + 1
	s.end = (at + n + 3) &^ 3
	return at
}

// log2 of a number of vectors, rounded up.
func log2(n int) int { return bits.Len(uint(n - 1)) }
