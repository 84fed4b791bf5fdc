package pci

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"testing"
)

var nic = Endpoint{
	IDs:        IDs{Vendor: 0x1234, Device: 0x5678, SubVendor: 0x9abc, SubDevice: 0xdef0, Revision: 2},
	BARs:       [6]BAR{{Size: 8192}, {Size: TablesSize}, {Size: 1 << 18, Wide: true, Prefetch: true}},
	Interrupts: Interrupts{Vectors: 5, BAR: 1},
	Serial:     0x0102030405060708,
}

func space(t *testing.T, f Endpoint) *Space {
	t.Helper()
	s, err := New(&f)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *Space) word(off int) uint32 {
	var b [4]byte
	s.Read(uint64(off), b[:])
	return binary.LittleEndian.Uint32(b[:])
}

func (s *Space) store(off int, v uint32) bool {
	return s.Write(uint64(off), binary.LittleEndian.AppendUint32(nil, v))
}

// caps follows the chain of capabilities as a kernel does.
func caps(t *testing.T, s *Space) map[byte]int {
	t.Helper()
	found := map[byte]int{}
	for at, n := int(s.regs.b[offCaps]), 0; at != 0; at, n = int(s.regs.b[at+1]), n+1 {
		if at < 0x40 || at%4 != 0 || n > 48 {
			t.Fatalf("a capability at %#x", at)
		}
		found[s.regs.b[at]] = at
	}
	return found
}

// TestHeaderHasIDsAndClass: the ids, the class, and the first words as lspci -x shows them.
func TestHeaderHasIDsAndClass(t *testing.T) {
	s := space(t, nic)
	for off, want := range map[int]uint32{
		0x00: 0x56781234, 0x04: 0x00100000, 0x08: 0x02000002, 0x0c: 0, 0x2c: 0xdef09abc, 0x30: 0,
	} {
		if got := s.word(off); got != want {
			t.Errorf("%#x: %#08x, want %#08x", off, got, want)
		}
	}
}

// TestBARsTellTheirSize: after all ones are written to a BAR, the bits that stay give its size (PCI
// 3.0 §6.2.5.1).
func TestBARsTellTheirSize(t *testing.T) {
	s := space(t, nic)
	for i, want := range []uint32{0xffffe000, 0xfffff000, 0xfffc000c, 0xffffffff, 0, 0} {
		off := offBAR0 + 4*i
		s.store(off, 0xffffffff)
		if got := s.word(off); got != want {
			t.Errorf("BAR%d: %#08x, want %#08x", i, got, want)
		}
	}
	s.store(offBAR0, 0xfebf1234)
	if got := s.word(offBAR0); got != 0xfebf0000 {
		t.Errorf("BAR0 at %#x", got)
	}
}

// TestCapabilitiesAreLinked: PCI Express with a function level reset, MSI-X with tables in BAR1,
// the serial number.
func TestCapabilitiesAreLinked(t *testing.T) {
	s := space(t, nic)
	c := caps(t, s)
	if len(c) != 2 {
		t.Fatalf("%v", c)
	}
	at := c[capExpress]
	if s.word(at)>>16 != expressVersion2 || s.word(at+4)&expressCapReset == 0 {
		t.Errorf("PCI Express: %#x, %#x", s.word(at), s.word(at+4))
	}
	at = c[capMSIX]
	if s.word(at)>>16 != 4 || s.word(at+4) != 1 || s.word(at+8) != 0x801 {
		t.Errorf("MSI-X: %#x %#x %#x", s.word(at), s.word(at+4), s.word(at+8))
	}
	if s.store(at, 0xffffffff); s.word(at)>>16 != 0xc004 {
		t.Errorf("MSI-X enabled: %#x", s.word(at))
	}
	if s.word(0x100) != 0x00010003 || s.word(0x104) != 0x05060708 || s.word(0x108) != 0x01020304 {
		t.Errorf("serial number: %#x %#x %#x", s.word(0x100), s.word(0x104), s.word(0x108))
	}
}

// TestMSIReplacesMSIX: a function with MSI has no MSI-X, and a power of two of vectors.
func TestMSIReplacesMSIX(t *testing.T) {
	f := nic
	f.Interrupts = Interrupts{Vectors: 5, MSI: true}
	s := space(t, f)
	c := caps(t, s)
	at, there := c[capMSI]
	if _, x := c[capMSIX]; x || !there || s.word(at)>>16 != msi64|msiMaskable|3<<1 {
		t.Fatalf("%v, %#x", c, s.word(at))
	}
	s.store(at+msiMask, 0xffffffff)
	if s.word(at+msiMask) != 0xff {
		t.Errorf("mask %#x", s.word(at+msiMask))
	}
	s.store(at+msiAddress, 0xfee01003)
	if s.word(at+msiAddress) != 0xfee01000 {
		t.Errorf("address %#x", s.word(at+msiAddress))
	}
}

// TestOnlyOneBitResets: bit 15 of the device control register resets, however wide the access,
// and reads as zero; nothing else does.
func TestOnlyOneBitResets(t *testing.T) {
	s := space(t, nic)
	at := s.express + expressControl
	before := s.regs.b
	for off, b := range map[int][]byte{at: {0x10, 0xa8}, at + 1: {0x80}, at - 2: {0, 0, 0, 0x80}} {
		if !s.Write(uint64(off), b) {
			t.Errorf("%x at %#x does not reset", b, off)
		}
		if s.word(at)&expressReset != 0 {
			t.Error("the bit can be read")
		}
	}
	if s.Write(uint64(at), []byte{0xff, 0x7f}) || s.Write(uint64(at)-1, []byte{0x80}) {
		t.Error("something else resets")
	}
	if s.Reset(); s.regs.b != before {
		t.Error("not as it was first")
	}
}

