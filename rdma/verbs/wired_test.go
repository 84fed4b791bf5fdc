package verbs

import (
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
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

// TestOnlyRequestsForThePeerWaitForIt: requests that concern this side only, and those that fail by
// themselves, need no peer. A request for the peer waits, with all behind it, and fails after a
// while.
func TestOnlyRequestsForThePeerWaitForIt(t *testing.T) {
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

// TestADriversTimeoutLengthensTheWaitForAPeer: the driver's own time counts if it is longer,
// timeout 0 means for ever, and a peer that has gone is not waited for.
func TestADriversTimeoutLengthensTheWaitForAPeer(t *testing.T) {
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

// TestWhenThePeerIsGoneTheOldestRequestFails: when the peer's end goes, the oldest request fails,
// sent or not. If there is none, nothing happens until one is posted. A queue pair that no longer
// serves requests just ends.
func TestWhenThePeerIsGoneTheOldestRequestFails(t *testing.T) {
	for name, c := range map[string]struct {
		before, after int // requests posted
		failed        bool
		want          []abi.WCStatus
		state         abi.QPState
	}{
		"none":       {0, 0, false, nil, abi.QPStateRTS},
		"sent":       {2, 0, false, []abi.WCStatus{abi.WCRetryExcErr, abi.WCWRFlushErr}, abi.QPStateErr},
		"posted":     {0, 2, false, []abi.WCStatus{abi.WCRetryExcErr, abi.WCWRFlushErr}, abi.QPStateErr},
		"failed ago": {1, 0, true, []abi.WCStatus{abi.WCWRFlushErr}, abi.QPStateErr},
	} {
		g := newGuest(t, Limits{})
		s := g.newRC(nil)
		s.peer.wired = true
		for i := range uint64(c.before) {
			s.post(0, write(i))
		}
		s.Turn(0)
		if c.failed {
			s.fail(0, abi.WCGeneralErr, "for a test")
		}
		s.PeerLeft(0)
		if s.Connected() || s.wire.end != "drained" {
			t.Errorf("%s: the connection is %q", name, s.wire.end)
		}
		for i := range uint64(c.after) {
			s.post(0, write(i))
		}
		s.Turn(0)
		s.Turn(0)
		if got := s.sent.statuses(); !slices.Equal(got, c.want) || s.State() != c.state {
			t.Errorf("%s: completions %v, want %v; QP in %v", name, got, c.want, s.State())
		}
	}
}

// TestWaitingWithoutWorkHasNoEffect: waiting for a peer without work for it has no effect.
func TestWaitingWithoutWorkHasNoEffect(t *testing.T) {
	g := newGuest(t, Limits{})
	s := g.newWired(abi.QPTypeRC)
	s.Due(0)
	if s.State() != abi.QPStateRTS || len(g.events) != 0 {
		t.Errorf("QP in %v, events %+v", s.State(), g.events)
	}
}

// TestUnreliableRequestsAreLostWithoutAPeer: requests of an unreliable connection wait for the peer
// for a while. Then they are lost, as are all later ones, and those in progress when the peer goes.
// (DEV-963)
func TestUnreliableRequestsAreLostWithoutAPeer(t *testing.T) {
	g := newGuest(t, Limits{})
	m := g.region(g.pdn, abi.PageSize, allRights)
	s := g.newWired(abi.QPTypeUC)
	for i := range uint64(2) {
		s.post(0, write(i), m.sge(0, 3000))
	}
	if s.Turn(0) || g.shared.Deadline() < 8e9-1e6 || g.shared.Deadline() > 8e9 {
		t.Errorf("it waits until %d", g.shared.Deadline())
	}
	g.shared.Timers.Run(8e9)
	s.Turn(8e9)
	s.post(8e9, write(2), m.sge(0, 3000))
	s.Turn(8e9)
	if got := s.sent.poll(); !slices.Equal(wrids(got), []uint64{0, 1, 2}) || got[2].Status != abi.WCSuccess {
		t.Errorf("completions %+v", got)
	}
	s.connect(9e9) // it comes after all
	g.shared.TurnBytes = 1024
	s.post(9e9, write(3), m.sge(0, 10))
	s.post(9e9, write(4), m.sge(0, 3000))
	s.Turn(9e9) // the second is begun
	if len(s.wire.issued) != 2 || len(s.sent.poll()) != 0 {
		t.Fatalf("%d packets issued", len(s.wire.issued))
	}
	s.PeerLeft(9e9)
	s.Turn(9e9)
	if got := s.sent.poll(); !slices.Equal(wrids(got), []uint64{3, 4}) || got[1].Status != abi.WCSuccess || s.State() != abi.QPStateRTS {
		t.Errorf("completions %+v, QP in %v", got, s.State())
	}
}

// TestDrainingWithoutAPeerStartsNothing: a queue pair that is drained before its peer is there has
// nothing to do, although there are entries.
func TestDrainingWithoutAPeerStartsNothing(t *testing.T) {
	g := newGuest(t, Limits{})
	s := g.newWired(abi.QPTypeRC)
	s.change(0, abi.QPStateSQD)
	s.post(0, write(1))
	if s.Turn(0) || s.send.queue.Ready() != 1 || g.shared.Deadline() != vtime.Never {
		t.Errorf("%d entries left, until %d", s.send.queue.Ready(), g.shared.Deadline())
	}
}

// TestAReadThatThePeerDoesNotServeFails: also one that was read before the peer said that it serves none.
func TestAReadThatThePeerDoesNotServeFails(t *testing.T) {
	g := newGuest(t, Limits{})
	m := g.region(g.pdn, abi.PageSize, allRights)
	s := g.newWired(abi.QPTypeRC)
	x := write(1)
	x.Opcode = abi.OpRead
	s.post(0, x, m.sge(0, 8))
	s.Turn(0) // no peer yet: it waits
	s.LimitReads(0)
	s.connect(1)
	s.Turn(1)
	if got := s.sent.poll(); len(got) != 1 || got[0].Status != abi.WCLocQPOpErr {
		t.Errorf("completions %+v in %v", got, s.State())
	}
}

// TestAReceiveOfAMessageThatWasCutOffIsNotLost: the first message of the next connection takes it (DEV-961).
func TestAReceiveOfAMessageThatWasCutOffIsNotLost(t *testing.T) {
	for _, typ := range []abi.QPType{abi.QPTypeRC, abi.QPTypeUC} {
		g := newGuest(t, Limits{})
		m := g.region(g.pdn, abi.PageSize, allRights)
		s := g.newWired(typ)
		s.connect(0)
		s.receive(0, 1, m.sge(0, 3000))
		s.receive(0, 2, m.sge(0, 3000))
		if v := s.Place(0, &transport.Packet{Op: abi.OpSend, First: true, Message: 1, Length: 1024, Claimed: 1024}, make([]byte, 1024)); v.Refusal != transport.Accepted {
			t.Fatal(v)
		}
		s.PeerLeft(1)
		s.Turn(1)
		s.connect(2) // the peer was reset, and is connected again
		p := &transport.Packet{Op: abi.OpSend, First: true, Last: true, Message: 1, Length: 8, Claimed: 8}
		if v := s.Place(2, p, make([]byte, 8)); v.Refusal != transport.Accepted {
			t.Fatal(v)
		}
		s.Complete(2, p, 8, abi.WCSuccess)
		s.enterErr(3)
		s.Turn(3)
		if got := wrids(s.received.poll()); len(got) != 2 {
			t.Errorf("%v: two receives were posted, completions for %v", typ, got)
		}
	}
}
