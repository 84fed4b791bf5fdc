package security

import (
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/falcon/cm"
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

// TestOldKeyIsAcceptedForASecond: an old key is accepted for a second after the peer has confirmed
// the new one, and for a quarter of the period if that is shorter.
func TestOldKeyIsAcceptedForASecond(t *testing.T) {
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

// TestOneRotationRunsAtATime: another rotation waits until the last one has ended, also if there are no keys,
// and until all keys are replaced.
func TestOneRotationRunsAtATime(t *testing.T) {
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

// TestForgottenPeerIsNotRotated: if a peer is forgotten during a rotation, its keys are not
// replaced. A key issued meanwhile is of the new generation, and stays.
func TestForgottenPeerIsNotRotated(t *testing.T) {
	k, m := newKeys(t, 0, nil)
	k.cfg.Needed = all
	for peer := range cm.PeerID(2) {
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

// TestPeerWithoutAKeyGetsOne: a peer without a key gets the present one. A peer that has used it up
// gets another, once. A request about a key that is no longer in use has no effect.
func TestPeerWithoutAKeyGetsOne(t *testing.T) {
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
