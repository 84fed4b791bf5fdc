package pci

import "encoding/binary"

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
