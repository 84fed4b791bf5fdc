package vhostnet_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/qemu/vhostnet"
	"github.com/falcon-vnic/vnic/qemu/vhosttest"
	"github.com/falcon-vnic/vnic/qemu/vhostuser"
)

// TestHeaderHasTheLengthOfItsVersion: the header has the number of buffers, except with a driver
// older than Virtio 1.0 that does not merge buffers (Virtio §5.1.6.1).
func TestHeaderHasTheLengthOfItsVersion(t *testing.T) {
	for features, header := range map[uint64]int{0: 10, merge: 12, vhostuser.FeatureVersion1: 12, merge | vhostuser.FeatureVersion1: 12} {
		d := newRingPort(t, features, 1, 16)
		sent, _ := d.add(1, false, header+60)
		sent[header] = 42
		buf := make([]byte, 100)
		if n, _, _ := d.Read(buf); n != 60 || buf[0] != 42 {
			t.Errorf("features %#x: %d bytes read, the first is %d", features, n, buf[0])
		}
		got, _ := d.add(0, true, 100)
		if !d.Write([][]byte{buf[:60]}, vhostnet.Offload{}) {
			t.Fatal("not written")
		}
		d.Settle()
		if n := d.used(0); !slices.Equal(n, []int{header + 60}) || !bytes.Equal(got[header:][:60], buf[:60]) {
			t.Errorf("features %#x: buffers of %d bytes came back, want %d", features, n, header+60)
		}
		if header == 12 && binary.LittleEndian.Uint16(got[10:]) != 1 {
			t.Errorf("features %#x: a frame in %d buffers", features, binary.LittleEndian.Uint16(got[10:]))
		}
	}
}

