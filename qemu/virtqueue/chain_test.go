package virtqueue_test

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/qemu/vhosttest"
	"github.com/falcon-vnic/vnic/qemu/virtqueue"
	"github.com/falcon-vnic/vnic/queues"
)

// TestChainsThatAreTooLongBreakTheRing: a chain has at most MaxSegments descriptors, in the ring or
// in tables, empty or not. A longer one breaks the ring.
func TestChainsThatAreTooLongBreakTheRing(t *testing.T) {
	const size, tableAt = 1024, 0x20000
	for _, packed := range []bool{false, true} {
		for _, indirect := range []bool{false, true} {
			for _, n := range []int{virtqueue.MaxSegments, virtqueue.MaxSegments + 1} {
				mem := pages(t, memSize)
				c := vhosttest.QueueConfig{At: queueAt, Size: size, Packed: packed, Indirect: indirect}
				cfg := config(vhosttest.NewQueue(mem, c))
				avail := uint16(0)
				if packed {
					avail = 1 << 7
				}
				at := cfg.Desc
				if indirect {
					at = tableAt
				}
				for i := range n {
					next := uint16(vhosttest.DescNext)
					if i == n-1 {
						next = 0
					}
					if packed {
						putDesc(mem[at+16*uint64(i):], bufAt, 0, 0, next|avail)
					} else {
						putDesc(mem[at+16*uint64(i):], bufAt, 0, next, uint16(i+1))
					}
				}
				if indirect && packed {
					putDesc(mem[cfg.Desc:], tableAt, uint32(16*n), 0, vhosttest.DescIndirect|avail)
				} else if indirect {
					putDesc(mem[cfg.Desc:], tableAt, uint32(16*n), vhosttest.DescIndirect, 0)
				}
				mem[cfg.Driver+2] = 1 // of a split ring: one is available
				ch, err := newRing(t, mem, cfg).Take(plenty())
				if (err != nil) != (n > virtqueue.MaxSegments) || err != nil && !errors.Is(err, virtqueue.ErrRing) || err == nil && (ch == nil || len(ch.Out()) != 0) {
					t.Errorf("packed %t, indirect %t: %d empty descriptors: %v", packed, indirect, n, err)
				}
			}
		}
	}
}

// TestChainWaitsForEnoughWork: Take does not begin a chain that needs more work than the turn has
// left. The next turn takes it as a whole.
func TestChainWaitsForEnoughWork(t *testing.T) {
	eachKind(t, func(t *testing.T, c vhosttest.QueueConfig) {
		mem := pages(t, memSize)
		d := vhosttest.NewQueue(mem, c)
		r := newRing(t, mem, config(d))
		for i := range uint64(3) {
			d.Add(vhosttest.Buffer{Addr: bufAt + i<<12, Len: 10}, vhosttest.Buffer{Addr: bufAt + i<<12, Len: 0}, vhosttest.Buffer{Addr: bufAt + i<<12, Len: 20})
		}
		d.Show()
		cost := virtqueue.Work(3)
		if c.Indirect {
			cost++ // for the descriptor of the table
		}
		if c.Indirect && c.Packed {
			cost = 4
		}
		for i := range 3 {
			before := r.Mark()
			for left := range cost {
				w := left
				if ch, err := r.Take(&w); ch != nil || err != nil || w != 0 || r.Mark() != before {
					t.Fatalf("chain %d with work for %d descriptors of %d: %v, %v", i, left, cost, ch, err)
				}
			}
			w := cost
			if ch, err := r.Take(&w); ch == nil || err != nil || w != 0 || ch.OutLen != 30 {
				t.Fatalf("chain %d: %v, %v, %d left", i, ch, err, w)
			}
		}
	})
}

