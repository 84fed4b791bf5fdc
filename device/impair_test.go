package device

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/fabric"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/guestlib"
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
	return &ds[directionTx]
}

// numbered is a frame whose first bytes are its number.
func numbered(i int) []byte {
	return binary.BigEndian.AppendUint32(make([]byte, 0, 60), uint32(i))[:60]
}

// arrivals sends n frames, gap apart, and returns what arrives in its order.
func arrivals(d *impaired, n int, gap falcon.Time) (got [][]byte) {
	b := make([]byte, 2000)
	for now, i := falcon.Time(0), 0; i < n || d.deadline() < math.MaxInt64; now += gap {
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

// TestImpairReplays decides about the n-th packet alike whenever it comes.
func TestImpairReplays(t *testing.T) {
	c := config.Impairment{Loss: 0.1, Duplicate: 0.1, Corrupt: 0.1, Seed: 7}
	first := arrivals(newDirection(c), 2000, 1000)
	if again := arrivals(newDirection(c), 2000, 77); !slices.EqualFunc(first, again, bytes.Equal) {
		t.Error("the same seed decided otherwise at other times")
	}
	d := newDirection(config.Impairment{Loss: 0.5, Seed: 9})
	arrivals(d, 100, 10)
	d.set(c2(c), directionTx) // a seed of its own begins anew
	if again := arrivals(d, 2000, 1000); !slices.EqualFunc(first, again, bytes.Equal) {
		t.Error("a new seed did not begin anew")
	}
	c.Seed = 8
	if other := arrivals(newDirection(c), 2000, 1000); slices.EqualFunc(first, other, bytes.Equal) {
		t.Error("another seed decided alike")
	}
	ds := newImpaired(1500, &config.Impair{RX: c2(c), TX: c2(c)})
	if slices.EqualFunc(arrivals(&ds[directionRx], 2000, 1000), arrivals(&ds[directionTx], 2000, 1000), bytes.Equal) {
		t.Error("both directions of an uplink decided alike")
	}
}

// c2 completes an impairment.
func c2(c config.Impairment) config.Impairment {
	none := config.NoImpairment()
	c.ReorderDelay, c.Queue = none.ReorderDelay, none.Queue
	return c
}

// TestImpairSuperframe decides about each packet of a superframe by itself, as
// about packets that come alone.
func TestImpairSuperframe(t *testing.T) {
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
	if s := joined.snapshot().Counts; s.Packets != n || s.Lost == 0 || s.Lost+s.Delivered != n {
		t.Errorf("%+v", s)
	}
}

// udpFrame is an Ethernet frame of a UDP datagram over IPv4.
func udpFrame(payload int) []byte {
	f := make([]byte, 42+payload)
	binary.BigEndian.PutUint16(f[12:], 0x0800)
	f[14], f[20], f[22], f[23] = 0x45, 0x40, 255, 17
	setLengths(f)
	return f
}

// TestImpairBounded loses what does not fit in the queue, and needs no memory
// once it has been full.
func TestImpairBounded(t *testing.T) {
	d := newDirection(config.Impairment{Delay: time.Second, Queue: 100, Seed: 1})
	for i := range 1000 {
		d.take(0, numbered(i), 0)
	}
	if c := d.snapshot().Counts; c.Overflowed != 900 {
		t.Errorf("%+v", c)
	}
	b, f, now := make([]byte, 2000), numbered(1), falcon.Time(0)
	if n := testing.AllocsPerRun(1000, func() {
		now += 1e8
		d.take(now, f, 0)
		for d.next(now, b) > 0 {
		}
	}); n != 0 {
		t.Errorf("%v allocations per packet", n)
	}
	d.set(config.NoImpairment(), directionTx)
	if d.settle(); !d.on {
		t.Error("off with packets under way")
	}
	for d.next(now+1e9, b) > 0 {
	}
	if d.settle(); d.on {
		t.Error("on with nothing to do")
	}
}

// newLoopOn is a loop whose uplink is one port of a segment in memory, and the
// port at its other end.
func newLoopOn(t *testing.T, impair config.Impair) (*loop, tap.Port, *int64) {
	t.Helper()
	cfg := testConfig(t, 1, t.TempDir()+"/s", [2]string{"127.0.0.1:1", "127.0.0.1:2"})
	cfg.Uplink.Impair = impair
	s, err := newShard(0, cfg, bytes.NewReader(make([]byte, 1<<16)), testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	net := fabric.New(testMTU)
	near, err := net.Port("near")
	if err != nil {
		t.Fatal(err)
	}
	far, err := net.Port("far")
	if err != nil {
		t.Fatal(err)
	}
	now := new(int64)
	*now = 1e9
	l, err := newLoop(s, near, func() int64 { return *now }, func(uint8, []byte) {}, testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.park.close()
		near.Close()
		far.Close()
	})
	return l, far, now
}

// TestLoopImpairs delays what the shard sends and what it receives; what is under
// way when the delay ends arrives nevertheless.
func TestLoopImpairs(t *testing.T) {
	delay := config.NoImpairment()
	delay.Delay = time.Millisecond
	l, far, now := newLoopOn(t, config.Impair{RX: delay, TX: delay})
	send := func(i int) {
		b := l.shard.tx.slot()
		copy(b, numbered(i))
		copy(b, []byte{2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, byte(i)})
		l.shard.tx.commit(60)
	}
	read := func() (ids []byte) {
		bufs, got := [][]byte{make([]byte, 5000)}, make([]tap.Received, 1)
		for n, _ := far.Read(bufs, got); n > 0; n, _ = far.Read(bufs, got) {
			ids = append(ids, bufs[0][11])
		}
		return ids
	}
	send(1)
	l.turn()
	if got := read(); len(got) != 0 {
		t.Fatalf("%v came at once", got)
	}
	if d := l.impair[directionTx].deadline(); d != *now+1e6 {
		t.Errorf("deadline in %d ns", d-*now)
	}
	l.impair[directionTx].set(config.NoImpairment(), directionTx)
	send(2)
	*now += 5e5
	l.turn()
	*now += 5e5
	l.turn()
	if got := read(); !slices.Equal(got, []byte{2, 1}) {
		t.Errorf("%v came", got)
	}
	if l.impair[directionTx].on {
		t.Error("still on")
	}
	send(3)
	l.turn()
	if got := read(); !slices.Equal(got, []byte{3}) {
		t.Errorf("%v came once nothing was asked", got)
	}
	// What arrives.
	f := udpFrame(100)
	copy(f, l.shard.cfg.Uplink.MAC[:])
	f[6] = 2
	if n, err := far.Write([][]byte{f}, false); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	l.turn()
	if len(l.in.Frames) != 0 {
		t.Error("received at once")
	}
	*now += 1e6
	l.turn()
	if len(l.in.Frames) != 1 || !bytes.Equal(l.in.Frames[0], f) {
		t.Errorf("received %x", l.in.Frames)
	}
}

// TestTrafficImpaired moves data between NICs on TAPs, with superframes, while
// their uplinks lose, reorder, repeat, damage and mark packets: all of it
// arrives, and the counts agree with each other and with what the peer saw.
func TestTrafficImpaired(t *testing.T) {
	auto := config.SuperframesAuto
	onTAPs(t, [2]string{auto, auto}, func(w *world) {
		inject := func(i int, direction, set string) control.Uplink {
			t.Helper()
			u, err := w.nics[i].InjectLink(t.Context(), control.LinkChange{Direction: direction, Set: []byte(set)})
			if err != nil {
				t.Fatal(err)
			}
			return u
		}
		inject(0, "tx", `{"loss": 0.01, "reorder": 0.03, "duplicate": 0.01, "mark": 0.05, "seed": 3}`)
		inject(0, "rx", `{"loss": 0.01, "jitter_ns": 20000}`)
		inject(1, "rx", `{"corrupt": 0.01}`)
		x, y := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
		connect(t, x, y, 1)
		from, to := x.mr.Bytes(), y.mr.Bytes()
		for i := range from {
			from[i] = byte(i * 2654435761 >> 13)
		}
		for range 4 {
			clear(to)
			x.do(t, guestlib.SendWR{Opcode: guestlib.Write, SGL: []guestlib.SGE{x.mr.SGE(0, 4<<20)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()})
			if !bytes.Equal(to[:4<<20], from[:4<<20]) {
				t.Fatal("bytes differ")
			}
		}
		w.until("nothing under way", func() bool {
			for i := range w.nics {
				v, _ := w.nics[i].NIC(t.Context())
				u := v.Uplinks[0]
				for _, c := range []control.Impaired{u.RX.Counts, u.TX.Counts} {
					if c.Packets-c.Lost-c.Overflowed+c.Duplicated != c.Delivered {
						return false
					}
				}
			}
			return true
		})
		v, err := w.nics[0].NIC(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		tx, rx := v.Uplinks[0].TX.Counts, v.Uplinks[0].RX.Counts
		share := func(what string, n, of uint64, want float64) {
			t.Helper()
			if p := float64(n) / float64(of); p < want/3 || p > want*3 {
				t.Errorf("%s: %d of %d packets, want %v", what, n, of, want)
			}
		}
		share("lost", tx.Lost, tx.Packets, 0.01)
		share("reordered", tx.Reordered, tx.Packets, 0.03)
		share("duplicated", tx.Duplicated, tx.Packets, 0.01)
		share("marked", tx.Marked, tx.Packets, 0.05)
		if rx.Lost == 0 || rx.Overflowed+tx.Overflowed != 0 {
			t.Errorf("rx %+v, tx %+v", rx, tx)
		}
		const before = 100 // packets at most that passed before, and in between
		left, came := w.counter(0, "uplink.tx_frames"), w.counter(1, "uplink.rx_frames")
		if left < tx.Delivered || left > tx.Delivered+before || came+before < left {
			t.Errorf("%d packets came through, %d left, the peer saw %d", tx.Delivered, left, came)
		}
		if w.counter(1, "impair.rx_corrupted") == 0 || w.counter(1, "drop.psp_auth") == 0 {
			t.Error("no damage was found")
		}
		if w.counter(0, "falcon.ecn_marked")+w.counter(1, "falcon.ecn_marked") == 0 {
			t.Error("no mark was seen")
		}
		if w.counter(0, "uplink.tx_superframes") == 0 {
			t.Error("no superframes left")
		}
	})
}

func TestInjectLinkRefuses(t *testing.T) {
	w := newWorld(t)
	for _, tc := range []struct {
		change control.LinkChange
		want   string
	}{
		{control.LinkChange{Uplink: "eth9"}, `uplink "eth9": this NIC has none of that name; name nic1`},
		{control.LinkChange{Direction: "up"}, `direction "up": write rx for what arrives, tx for what leaves, or nothing for both`},
		{control.LinkChange{Set: []byte(`{"loss": 2}`)}, "loss: 2 is not a share of packets; use 0 to 1"},
		{control.LinkChange{Set: []byte(`{"delay_ns": -1}`)}, "delay: -1ns is out of range; use 0s to 10s"},
		{control.LinkChange{Set: []byte(`{"los": 1}`)}, `set: json: unknown field "los"; give fields of an impairment as GET /v1/nic shows them`},
	} {
		if _, err := w.nics[0].InjectLink(t.Context(), tc.change); err == nil || err.Error() != tc.want {
			t.Errorf("%+v: %v, want %s", tc.change, err, tc.want)
		}
	}
	if u, _ := w.nics[0].InjectLink(t.Context(), control.LinkChange{Direction: "rx", Set: []byte(`{"loss": 1, "queue": 5}`)}); u.TX.Impairment.Loss != 0 || u.RX.Impairment.Loss != 1 {
		t.Errorf("%+v", u)
	}
	if u, _ := w.nics[0].InjectLink(t.Context(), control.LinkChange{Clear: true, Set: []byte(`{"mark": 1}`)}); u.RX.Impairment.Loss != 0 || u.RX.Impairment.Queue != 8192 || u.TX.Impairment.Mark != 1 {
		t.Errorf("%+v", u)
	}
}
