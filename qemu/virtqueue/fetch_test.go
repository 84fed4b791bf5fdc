package virtqueue

import (
	"testing"

	"github.com/falcon-vnic/vnic/qemu/vhosttest"
	"github.com/falcon-vnic/vnic/queues"
)

// TestFetchedAhead: what chains begin with is loaded for many at a time, when those before are used
// up, and never what the driver has not made available. Each buffer tells its number, twice.
func TestFetchedAhead(t *testing.T) {
	const chains, more, bufs = 20, 3, 0x20000
	for _, c := range []struct {
		packed bool
		parts  int         // buffers of a chain
		loaded map[int]int // before which chain, and the number of the buffer that is loaded last then
	}{
		{false, 1, map[int]int{0: 16, 16: 20, 20: 23}},
		{false, 2, map[int]int{0: 31, 16: 39, 20: 45}}, // the first of each chain
		{true, 1, map[int]int{0: 16, 16: 20, 20: 23}},
		{true, 2, map[int]int{0: 16, 8: 32, 16: 40, 20: 46}}, // all that follow each other
	} {
		mem := make([]byte, 1<<18)
		d := vhosttest.NewQueue(mem, vhosttest.QueueConfig{At: 0x1000, Size: 64, Packed: c.packed})
		added := 0
		add := func(n int) {
			for range n {
				var list []vhosttest.Buffer
				for range c.parts {
					at := bufs + added*128
					added++
					mem[at], mem[at+cacheLine] = byte(added), byte(added)
					list = append(list, vhosttest.Buffer{Addr: uint64(at), Len: 100})
				}
				d.Add(list...)
			}
			d.Show()
		}
		var ram RAM
		ram.Set([]queues.Region{{Mem: mem}})
		desc, driver, device := d.Parts()
		r, err := New(&ram, Config{Size: 64, Desc: desc, Driver: driver, Device: device, Packed: c.packed, Base: d.Base()})
		if err != nil {
			t.Fatal(err)
		}
		add(chains)
		want := byte(0)
		for i := range chains + more {
			if i == chains {
				add(more)
			}
			if ch, err := r.Take(&much); ch == nil || err != nil {
				t.Fatalf("chain %d: %v", i, err)
			}
			if n, ok := c.loaded[i]; ok {
				want = byte(n)
			}
			if ram.touched != [2]byte{want, want} {
				t.Errorf("packed %t, %d buffers each: with chain %d buffer %d is loaded last, want %d", c.packed, c.parts, i, ram.touched, want)
			}
		}
	}
}

// TestNeedEvent: who waits for an index is told when that was passed, and neither before nor again,
// also where indices begin at 0 again.
func TestNeedEvent(t *testing.T) {
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

// TestEndOfAddresses: a buffer may end with the last address there is, and does not go on at 0.
func TestEndOfAddresses(t *testing.T) {
	var ram RAM
	ram.Set([]queues.Region{{Addr: 1<<64 - 4096, Mem: make([]byte, 4096)}, {Addr: 0, Mem: make([]byte, 4096)}})
	for size, ok := range map[uint32]bool{15: true, 16: true, 17: false, 4096: false} {
		var c Chain
		if err := c.add(&ram, 1<<64-16, size, false, &much); (err == nil) != ok || ok && c.OutLen != int(size) {
			t.Errorf("%d bytes at 16 before the end: %v, %d bytes", size, err, c.OutLen)
		}
	}
}

// TestBufferInSeveralRegions: a buffer may go on in the region that follows its own, in addresses;
// what is between has to be memory.
func TestBufferInSeveralRegions(t *testing.T) {
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

// much is more work than a test needs.
var much Work = 1 << 40
