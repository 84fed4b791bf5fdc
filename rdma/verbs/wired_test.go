package verbs

import (
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// newWired makes a queue pair in RTS whose driver named its peer, which is not there yet.
func (g *guest) newWired(typ abi.QPType) *side {
	g.t.Helper()
	s := g.newQP(typ, nil)
	s.state, s.peer.wired, s.peer.number = abi.QPStateRTS, true, 0x77
	return s
}

// local is a request that concerns this side only: it binds a window of type 1 to nothing.
func local(wrid uint64, window uint32) abi.SendWQE {
	return abi.SendWQE{WRID: wrid, Opcode: abi.OpBindMW, Flags: abi.SendSignaled, RKey: window}
}

// TestWithoutAPeer: what concerns this side only, and what fails by itself, needs no peer; what is
// for the peer waits with all behind it, and fails after a while.
func TestWithoutAPeer(t *testing.T) {
	g := newGuest(t, Limits{})
	g.shared.TurnOps = 2
	s := g.newWired(abi.QPTypeRC)
	w := g.window(g.pdn, abi.MWType1)
	for i := range uint64(3) {
		s.postRaw(0, local(i, w), make([]byte, abi.BindMWSize))
	}
	s.post(0, write(3))
	s.postRaw(0, local(4, w), make([]byte, abi.BindMWSize))
	if !s.Turn(0) || len(s.sent.poll()) != 2 {
		t.Error("a turn without a peer is not what there is to do, up to its end")
	}
	const now = 1000
	if s.Turn(now) || !slices.Equal(wrids(s.sent.poll()), []uint64{2}) {
		t.Error("what is for the peer does not wait")
	}
	if at := g.shared.Deadline(); at < now+8e9-1e6 || at > now+8e9 {
		t.Errorf("it waits until %d", at)
	}
	s.Turn(now + 1e9) // does not begin the wait anew
	g.shared.Timers.Run(now + 8e9)
	s.Turn(now + 8e9)
	if got := s.sent.statuses(); !slices.Equal(got, []abi.WCStatus{abi.WCRetryExcErr, abi.WCWRFlushErr}) {
		t.Errorf("completions %v", got)
	}
	if s.Turn(0) {
		t.Error("more to do in an empty queue")
	}
}

// TestHowLongAPeerMayTake: the driver's own time counts where it is longer, timeout 0 is for ever,
// and a peer that has gone is not waited for.
func TestHowLongAPeerMayTake(t *testing.T) {
	for name, c := range map[string]struct {
		change func(s *side)
		until  vtime.Time
		state  abi.QPState
	}{
		"nothing said": {func(*side) {}, 8e9, abi.QPStateRTS},
		"short time":   {func(s *side) { s.attr.timed, s.attr.sending.Timeout = true, 10 }, 8e9, abi.QPStateRTS},
		"long time":    {func(s *side) { s.attr.timed, s.attr.sending.Timeout = true, 24 }, 8 * 4096 << 24, abi.QPStateRTS},
		"for ever":     {func(s *side) { s.attr.timed, s.attr.sending.Timeout = true, 0 }, vtime.Never, abi.QPStateRTS},
		"it has gone":  {func(s *side) { s.peer.left = true }, vtime.Never, abi.QPStateErr},
		"drained":      {func(s *side) { s.state = abi.QPStateSQD }, vtime.Never, abi.QPStateSQD},
	} {
		g := newGuest(t, Limits{})
		s := g.newWired(abi.QPTypeRC)
		c.change(s)
		s.post(0, write(1))
		s.Turn(0)
		at := g.shared.Deadline()
		if at > c.until || at < c.until-1e6 || s.State() != c.state {
			t.Errorf("%s: it waits until %d, want %d; QP in %v", name, at, c.until, s.State())
		}
		if c.state == abi.QPStateErr {
			continue
		}
		if s.connect(1e6); g.shared.Deadline() != vtime.Never {
			t.Errorf("%s: it waits on, with a peer", name)
		}
	}
}
