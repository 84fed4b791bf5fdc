package virtqueue

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/falcon-vnic/vnic/queues"
)

// TestTablesHaveWholeDescriptors: an indirect table consists of whole descriptors, from one to as
// many as a ring can have.
func TestTablesHaveWholeDescriptors(t *testing.T) {
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

// TestMemoryIsFoundByAddress: a slice of memory lies within one region and may reach its last byte.
// The region that the slice before came from makes no difference.
func TestMemoryIsFoundByAddress(t *testing.T) {
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

// TestFaultsOfTheMemoryAreKnown: a fault counts as the guest's if its address is in one of the
// guest's regions.
func TestFaultsOfTheMemoryAreKnown(t *testing.T) {
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

// fault is the value with which a fault at an address panics.
type fault uintptr

func (f fault) Addr() uintptr { return uintptr(f) }

// TestPrefetchMayLeadNowhere: prefetching near the end of memory, or outside of it, does no harm.
func TestPrefetchMayLeadNowhere(t *testing.T) {
	var ram RAM
	ram.Set([]queues.Region{{Addr: 0x1000, Mem: make([]byte, 0x1000)}})
	for at := uint64(0xfff); at <= 0x2001; at++ {
		ram.touch(at)
	}
}

// TestEventIsDueWhenItsIndexIsPassed: a driver that waits for an index is notified once, when the
// ring passes that index, also where indices wrap to 0.
func TestEventIsDueWhenItsIndexIsPassed(t *testing.T) {
	const around = 5
	for _, old := range []uint16{0, 1, 100, 0x7fff, 0xfffe, 0xffff} {
		for n := range uint16(around) {
			for event := old - around; event != old+2*around; event++ {
				passed := false
				for i := range n {
					passed = passed || old+i == event
				}
				if needEvent(event, old+n, old) != passed {
					t.Errorf("from %d to %d, waiting for %d: told %t", old, old+n, event, !passed)
				}
			}
		}
	}
}

// TestBufferMayEndWithTheLastAddress: a buffer may end at the last address, and does not wrap to 0.
func TestBufferMayEndWithTheLastAddress(t *testing.T) {
	var ram RAM
	ram.Set([]queues.Region{{Addr: 1<<64 - 4096, Mem: make([]byte, 4096)}, {Addr: 0, Mem: make([]byte, 4096)}})
	for size, ok := range map[uint32]bool{15: true, 16: true, 17: false, 4096: false} {
		var c Chain
		if err := c.add(&ram, 1<<64-16, size, false, &much); (err == nil) != ok || ok && c.OutLen != int(size) {
			t.Errorf("%d bytes at 16 before the end: %v, %d bytes", size, err, c.OutLen)
		}
	}
}

// TestBufferGoesOnInTheNextRegion: a buffer may continue into the region whose addresses follow
// without a gap.
func TestBufferGoesOnInTheNextRegion(t *testing.T) {
	regions := []queues.Region{
		{Addr: 0x1000, Mem: make([]byte, 0x100)},
		{Addr: 0x1100, Mem: make([]byte, 0x10)},
		{Addr: 0x1110, Mem: make([]byte, 0x100)},
		{Addr: 0x1300, Mem: make([]byte, 0x100)},
	}
	var ram RAM
	ram.Set(regions)
	for _, tt := range []struct {
		addr uint64
		size uint32
		want []int // lengths of its parts; nil: refused
	}{
		{0x10f0, 0x10, []int{0x10}},
		{0x10f0, 0x11, []int{0x10, 1}},
		{0x10f0, 0x20, []int{0x10, 0x10}},
		{0x10f0, 0x21, []int{0x10, 0x10, 1}},
		{0x1108, 0x108, []int{8, 0x100}},
		{0x1108, 0x109, nil},
		{0x12ff, 1, nil},
		{0x1300, 0x100, []int{0x100}},
		{0x1300, 0x101, nil},
	} {
		for _, write := range []bool{false, true} {
			var c Chain
			err := c.add(&ram, tt.addr, tt.size, write, &much)
			if (err == nil) != (tt.want != nil) {
				t.Errorf("%d bytes at %#x: %v", tt.size, tt.addr, err)
			}
			if err != nil {
				continue
			}
			parts, n := c.Out(), c.OutLen
			if write {
				parts, n = c.In(), c.InLen
			}
			if len(parts) != len(tt.want) || n != int(tt.size) || c.InLen+c.OutLen != n {
				t.Fatalf("%d bytes at %#x: %d parts, %d to read, %d to write", tt.size, tt.addr, len(parts), c.OutLen, c.InLen)
			}
			at := tt.addr
			for i, b := range parts {
				want := ram.at(at)
				if len(b) != tt.want[i] || cap(b) != len(b) || &b[0] != &want[0] {
					t.Errorf("%d bytes at %#x: part %d has %d", tt.size, tt.addr, i, len(b))
				}
				at += uint64(len(b))
			}
		}
	}
}

// much is more work than any test uses.
var much Work = 1 << 40

// TestHalfAWordIsStoredAlone: load16 and store16 touch their 16 bits only.
func TestHalfAWordIsStoredAlone(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 1000 {
		b := binary.LittleEndian.AppendUint64(nil, rng.Uint64())
		want := append([]byte(nil), b...)
		at, v := 2*rng.IntN(4), uint16(rng.Uint32())
		binary.LittleEndian.PutUint16(want[at:], v)
		if got, is := load16(b[at:at+2]), binary.LittleEndian.Uint16(b[at:]); got != is {
			t.Fatalf("%#x at %d of % x", got, at, b)
		}
		if store16(b[at:at+2], v); string(b) != string(want) {
			t.Fatalf("%#x at %d: % x, want % x", v, at, b, want)
		}
	}
}
