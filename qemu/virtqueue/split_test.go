package virtqueue_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/falcon-vnic/vnic/qemu/vhosttest"
	"github.com/falcon-vnic/vnic/qemu/virtqueue"
	"github.com/falcon-vnic/vnic/queues"
)

// splitRing returns a split ring and its driver, which uses neither indirect descriptors nor event
// indices.
func splitRing(t *testing.T) (d *vhosttest.Ring, r virtqueue.Ring, mem []byte) {
	t.Helper()
	mem = pages(t, memSize)
	d, err := vhosttest.NewRing(queues.NewMemory([]queues.Region{{Mem: mem}}), queueAt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d, newRing(t, mem, placeOf(d)), mem
}

func placeOf(d *vhosttest.Ring) virtqueue.Config {
	return virtqueue.Config{Size: vhosttest.RingSize, Desc: d.Desc, Driver: d.Avail, Device: d.Used}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// complete takes a chain and completes it with n bytes written.
func complete(t *testing.T, r virtqueue.Ring, written int) {
	t.Helper()
	if ch, err := r.Take(plenty()); ch == nil || err != nil {
		t.Fatalf("chain %v, %v", ch, err)
	}
	r.Done(written)
	r.Publish()
}

// TestIndicesPassTheirEnd: the 16-bit indices of a split ring wrap to 0.
func TestIndicesPassTheirEnd(t *testing.T) {
	d, r, _ := splitRing(t)
	must(t, d.SetDesc(5, bufAt, 8, vhosttest.DescWrite, 0))
	const n = 70_000
	for i := range n {
		must(t, d.Publish(5))
		complete(t, r, i&7)
		if head, got, ok, err := d.TakeUsed(); head != 5 || int(got) != i&7 || !ok || err != nil {
			t.Fatalf("%d: used %d %d %v %v", i, head, got, ok, err)
		}
	}
	if r.Base() != n&0xffff {
		t.Errorf("base %d", r.Base())
	}
}

// TestAllEntriesAtOnce: a driver may make all entries available at once, and no more.
func TestAllEntriesAtOnce(t *testing.T) {
	for ahead, ok := range map[uint16]bool{vhosttest.RingSize: true, vhosttest.RingSize + 1: false} {
		d, r, mem := splitRing(t)
		must(t, d.SetDesc(0, bufAt, 1, 0, 0))
		binary.LittleEndian.PutUint16(mem[d.Avail+2:], ahead)
		if ch, err := r.Take(plenty()); (ch != nil) != ok || ok != (err == nil) {
			t.Errorf("%d available: %v, %v", ahead, ch, err)
		}
	}
}

// TestEmptyBuffersAreSkipped: buffers of length 0 are skipped anywhere in a chain, and the buffers
// after them are still used.
func TestEmptyBuffersAreSkipped(t *testing.T) {
	d, r, mem := splitRing(t)
	copy(mem[bufAt:], "ab")
	must(t,
		d.SetDesc(0, memSize, 0, vhosttest.DescNext, 1), // outside the memory
		d.SetDesc(1, bufAt, 1, vhosttest.DescNext, 2),
		d.SetDesc(2, memSize, 0, vhosttest.DescNext, 3),
		d.SetDesc(3, bufAt+1, 1, vhosttest.DescNext, 4),
		d.SetDesc(4, memSize, 0, vhosttest.DescNext|vhosttest.DescWrite, 5),
		d.SetDesc(5, bufAt+2, 2, vhosttest.DescWrite, 0),
		d.Publish(0))
	ch, err := r.Take(plenty())
	must(t, err)
	out := ""
	for _, b := range ch.Out() {
		out += string(b)
	}
	if out != "ab" || ch.OutLen != 2 || ch.InLen != 2 || len(ch.In()) != 1 {
		t.Errorf("%q to read, %d bytes in %d buffers to write", out, ch.InLen, len(ch.In()))
	}
}

// TestAvailableRingMayBeginBetweenWords: an available ring is aligned to two bytes, so its index
// and its flags may lie in different 32-bit words.
func TestAvailableRingMayBeginBetweenWords(t *testing.T) {
	for _, flags := range []uint16{0, 1} {
		mem := pages(t, memSize)
		r := newRing(t, mem, virtqueue.Config{Size: 4, Driver: 0x1002, Device: 0x2000})
		binary.LittleEndian.PutUint16(mem[0x1002:], flags)
		binary.LittleEndian.PutUint16(mem[0x1004:], 1) // index
		binary.LittleEndian.PutUint16(mem[0x1006:], 2) // descriptor
		binary.LittleEndian.PutUint32(mem[2*16+8:], 77)
		ch, err := r.Take(plenty())
		if err != nil || ch == nil || ch.OutLen != 77 {
			t.Fatalf("chain %v, %v", ch, err)
		}
		r.Done(0)
		if told := r.Publish(); told != (flags == 0) {
			t.Errorf("flags %d: interrupt %t", flags, told)
		}
	}
}

// TestMovedRingGoesOnWhereItWas: a ring that moves to other memory keeps its position, whatever
// base and used index it finds there. Its buffers stay where they are.
func TestMovedRingGoesOnWhereItWas(t *testing.T) {
	d, r, mem := splitRing(t)
	must(t, d.SetDesc(1, bufAt, 8, vhosttest.DescWrite, 0), d.Publish(1), d.Publish(1), d.Publish(1))
	complete(t, r, 0)
	complete(t, r, 0)
	const up = 1 << 32
	var both virtqueue.RAM
	both.Set([]queues.Region{{Mem: mem}, {Addr: up, Mem: mem}})
	c := placeOf(d)
	c.Desc, c.Driver, c.Device, c.Base = c.Desc+up, c.Driver+up, c.Device+up, 77
	must(t, r.Rebind(&both, c))
	if r.Base() != 2 {
		t.Errorf("base %d", r.Base())
	}
	complete(t, r, 0)
	if w := binary.LittleEndian.Uint32(mem[d.Used:]); w != 3<<16 {
		t.Errorf("used index and flags %#x", w)
	}
	var high virtqueue.RAM
	high.Set([]queues.Region{{Addr: up, Mem: mem}})
	must(t, d.Publish(1), r.Rebind(&high, c))
	if ch, err := r.Take(plenty()); !errors.Is(err, virtqueue.ErrRing) {
		t.Errorf("a buffer where no memory is any more: %v, %v", ch, err)
	}
}
