package virtqueue_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/internal/allocs"
	"github.com/falcon-vnic/vnic/qemu/vhosttest"
	"github.com/falcon-vnic/vnic/qemu/virtqueue"
	"github.com/falcon-vnic/vnic/queues"
)

const (
	memSize = 1 << 20
	queueAt = 0x1000
	bufAt   = 0x40000
)

// pages returns memory that the race detector does not watch. It stands for a guest's.
func pages(tb testing.TB, size int) []byte {
	tb.Helper()
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

func ramOf(mem []byte) *virtqueue.RAM {
	var m virtqueue.RAM
	m.Set([]queues.Region{{Addr: 0, Mem: mem}})
	return &m
}

func config(q *vhosttest.Queue) virtqueue.Config {
	desc, driver, device := q.Parts()
	return virtqueue.Config{Size: q.Size, Desc: desc, Driver: driver, Device: device, Packed: q.Packed, Indirect: q.Indirect, EventIdx: q.EventIdx, Base: q.Base()}
}

// work is the budget of a turn that never ends. Tests share it, since they do not run in parallel.
var work virtqueue.Work

func plenty() *virtqueue.Work {
	work = 1 << 40
	return &work
}

// kinds are all kinds of rings.
func kinds() (list []vhosttest.QueueConfig) {
	for i := range 8 {
		list = append(list, vhosttest.QueueConfig{At: queueAt, Size: 16, Packed: i&1 != 0, Indirect: i&2 != 0, EventIdx: i&4 != 0})
	}
	return list
}

func eachKind(t *testing.T, f func(t *testing.T, c vhosttest.QueueConfig)) {
	for _, c := range kinds() {
		t.Run(fmt.Sprintf("packed=%v,indirect=%v,event=%v", c.Packed, c.Indirect, c.EventIdx), func(t *testing.T) { f(t, c) })
	}
}

func newRing(tb testing.TB, mem []byte, c virtqueue.Config) virtqueue.Ring {
	tb.Helper()
	r, err := virtqueue.New(ramOf(mem), c)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// TestChainsComeInOrderAndGoBackOnce lets a driver and a device take random steps for many laps.
// All chains arrive whole and in order, each is returned once, and each waiting side is notified.
func TestChainsComeInOrderAndGoBackOnce(t *testing.T) {
	eachKind(t, func(t *testing.T, c vhosttest.QueueConfig) {
		mem := pages(t, memSize)
		d := vhosttest.NewQueue(mem, c)
		r := newRing(t, mem, config(d))
		rng := rand.New(rand.NewPCG(1, uint64(c.Size)))
		var posted, taken []posting
		out := map[uint16]posting{}
		armed, told := !r.Arm(), true
		serial := uint32(0)
		for range 20_000 {
			switch rng.IntN(4) {
			case 0: // the driver posts some
				for range rng.IntN(4) + 1 {
					p, ok := post(d, mem, rng, serial)
					if !ok {
						break
					}
					serial++
					posted, out[p.id] = append(posted, p), p
				}
				if kick := d.Show(); armed && len(posted) > 0 && !kick {
					t.Fatal("the device waits for a kick and gets none")
				} else if kick && !armed && c.EventIdx {
					t.Fatal("the device waits for nothing and gets a kick")
				} else if kick {
					armed = false
				}
			case 1: // the device takes some, perhaps gives some back
				if armed {
					break
				}
				m, n := r.Mark(), rng.IntN(5)
				got := 0
				for ; got < n; got++ {
					ch, err := r.Take(plenty())
					if err != nil {
						t.Fatal(err)
					}
					if ch == nil {
						break
					}
					posted[got].check(t, ch)
				}
				if rng.IntN(4) == 0 {
					r.Back(m)
					break
				}
				taken, posted = append(taken, posted[:got]...), posted[got:]
				if len(posted) == 0 && got < n {
					armed = !r.Arm()
				} else {
					r.Quiet()
				}
			case 2: // the device completes some
				for n := rng.IntN(len(taken) + 1); n > 0; n-- {
					r.Done(int(taken[0].in))
					taken = taken[1:]
				}
				if r.Publish() {
					told = true
				}
			default: // the driver takes back
				for {
					id, n, ok := d.Used()
					if !ok {
						break
					}
					p, mine := out[id]
					if !mine || n != p.in {
						t.Fatalf("used %d with %d bytes, want %+v", id, n, p)
					}
					if !told {
						t.Fatal("a chain came back and the driver was not told")
					}
					delete(out, id)
				}
				told = d.Interrupts(true)
			}
		}
		if serial < 3000 {
			t.Errorf("only %d chains", serial)
		}
	})
}

// posting is a chain as the driver posted it.
type posting struct {
	id      uint16
	serial  uint32
	out, in uint32
}

func post(d *vhosttest.Queue, mem []byte, rng *rand.Rand, serial uint32) (p posting, ok bool) {
	p.serial = serial
	var bufs []vhosttest.Buffer
	at := uint64(bufAt) + uint64(serial%64)*4096
	for i := range rng.IntN(3) + 1 {
		n := uint32(rng.IntN(100))
		if i == 0 {
			n += 4
		}
		bufs = append(bufs, vhosttest.Buffer{Addr: at, Len: n})
		at += uint64(n)
		p.out += n
	}
	for range rng.IntN(3) {
		n := uint32(rng.IntN(100))
		bufs = append(bufs, vhosttest.Buffer{Addr: at, Len: n, Write: true})
		at += uint64(n)
		p.in += n
	}
	p.id, ok = d.Add(bufs...)
	if ok {
		binary.LittleEndian.PutUint32(mem[bufAt+uint64(serial%64)*4096:], serial)
	}
	return p, ok
}

func (p *posting) check(t *testing.T, ch *virtqueue.Chain) {
	t.Helper()
	sum := func(list [][]byte) (n int) {
		for _, b := range list {
			n += len(b)
		}
		return n
	}
	if ch.OutLen != int(p.out) || ch.InLen != int(p.in) || sum(ch.Out()) != ch.OutLen || sum(ch.In()) != ch.InLen {
		t.Fatalf("chain of %d and %d bytes (%d, %d), want %+v", ch.OutLen, ch.InLen, sum(ch.Out()), sum(ch.In()), *p)
	}
	if got := binary.LittleEndian.Uint32(ch.Out()[0]); got != p.serial {
		t.Fatalf("chain %d, want %d", got, p.serial)
	}
}

func TestBrokenRingsAreRefused(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(mem []byte, desc, driver uint64, d *vhosttest.Queue)
		kind  vhosttest.QueueConfig
	}{
		{"loop", func(mem []byte, desc, _ uint64, _ *vhosttest.Queue) {
			for i := range uint64(16) {
				mem[desc+16*i+12], mem[desc+16*i+14] = 1, byte(i)
			}
		}, vhosttest.QueueConfig{}},
		{"next outside", func(mem []byte, desc, _ uint64, _ *vhosttest.Queue) {
			for i := range uint64(16) {
				mem[desc+16*i+12], mem[desc+16*i+14] = 1, 16
			}
		}, vhosttest.QueueConfig{}},
		{"head outside", func(mem []byte, _, driver uint64, _ *vhosttest.Queue) { mem[driver+4] = 200 }, vhosttest.QueueConfig{}},
		{"index too far", func(mem []byte, _, driver uint64, _ *vhosttest.Queue) { mem[driver+2] = 17 }, vhosttest.QueueConfig{}},
		{"index behind", func(mem []byte, _, driver uint64, _ *vhosttest.Queue) { mem[driver+2], mem[driver+3] = 0xff, 0xff }, vhosttest.QueueConfig{}},
		{"not offered indirect", func(mem []byte, desc, _ uint64, _ *vhosttest.Queue) {
			for i := range uint64(16) {
				mem[desc+16*i+12] |= 4
			}
		}, vhosttest.QueueConfig{}},
		{"not offered indirect, packed", func(mem []byte, desc, _ uint64, _ *vhosttest.Queue) {
			copy(mem[bufAt+0x100:], mem[desc:desc+16]) // a good table
			mem[bufAt+0x100+14] = 0
			binary.LittleEndian.PutUint64(mem[desc:], bufAt+0x100)
			mem[desc+8], mem[desc+14] = 16, mem[desc+14]&^1|4
		}, vhosttest.QueueConfig{Packed: true}},
		{"indirect with a next one, packed", func(mem []byte, desc, _ uint64, _ *vhosttest.Queue) { mem[desc+14] |= 1 }, vhosttest.QueueConfig{Packed: true, Indirect: true}},
		{"indirect in indirect", nil, vhosttest.QueueConfig{Indirect: true}},
		{"outside memory", func(mem []byte, desc, _ uint64, _ *vhosttest.Queue) {
			for i := range uint64(16) {
				mem[desc+16*i+5] = 1
			}
		}, vhosttest.QueueConfig{}},
		{"outside memory, packed", func(mem []byte, desc, _ uint64, _ *vhosttest.Queue) { mem[desc+5] = 1 }, vhosttest.QueueConfig{Packed: true}},
		{"huge", func(mem []byte, desc, _ uint64, _ *vhosttest.Queue) { copy(mem[desc+8:], "\xff\xff\xff\xff") }, vhosttest.QueueConfig{Packed: true}},
		{"endless chain", func(mem []byte, desc, _ uint64, _ *vhosttest.Queue) {
			for i := range uint64(16) {
				mem[desc+16*i+14] |= 1
			}
		}, vhosttest.QueueConfig{Packed: true}},
		{"readable behind writable", func(mem []byte, desc, _ uint64, d *vhosttest.Queue) { mem[desc+14] |= 2 }, vhosttest.QueueConfig{Packed: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mem := pages(t, memSize)
			c := tt.kind
			c.At, c.Size = queueAt, 16
			d := vhosttest.NewQueue(mem, c)
			id, _ := d.Add(vhosttest.Buffer{Addr: bufAt, Len: 8}, vhosttest.Buffer{Addr: bufAt, Len: 8})
			d.Show()
			desc, driver, _ := d.Parts()
			if tt.spoil == nil {
				table := binary.LittleEndian.Uint64(mem[desc+16*uint64(id):])
				mem[table+12] |= 4
			} else {
				tt.spoil(mem, desc, driver, d)
			}
			r := newRing(t, mem, config(d))
			if ch, err := r.Take(plenty()); !errors.Is(err, virtqueue.ErrRing) {
				t.Errorf("%+v, %v", ch, err)
			} else {
				t.Log(err)
			}
		})
	}
}

func TestImpossibleRingsAreRefused(t *testing.T) {
	mem := ramOf(pages(t, memSize))
	for name, c := range map[string]virtqueue.Config{
		"no size":      {Desc: 0, Driver: 0x1000, Device: 0x2000},
		"odd size":     {Size: 100, Desc: 0, Driver: 0x1000, Device: 0x2000},
		"descriptors":  {Size: 8, Desc: 8, Driver: 0x1000, Device: 0x2000},
		"available":    {Size: 8, Desc: 0, Driver: 0x1001, Device: 0x2000},
		"used":         {Size: 8, Desc: 0, Driver: 0x1000, Device: 0x2002},
		"wraps":        {Size: 8, Desc: ^uint64(15), Driver: 0x1000, Device: 0x2000},
		"used outside": {Size: 8, Desc: 0, Driver: 0x1000, Device: memSize},
		"packed base":  {Size: 8, Packed: true, Base: 8, Desc: 0, Driver: 0x1000, Device: 0x2000},
		"packed event": {Size: 8, Packed: true, Desc: 0, Driver: 0x1002, Device: 0x2000},
		"packed descs": {Size: 8, Packed: true, Desc: 8, Driver: 0x1000, Device: 0x2000},
		"packed used":  {Size: 8, Packed: true, Desc: 0, Driver: 0x1000, Device: 0x2002},
	} {
		if _, err := virtqueue.New(mem, c); !errors.Is(err, virtqueue.ErrRing) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestMemoryThatVanishesBreaksTheRing truncates the guest's memory while it is mapped.
func TestMemoryThatVanishesBreaksTheRing(t *testing.T) {
	fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, 1<<16); err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(fd, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	d := vhosttest.NewQueue(mem, vhosttest.QueueConfig{At: 0, Size: 16})
	d.Add(vhosttest.Buffer{Addr: 0xf000, Len: 8})
	d.Show()
	r := newRing(t, mem, config(d))
	var ch *virtqueue.Chain
	if ch, err = r.Take(plenty()); err != nil || ch == nil {
		t.Fatal(ch, err)
	}
	if err := unix.Ftruncate(fd, 0x8000); err != nil {
		t.Fatal(err)
	}
	var b [8]byte
	if err := virtqueue.Guard(func() { copy(b[:], ch.Out()[0]) }); !errors.Is(err, virtqueue.ErrRing) {
		t.Errorf("%v", err)
	}
}

func TestNoAllocations(t *testing.T) {
	eachKind(t, func(t *testing.T, c vhosttest.QueueConfig) {
		mem := pages(t, memSize)
		d := vhosttest.NewQueue(mem, c)
		r := newRing(t, mem, config(d))
		bufs := []vhosttest.Buffer{{Addr: bufAt, Len: 12}, {Addr: bufAt + 12, Len: 60}}
		if n := allocs.PerRun(100, func() {
			d.Add(bufs[:1]...)
			d.Show()
			ch, err := r.Take(plenty())
			if err != nil || ch == nil {
				t.Fatal("no chain")
			}
			r.Done(0)
			r.Publish()
			r.Arm()
			r.Quiet()
			d.Used()
		}); n != 0 {
			t.Errorf("%v allocations per chain", n)
		}
	})
}

// TestQuietAsksByFlagsOnly: a split ring suppresses notifications by its flags. With event indices
// the flags stay 0 and the indices alone count (Virtio 1.3 §2.7.10). Neither changes the used
// index.
func TestQuietAsksByFlagsOnly(t *testing.T) {
	for _, eventIdx := range []bool{false, true} {
		mem := pages(t, memSize)
		d := vhosttest.NewQueue(mem, vhosttest.QueueConfig{At: queueAt, Size: 16, EventIdx: eventIdx})
		c := config(d)
		r := newRing(t, mem, c)
		for range 3 { // so that the index is not 0
			d.Add(vhosttest.Buffer{Addr: bufAt, Len: 72})
			d.Show()
			if ch, err := r.Take(plenty()); ch == nil || err != nil {
				t.Fatal(err)
			}
			r.Done(0)
			r.Publish()
		}
		for i, step := range []func(){r.Quiet, r.Quiet, func() { r.Arm() }, func() { r.Arm() }, r.Quiet} {
			step()
			want := uint32(3 << 16)
			if !eventIdx && i != 2 && i != 3 {
				want |= 1
			}
			if got := binary.LittleEndian.Uint32(mem[c.Device:]); got != want {
				t.Errorf("event indices %t, step %d: flags and index %#08x, want %#08x", eventIdx, i, got, want)
			}
		}
	}
}

// TestChainsAreShownTogether: a driver sees no completed chain before Publish, and then all of
// them. A driver that waits for the next used chain is notified.
func TestChainsAreShownTogether(t *testing.T) {
	for _, packed := range []bool{false, true} {
		for _, eventIdx := range []bool{false, true} {
			mem := pages(t, memSize)
			d := vhosttest.NewQueue(mem, vhosttest.QueueConfig{At: queueAt, Size: 256, Packed: packed, EventIdx: eventIdx})
			r := newRing(t, mem, config(d))
			for lap, n := range []int{1, 64, 65, 200, 256, 3} {
				for range n {
					d.Add(vhosttest.Buffer{Addr: bufAt, Len: 72})
				}
				d.Show()
				if d.Interrupts(true) {
					t.Fatalf("lap %d: used chains before there are any", lap)
				}
				for range n {
					if ch, err := r.Take(plenty()); ch == nil || err != nil {
						t.Fatal(err)
					}
					r.Done(0)
				}
				if d.Interrupts(true) {
					t.Fatalf("packed %t, lap %d: %d chains, and the driver sees some before they are shown", packed, lap, n)
				}
				if !r.Publish() {
					t.Errorf("packed %t, event indices %t, lap %d: %d chains, and the driver is not told", packed, eventIdx, lap, n)
				}
				if r.Publish() {
					t.Errorf("packed %t, event indices %t, lap %d: it is told twice", packed, eventIdx, lap)
				}
				for range n {
					if _, _, ok := d.Used(); !ok {
						t.Fatal("a chain did not come back")
					}
				}
			}
		}
	}
}

// TestDescriptorsReusedUnseenAreRefused: a driver of a packed ring must not make descriptors
// available again before the device has published them. The device never holds more completed
// chains than the ring has room for.
func TestDescriptorsReusedUnseenAreRefused(t *testing.T) {
	mem := pages(t, memSize)
	d := vhosttest.NewQueue(mem, vhosttest.QueueConfig{At: queueAt, Size: 8, Packed: true})
	r := newRing(t, mem, config(d))
	for range d.Size {
		d.Add(vhosttest.Buffer{Addr: bufAt, Len: 8})
		d.Show()
		if ch, err := r.Take(plenty()); ch == nil || err != nil {
			t.Fatalf("%+v, %v", ch, err)
		}
		r.Done(0)
	}
	desc, _, _ := d.Parts()
	mem[desc+14] ^= 0x80 // available in the next lap (Virtio §2.8.1)
	mem[desc+15] ^= 0x80
	if ch, err := r.Take(plenty()); !errors.Is(err, virtqueue.ErrRing) {
		t.Errorf("%+v, %v", ch, err)
	}
}

// TestDescriptorsInUseAreRefused: a driver must not make descriptors available again whose buffers
// the device still holds.
func TestDescriptorsInUseAreRefused(t *testing.T) {
	eachKind(t, func(t *testing.T, c vhosttest.QueueConfig) {
		mem := pages(t, memSize)
		d := vhosttest.NewQueue(mem, c)
		r := newRing(t, mem, config(d))
		for range c.Size {
			d.Add(vhosttest.Buffer{Addr: bufAt, Len: 8})
			d.Show()
			if ch, err := r.Take(plenty()); ch == nil || err != nil {
				t.Fatalf("%+v, %v", ch, err)
			}
		}
		desc, driver, _ := d.Parts()
		if c.Packed {
			mem[desc+14] ^= 0x80 // available in the next lap (Virtio §2.8.1)
			mem[desc+15] ^= 0x80
		} else {
			mem[driver+2]++
		}
		if ch, err := r.Take(plenty()); !errors.Is(err, virtqueue.ErrRing) {
			t.Errorf("%+v, %v", ch, err)
		}
	})
}

// TestRingsHaveUpTo32768Entries: a ring has up to 32768 entries, and a split ring a power of two
// (Virtio §2.7, §2.8.10.1).
func TestRingsHaveUpTo32768Entries(t *testing.T) {
	mem := ramOf(pages(t, 1<<20))
	for _, tt := range []struct {
		size          uint16
		split, packed bool // may be
	}{
		{0, false, false},
		{1, true, true},
		{2, true, true},
		{3, false, true},
		{100, false, true},
		{16384, true, true},
		{32767, false, true},
		{32768, true, true},
		{32769, false, false},
		{65535, false, false},
	} {
		for _, packed := range []bool{false, true} {
			_, err := virtqueue.New(mem, virtqueue.Config{Size: tt.size, Desc: 0, Driver: 0x80000, Device: 0xa0000, Packed: packed})
			if want := !packed && tt.split || packed && tt.packed; (err == nil) != want || err != nil && !errors.Is(err, virtqueue.ErrRing) {
				t.Errorf("size %d, packed %t: %v", tt.size, packed, err)
			}
		}
	}
}

// TestPartsMayEndWithTheMemory: each part of a ring may end at the end of memory, and not one byte
// after it.
func TestPartsMayEndWithTheMemory(t *testing.T) {
	mem := pages(t, memSize)
	for _, packed := range []bool{false, true} {
		lengths := [3]uint64{8 * 16, 6 + 2*8, 6 + 8*8}
		if packed {
			lengths = [3]uint64{8 * 16, 4, 4}
		}
		for i, n := range lengths {
			const at = 2048
			parts := [3]uint64{0, 256, 512}
			parts[i] = at
			for _, missing := range []uint64{0, 1} {
				_, err := virtqueue.New(ramOf(mem[:at+n-missing]), virtqueue.Config{
					Size: 8, Packed: packed, Desc: parts[0], Driver: parts[1], Device: parts[2],
				})
				if (err == nil) != (missing == 0) || err != nil && !errors.Is(err, virtqueue.ErrRing) {
					t.Errorf("packed %t, %d bytes of part %d are missing: %v", packed, missing, i, err)
				}
			}
		}
	}
}

// putDesc writes a descriptor of a split ring, or of a table.
func putDesc(b []byte, addr uint64, size uint32, x, y uint16) {
	binary.LittleEndian.PutUint64(b, addr)
	binary.LittleEndian.PutUint32(b[8:], size)
	binary.LittleEndian.PutUint16(b[12:], x)
	binary.LittleEndian.PutUint16(b[14:], y)
}

// TestTablesStandWhereVirtioAllows: an indirect table is alone in its chain, or last in a chain of
// a split ring, and only where the feature was negotiated (Virtio §2.7.5.3, §2.8.7).
func TestTablesStandWhereVirtioAllows(t *testing.T) {
	const available = 1 << 7 // of a packed ring, in its first lap
	for _, tt := range []struct {
		name             string
		packed, indirect bool
		ring, table      [2][2]uint16 // the descriptors' last two fields: flags and next, or id and flags
		want             int          // bytes to read; 0: refused
	}{
		{"split", false, true, [2][2]uint16{{4, 0}}, [2][2]uint16{{1, 1}, {0, 0}}, 16},
		{"split, of one", false, true, [2][2]uint16{{4, 0}}, [2][2]uint16{}, 8},
		{"split, behind another", false, true, [2][2]uint16{{1, 1}, {4, 0}}, [2][2]uint16{}, 8 + 32},
		{"split, not negotiated", false, false, [2][2]uint16{{4, 0}}, [2][2]uint16{}, 0},
		{"split, not negotiated, behind another", false, false, [2][2]uint16{{1, 1}, {4, 0}}, [2][2]uint16{}, 0},
		{"split, before another", false, true, [2][2]uint16{{4 | 1, 1}}, [2][2]uint16{}, 0},
		{"split, in a table", false, true, [2][2]uint16{{4, 0}}, [2][2]uint16{{4, 0}}, 0},
		{"split, in a table at its end", false, true, [2][2]uint16{{4, 0}}, [2][2]uint16{{1, 1}, {4, 0}}, 0},
		{"split, out of its table", false, true, [2][2]uint16{{4, 0}}, [2][2]uint16{{1, 2}}, 0},
		{"packed", true, true, [2][2]uint16{{0, available | 4}}, [2][2]uint16{}, 16},
		{"packed, not negotiated", true, false, [2][2]uint16{{0, available | 4}}, [2][2]uint16{}, 0},
		{"packed, before another", true, true, [2][2]uint16{{0, available | 4 | 1}, {0, available}}, [2][2]uint16{}, 0},
		{"packed, behind another", true, true, [2][2]uint16{{0, available | 1}, {0, available | 4}}, [2][2]uint16{}, 0},
	} {
		mem := pages(t, memSize)
		d := vhosttest.NewQueue(mem, vhosttest.QueueConfig{At: queueAt, Size: 16, Packed: tt.packed, Indirect: tt.indirect})
		desc, driver, _ := d.Parts()
		const table = bufAt + 0x1000
		for i := range tt.ring {
			f := tt.ring[i]
			addr := uint64(bufAt)
			if (f[0]|f[1])&4 != 0 {
				addr = table
			}
			putDesc(mem[desc+16*uint64(i):], addr, 32, f[0], f[1])
			putDesc(mem[table+16*i:], bufAt, 8, tt.table[i][0], tt.table[i][1])
		}
		if !tt.packed {
			mem[driver+2] = 1 // entry 0 names descriptor 0
		}
		ch, err := newRing(t, mem, config(d)).Take(plenty())
		switch {
		case tt.want == 0:
			if !errors.Is(err, virtqueue.ErrRing) {
				t.Errorf("%s: %+v, %v", tt.name, ch, err)
			}
		case err != nil || ch == nil || ch.OutLen != tt.want:
			t.Errorf("%s: %+v, %v, want %d bytes", tt.name, ch, err, tt.want)
		}
	}
}

// TestErrorsNameTheRing: the error of a broken ring names the ring's size.
func TestErrorsNameTheRing(t *testing.T) {
	for _, packed := range []bool{false, true} {
		mem := pages(t, memSize)
		d := vhosttest.NewQueue(mem, vhosttest.QueueConfig{At: queueAt, Size: 16, Packed: packed})
		r := newRing(t, mem, config(d))
		other := config(d)
		other.Size = 8
		if err := r.Rebind(ramOf(mem), other); !errors.Is(err, virtqueue.ErrRing) || !strings.Contains(err.Error(), "the ring had 16 entries") {
			t.Errorf("packed %t, rebound with another size: %v", packed, err)
		}
		if packed {
			continue
		}
		_, driver, _ := d.Parts()
		mem[driver+2] = 17
		if _, err := r.Take(plenty()); err == nil || !strings.Contains(err.Error(), "available index 17 is 17 ahead of the device, the ring has 16 entries") {
			t.Errorf("too many: %v", err)
		}
		mem[driver+2], mem[driver+4] = 1, 16
		if _, err := r.Take(plenty()); err == nil || !strings.Contains(err.Error(), "names descriptor 16 of 16") {
			t.Errorf("outside: %v", err)
		}
	}
}

// TestDriverIsToldAsItWants: a driver that wants no interrupts gets none. A driver that waits for
// the next chain gets one for it and, with event indices, none for the chains after it.
func TestDriverIsToldAsItWants(t *testing.T) {
	eachKind(t, func(t *testing.T, c vhosttest.QueueConfig) {
		mem := pages(t, memSize)
		d := vhosttest.NewQueue(mem, c)
		r := newRing(t, mem, config(d))
		told := func() bool {
			d.Add(vhosttest.Buffer{Addr: bufAt, Len: 8})
			d.Show()
			if ch, err := r.Take(plenty()); ch == nil || err != nil {
				t.Fatal(ch, err)
			}
			r.Done(0)
			d.Used()
			return r.Publish()
		}
		for range 3 * c.Size {
			for d.Interrupts(true) {
				d.Used()
			}
			if !told() {
				t.Fatal("a driver that waits is not told")
			}
			if told() == c.EventIdx {
				t.Fatalf("a driver that has not asked again: told %t", !c.EventIdx)
			}
			if d.Interrupts(false); c.Packed || !c.EventIdx { // else the index alone counts
				if told() {
					t.Fatal("a driver that wants no interrupts is told")
				}
			}
			if r.Publish() {
				t.Fatal("told of nothing")
			}
		}
	})
}

// TestEventsNeedNegotiation: a packed ring ignores event indices that were not negotiated.
func TestEventsNeedNegotiation(t *testing.T) {
	for _, eventIdx := range []bool{false, true} {
		mem := pages(t, memSize)
		d := vhosttest.NewQueue(mem, vhosttest.QueueConfig{At: queueAt, Size: 8, Packed: true, EventIdx: eventIdx})
		r := newRing(t, mem, config(d))
		_, driver, _ := d.Parts()
		binary.LittleEndian.PutUint32(mem[driver:], 2<<16|1<<15) // the first descriptor of the first lap
		d.Add(vhosttest.Buffer{Addr: bufAt, Len: 8})
		d.Show()
		if ch, err := r.Take(plenty()); ch == nil || err != nil {
			t.Fatal(ch, err)
		}
		r.Done(0)
		if told := r.Publish(); told != eventIdx {
			t.Errorf("event indices %t: told %t", eventIdx, told)
		}
	}
}

// TestBuffersAreLoadedAhead: the ring prefetches the first bytes of many chains at a time, once
// those loaded before are used up, and only of chains that the driver has made available. Each
// buffer holds its number twice.
func TestBuffersAreLoadedAhead(t *testing.T) {
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
					mem[at], mem[at+virtqueue.CacheLine] = byte(added), byte(added)
					list = append(list, vhosttest.Buffer{Addr: uint64(at), Len: 100})
				}
				d.Add(list...)
			}
			d.Show()
		}
		var ram virtqueue.RAM
		ram.Set([]queues.Region{{Mem: mem}})
		desc, driver, device := d.Parts()
		r, err := virtqueue.New(&ram, virtqueue.Config{Size: 64, Desc: desc, Driver: driver, Device: device, Packed: c.packed, Base: d.Base()})
		if err != nil {
			t.Fatal(err)
		}
		add(chains)
		want := byte(0)
		for i := range chains + more {
			if i == chains {
				add(more)
			}
			if ch, err := r.Take(plenty()); ch == nil || err != nil {
				t.Fatalf("chain %d: %v", i, err)
			}
			if n, ok := c.loaded[i]; ok {
				want = byte(n)
			}
			if ram.Touched() != [2]byte{want, want} {
				t.Errorf("packed %t, %d buffers each: with chain %d buffer %d is loaded last, want %d", c.packed, c.parts, i, ram.Touched(), want)
			}
		}
	}
}
