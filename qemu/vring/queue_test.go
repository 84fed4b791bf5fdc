package vring_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/falcon-vnic/vnic/qemu/vhosttest"
	"github.com/falcon-vnic/vnic/qemu/vring"
	"github.com/falcon-vnic/vnic/queues"
)

const (
	ringAt = 0x1000
	bufAt  = 0x10000
	memEnd = 0x40000
)

// setup returns a ring from its driver's and its device's side.
func setup(t testing.TB) (*vhosttest.Ring, *vring.Queue, []byte) {
	t.Helper()
	mem := make([]byte, memEnd)
	ram := func() *queues.Memory { return queues.NewMemory([]queues.Region{{Addr: 0, Mem: mem}}) }
	d, err := vhosttest.NewRing(ram(), ringAt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	q, err := vring.New(ram(), config(d, 0))
	if err != nil {
		t.Fatal(err)
	}
	return d, q, mem
}

func config(d *vhosttest.Ring, base uint16) vring.Config {
	return vring.Config{Size: vhosttest.RingSize, Desc: d.Desc, Avail: d.Avail, Used: d.Used, Base: base}
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func TestChain(t *testing.T) {
	d, q, mem := setup(t)
	copy(mem[bufAt:], "header")
	copy(mem[bufAt+0x100:], "payload")
	must(t,
		d.SetDesc(3, bufAt, 6, vhosttest.DescNext, 9),
		d.SetDesc(9, bufAt+0x100, 7, vhosttest.DescNext, 1),
		d.SetDesc(1, bufAt+0x200, 4, vhosttest.DescNext|vhosttest.DescWrite, 0),
		d.SetDesc(0, bufAt+0x300, 4, vhosttest.DescWrite, 0),
		d.Publish(3))
	ch, err := q.Peek()
	must(t, err)
	if ch.ReadLen() != 13 || ch.WriteLen() != 8 {
		t.Fatalf("%d to read, %d to write", ch.ReadLen(), ch.WriteLen())
	}
	b := make([]byte, 20)
	n, err := q.Read(ch, b)
	must(t, err)
	if string(b[:n]) != "headerpayload" {
		t.Errorf("read %q", b[:n])
	}
	if n, err = q.Read(ch, b[:8]); err != nil || string(b[:n]) != "headerpa" {
		t.Errorf("short read %q, %v", b[:n], err)
	}
	must(t, q.Write(ch, []byte("abcdef")))
	if err := q.Write(ch, make([]byte, 9)); !errors.Is(err, vring.ErrQueue) {
		t.Errorf("write of too much: %v", err)
	}
	must(t, q.Push(ch, 6))
	if head, n, ok, err := d.TakeUsed(); head != 3 || n != 6 || !ok || err != nil {
		t.Errorf("used %d %d %v %v", head, n, ok, err)
	}
	must(t, q.Write(ch, []byte("ghijkl")))
	if !bytes.Equal(mem[bufAt+0x200:][:4], []byte("ghij")) || !bytes.Equal(mem[bufAt+0x300:][:2], []byte("kl")) {
		t.Error("written bytes are not where they belong")
	}
	if ch, err := q.Peek(); ch != nil || err != nil {
		t.Errorf("empty ring: %v, %v", ch, err)
	}
}

// TestIndicesWrap takes more than 2^16 entries through the ring.
func TestIndicesWrap(t *testing.T) {
	d, q, _ := setup(t)
	must(t, d.SetDesc(5, bufAt, 8, vhosttest.DescWrite, 0))
	for i := range 70_000 {
		must(t, d.Publish(5))
		ch, err := q.Peek()
		must(t, err)
		must(t, q.Push(ch, i&7))
		if head, n, ok, err := d.TakeUsed(); head != 5 || int(n) != i&7 || !ok || err != nil {
			t.Fatalf("%d: used %d %d %v %v", i, head, n, ok, err)
		}
	}
	if want := 70_000; q.Base() != uint16(want&0xffff) {
		t.Errorf("base %d", q.Base())
	}
}

func TestResume(t *testing.T) {
	d, q, mem := setup(t)
	must(t, d.SetDesc(1, bufAt, 8, vhosttest.DescWrite, 0), d.SetDesc(2, bufAt, 9, vhosttest.DescWrite, 0))
	must(t, d.Publish(1), d.Publish(1), d.Publish(2))
	for range 2 {
		ch, err := q.Peek()
		must(t, err)
		must(t, q.Push(ch, 0))
	}
	// Another process takes over knowing only where the ring is.
	next, err := vring.Resume(queues.NewMemory([]queues.Region{{Addr: 0, Mem: mem}}), config(d, 0))
	must(t, err)
	if next.Base() != 2 {
		t.Fatalf("base %d", next.Base())
	}
	ch, err := next.Peek()
	must(t, err)
	if ch == nil || ch.WriteLen() != 9 {
		t.Fatalf("chain %+v", ch)
	}
	must(t, next.Push(ch, 0))
	for i, want := range []uint16{1, 1, 2} {
		if head, _, ok, err := d.TakeUsed(); head != want || !ok || err != nil {
			t.Errorf("used entry %d is %d, %v, %v", i, head, ok, err)
		}
	}
}

func TestRebind(t *testing.T) {
	d, q, mem := setup(t)
	must(t, d.SetDesc(1, bufAt, 8, vhosttest.DescWrite, 0), d.Publish(1))
	ch, err := q.Peek()
	must(t, err)
	must(t, q.Push(ch, 0), d.Publish(1))
	const up = 1 << 32
	moved := config(d, 0)
	moved.Desc, moved.Avail, moved.Used = moved.Desc+up, moved.Avail+up, moved.Used+up
	must(t, q.Rebind(queues.NewMemory([]queues.Region{{Addr: up, Mem: mem}}), moved))
	if ch, err = q.Peek(); err != nil || ch == nil || q.Base() != 1 {
		t.Fatalf("%v, %v, base %d", ch, err, q.Base())
	}
	if err := q.Write(ch, []byte("x")); !errors.Is(err, vring.ErrQueue) { // the buffer has not moved
		t.Errorf("write: %v", err)
	}
}

func TestInterruptSuppression(t *testing.T) {
	d, q, mem := setup(t)
	if !q.Interrupt() {
		t.Error("no interrupt by default")
	}
	binary.LittleEndian.PutUint16(mem[d.Avail:], 1)
	if q.Interrupt() {
		t.Error("interrupt although suppressed")
	}
}

func TestBrokenRings(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(d *vhosttest.Ring, mem []byte) error
	}{
		{"loop", func(d *vhosttest.Ring, _ []byte) error { return d.SetDesc(0, bufAt, 1, vhosttest.DescNext, 0) }},
		{"next outside", func(d *vhosttest.Ring, _ []byte) error { return d.SetDesc(0, bufAt, 1, vhosttest.DescNext, 128) }},
		{"indirect", func(d *vhosttest.Ring, _ []byte) error { return d.SetDesc(0, bufAt, 16, vhosttest.DescIndirect, 0) }},
		{"readable behind writable", func(d *vhosttest.Ring, _ []byte) error {
			return errors.Join(d.SetDesc(0, bufAt, 0, vhosttest.DescNext|vhosttest.DescWrite, 1), d.SetDesc(1, bufAt, 1, 0, 0))
		}},
		{"head outside", func(d *vhosttest.Ring, mem []byte) error {
			binary.LittleEndian.PutUint16(mem[d.Avail+4:], 128)
			return nil
		}},
		{"index too far", func(d *vhosttest.Ring, mem []byte) error {
			binary.LittleEndian.PutUint16(mem[d.Avail+2:], 129)
			return nil
		}},
		{"index behind", func(d *vhosttest.Ring, mem []byte) error {
			binary.LittleEndian.PutUint16(mem[d.Avail+2:], 0xffff)
			return nil
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, q, mem := setup(t)
			must(t, d.SetDesc(0, bufAt, 1, 0, 0), d.Publish(0), tt.spoil(d, mem))
			if ch, err := q.Peek(); !errors.Is(err, vring.ErrQueue) {
				t.Errorf("%v, %v", ch, err)
			}
		})
	}
}

func TestBufferOutsideMemory(t *testing.T) {
	for _, at := range []uint64{memEnd - 3, memEnd, ^uint64(0) - 2} {
		d, q, _ := setup(t)
		must(t, d.SetDesc(0, at, 8, 0, 0), d.SetDesc(1, at, 8, vhosttest.DescWrite, 0), d.Publish(0), d.Publish(1))
		ch, err := q.Peek()
		must(t, err)
		if _, err := q.Read(ch, make([]byte, 8)); !errors.Is(err, vring.ErrQueue) {
			t.Errorf("read at %#x: %v", at, err)
		}
		must(t, q.Push(ch, 0))
		ch, err = q.Peek()
		must(t, err)
		if err := q.Write(ch, make([]byte, 8)); !errors.Is(err, vring.ErrQueue) {
			t.Errorf("write at %#x: %v", at, err)
		}
	}
}

func TestBadConfig(t *testing.T) {
	mem := queues.NewMemory([]queues.Region{{Addr: 0, Mem: make([]byte, memEnd)}})
	for name, c := range map[string]vring.Config{
		"no size":      {Size: 0, Desc: 0, Avail: 0x1000, Used: 0x2000},
		"odd size":     {Size: 100, Desc: 0, Avail: 0x1000, Used: 0x2000},
		"descriptors":  {Size: 8, Desc: 8, Avail: 0x1000, Used: 0x2000},
		"available":    {Size: 8, Desc: 0, Avail: 0x1001, Used: 0x2000},
		"used":         {Size: 8, Desc: 0, Avail: 0x1000, Used: 0x2002},
		"wraps":        {Size: 8, Desc: ^uint64(15), Avail: 0x1000, Used: 0x2000},
		"used outside": {Size: 8, Desc: 0, Avail: 0x1000, Used: memEnd},
	} {
		if _, err := vring.New(mem, c); !errors.Is(err, vring.ErrQueue) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestMisalignedAvail has an available ring at 2 bytes behind a multiple of 4,
// as Virtio allows.
func TestMisalignedAvail(t *testing.T) {
	mem := make([]byte, memEnd)
	c := vring.Config{Size: 4, Desc: 0, Avail: 0x1002, Used: 0x2000}
	q, err := vring.New(queues.NewMemory([]queues.Region{{Addr: 0, Mem: mem}}), c)
	must(t, err)
	binary.LittleEndian.PutUint16(mem[0x1002:], 1) // no interrupts
	binary.LittleEndian.PutUint16(mem[0x1004:], 1)
	binary.LittleEndian.PutUint16(mem[0x1006:], 2)
	binary.LittleEndian.PutUint32(mem[2*16+8:], 77)
	ch, err := q.Peek()
	must(t, err)
	if ch == nil || ch.ReadLen() != 77 || q.Interrupt() {
		t.Errorf("chain %+v, interrupt %v", ch, q.Interrupt())
	}
}

func TestNoAllocations(t *testing.T) {
	d, q, _ := setup(t)
	must(t, d.SetDesc(1, bufAt, 100, 0, 0))
	buf := make([]byte, 100)
	if n := testing.AllocsPerRun(100, func() {
		_ = d.RAM.Store32(d.Avail, uint32(q.Base()+1)<<16)
		ch, err := q.Peek()
		if err == nil && ch != nil {
			_, err = q.Read(ch, buf)
		}
		if err != nil || q.Push(ch, 0) != nil {
			t.Fatal("ring broken")
		}
	}); n != 0 {
		t.Fatalf("%v allocations per chain", n)
	}
}

// FuzzRing runs the device on whatever bytes a guest may leave in its rings.
func FuzzRing(f *testing.F) {
	f.Add(make([]byte, 64), uint16(0))
	f.Add(bytes.Repeat([]byte{0, 1, 2, 3}, 64), uint16(9))
	f.Fuzz(func(t *testing.T, b []byte, base uint16) {
		mem := make([]byte, 4096)
		copy(mem, b)
		q, err := vring.New(queues.NewMemory([]queues.Region{{Addr: 0, Mem: mem}}), vring.Config{Size: 8, Desc: 0, Avail: 128, Used: 256, Base: base})
		if err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 512)
		for range 16 {
			ch, err := q.Peek()
			if err != nil || ch == nil {
				return
			}
			if _, err := q.Read(ch, buf); err != nil && !errors.Is(err, vring.ErrQueue) {
				t.Fatal(err)
			}
			n := min(ch.WriteLen(), len(buf))
			if err := q.Write(ch, buf[:n]); err != nil && !errors.Is(err, vring.ErrQueue) {
				t.Fatal(err)
			}
			if err := q.Push(ch, n); err != nil {
				t.Fatal(err)
			}
		}
	})
}