// TestReadOnlyBitsStay: whatever is written, and wherever, only the bits of the mask change, and
// nothing outside.
func TestReadOnlyBitsStay(t *testing.T) {
	s := space(t, nic)
	rng := rand.New(rand.NewPCG(1, 1))
	for range 20000 {
		b := make([]byte, rng.IntN(9))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		s.Write(uint64(rng.IntN(Size+8)), b)
	}
	s.Write(^uint64(0)-1, []byte{1, 2, 3, 4}) // wraps to the header's ids, which cannot be written
	for i := range s.regs.b {
		if (s.regs.b[i]^s.initial[i])&^s.regs.mask[i] != 0 {
			t.Fatalf("byte %#x changed from %#x to %#x, the mask is %#x", i, s.initial[i], s.regs.b[i], s.regs.mask[i])
		}
	}
	past := []byte{1, 1, 1, 1}
	if s.Read(Size-2, past); !bytes.Equal(past, make([]byte, 4)) {
		t.Errorf("past the end: %x", past)
	}
}

// TestImpossibleEndpointsAreRefused: endpoints that no bus can have are refused.
func TestImpossibleEndpointsAreRefused(t *testing.T) {
	for name, change := range map[string]func(f *Endpoint){
		"BAR of 3000 bytes":      func(f *Endpoint) { f.BARs[0].Size = 3000 },
		"tiny BAR":               func(f *Endpoint) { f.BARs[0].Size = 8 },
		"64-bit BAR onto others": func(f *Endpoint) { f.BARs[0].Wide = true },
		"64-bit BAR at the end":  func(f *Endpoint) { f.BARs[5] = BAR{Size: 4096, Wide: true} },
		"BAR of 4 GiB":           func(f *Endpoint) { f.BARs[0].Size = 1 << 32 },
		"no interrupt":           func(f *Endpoint) { f.Interrupts.Vectors = 0 },
		"129 vectors":            func(f *Endpoint) { f.Interrupts.Vectors = 129 },
		"33 vectors of MSI":      func(f *Endpoint) { f.Interrupts = Interrupts{Vectors: 33, MSI: true} },
	} {
		f := nic
		change(&f)
		if _, err := New(&f); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

// TestMSIVectorsAreAPowerOfTwo: MSI shows the next power of two of vectors, with a mask bit for
// each (PCI 3.0 §6.8.1.3).
func TestMSIVectorsAreAPowerOfTwo(t *testing.T) {
	for n := 1; n <= 32; n++ {
		log := 0
		for 1<<log < n {
			log++
		}
		f := nic
		f.Interrupts = Interrupts{Vectors: n, MSI: true}
		s := space(t, f)
		at := caps(t, s)[capMSI]
		s.store(at+msiMask, 0xffffffff)
		if got, mask := s.word(at)>>17&7, s.word(at+msiMask); got != uint32(log) || mask != uint32(1<<(1<<log)-1) {
			t.Errorf("%d vectors: log2 %d, mask %#x", n, got, mask)
		}
	}
}

// TestBytesBeyondTheEndAreZero: bytes past the end read as zero and are not written.
func TestBytesBeyondTheEndAreZero(t *testing.T) {
	s := space(t, nic)
	for _, off := range []uint64{Size - 2, Size - 1, Size, Size + 1, 1<<64 - 1} {
		b := []byte{1, 2, 3, 4}
		if s.Read(off, b); off >= Size && binary.LittleEndian.Uint32(b) != 0 || b[3] != 0 {
			t.Errorf("%#x: % x", off, b)
		}
		if off < 1<<63 && s.Write(off, b) {
			t.Errorf("%#x: a write ordered a reset", off)
		}
	}
}

// TestBytesOfTheSpace holds both kinds of configuration space word by word: what is read at first,
// and which bits a driver can change. Words that are not listed are zero, and stay so.
func TestBytesOfTheSpace(t *testing.T) {
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
		f               Endpoint
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

// TestPossibleEndpointsAreAccepted: endpoints at the limits of what a bus can have are accepted.
func TestPossibleEndpointsAreAccepted(t *testing.T) {
	for name, change := range map[string]func(f *Endpoint){
		"smallest BAR":            func(f *Endpoint) { f.BARs[0].Size = 16 },
		"largest BAR of 32 bits":  func(f *Endpoint) { f.BARs[0].Size = 1 << 31 },
		"BAR of 4 GiB":            func(f *Endpoint) { f.BARs[2].Size = 1 << 32 },
		"64-bit BAR at the end":   func(f *Endpoint) { f.BARs[4] = BAR{Size: 4096, Wide: true} },
		"32-bit BAR at the end":   func(f *Endpoint) { f.BARs[5] = BAR{Size: 4096} },
		"no BARs":                 func(f *Endpoint) { f.BARs = [6]BAR{} },
		"one vector":              func(f *Endpoint) { f.Interrupts.Vectors = 1 },
		"128 vectors":             func(f *Endpoint) { f.Interrupts.Vectors = 128 },
		"one vector of MSI":       func(f *Endpoint) { f.Interrupts = Interrupts{Vectors: 1, MSI: true} },
		"32 vectors of MSI":       func(f *Endpoint) { f.Interrupts = Interrupts{Vectors: 32, MSI: true} },
		"wide BAR that is absent": func(f *Endpoint) { f.BARs[5] = BAR{Wide: true} },
	} {
		f := nic
		change(&f)
		if _, err := New(&f); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