// TestBuffersMaySpanRegions: any number of regions may hold a chain's buffers, and a buffer that
// spans several regions costs work for each.
func TestBuffersMaySpanRegions(t *testing.T) {
	const n = 509
	backing := pages(t, (n+1)*4096)
	var regions []queues.Region
	for _, i := range rand.New(rand.NewPCG(1, 1)).Perm(n) {
		gap := uint64(i / 8 * 4096) // eight follow each other
		regions = append(regions, queues.Region{Addr: uint64(i)<<12 + gap, Mem: backing[i<<12:][:4096]})
	}
	var m virtqueue.RAM
	m.Set(regions)
	c := vhosttest.QueueConfig{At: 0, Size: 16}
	mem := backing // the first region begins at 0
	d := vhosttest.NewQueue(mem, c)
	r, err := virtqueue.New(&m, config(d))
	if err != nil {
		t.Fatal(err)
	}
	for _, region := range regions {
		if region.Addr < 0x4000 { // the ring's
			continue
		}
		binary.LittleEndian.PutUint32(region.Mem, uint32(region.Addr))
		id, _ := d.Add(vhosttest.Buffer{Addr: region.Addr, Len: 4})
		d.Show()
		ch, err := r.Take(plenty())
		if err != nil || ch == nil || binary.LittleEndian.Uint32(ch.Out()[0]) != uint32(region.Addr) {
			t.Fatalf("at %#x: %v, %v", region.Addr, ch, err)
		}
		r.Done(0)
		r.Publish()
		if got, _, ok := d.Used(); !ok || got != id {
			t.Fatalf("at %#x: %d came back", region.Addr, got)
		}
	}
	for _, hole := range []uint64{8 << 12, uint64(n+64) << 12} {
		d.Add(vhosttest.Buffer{Addr: hole, Len: 4})
		d.Show()
		if ch, err := r.Take(plenty()); !errors.Is(err, virtqueue.ErrRing) {
			t.Errorf("a buffer at %#x, where nothing is: %v, %v", hole, ch, err)
		}
	}
}

// FuzzWork: whatever is in a guest's memory, Take examines no more descriptors than its work
// allows, as the test's own count confirms, subtracts that work, and makes progress if it has
// MaxSegments.
func FuzzWork(f *testing.F) {
	const size, driver, device, end = 64, 1024, 1200, 8192
	f.Add([]byte{}, uint8(0), uint64(1), uint16(1))
	f.Add([]byte{1, 2, 3}, uint8(3), uint64(2), uint16(300))
	f.Fuzz(func(t *testing.T, b []byte, kind uint8, seed uint64, budget uint16) {
		mem := make([]byte, end)
		c := kinds()[kind%8]
		rng := rand.New(rand.NewPCG(seed, 1))
		// Chains of the greatest length, of empty descriptors, and tables that name tables. The
		// fuzzer changes them.
		for at := 0; at+16 <= end; at += 16 {
			if at >= driver && at < device+600 {
				continue
			}
			flags := uint16(rng.IntN(4)) & vhosttest.DescNext
			if rng.IntN(8) == 0 {
				flags = vhosttest.DescIndirect
			}
			x, y := flags, uint16(rng.IntN(size))
			if c.Packed {
				x, y = uint16(rng.IntN(size)), flags|1<<7
			}
			n := uint32(rng.IntN(2) * 8)
			if flags == vhosttest.DescIndirect {
				n = uint32(16 * rng.IntN(300))
			}
			putDesc(mem[at:], uint64(rng.IntN(end/16)*16), n, x, y)
		}
		for i, v := range b {
			mem[(i*37)%driver] ^= v
		}
		for i := range size {
			binary.LittleEndian.PutUint16(mem[driver+4+2*i:], uint16(rng.IntN(size)))
		}
		mem[driver+2] = size
		cfg := virtqueue.Config{Size: size, Driver: driver, Device: device, Packed: c.Packed, Indirect: c.Indirect}
		if c.Packed {
			cfg.Base = 0x8000
		}
		r, err := virtqueue.New(ramOf(mem), cfg)
		if err != nil {
			t.Fatal(err)
		}
		at := 0
		for range size {
			before, w := r.Mark(), virtqueue.Work(budget%1024)
			ch, err := r.Take(&w)
			spent := virtqueue.Work(budget%1024) - w
			if w < 0 || spent > 2*virtqueue.MaxSegments+1 {
				t.Fatalf("%d was taken of %d", spent, budget%1024)
			}
			if err != nil {
				return
			}
			if ch == nil {
				if r.Mark() != before {
					t.Fatal("a chain was taken in part")
				}
				if budget%1024 >= 2*virtqueue.MaxSegments+1 && !c.Packed {
					t.Fatal("there was work left, and a chain")
				}
				return
			}
			n := 0
			if n, at = descriptorsOf(mem, &cfg, at); n > int(spent) {
				t.Fatalf("a chain of %d descriptors took work for %d", n, spent)
			}
			r.Done(0)
		}
	})
}

