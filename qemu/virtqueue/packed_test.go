package virtqueue_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/falcon-vnic/vnic/qemu/vhosttest"
	"github.com/falcon-vnic/vnic/qemu/virtqueue"
)

// TestChainsFitThePackedRing: a chain's descriptors and those that the device already holds fit the
// ring together. Otherwise a chain would read descriptors of another.
func TestChainsFitThePackedRing(t *testing.T) {
	for taken := range 8 {
		mem := pages(t, memSize)
		d := vhosttest.NewQueue(mem, vhosttest.QueueConfig{At: queueAt, Size: 8, Packed: true})
		r := newRing(t, mem, config(d))
		take := func() (*virtqueue.Chain, error) {
			d.Show()
			return r.Take(plenty())
		}
		for range taken {
			d.Add(vhosttest.Buffer{Addr: bufAt, Len: 8})
			if ch, err := take(); ch == nil || err != nil {
				t.Fatal(ch, err)
			}
		}
		d.Add(make([]vhosttest.Buffer, 8-taken)...) // all that is left
		m := r.Mark()
		for range 3 { // whoever gives it back has room for it again
			if ch, err := take(); ch == nil || err != nil {
				t.Fatalf("%d taken: %v", taken, err)
			}
			r.Back(m)
		}
		desc, _, _ := d.Parts()
		mem[desc+16*7+14] |= vhosttest.DescNext
		if ch, err := take(); !errors.Is(err, virtqueue.ErrRing) {
			t.Errorf("%d taken, and a chain of %d: %+v, %v", taken, 9-taken, ch, err)
		}
	}
}

// TestUsedDescriptorsTellTheirLap: the flags of a used descriptor in a packed ring tell its lap and
// whether the device wrote to its buffer (Virtio §2.8.1, §2.8.4).
func TestUsedDescriptorsTellTheirLap(t *testing.T) {
	mem := pages(t, memSize)
	d := vhosttest.NewQueue(mem, vhosttest.QueueConfig{At: queueAt, Size: 2, Packed: true})
	r := newRing(t, mem, config(d))
	desc, _, _ := d.Parts()
	const lap, written = 1<<7 | 1<<15, vhosttest.DescWrite
	for i, want := range []uint16{lap, lap | written, 0, written, lap | written} {
		d.Add(vhosttest.Buffer{Addr: bufAt, Len: 8, Write: true})
		d.Show()
		if ch, err := r.Take(plenty()); ch == nil || err != nil {
			t.Fatal(ch, err)
		}
		n := 0
		if want&written != 0 {
			n = 1
		}
		r.Done(n)
		r.Publish()
		if flags := binary.LittleEndian.Uint16(mem[desc+16*uint64(i%2)+14:]); flags != want {
			t.Errorf("chain %d, %d bytes: flags %#x, want %#x", i, n, flags, want)
		}
		if _, got, ok := d.Used(); !ok || got != uint32(n) {
			t.Errorf("chain %d: used %t with %d bytes", i, ok, got)
		}
	}
}
