package vhostnet_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/internal/allocs"
	"github.com/falcon-vnic/vnic/qemu/guestmem"
	"github.com/falcon-vnic/vnic/qemu/internal/sockettest"
	"github.com/falcon-vnic/vnic/qemu/vhostnet"
	"github.com/falcon-vnic/vnic/qemu/vhosttest"
	"github.com/falcon-vnic/vnic/qemu/vhostuser"
)

// guestPort is a port with its guest; the test takes the place of the port's thread.
type guestPort struct {
	t     testing.TB
	port  *vhostnet.Port
	guest *vhosttest.NetGuest
	posts chan func()
	ended chan error
}

func newGuestPort(t testing.TB, c vhostnet.Config, o vhosttest.NetOptions) *guestPort {
	t.Helper()
	b := &guestPort{t: t, posts: make(chan func())}
	stopped := make(chan struct{})
	c.Name, c.MTU = "test", 1500
	c.Post = func(f func()) bool {
		select {
		case b.posts <- f:
			return true
		case <-stopped:
			return false
		}
	}
	var err error
	if b.port, err = vhostnet.New(c); err != nil {
		t.Fatal(err)
	}
	var guest *vhosttest.NetGuest
	b.serve(func() {
		guest, err = vhosttest.NewNet(b.connect(), o)
	})
	b.guest = guest
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		var err error
		b.serve(func() { err = errors.Join(b.guest.Kill(), <-b.ended) })
		close(stopped)
		if err = errors.Join(err, b.port.Close()); err != nil {
			t.Error(err)
		}
	})
	return b
}

// connect begins a conversation with the port.
func (b *guestPort) connect() *net.UnixConn {
	near, far, err := sockettest.New()
	if err != nil {
		b.t.Fatal(err)
	}
	ended := make(chan error, 1)
	b.ended = ended
	go func() {
		err := vhostuser.Serve(far, b.port, guestmem.NewBudget("test", guestmem.Attachment))
		ended <- errors.Join(err, far.Close())
	}()
	return near
}

// serve runs the port's thread while f calls the port.
func (b *guestPort) serve(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	for {
		select {
		case post := <-b.posts:
			post()
		case <-done:
			return
		}
	}
}

// read takes a whole frame from the port.
func (b *guestPort) read(buf []byte) (int, vhostnet.Offload) { return readWhole(b.port, buf) }

func readWhole(p *vhostnet.Port, buf []byte) (int, vhostnet.Offload) {
	n, rest, off := p.Read(buf)
	if rest != nil {
		if !rest.Fetch() {
			return 0, off
		}
		n += rest.Len()
	}
	return n, off
}

func eachDriver(t *testing.T, f func(t *testing.T, o vhosttest.NetOptions)) {
	for i := range 16 {
		o := vhosttest.NetOptions{Packed: i&1 != 0, Indirect: i&2 != 0, EventIdx: i&4 != 0, Merge: i&8 != 0, Offloads: true, Split: (i & 2) * 700}
		t.Run(fmt.Sprintf("packed=%v,indirect=%v,event=%v,merge=%v", o.Packed, o.Indirect, o.EventIdx, o.Merge), func(t *testing.T) { f(t, o) })
	}
}

func frameOf(rng *rand.Rand, n int) []byte {
	at := rng.IntN(len(noise) - n)
	b := bytes.Clone(noise[at : at+n])
	b[14] = 0x45
	return b
}

// noise is the data of frames.
var noise = func() []byte {
	b, rng := make([]byte, 1<<18), rand.New(rand.NewPCG(7, 7))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}()

