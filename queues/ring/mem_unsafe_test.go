package ring

import (
	"errors"
	"testing"
	"unsafe"
)

// newMem returns zeroed memory for the layout, 8-byte aligned.
func newMem(l Layout) Mem {
	words := make([]uint64, (l.Size()+7)/8)
	return Mem(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), 8*len(words))[:l.Size()])
}

func TestMemRefusesAccessOutOfBounds(t *testing.T) {
	words := make([]uint64, 4)
	m := Mem(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), 32))
	must(t, m.Store32(28, 1))
	must(t, m.Store64Release(24, 2))
	if v, err := m.Load64(24); v != 2 || err != nil {
		t.Error(v, err)
	}
	if v, err := m.Load32(24); v != 2 || err != nil {
		t.Error(v, err)
	}
	const top = ^uint64(0)
	for _, off := range []uint64{29, 32, 33, top, top - 3, top - 7} {
		for name, err := range map[string]error{
			"ReadAt":         m.ReadAt(off, make([]byte, 8)),
			"WriteAt":        m.WriteAt(off, make([]byte, 8)),
			"Store32":        m.Store32(off, 0),
			"Store64Release": m.Store64Release(off, 0),
			"Load32":         second(m.Load32(off)),
			"Load64":         second(m.Load64(off)),
		} {
			if !errors.Is(err, ErrBounds) {
				t.Errorf("%s at %#x: %v", name, off, err)
			}
		}
	}
	if err := m.ReadAt(32, nil); err != nil {
		t.Errorf("nothing at the end: %v", err)
	}
	if err := m.Store64Release(4, 0); !errors.Is(err, ErrBounds) {
		t.Errorf("misaligned: %v", err)
	}
}