// TestFramesOfImpossibleSizeAreDropped: a frame shorter than an Ethernet header, or longer than the
// room for it, is counted and dropped, and its buffers come back.
func TestFramesOfImpossibleSizeAreDropped(t *testing.T) {
	d := newRingPort(t, vhostuser.FeatureVersion1, 1, 64)
	buf := make([]byte, 1000)
	var want vhostnet.Stats
	for size, ok := range map[int]bool{0: false, 13: false, 14: true, 15: true, 999: true, 1000: true, 1001: false} {
		d.add(1, false, 12+size)
		n, rest, _ := d.Read(buf)
		if ok {
			want.RxFrames++
			want.RxBytes += uint64(size)
		} else {
			want.RxDropped++
		}
		if ok != (n == size && n > 0) || !ok && n != 0 || rest != nil {
			t.Errorf("a frame of %d bytes: %d read", size, n)
		}
	}
	d.add(1, false, 11) // not even a header
	want.RxDropped++
	if n, _, _ := d.Read(buf); n != 0 {
		t.Errorf("%d bytes of half a header", n)
	}
	d.add(0, true, 500)
	for _, size := range []int{488, 20} { // for which there is no buffer any more
		ok := d.Write([][]byte{buf[:14], buf[:size-14]}, vhostnet.Offload{})
		if ok != (size == 488) {
			t.Errorf("a frame of %d bytes written: %t", size, ok)
		}
	}
	want.TxFrames, want.TxBytes, want.TxDropped = 1, 488, 1
	if got := d.Stats(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	d.Settle()
	if n := len(d.used(1)); n != 8 {
		t.Errorf("%d chains came back", n)
	}
}

// TestQueuesTakeTurns: frames in one queue do not wait, however many the guest sends in another.
func TestQueuesTakeTurns(t *testing.T) {
	const n = vhostnet.QueueBurst + 8
	d := newRingPort(t, vhostuser.FeatureVersion1, 2, 64)
	for q := range 2 {
		for range n {
			mem, _ := d.add(1+2*q, false, 12+60)
			mem[12+20] = byte(q)
		}
	}
	buf := make([]byte, 100)
	var runs []int // frames that came one after the other by the same queue
	for range 2 * n {
		if size, _, _ := d.Read(buf); size != 60 {
			t.Fatalf("%d bytes", size)
		}
		if len(runs)%2 == int(buf[20]) {
			runs = append(runs, 0)
		}
		runs[len(runs)-1]++
	}
	if want := []int{vhostnet.QueueBurst, vhostnet.QueueBurst, 8, 8}; !slices.Equal(runs, want) {
		t.Errorf("frames by turns %v, want %v", runs, want)
	}
}

// TestArmSeesWaitingFrames: while any queue has a frame, Arm reports it and asks for no kicks. Once
// all are read, it asks each queue for a kick.
func TestArmSeesWaitingFrames(t *testing.T) {
	for waiting := range 2 {
		d := newRingPort(t, vhostuser.FeatureVersion1, 2, 64)
		d.Wake()
		send := func(q int) (kick bool) {
			_, kick = d.add(1+2*q, false, 12+60)
			return kick
		}
		if send(waiting) {
			t.Error("a port that is awake asks for a kick")
		}
		if !d.Arm() {
			t.Errorf("queue %d has a frame, and the port sleeps", waiting)
		}
		for q := range 2 {
			if send(q) {
				t.Errorf("queue %d has a frame, and the port asks for kicks by %d", waiting, q)
			}
		}
		buf := make([]byte, 100)
		for range 3 {
			if n, _, _ := d.Read(buf); n != 60 {
				t.Fatalf("%d bytes", n)
			}
		}
		for range 2 {
			if d.Arm() {
				t.Error("frames of nobody")
			}
		}
		for q := range 2 {
			if !send(q) {
				t.Errorf("a port that sleeps asks for no kick by queue %d", q)
			}
		}
		if d.Arm() {
			t.Error("a port that sleeps looks for frames")
		}
	}
}

const long = 9000 // bytes of a frame whose end is left where it is

// TestLongFramesAreCopiedOnce: the guest cannot change the part of a frame that was read. The end
// is copied once, from one guest's memory to the other's, and the chain is completed after that.
func TestLongFramesAreCopiedOnce(t *testing.T) {
	eachDriver(t, func(t *testing.T, o vhosttest.NetOptions) {
		from, to := newGuestPort(t, vhostnet.Config{}, o), newGuestPort(t, vhostnet.Config{}, o)
		buf := make([]byte, 1<<16)
		frame := frameOf(rand.New(rand.NewPCG(1, 1)), long)
		from.guest.Transmit(0, vhosttest.Header{1, 5, 42, 0, 0, 4, 34, 0, 6}, frame)
		n, rest, off := from.port.Read(buf)
		if rest == nil || n+rest.Len() != long || n < 128 {
			t.Fatalf("read %d bytes, and a rest: %v", n, rest != nil)
		}
		at := bytes.Index(from.guest.Mem, frame)
		for i := range frame {
			from.guest.Mem[at+i]++ // it lies there in one piece
			if i >= n {
				frame[i]++
			}
		}
		if from.guest.Idle(0) {
			t.Error("the guest has its buffer back before it was used")
		}
		if !to.port.WriteWith(buf[:n], rest, off) {
			t.Fatal("not written")
		}
		to.port.Settle()
		h, got, err := to.guest.Receive(0)
		if err != nil || !bytes.Equal(got, frame) || h[1] != 5 {
			t.Fatalf("%d bytes, header %v, %v", len(got), h, err)
		}
		if rest.Fetch() || to.port.WriteWith(buf[:n], rest, off) {
			t.Error("it is there a second time")
		}
		if from.port.Return(); !from.guest.Idle(0) {
			t.Error("the guest does not have its buffer back")
		}
	})
}

// TestChainsCompleteInOrder: chains are completed in order; those behind a chain with a Rest wait
// for it. There are at most as many Rests as there is room for, and one that nobody has taken is
// copied before its chain is completed.
func TestChainsCompleteInOrder(t *testing.T) {
	eachDriver(t, func(t *testing.T, o vhosttest.NetOptions) {
		b := newGuestPort(t, vhostnet.Config{}, o)
		rng := rand.New(rand.NewPCG(1, 1))
		type read struct {
			buf  []byte
			n    int
			rest *vhostnet.Rest
		}
		for range 5 {
			var frames [][]byte
			var got []read
			for i := range 100 {
				size := 60
				if i > 2 && i%4 != 0 {
					size = long
				}
				frames = append(frames, frameOf(rng, size))
				if !b.guest.Transmit(0, vhosttest.Header{}, frames[i]) {
					t.Fatal("no room")
				}
			}
			left := 0
			for range frames {
				r := read{buf: make([]byte, 1<<14)}
				if r.n, r.rest, _ = b.port.Read(r.buf); r.rest != nil {
					left++
				}
				got = append(got, r)
			}
			if left < 10 || left > 64 {
				t.Fatalf("%d ends are left", left)
			}
			b.port.Return()
			if !b.guest.Idle(0) {
				t.Fatal("the guest does not have its buffers back")
			}
			clear(b.guest.Mem[0x200000:])
			for i, r := range got {
				if r.rest != nil {
					if !r.rest.Fetch() {
						t.Fatalf("frame %d is lost", i)
					}
					r.n += r.rest.Len()
				}
				if !bytes.Equal(r.buf[:r.n], frames[i]) {
					t.Fatalf("frame %d: %d bytes differ", i, r.n)
				}
			}
			b.serve(func() {
				if _, err := b.guest.Stop(); err != nil {
					t.Error(err)
				}
				if err := b.guest.Boot(); err != nil {
					t.Error(err)
				}
			})
		}
	})
}

// TestRestIsCopiedBeforeItsGuestLeaves: a Rest is copied before its guest's rings stop or its
// memory is removed.
func TestRestIsCopiedBeforeItsGuestLeaves(t *testing.T) {
	for name, leave := range map[string]func(b *guestPort) error{
		"rings stopped": func(b *guestPort) error { _, err := b.guest.Stop(); return err },
		"connection lost": func(b *guestPort) error {
			_ = b.guest.Conn.Close()
			if err := <-b.ended; err != nil {
				return err
			}
			return b.guest.Reconnect(b.connect())
		},
		"memory replaced": func(b *guestPort) error { return b.guest.ShareMemory(false) },
	} {
		t.Run(name, func(t *testing.T) {
			o := vhosttest.NetOptions{Merge: true}
			from, to := newGuestPort(t, vhostnet.Config{}, o), newGuestPort(t, vhostnet.Config{}, o)
			buf := make([]byte, 1<<16)
			frame := frameOf(rand.New(rand.NewPCG(1, 1)), long)
			from.guest.Transmit(0, vhosttest.Header{}, frame)
			n, rest, off := from.port.Read(buf)
			var err error
			from.serve(func() { err = leave(from) })
			if err != nil {
				t.Fatal(err)
			}
			if !from.guest.Idle(0) {
				t.Error("the guest does not have its buffer back")
			}
			clear(from.guest.Mem[0x200000:])
			if !to.port.WriteWith(buf[:n], rest, off) {
				t.Fatal("not written")
			}
			to.port.Settle()
			if _, got, err := to.guest.Receive(0); err != nil || !bytes.Equal(got, frame) {
				t.Fatalf("%d bytes, %v", len(got), err)
			}
		})
	}
}
