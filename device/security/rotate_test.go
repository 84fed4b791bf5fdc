package security

import (
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/psp"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// all reports that every use is needed.
func all(Use) bool { return true }

// TestRotatesInTime: keys are rotated once in a period, which begins when the time is first known.
// Without a period they are rotated on request only.
func TestRotatesInTime(t *testing.T) {
	const every, start = int64(8e9), int64(5e9)
	k, _ := newKeys(t, time.Duration(every), nil)
	if k.Deadline() > start {
		t.Error("it does not want to know the time")
	}
	k.Advance(start)
	for turn := range int64(3) {
		due := start + (turn+1)*every
		if k.Deadline() != due {
			t.Fatalf("turn %d: due in %d", turn, k.Deadline()-start)
		}
		if k.Advance(due - 1); k.Stats().Rotations != uint64(turn) {
			t.Errorf("turn %d: rotated too early", turn)
		}
		if k.Advance(due); k.Stats().Rotations != uint64(turn+1) || k.Deadline() != due {
			t.Errorf("turn %d: %+v, the next at %d", turn, k.Stats(), k.Deadline()-due)
		}
		k.Advance(due) // to see what is next
	}
	k, _ = newKeys(t, 0, nil)
	if k.Advance(start); k.Deadline() != vtime.Never {
		t.Errorf("without a period something is due at %d", k.Deadline())
	}
	if err := k.Rotate(start); err != nil {
		t.Fatal(err)
	}
	for now := start; now < start+100e9; now += 1e9 {
		k.Advance(now)
	}
	if n := k.Stats().Rotations; n != 1 || k.Deadline() != vtime.Never {
		t.Errorf("%d rotations, the next at %d", n, k.Deadline())
	}
}

// TestRotationWaitsOnce: a rotation waits for a peer that has not confirmed its key for one more
// period, and no longer.
func TestRotationWaitsOnce(t *testing.T) {
	const every = int64(8e9)
	k, m := newKeys(t, time.Duration(every), nil)
	k.cfg.Needed = all
	u := Use{Peer: 2, Tenant: 7}
	issue(t, k, u)
	k.Advance(0)
	for _, c := range []struct {
		now       int64
		rotations uint64
	}{{every, 1}, {2 * every, 1}, {3*every - 1, 1}, {3 * every, 2}, {5*every - 1, 2}, {5 * every, 3}} {
		k.Advance(c.now)
		k.Advance(c.now)
		if n := k.Stats().Rotations; n != c.rotations || len(m.rekeys) != int(c.rotations) {
			t.Errorf("at %d: %d rotations, %d keys told of, want %d", c.now, n, len(m.rekeys), c.rotations)
		}
	}
}

// TestLingering: an old key is accepted for a second after the peer has confirmed the new one, and
// for a quarter of the period if that is shorter.
func TestLingering(t *testing.T) {
	for every, lingers := range map[int64]int64{0: 1e9, 8e9: 1e9, 4e9: 1e9, 2e9: 5e8, 1000: 250} {
		k, _ := newKeys(t, time.Duration(every), nil)
		k.cfg.Needed = all
		u := Use{Peer: 2, Tenant: 7}
		old := issue(t, k, u)
		if err := k.Rotate(0); err != nil {
			t.Fatal(err)
		}
		k.Confirmed(0, u, old.SPI, 1)   // the old one
		k.Confirmed(0, u, old.SPI+9, 1) // no key of ours
		k.rotation.due = vtime.Never    // the next rotation is no matter here
		k.rotation.every = 0
		if k.Advance(lingers * 2); k.Stats().Unsettled != 1 {
			t.Fatalf("period %d: the old key ends, and the new one is not confirmed", every)
		}
		k.Confirmed(0, u, k.List()[0].SPI, 1)
		if k.Deadline() != lingers {
			t.Errorf("period %d: it ends after %d, want %d", every, k.Deadline(), lingers)
		}
		if k.Advance(lingers - 1); k.List()[0].Previous != old.SPI {
			t.Errorf("period %d: it ended too early", every)
		}
		if k.Advance(lingers); k.List()[0].Previous != 0 || k.Stats().Unsettled != 0 || k.Stats().SPIs != 1 {
			t.Errorf("period %d: it has not ended: %+v", every, k.Stats())
		}
		k.Confirmed(2*lingers, u, k.List()[0].SPI, 1) // again, which changes nothing
		if k.Advance(3 * lingers); k.Stats().Unsettled != 0 {
			t.Errorf("period %d: confirmed twice: %+v", every, k.Stats())
		}
	}
}

// TestReplacedWhileLingering: if the new key is replaced before the old one has ended, the end of
// the old key does not end its successor.
func TestReplacedWhileLingering(t *testing.T) {
	k, _ := newKeys(t, 0, nil)
	k.cfg.Needed = all
	u := Use{Peer: 2, Tenant: 7}
	issue(t, k, u)
	if err := k.Rotate(0); err != nil {
		t.Fatal(err)
	}
	second := k.List()[0].SPI
	k.Confirmed(0, u, second, 1)
	if err := k.Rotate(1); !errors.Is(err, ErrRotating) {
		t.Error("rotated while a key lingers:", err)
	}
	if err := k.rotate(1); err != nil { // as its time has come
		t.Fatal(err)
	}
	k.Advance(lingerMost)
	if list := k.List(); list[0].Previous != second || k.Stats().Unsettled != 1 || k.Stats().SPIs != 2 {
		t.Errorf("%+v, %+v", list, k.Stats())
	}
	k.Confirmed(lingerMost, u, k.List()[0].SPI, 1)
	k.Advance(2 * lingerMost)
	if k.Stats().Unsettled != 0 || k.Stats().SPIs != 1 {
		t.Errorf("%+v", k.Stats())
	}
}

// TestRotateTwice: another rotation waits until the last one has ended, also if there are no keys,
// and until all keys are replaced.
func TestRotateTwice(t *testing.T) {
	k, _ := newKeys(t, 0, nil)
	if err := k.Rotate(0); err != nil {
		t.Fatal(err)
	}
	if err := k.Rotate(0); !errors.Is(err, ErrRotating) {
		t.Error(err)
	}
	k.Advance(0)
	if err := k.Rotate(0); err != nil {
		t.Error(err)
	}
}

// TestPeerGoesInARotation: if a peer is forgotten during a rotation, its keys are not replaced. A
// key issued meanwhile is of the new generation, and stays.
func TestPeerGoesInARotation(t *testing.T) {
	k, m := newKeys(t, 0, nil)
	k.cfg.Needed = all
	for peer := range cm.HostID(2) {
		for i := range uint32(perStep) {
			issue(t, k, Use{Peer: peer, Tenant: i + 1})
		}
	}
	if err := k.Rotate(0); err != nil {
		t.Fatal(err)
	}
	if len(m.rekeys) != perStep {
		t.Fatalf("%d keys are replaced at once", len(m.rekeys))
	}
	last := Use{Peer: 1, Tenant: perStep}
	k.ForgetPeer(1)
	again := issue(t, k, last)
	k.Advance(0)
	if len(m.rekeys) != perStep || k.Stats().Uses != perStep+1 || issue(t, k, last).SPI != again.SPI {
		t.Errorf("%d keys are replaced, %+v", len(m.rekeys), k.Stats())
	}
}

// failing is a source of random numbers that ends.
type failing struct{ left int }

func (f *failing) Read(b []byte) (int, error) {
	if f.left--; f.left < 0 {
		return 0, io.ErrUnexpectedEOF
	}
	return len(b), nil
}

// TestNoMasterKey: a rotation that cannot make a master key is logged, and tried again a period
// later. Existing keys stay valid.
func TestNoMasterKey(t *testing.T) {
	const every = int64(8e9)
	var said []string
	source := &failing{left: 2}
	k, err := NewKeys(Config{
		Shards: 1, RotateEvery: time.Duration(every), Rand: source, Needed: all,
		Log: func(_ int64, _ slog.Level, msg string, _ ...any) { said = append(said, msg) },
	})
	if err != nil {
		t.Fatal(err)
	}
	k.Connect(&manager{})
	k.Advance(0)
	k.Advance(every)
	k.Advance(every)
	if k.Stats().Rotations != 0 || len(said) != 1 || !strings.Contains(said[0], "not rotated") || k.Deadline() != 2*every {
		t.Errorf("%+v, %q, the next at %d", k.Stats(), said, k.Deadline())
	}
	source.left = 1
	if k.Advance(2 * every); k.Stats().Rotations != 1 {
		t.Errorf("%+v, %q", k.Stats(), said)
	}
	if _, err := NewKeys(Config{Shards: 1, Rand: &failing{left: 1}}); err == nil {
		t.Error("keys are made of nothing")
	}
}

// TestAsked: a peer without a key gets the present one. A peer that has used it up gets another,
// once. A request about a key that is no longer in use has no effect.
func TestAsked(t *testing.T) {
	k, m := newKeys(t, 0, nil)
	u := Use{Peer: 2, Tenant: 7}
	var first uint32
	for i, c := range []struct {
		used     func() uint32
		told     int
		replaced bool
	}{
		{func() uint32 { return 0 }, 1, false},
		{func() uint32 { return 0 }, 2, false},
		{func() uint32 { return first + 1000 }, 2, false},
		{func() uint32 { return first }, 3, true},
		{func() uint32 { return first }, 3, true},
		{func() uint32 { return k.List()[0].SPI }, 3, true}, // it was replaced just now
		{func() uint32 { return 0 }, 4, true},
	} {
		k.Asked(0, u, c.used())
		is := k.List()[0]
		if i == 0 {
			first = is.SPI
		}
		if len(m.rekeys) != c.told || (is.SPI != first) != c.replaced || (is.Previous == first) != c.replaced {
			t.Errorf("turn %d: told %d times, %+v", i, len(m.rekeys), is)
		}
	}
	other := Use{Peer: 3, Tenant: 7}
	if k.Asked(0, other, 55); !k.Issued(other) || len(m.rekeys) != 5 { // of an old process of ours
		t.Errorf("a peer with a key of nobody: told %d times", len(m.rekeys))
	}
}

// TestOpensItsOwn: an opened packet is a Falcon packet only if PSP's header says so, and only with
// the IP version that it says.
func TestOpensItsOwn(t *testing.T) {
	falcon := make([]byte, 60)
	falcon[0], falcon[3] = 1<<4, 0x42
	inner := func(v6 bool) []byte {
		h := underlay.Inner{Src: addr(1, v6), Dst: addr(2, v6)}
		return append(h.Append(nil, len(falcon)), falcon...)
	}
	for name, tc := range map[string]struct {
		encap Encap
		hdr   psp.Header
		clear []byte
		why   Refusal
	}{
		"IPv4":                    {Tunnel{}, psp.Header{HasVC: true, NextHeader: nextHeader(false)}, inner(false), None},
		"IPv6":                    {Tunnel{}, psp.Header{HasVC: true, NextHeader: nextHeader(true)}, inner(true), None},
		"IPv4 as IPv6":            {Tunnel{}, psp.Header{HasVC: true, NextHeader: nextHeader(true)}, inner(false), NotFalcon},
		"IPv6 as IPv4":            {Tunnel{}, psp.Header{HasVC: true, NextHeader: nextHeader(false)}, inner(true), NotFalcon},
		"half a header":           {Tunnel{}, psp.Header{HasVC: true, NextHeader: nextHeader(false)}, inner(false)[:30], NotFalcon},
		"no cookie":               {Tunnel{}, psp.Header{NextHeader: nextHeader(false)}, inner(false), OtherMode},
		"transport":               {Transport{}, psp.Header{NextHeader: psp.NextHeaderFalcon}, falcon, None},
		"transport of IP":         {Transport{}, psp.Header{NextHeader: nextHeader(false)}, falcon, NotFalcon},
		"transport of two bytes":  {Transport{}, psp.Header{NextHeader: psp.NextHeaderFalcon}, falcon[:2], NotFalcon},
		"transport with a cookie": {Transport{}, psp.Header{HasVC: true, NextHeader: psp.NextHeaderFalcon}, falcon, OtherMode},
	} {
		p, why := tc.encap.Open(&Opened{hdr: tc.hdr, clear: tc.clear})
		if why != tc.why || why == None && (p.CID != 0x42 || len(p.Falcon) != len(falcon)) {
			t.Errorf("%s: refusal %d, %+v", name, why, p)
		}
	}
	for _, tc := range []struct {
		encap Encap
		next  uint8
		at    int // of Falcon's header
	}{{Tunnel{}, nextHeader(false), 44}, {Tunnel{}, nextHeader(true), 64}, {Transport{}, psp.NextHeaderFalcon, 16}} {
		b := make([]byte, tc.at+4)
		b[0], b[tc.at], b[tc.at+3] = tc.next, 1<<4, 0x42
		for n := range len(b) + 1 {
			if cid, ok := tc.encap.PeekCID(b[:n]); ok != (n == len(b)) || ok && cid != 0x42 {
				t.Errorf("%T, next header %d, %d bytes: connection %#x, %t", tc.encap, tc.next, n, cid, ok)
			}
		}
	}
	for _, tc := range []struct {
		has    bool
		cookie uint64
		own    bool
	}{{true, Cookie(7), true}, {true, Cookie(8), false}, {false, Cookie(7), false}, {false, 0, false}} {
		o := Opened{Use: Use{Tenant: 7}, hdr: psp.Header{HasVC: tc.has, VC: tc.cookie}}
		if o.OwnCookie() != tc.own {
			t.Errorf("%+v: its own %t", tc, !tc.own)
		}
	}
	if t1 := (&Opened{hdr: psp.Header{IV: 5<<17 | 1<<50 | 77}}).T1(); t1 != 5 {
		t.Errorf("T1 is %d", t1)
	}
}

// text is a file in memory.
type text struct{ strings.Builder }

func (*text) Close() error { return nil }

// TestKeyLogOverrun: if a slow disk cannot keep up, later keys are lost, and an error reports this
// after the earlier keys were written.
func TestKeyLogOverrun(t *testing.T) {
	for n, lines := range map[int]int{0: 3, maxKeyLog: 1, maxKeyLog + 1: 0} {
		var failed []error
		w := &text{}
		l := &KeyLog{w: w, done: make(chan struct{}), waiting: make([]byte, n)}
		l.failed = func(err error) { failed = append(failed, err) }
		l.changed = sync.NewCond(&l.mu)
		for range 3 {
			l.sa("rx", Use{}, &cm.SA{})
		}
		l.end = true
		l.run()
		if got := strings.Count(w.String(), "class=falcon\n"); got != lines {
			t.Errorf("%d bytes wait: %d lines more are written, want %d", n, got, lines)
		}
		if told := len(failed) == 1 && strings.Contains(failed[0].Error(), "did not keep up"); told != (lines < 3) {
			t.Errorf("%d bytes wait: told %v", n, failed)
		}
	}
}
