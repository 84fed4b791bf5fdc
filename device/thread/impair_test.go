package thread

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/fabric"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/internal/allocs"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

func newDirection(c config.Impairment) *impaired {
	none := config.NoImpairment()
	if c.ReorderDelay == 0 {
		c.ReorderDelay = none.ReorderDelay
	}
	if c.Queue == 0 {
		c.Queue = none.Queue
	}
	ds := newImpaired(1500, &config.Impair{TX: c})
	return &ds[TX]
}

// numbered returns a frame that begins with its number.
func numbered(i int) []byte {
	return binary.BigEndian.AppendUint32(make([]byte, 0, 60), uint32(i))[:60]
}

// arrivals sends n frames, gap apart, and returns what arrives, in order.
func arrivals(d *impaired, n int, gap vtime.Time) (got [][]byte) {
	b := make([]byte, 2000)
	for now, i := vtime.Time(0), 0; i < n || d.deadline() < vtime.Never; now += gap {
		if i < n {
			d.take(now, numbered(i), 0)
			i++
		}
		for k := d.next(now, b); k > 0; k = d.next(now, b) {
			got = append(got, bytes.Clone(b[:k]))
		}
	}
	return got
}

// TestImpairmentsFollowTheSeedNotTheTime checks that the choices for the n-th packet do not depend on its time.
func TestImpairmentsFollowTheSeedNotTheTime(t *testing.T) {
	c := config.Impairment{Loss: 0.1, Duplicate: 0.1, Corrupt: 0.1, Seed: 7}
	first := arrivals(newDirection(c), 2000, 1000)
	if again := arrivals(newDirection(c), 2000, 77); !slices.EqualFunc(first, again, bytes.Equal) {
		t.Error("the same seed decided otherwise at other times")
	}
	d := newDirection(config.Impairment{Loss: 0.5, Seed: 9})
	arrivals(d, 100, 10)
	d.set(c2(c), TX) // a seed of its own starts anew
	if again := arrivals(d, 2000, 1000); !slices.EqualFunc(first, again, bytes.Equal) {
		t.Error("a new seed did not begin anew")
	}
	c.Seed = 8
	if other := arrivals(newDirection(c), 2000, 1000); slices.EqualFunc(first, other, bytes.Equal) {
		t.Error("another seed decided alike")
	}
	ds := newImpaired(1500, &config.Impair{RX: c2(c), TX: c2(c)})
	if slices.EqualFunc(arrivals(&ds[RX], 2000, 1000), arrivals(&ds[TX], 2000, 1000), bytes.Equal) {
		t.Error("both directions of an uplink decided alike")
	}
}

// c2 fills in the other fields of an impairment.
func c2(c config.Impairment) config.Impairment {
	none := config.NoImpairment()
	c.ReorderDelay, c.Queue = none.ReorderDelay, none.Queue
	return c
}

// TestEachPacketOfASuperframeIsImpairedAlone checks that each packet of a superframe is impaired like one that comes
// alone.
func TestEachPacketOfASuperframeIsImpairedAlone(t *testing.T) {
	const segment, n = 100, 50
	alone, joined := newDirection(config.Impairment{Loss: 0.3, Seed: 1}), newDirection(config.Impairment{Loss: 0.3, Seed: 1})
	super := udpFrame(segment * n)
	headers := len(super) - segment*n
	for i := range n {
		super[headers+i*segment] = byte(i + 1)
		f := udpFrame(segment)
		f[headers] = byte(i + 1)
		alone.take(0, f, 0)
	}
	joined.take(0, super, segment)
	a, b := make([]byte, 2000), make([]byte, 2000)
	for i := 0; ; i++ {
		k, m := alone.next(0, a), joined.next(0, b)
		if !bytes.Equal(a[:k], b[:m]) {
			t.Fatalf("packet %d: %x\nwant %x", i, b[:m], a[:k])
		}
		if k == 0 {
			break
		}
	}
	if s := joined.describe().Counts; s.Sent != n || s.Lost == 0 || s.Lost+s.Delivered != n {
		t.Errorf("%+v", s)
	}
}

