package virtqueue

import (
	"errors"
	"reflect"
	"testing"

	"github.com/falcon-vnic/vnic/queues"
)

// TestTables: an indirect table has whole descriptors, one at least and as many as a ring at most.
func TestTables(t *testing.T) {
	var ram RAM
	ram.Set([]queues.Region{{Addr: 0x1000, Mem: make([]byte, (MaxSize+2)*descLen)}})
	for size, ok := range map[uint32]bool{
		0: false, 1: false, descLen - 1: false, descLen: true, descLen + 1: false, 2 * descLen: true, 100 * descLen: true,
		MaxSize * descLen: true, (MaxSize + 1) * descLen: false, 0xfffffff0: false,
	} {
		if b, err := table(&ram, 0x1000, size); (err == nil) != ok || ok && len(b) != int(size) {
			t.Errorf("a table of %d bytes: %v", size, err)
		}
	}
}

// TestRAM: what is read lies in one region, whichever was read before, up to its last byte.
func TestRAM(t *testing.T) {
	regions := []queues.Region{{Addr: 0x5000, Mem: make([]byte, 0x1000)}, {Addr: 0x1000, Mem: make([]byte, 0x1000)}, {Addr: 0x2000, Mem: make([]byte, 0x100)}}
	for i, r := range regions {
		for k := range r.Mem {
			r.Mem[k] = byte(i + 1)
		}
	}
	var ram RAM
	if _, err := ram.slice(0, 1); err == nil {
		t.Error("memory before there is any")
	}
	ram.Set(regions)
	for range 2 {
		for _, c := range []struct {
			addr, n uint64
			of      byte // 0: refused
		}{
			{0x1000, 0x1000, 2},
			{0x1fff, 1, 2},
			{0x1fff, 2, 0},
			{0xfff, 1, 0},
			{0x2000, 0x100, 3},
			{0x20ff, 1, 3},
			{0x2100, 1, 0},
			{0x20ff, 2, 0},
			{0x4fff, 1, 0},
			{0x5000, 0x1000, 1},
			{0x5000, 0x1001, 0},
			{0x5fff, 1, 1},
			{0x6000, 1, 0},
			{1<<64 - 1, 1, 0},
			{0x5800, 1<<64 - 1, 0},
		} {
			b, err := ram.slice(c.addr, c.n)
			if (err == nil) != (c.of != 0) || err == nil && (uint64(len(b)) != c.n || b[0] != c.of || b[len(b)-1] != c.of) {
				t.Errorf("%d bytes at %#x: %d, %v", c.n, c.addr, len(b), err)
			}
		}
	}
}

// TestFaulted: a fault is one of the guest's memory if it is in a region, and not behind it.
func TestFaulted(t *testing.T) {
	mem := make([]byte, 0x3000)
	var ram RAM
	ram.Set([]queues.Region{{Addr: 0x1000, Mem: mem[0x1000:0x2000]}})
	base := reflect.ValueOf(mem).Pointer()
	for at, want := range map[uintptr]bool{0xfff: false, 0x1000: true, 0x1fff: true, 0x2000: false} {
		if got := ram.Faulted(fault(base + at)); got != want {
			t.Errorf("a fault at %#x, the region is 0x1000 to 0x2000: %v", at, got)
		}
	}
	if ram.Faulted(errors.New("no fault")) {
		t.Error("another panic is taken for a fault")
	}
}

// fault is what a fault at an address panics with.
type fault uintptr

func (f fault) Addr() uintptr { return uintptr(f) }

// TestTouch: what is loaded ahead may be near the end of memory, or nowhere.
func TestTouch(t *testing.T) {
	var ram RAM
	ram.Set([]queues.Region{{Addr: 0x1000, Mem: make([]byte, 0x1000)}})
	for at := uint64(0xfff); at <= 0x2001; at++ {
		ram.touch(at)
	}
}