// descriptorsOf counts the descriptors of the chain that begins at an index of a valid ring, and
// returns the index behind it.
func descriptorsOf(mem []byte, c *virtqueue.Config, at int) (n, next int) {
	le := binary.LittleEndian
	flagsAt, nextAt := 12, 14
	if c.Packed {
		flagsAt = 14
	}
	i := at
	if !c.Packed {
		i = int(le.Uint16(mem[int(c.Driver)+4+2*at:]))
	}
	for next = at + 1; ; n++ {
		d := mem[16*i:]
		flags := le.Uint16(d[flagsAt:])
		if flags&vhosttest.DescIndirect != 0 {
			table := mem[le.Uint64(d):][:le.Uint32(d[8:])]
			if c.Packed {
				return n + 1 + len(table)/16, next
			}
			for j := 0; ; j = int(le.Uint16(table[16*j+nextAt:])) {
				n++
				if le.Uint16(table[16*j+flagsAt:])&vhosttest.DescNext == 0 {
					return n + 1, next
				}
			}
		}
		if flags&vhosttest.DescNext == 0 {
			return n + 1, next
		}
		if c.Packed {
			i = (i + 1) % int(c.Size)
			next++
		} else {
			i = int(le.Uint16(d[nextAt:]))
		}
	}
}

// TestTheLongestChainIsTaken: a chain may have MaxSegments buffers, and as many descriptors as its
// ring.
func TestTheLongestChainIsTaken(t *testing.T) {
	for _, packed := range []bool{false, true} {
		for _, tt := range []struct {
			size uint16
			n    int
			says string // "": it is taken
		}{
			{512, virtqueue.MaxSegments, ""},
			{512, virtqueue.MaxSegments + 1, "more than 256 descriptors"},
			{16, 16, ""},
		} {
			mem := pages(t, memSize)
			d := vhosttest.NewQueue(mem, vhosttest.QueueConfig{At: queueAt, Size: tt.size, Packed: packed})
			bufs := make([]vhosttest.Buffer, tt.n)
			for i := range bufs {
				bufs[i] = vhosttest.Buffer{Addr: bufAt, Len: 8}
			}
			if _, ok := d.Add(bufs...); !ok {
				t.Fatal("no room")
			}
			d.Show()
			ch, err := newRing(t, mem, config(d)).Take(plenty())
			if tt.says != "" {
				if !errors.Is(err, virtqueue.ErrRing) || !strings.Contains(err.Error(), tt.says) {
					t.Errorf("packed %t, %d buffers: %v", packed, tt.n, err)
				}
				continue
			}
			if err != nil || len(ch.Out()) != tt.n {
				t.Errorf("packed %t, %d buffers in a ring of %d: %v", packed, tt.n, tt.size, err)
			}
		}
	}
}

// TestLoopIsFoundByItsLength: a chain of a split ring that leads back to itself is refused as too
// long, even if its buffers are empty.
func TestLoopIsFoundByItsLength(t *testing.T) {
	for _, size := range []uint32{0, 8} {
		mem := pages(t, memSize)
		d := vhosttest.NewQueue(mem, vhosttest.QueueConfig{At: queueAt, Size: 16})
		d.Add(vhosttest.Buffer{Addr: bufAt, Len: 8})
		d.Show()
		desc, _, _ := d.Parts()
		for i := range uint64(16) {
			putDesc(mem[desc+16*i:], bufAt, size, vhosttest.DescNext, uint16(i+1)%16)
		}
		if _, err := newRing(t, mem, config(d)).Take(plenty()); !errors.Is(err, virtqueue.ErrRing) || !strings.Contains(err.Error(), "loops") {
			t.Errorf("%v", err)
		}
	}
}