// udpFrame returns an Ethernet frame with a UDP datagram over IPv4.
func udpFrame(payload int) []byte {
	f := make([]byte, 42+payload)
	binary.BigEndian.PutUint16(f[12:], 0x0800)
	f[14], f[20], f[22], f[23] = 0x45, 0x40, 255, 17
	setLengths(f)
	return f
}

// TestImpairedPacketsBeyondTheQueueAreLost checks that packets that do not fit in the queue are lost, and that a queue
// that was full once allocates no more.
func TestImpairedPacketsBeyondTheQueueAreLost(t *testing.T) {
	d := newDirection(config.Impairment{Delay: time.Second, Queue: 100, Seed: 1})
	for i := range 1000 {
		d.take(0, numbered(i), 0)
	}
	if c := d.describe().Counts; c.Overflowed != 900 {
		t.Errorf("%+v", c)
	}
	b, f, now := make([]byte, 2000), numbered(1), vtime.Time(0)
	if n := allocs.PerRun(1000, func() {
		now += 1e8
		d.take(now, f, 0)
		for d.next(now, b) > 0 {
		}
	}); n != 0 {
		t.Errorf("%v allocations per packet", n)
	}
	d.set(config.NoImpairment(), TX)
	if d.settle(); !d.on {
		t.Error("off with packets under way")
	}
	for d.next(now+1e9, b) > 0 {
	}
	if d.settle(); d.on {
		t.Error("on with nothing to do")
	}
}

// idle is a shard with nothing to do, no ports and no input.
type idle struct{ deadline vtime.Time }

func (s *idle) Step(_ vtime.Time, _ *Input, out *Output) { out.Deadline = s.deadline }

func (s *idle) Flush(_ vtime.Time, out *Output) { out.Deadline = s.deadline }

func (s *idle) Woke() bool { return false }

func (s *idle) Park() bool { return true }

func (s *idle) Unpark() {}

func (s *idle) Read() bool { return false }

func (s *idle) Write() {}

func (s *idle) More() bool { return false }

func (s *idle) Arm() bool { return false }

func (s *idle) FD() int { return -1 }

func (s *idle) Deadline() vtime.Time { return vtime.Never }

// newThreadOn returns a thread whose uplink is one port of a segment in memory, and the port at the
// other end.
func newThreadOn(t *testing.T, impair config.Impair) (*Thread, tap.Uplink, *int64) {
	t.Helper()
	const mtu = 1500
	net := fabric.New(mtu)
	near, err := net.Port("near")
	if err != nil {
		t.Fatal(err)
	}
	far, err := net.Port("far")
	if err != nil {
		t.Fatal(err)
	}
	now, s := new(int64), &idle{vtime.Never}
	*now = 1e9
	l, err := New(Config{
		Shard: s, Ports: s, Uplink: near, Queue: tap.NewQueue(8, mtu+tap.FrameOverhead), Impair: impair,
		Clock: func() int64 { return *now }, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.Close()
		near.Close()
		far.Close()
	})
	return l, far, now
}