// kicked reports whether the port would wake its thread.
func (b *guestPort) kicked() bool {
	p := []unix.PollFd{{Fd: int32(b.port.FD()), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	return n > 0
}

func TestFramesOfTheGuestArriveWhole(t *testing.T) {
	eachDriver(t, func(t *testing.T, o vhosttest.NetOptions) {
		b := newGuestPort(t, vhostnet.Config{}, o)
		rng := rand.New(rand.NewPCG(1, 1))
		buf := make([]byte, 1<<16)
		b.port.Wake() // the descriptor of a ring that starts is ready once
		if b.port.Arm() {
			t.Fatal("frames of nobody")
		}
		for i := range 2000 {
			frame := frameOf(rng, 15+rng.IntN(9000))
			h := vhosttest.Header{1, 1, 66, 0, 0xb4, 5, 34, 0, 16}
			if !b.guest.Transmit(0, h, frame) {
				t.Fatal("no room")
			}
			if asleep := i%3 == 0; asleep {
				if !b.kicked() {
					t.Fatalf("%d: a sleeping port is not kicked", i)
				}
				b.port.Wake()
			}
			n, off := b.read(buf)
			if !bytes.Equal(buf[:n], frame) {
				t.Fatalf("%d: read %d bytes, want %d", i, n, len(frame))
			}
			if want := (vhostnet.Offload{GSO: 1, NeedsCsum: true, Size: 1460, CsumStart: 34, CsumOffset: 16}); off != want {
				t.Fatalf("offload %+v, want %+v", off, want)
			}
			if n, _ := b.read(buf); n != 0 {
				t.Fatalf("%d bytes more", n)
			}
			b.port.Settle()
			if !b.guest.Idle(0) {
				t.Fatal("the guest does not have its buffers back")
			}
			if i%3 == 2 && b.port.Arm() {
				t.Fatal("frames of nobody")
			}
		}
		if st := b.port.Stats(); st.RxFrames != 2000 || st.RxDropped != 0 {
			t.Errorf("%+v", st)
		}
	})
}

func TestFramesForTheGuestArriveWhole(t *testing.T) {
	eachDriver(t, func(t *testing.T, o vhosttest.NetOptions) {
		b := newGuestPort(t, vhostnet.Config{}, o)
		rng := rand.New(rand.NewPCG(1, 1))
		for i := range 2000 {
			most := 9000
			if rng.IntN(10) == 0 {
				most = 65000
			}
			frame := frameOf(rng, 60+rng.IntN(most))
			var parts [][]byte
			for rest := frame; len(rest) > 0; {
				k := min(60+rng.IntN(len(frame)), len(rest))
				parts, rest = append(parts, rest[:k]), rest[k:]
			}
			off := vhostnet.Offload{GSO: 1, NeedsCsum: true, Size: 1460, CsumStart: 34, CsumOffset: 16}
			b.guest.Interrupts(true, 0, true)
			if !b.port.Write(parts, off) {
				t.Fatalf("%d: no room", i)
			}
			b.port.Settle()
			h, got, err := b.guest.Receive(0)
			if err != nil || !bytes.Equal(got, frame) {
				t.Fatalf("%d: %d bytes, want %d, %v", i, len(got), len(frame), err)
			}
			want := vhosttest.Header{1, 1, byte(min(len(parts[0]), 94)), 0, 0xb4, 5, 34, 0, 16, 0, h[10], h[11]}
			if h != want {
				t.Fatalf("header %v, want %v", h, want)
			}
			for end := time.Now().Add(time.Minute); !b.guest.Interrupted(true, 0); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("no interrupt")
				}
			}
		}
		// A guest that takes no frames: they are lost, and each is counted once.
		frame, taken := frameOf(rng, 1400), 0
		for b.port.Write([][]byte{frame}, vhostnet.Offload{}) {
			taken++
		}
		b.port.Settle()
		for range taken {
			if _, got, err := b.guest.Receive(0); err != nil || !bytes.Equal(got, frame) {
				t.Fatalf("%d bytes, %v", len(got), err)
			}
		}
		if _, got, _ := b.guest.Receive(0); got != nil || taken < 200 {
			t.Errorf("%d taken, and one more: %v", taken, got != nil)
		}
		if st := b.port.Stats(); st.TxDropped != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// TestFlowStaysInOneQueue: flows that differ in any byte of an address or a port, if only in its
// upper bits, are spread over the queues that the guest runs. All frames of one are in one queue,
// whatever else is in them.
func TestFlowStaysInOneQueue(t *testing.T) {
	for _, queues := range []int{1, 3, 4} {
		b := newGuestPort(t, vhostnet.Config{Queues: 4}, vhosttest.NetOptions{Queues: queues, Merge: true})
		// queueOf is where all frames are that have a flow's headers.
		queueOf := func(version byte, of []int, size int, flow byte) int {
			t.Helper()
			const each = 8
			for k := range byte(each) {
				frame := bytes.Repeat([]byte{k}, size)
				frame[14] = version<<4 | 5
				for at := of[0]; at < of[1] && at < size; at++ {
					frame[at] = 1
				}
				frame[of[2]] = flow
				if !b.port.Write([][]byte{frame}, vhostnet.Offload{}) {
					t.Fatal("not written")
				}
			}
			b.port.Settle()
			at := -1
			for q := range queues {
				switch n := b.guest.Discard(q); {
				case n == each:
					at = q
				case n != 0:
					t.Fatalf("%d frames of a flow in queue %d", n, q)
				}
			}
			return at
		}
		for _, c := range []struct {
			version       byte
			from, to, len int // where addresses and ports are, and how long frames are
		}{{4, 26, 38, 60}, {4, 26, 38, 38}, {6, 22, 58, 80}, {6, 22, 54, 54}} {
			for at := c.from; at < c.to; at++ {
				seen := map[int]int{}
				for flow := range 64 {
					seen[queueOf(c.version, []int{c.from, c.to, at}, c.len, byte(flow*4))]++
				}
				if len(seen) != queues || seen[-1] != 0 {
					t.Errorf("version %d, byte %d of frames of %d: flows by queue: %v", c.version, at, c.len, seen)
				}
			}
		}
		for k := range 64 { // none that can be told from another
			if q := queueOf(4, []int{26, 36, 26}, 37, byte(k)); q != 0 {
				t.Errorf("a frame without ports in queue %d", q)
			}
		}
	}
}

// TestAllQueuesCarryFrames: frames of all queues that the guest runs are read, those of each queue
// in order.
func TestAllQueuesCarryFrames(t *testing.T) {
	buf := make([]byte, 1<<16)
	b := newGuestPort(t, vhostnet.Config{Queues: 4}, vhosttest.NetOptions{Queues: 3, Merge: true})
	for q := range 3 {
		for i := range 40 {
			frame := frameOf(rand.New(rand.NewPCG(1, 1)), 60)
			frame[20], frame[21] = byte(q), byte(i)
			if !b.guest.Transmit(q, vhosttest.Header{}, frame) {
				t.Fatal("no room")
			}
		}
	}
	next := [3]byte{}
	for range 120 {
		if n, _ := b.read(buf); n != 60 || buf[21] != next[buf[20]] {
			t.Fatalf("%d bytes, frame %d of queue %d", n, buf[21], buf[20])
		}
		next[buf[20]]++
	}
}

// TestPortServesARebootedGuest: a guest that reboots is served over the same connection, with other
// features.
func TestPortServesARebootedGuest(t *testing.T) {
	for _, packed := range []bool{false, true} {
		b := newGuestPort(t, vhostnet.Config{}, vhosttest.NetOptions{Merge: true, Packed: packed})
		buf, frame := make([]byte, 1<<16), frameOf(rand.New(rand.NewPCG(1, 1)), 300)
		for range 3 {
			for range 300 {
				b.guest.Transmit(0, vhosttest.Header{}, frame)
				if n, _ := b.read(buf); n != 300 {
					t.Fatalf("read %d bytes", n)
				}
				b.port.Settle()
				if !b.port.Write([][]byte{frame}, vhostnet.Offload{}) {
					t.Fatal("not written")
				}
				b.port.Settle()
				b.guest.Discard(0)
			}
			var bases []uint32
			var err error
			b.serve(func() { bases, err = b.guest.Stop() })
			want := uint32(300)
			if packed {
				want = (300 - 256) * 0x10001 // in the second lap
			}
			if err != nil || bases[0] != want || bases[1] != want {
				t.Fatalf("stopped at %#x, %v, want %#x", bases, err, want)
			}
			if b.port.Write([][]byte{frame}, vhostnet.Offload{}) {
				t.Fatal("written to a guest that runs no rings")
			}
			b.serve(func() { err = b.guest.Boot() })
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestBrokenDriverStopsItsPort: a driver that breaks the rules stops its port, with a reason. The
// port works again for a driver that starts again.
func TestBrokenDriverStopsItsPort(t *testing.T) {
	b := newGuestPort(t, vhostnet.Config{}, vhosttest.NetOptions{Merge: true})
	buf, frame := make([]byte, 1<<16), frameOf(rand.New(rand.NewPCG(1, 1)), 300)
	b.guest.Transmit(0, vhosttest.Header{}, frame)
	if n, _ := b.read(buf); n != 300 {
		t.Fatalf("read %d bytes", n)
	}
	b.guest.Break(0)
	if n, _ := b.read(buf); n != 0 {
		t.Fatalf("read %d bytes of a broken ring", n)
	}
	if why := b.port.Reason(); !strings.Contains(why, "available index") {
		t.Errorf("reason %q", why)
	}
	if b.port.Write([][]byte{frame}, vhostnet.Offload{}) {
		t.Error("written to a port that stopped")
	}
	var err error
	b.serve(func() {
		if _, err = b.guest.Stop(); err == nil {
			err = b.guest.Boot()
		}
	})
	if err != nil || b.port.Reason() != "" {
		t.Fatal(err, b.port.Reason())
	}
	b.guest.Transmit(0, vhosttest.Header{}, frame)
	if n, _ := b.read(buf); n != 300 {
		t.Fatalf("read %d bytes", n)
	}
}

// TestPortTakesWhatTheDriverAccepted: a port accepts frames with the offloads that the guest's
// driver negotiated.
func TestPortTakesWhatTheDriverAccepted(t *testing.T) {
	tso := vhostnet.Offload{GSO: 1, NeedsCsum: true}
	for _, offloads := range []bool{false, true} {
		b := newGuestPort(t, vhostnet.Config{}, vhosttest.NetOptions{Offloads: offloads})
		for _, o := range []vhostnet.Offload{tso, {GSO: 4 | 0x80, NeedsCsum: true}, {GSO: 5, NeedsCsum: true}, {NeedsCsum: true}} {
			if b.port.Takes(o) != offloads {
				t.Errorf("offloads %v: %+v", offloads, o)
			}
		}
		if !b.port.Takes(vhostnet.Offload{}) {
			t.Error("takes no plain frame")
		}
	}
}

func TestLargerMTUIsRefused(t *testing.T) {
	b := newGuestPort(t, vhostnet.Config{}, vhosttest.NetOptions{MTU: 1500})
	var err error
	b.serve(func() {
		if b.guest.Ask(vhostuser.NetSetMTU, vhosttest.U64(1501)) == nil {
			t.Error("an MTU above the port's was taken")
		}
		err = <-b.ended
	})
	if err == nil || !strings.Contains(err.Error(), "host_mtu=1500") {
		t.Errorf("%v", err)
	}
	b.ended <- nil // for the end of the test
}

// TestOnePairNeedsNoMultiqueue: a device of one pair of queues says nothing of several. Drivers
// refuse that where they have no control queue, and QEMU has one for those of its own guests only.
func TestOnePairNeedsNoMultiqueue(t *testing.T) {
	const several = 1 << 22 // VIRTIO_NET_F_MQ
	if vhostnet.Features(1)&several != 0 || vhostnet.Features(2)&several == 0 {
		t.Errorf("features %#x and %#x", vhostnet.Features(1), vhostnet.Features(2))
	}
}

// TestNextBackEndGoesOn: a front end may lose its connection at any moment and continue at the used
// index. No frame is lost, and none comes twice.
func TestNextBackEndGoesOn(t *testing.T) {
	b := newGuestPort(t, vhostnet.Config{}, vhosttest.NetOptions{Merge: true})
	buf := make([]byte, 1<<16)
	rng := rand.New(rand.NewPCG(3, 3))
	sent, seen, got := 0, 0, 0
	for range 30 {
		for range rng.IntN(100) {
			frame := make([]byte, 60)
			frame[20], frame[21] = byte(sent>>8), byte(sent)
			if !b.guest.Transmit(0, vhosttest.Header{}, frame) {
				break
			}
			sent++
		}
		for i := range rng.IntN(80) {
			n, _ := b.read(buf)
			if n == 0 {
				break
			}
			if number := int(buf[20])<<8 | int(buf[21]); number != seen {
				t.Fatalf("frame %d, want %d", number, seen)
			}
			seen++
			if !b.port.Write([][]byte{buf[:n]}, vhostnet.Offload{}) {
				t.Fatal("not written")
			}
			if i%7 == 0 {
				b.port.Settle()
			}
		}
		var err error
		b.serve(func() {
			_ = b.guest.Conn.Close()
			if err = <-b.ended; err == nil {
				err = b.guest.Reconnect(b.connect())
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		for {
			_, frame, err := b.guest.Receive(0)
			if err != nil {
				t.Fatal(err)
			}
			if frame == nil {
				break
			}
			if number := int(frame[20])<<8 | int(frame[21]); number != got {
				t.Fatalf("the guest got frame %d, want %d", number, got)
			}
			got++
		}
		if got != seen {
			t.Fatalf("the guest got %d frames of %d", got, seen)
		}
	}
}

func TestNoAllocations(t *testing.T) {
	eachDriver(t, func(t *testing.T, o vhosttest.NetOptions) {
		b := newGuestPort(t, vhostnet.Config{}, o)
		buf, frame := make([]byte, 1<<16), frameOf(rand.New(rand.NewPCG(1, 1)), 3000)
		parts := [][]byte{frame[:100], frame[100:]}
		for range 200 {
			b.guest.Post(0, vhosttest.Header{}, frame)
		}
		b.guest.Notify(0)
		if n := allocs.PerRun(90, func() {
			b.port.Wake()
			if n, _ := b.read(buf); n != len(frame) {
				t.Fatalf("read %d", n)
			}
			if !b.port.Write(parts, vhostnet.Offload{}) {
				t.Fatal("not written")
			}
			b.port.Settle()
			b.port.Arm()
		}); n != 0 {
			t.Errorf("%v allocations per frame", n)
		}
	})
}

// TestFrameTooLongIsDropped: if a guest has no mergeable buffers, a frame that is longer than its
// buffer is not written, not even in part (Virtio §5.1.6.4).
func TestFrameTooLongIsDropped(t *testing.T) {
	b := newGuestPort(t, vhostnet.Config{}, vhosttest.NetOptions{Offloads: true})
	off := vhostnet.Offload{GSO: 1, NeedsCsum: true, Size: 1400, CsumStart: 34, CsumOffset: 16}
	if b.port.Write([][]byte{make([]byte, 1<<16-11)}, off) {
		t.Error("a frame was written that does not fit")
	}
	b.port.Settle()
	if n := b.guest.Discard(0); n != 0 {
		t.Errorf("the guest got %d buffers", n)
	}
	if !b.port.Write([][]byte{make([]byte, 1<<16-12)}, off) {
		t.Error("a frame that just fits was not written")
	}
}
