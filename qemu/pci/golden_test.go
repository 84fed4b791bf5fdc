package pci

import (
	"maps"
	"testing"
)

// TestSpaces holds both kinds of configuration space word by word: what is read at first, and which
// bits a driver can change. Words that are not listed are zero, and stay so.
func TestSpaces(t *testing.T) {
	words := map[int]uint32{ // of both
		0x00: 0x56781234, 0x04: 0x00100000, 0x08: 0x02000002, 0x18: 0x0000000c, 0x2c: 0xdef09abc, 0x34: 0x00000040,
		// PCI Express, at 0x40.
		0x40: 0x00027c10, 0x44: 0x10008000, 0x48: 0x00002810, 0x4c: 0x0003f104, 0x50: 0x01040000, 0x6c: 0x0000001e,
		// The serial number.
		0x100: 0x00010003, 0x104: 0x05060708, 0x108: 0x01020304,
	}
	writable := map[int]uint32{
		0x04: 0x0547, 0x0c: 0xff, 0x10: 0xffffe000, 0x14: 0xfffff000, 0x18: 0xfffc0000, 0x1c: 0xffffffff, 0x3c: 0xff, 0x48: 0x7fff,
	}
	msi := nic
	msi.Interrupts = Interrupts{Vectors: 5, MSI: true}
	for _, c := range []struct {
		name            string
		f               Function
		words, writable map[int]uint32 // of the capability at 0x7c
	}{
		{"MSI-X", nic, map[int]uint32{0x7c: 0x00040011, 0x80: 0x00000001, 0x84: 0x00000801}, map[int]uint32{0x7c: 0xc0000000}},
		{"MSI", msi, map[int]uint32{0x7c: 0x01860005}, map[int]uint32{0x7c: 0x00710000, 0x80: 0xfffffffc, 0x84: 0xffffffff, 0x88: 0x0000ffff, 0x8c: 0x000000ff}},
	} {
		maps.Copy(c.words, words)
		maps.Copy(c.writable, writable)
		s := space(t, c.f)
		for off := 0; off < Size; off += 4 {
			was := s.word(off)
			if was != c.words[off] {
				t.Errorf("%s: %#x is %#08x, want %#08x", c.name, off, was, c.words[off])
			}
			s.store(off, ^was)
			if is := s.word(off) ^ was; is != c.writable[off] {
				t.Errorf("%s: of %#x %#08x can be changed, want %#08x", c.name, off, is, c.writable[off])
			}
		}
		if s.Reset(); s.word(0x10) != 0 || s.word(0x48) != 0x2810 {
			t.Errorf("%s: not as at first after a reset", c.name)
		}
	}
}