// TestFramesAreDelayedInBothDirections checks that frames are delayed in both directions, and that packets under way
// when the delay ends still arrive.
func TestFramesAreDelayedInBothDirections(t *testing.T) {
	delay := config.NoImpairment()
	delay.Delay = time.Millisecond
	l, far, now := newThreadOn(t, config.Impair{RX: delay, TX: delay})
	send := func(i int) {
		b := l.Queue.Slot()
		copy(b, numbered(i))
		copy(b, []byte{2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, byte(i)})
		l.Queue.Commit(60)
	}
	read := func() (ids []byte) {
		bufs, got := [][]byte{make([]byte, 5000)}, make([]tap.Received, 1)
		for n, _ := far.Read(bufs, got); n > 0; n, _ = far.Read(bufs, got) {
			ids = append(ids, bufs[0][11])
		}
		return ids
	}
	send(1)
	l.Turn()
	if got := read(); len(got) != 0 {
		t.Fatalf("%v came at once", got)
	}
	if d := l.impair[TX].deadline(); d != *now+1e6 {
		t.Errorf("deadline in %d ns", d-*now)
	}
	l.impair[TX].set(config.NoImpairment(), TX)
	send(2)
	*now += 5e5
	l.Turn()
	*now += 5e5
	l.Turn()
	if got := read(); !slices.Equal(got, []byte{2, 1}) {
		t.Errorf("%v came", got)
	}
	if l.impair[TX].on {
		t.Error("still on")
	}
	send(3)
	l.Turn()
	if got := read(); !slices.Equal(got, []byte{3}) {
		t.Errorf("%v came once nothing was asked", got)
	}
	// Incoming frames.
	f := udpFrame(100)
	copy(f, []byte{2, 0, 0, 0, 0, 1})
	f[6] = 2
	if n, err := far.Write([][]byte{f}, false); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	l.Turn()
	if len(l.in.Frames) != 0 {
		t.Error("received at once")
	}
	*now += 1e6
	l.Turn()
	if len(l.in.Frames) != 1 || !bytes.Equal(l.in.Frames[0], f) {
		t.Errorf("received %x", l.in.Frames)
	}
}

// setLengths fills in lengths and the IP header's checksum.
func setLengths(f []byte) {
	ip, udp := f[14:34], f[34:]
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(udp)))
	ip[10], ip[11] = 0, 0
	var sum uint32
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum>>16+sum))
}

// TestImpairedFramesStay checks that packets that passed the link while the port was full are sent
// when it has room, even if the impairment has ended; until then no more are taken than there is
// room for.
func TestImpairedFramesStay(t *testing.T) {
	delay := config.NoImpairment()
	delay.Delay = time.Millisecond
	l, far, now := newThreadOn(t, config.Impair{RX: config.NoImpairment(), TX: delay})
	up := &failingUplink{Uplink: l.Uplink, full: true}
	l.Uplink = up
	const frames = impairSlots + 3
	for sent := 0; sent < frames; {
		n := min(frames-sent, 8)
		queueFrames(l, n)
		sent += n
		l.Turn()
	}
	*now += 1e6
	l.Impair(TX, config.NoImpairment())
	l.Turn()
	d := &l.impair[TX]
	if n := len(d.out.Pending()); n != impairSlots || !d.on || d.deadline() != vtime.Never {
		t.Fatalf("%d frames have come through, on %t, the next at %d", n, d.on, d.deadline())
	}
	up.full = false
	l.Turn() // these, and then the rest
	l.Turn()
	bufs, got := [][]byte{make([]byte, 5000)}, make([]tap.Received, 1)
	arrived := 0
	for n, _ := far.Read(bufs, got); n > 0; n, _ = far.Read(bufs, got) {
		arrived++
	}
	if arrived != frames || d.on {
		t.Errorf("%d of %d frames came, on %t", arrived, frames, d.on)
	}
}

// TestMarkedIfAllowed checks that packets that a link marks count as marked if their senders allow
// it.
func TestMarkedIfAllowed(t *testing.T) {
	d := newDirection(config.Impairment{Mark: 1, Seed: 1})
	for i := range 3 {
		f := udpFrame(10)
		if i > 0 {
			f[15] |= 2
		}
		setLengths(f)
		d.take(0, f, 0)
	}
	b, marks := make([]byte, 2000), 0
	for n := d.next(0, b); n > 0; n = d.next(0, b) {
		if b[15]&3 == 3 {
			marks++
		}
	}
	if v := d.describe(); marks != 2 || v.Marked != 2 || v.Counts.Marked != 3 {
		t.Errorf("%d are marked, %+v", marks, v)
	}
}
