package verbs

import (
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestAQueuePairIsConnectedOnceInStatesThatAllowIt: a queue pair accepts a connection in INIT, and
// then moves to RTS, or in a state that its driver took it to, and then stays there. It accepts no
// second connection.
func TestAQueuePairIsConnectedOnceInStatesThatAllowIt(t *testing.T) {
	for from, want := range map[abi.QPState]struct {
		st abi.Status
		to abi.QPState
	}{
		abi.QPStateReset: {abi.StatusBadState, abi.QPStateReset},
		abi.QPStateInit:  {abi.StatusOK, abi.QPStateRTS},
		abi.QPStateRTR:   {abi.StatusOK, abi.QPStateRTR},
		abi.QPStateRTS:   {abi.StatusOK, abi.QPStateRTS},
		abi.QPStateSQD:   {abi.StatusOK, abi.QPStateSQD},
		abi.QPStateSQE:   {abi.StatusOK, abi.QPStateSQE},
		abi.QPStateErr:   {abi.StatusBadState, abi.QPStateErr},
	} {
		g := newGuest(t, Limits{})
		s := g.newQP(abi.QPTypeRC, nil)
		s.state = from
		w := &wire{segment: 1024, ordered: true}
		if st := s.Connect(0, w, 0x77, 1024, [16]byte{}); st != want.st || s.State() != want.to || s.Connected() != (st == abi.StatusOK) {
			t.Errorf("in %v: %v, then in %v", from, st, s.State())
		}
		if s.Owns(w) != s.Connected() || s.Owns(&wire{}) || s.Owns(nil) {
			t.Errorf("in %v: it owns another connection", from)
		}
		if st := s.Connect(0, &wire{segment: 1024}, 0x78, 1024, [16]byte{}); st != abi.StatusBadState || s.peer.number == 0x78 {
			t.Errorf("in %v, a second connection: %v", from, st)
		}
	}
	g := newGuest(t, Limits{})
	s := g.newQP(abi.QPTypeRC, nil)
	if st := s.Connect(0, &wire{}, 0x77, 1024, [16]byte{}); st != abi.StatusInvalidArgument || s.Connected() {
		t.Errorf("packets without room: %v", st)
	}
	g.Close(0)
	if st := s.Connect(0, &wire{segment: 1024}, 0x77, 1024, [16]byte{}); st != abi.StatusBadState {
		t.Errorf("of a function that has ended: %v", st)
	}
}

// TestAConnectionLearnsThePropertiesOfItsQueuePair: a connection is given the properties of its
// queue pair.
func TestAConnectionLearnsThePropertiesOfItsQueuePair(t *testing.T) {
	type terms struct{ xrc, unreliable, unordered, inError bool }
	for name, c := range map[string]struct {
		typ    abi.QPType
		change func(g *guest, c *abi.CreateQP)
		want   terms
	}{
		"reliable":   {abi.QPTypeRC, nil, terms{}},
		"unreliable": {abi.QPTypeUC, nil, terms{unreliable: true}},
		"weak":       {abi.QPTypeRC, func(_ *guest, c *abi.CreateQP) { c.Ordering = abi.OrderingWeak }, terms{}},
		"unordered": {abi.QPTypeRC, func(_ *guest, c *abi.CreateQP) {
			c.Ordering, c.ErrorMode = abi.OrderingUnordered, abi.ErrorModeCompleteInError
		}, terms{unordered: true, inError: true}},
		"XRC initiator": {abi.QPTypeXRCSend, func(_ *guest, c *abi.CreateQP) {
			c.RecvCQ, c.RQLog2Entries, c.RQLog2Stride, c.RQLevels, c.RQPages, c.MaxRecvSGE = 0, 0, 0, 0, 0, 0
		}, terms{xrc: true}},
		"XRC target": {abi.QPTypeXRCRecv, func(g *guest, c *abi.CreateQP) {
			domain, st := g.OpenXRCD()
			g.good(st)
			*c = abi.CreateQP{Type: c.Type, XRCDN: domain}
		}, terms{xrc: true}},
	} {
		g := newGuest(t, Limits{ReadAtomic: 5})
		s := g.newQP(c.typ, func(x *abi.CreateQP) {
			if c.change != nil {
				c.change(g, x)
			}
		})
		s.connect(0)
		w := s.wire.terms
		if got := (terms{w.XRC, w.Unreliable, w.Unordered, w.InError}); got != c.want || w.QPN != s.number || w.Peer != 0x77 || w.Serves != 5 || w.Reads != 5 {
			t.Errorf("%s: %+v", name, w)
		}
		if s.Ordered() != (s.ordering == abi.OrderingStrong) || s.CompletesInError() != c.want.inError {
			t.Errorf("%s: ordered %t, completes in error %t", name, s.Ordered(), s.CompletesInError())
		}
	}
}

// TestQueryQPShowsTheAgreedPathMTU: QueryQP returns the path MTU agreed with the peer, if verbs
// have such an MTU.
func TestQueryQPShowsTheAgreedPathMTU(t *testing.T) {
	for mtu, want := range map[int]int{256: 256, 1024: 1024, 4096: 4096, 1000: 512, 100: 2048} {
		g := newGuest(t, Limits{})
		s := g.newQP(abi.QPTypeRC, nil)
		s.attr.pathMTU = abi.MTU2048
		g.good(s.Connect(0, &wire{segment: 4096}, 0x77, mtu, [16]byte{}))
		if got := s.PathMTU(); got != want {
			t.Errorf("%d agreed on: %d, want %d", mtu, got, want)
		}
	}
}

// TestThePeerLimitsReadsInFlight: a queue pair has no more READs in flight than its peer accepts,
// whatever its driver sets while the connection lasts.
func TestThePeerLimitsReadsInFlight(t *testing.T) {
	g := newGuest(t, Limits{ReadAtomic: 8})
	s := g.newQP(abi.QPTypeRC, nil)
	reads := func() int {
		q, st := g.QueryQP(s.number)
		g.good(st)
		return int(q.MaxRdAtomic)
	}
	set := func(n uint8) {
		g.good(g.ModifyQP(0, &abi.ModifyQP{QPN: s.number, Mask: abi.QPAttrMaxRdAtomic, MaxRdAtomic: n}))
	}
	s.LimitReads(3)
	if reads() != 3 {
		t.Errorf("%d READs to a peer that takes 3", reads())
	}
	set(8)
	if reads() != 3 {
		t.Errorf("%d READs to a peer that takes 3, after 8 were asked for", reads())
	}
	set(2)
	if reads() != 2 {
		t.Errorf("%d READs, where 2 were asked for", reads())
	}
	s.connect(0)
	s.LimitReads(1)
	if reads() != 1 || s.wire.reads != 1 {
		t.Errorf("%d READs, and %d for the wire", reads(), s.wire.reads)
	}
	g.UseFeatures(0) // an older driver sets it whenever it likes
	s.Ended(0, abi.WCRetryExcErr, "for a test")
	if set(8); reads() != 8 {
		t.Errorf("%d READs after the connection, where 8 were asked for", reads())
	}
}

// TestAFailedQueuePairKeepsItsConnectionForAWhile: a queue pair that failed keeps its connection
// for a while, so that refusals reach the peer. The connection is closed exactly when that time is
// over, in the order of failures.
func TestAFailedQueuePairKeepsItsConnectionForAWhile(t *testing.T) {
	g := newGuest(t, Limits{})
	first, second := g.newRC(nil), g.newRC(nil)
	const linger = 500e6
	if g.shared.Deadline() != vtime.Never {
		t.Error("something waits before anything failed")
	}
	first.fail(1000, abi.WCGeneralErr, "for a test")
	second.fail(2000, abi.WCGeneralErr, "for a test")
	for _, c := range []struct {
		now   vtime.Time
		left  int
		ended [2]string
	}{
		{1000 + linger - 1, 2, [2]string{}},
		{1000 + linger, 1, [2]string{"closed"}},
		{2000 + linger - 1, 1, [2]string{"closed"}},
		{2000 + linger, 0, [2]string{"closed", "closed"}},
	} {
		if at := g.shared.Deadline(); at != 1000+linger && c.left == 2 || at != 2000+linger && c.now > 1000+linger {
			t.Errorf("at %d: next at %d", c.now, at)
		}
		g.shared.CloseLingering(c.now)
		if got := [2]string{first.wire.end, second.wire.end}; got != c.ended || g.shared.Lingering() != c.left {
			t.Errorf("at %d: %v, %d linger", c.now, got, g.shared.Lingering())
		}
	}
}

// TestConnectionsAreDrainedOrAfterAViolationAborted: a connection that is left is drained. If the
// peer broke the rules it is aborted, whichever side leaves.
func TestConnectionsAreDrainedOrAfterAViolationAborted(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(s *side)
		want [2]string // when all was well, and after a violation
	}{
		"destroyed":    {func(s *side) { s.g.good(s.g.DestroyQP(0, s.number)) }, [2]string{"drained", "aborted"}},
		"disconnected": {func(s *side) { s.Disconnected(0) }, [2]string{"drained", "aborted"}},
		"reset":        {func(s *side) { s.reset(0) }, [2]string{"drained", "aborted"}},
		"failed": {func(s *side) {
			s.fail(0, abi.WCGeneralErr, "for a test")
			s.g.shared.CloseLingering(1e9)
		}, [2]string{"closed", "aborted"}},
		"ended by the transport": {func(s *side) { s.Ended(0, abi.WCRetryExcErr, "for a test") }, [2]string{}},
	} {
		for i := range 2 {
			g := newGuest(t, Limits{})
			s := g.newRC(nil)
			s.violated = i == 1
			for range 2 { // the second time there is nothing left to end
				c.end(s)
				if name == "destroyed" {
					break
				}
			}
			if s.wire.end != c.want[i] || s.Connected() || g.shared.Lingering() != 0 {
				t.Errorf("%s, violated %t: %q, connected %t", name, s.violated, s.wire.end, s.Connected())
			}
		}
	}
}

// TestOnlyFailedEndsCauseAnEvent: the driver is told once of an end that is a failure, and not of
// other ends.
func TestOnlyFailedEndsCauseAnEvent(t *testing.T) {
	for name, c := range map[string]struct {
		end   func(s *side)
		fatal int
		state abi.QPState
	}{
		"transport gave up": {func(s *side) { s.Ended(0, abi.WCRetryExcErr, "for a test") }, 1, abi.QPStateErr},
		"of a peer that said so": {func(s *side) {
			s.PeerLeaves()
			s.Ended(0, abi.WCRetryExcErr, "for a test")
		}, 0, abi.QPStateErr},
		"of a peer that the driver named": {func(s *side) {
			s.peer.wired = true
			s.PeerLeaves()
			s.Ended(0, abi.WCRetryExcErr, "for a test")
		}, 1, abi.QPStateErr},
		"peer left": {func(s *side) { s.Disconnected(0) }, 0, abi.QPStateErr},
		"of an unreliable one": {func(s *side) {
			s.become(abi.QPTypeUC)
			s.peer.wired = true
			s.Ended(0, abi.WCRetryExcErr, "for a test")
		}, 0, abi.QPStateRTS},
		"of an unreliable one that connection management made": {func(s *side) {
			s.become(abi.QPTypeUC)
			s.Ended(0, abi.WCRetryExcErr, "for a test")
		}, 1, abi.QPStateErr},
	} {
		g := newGuest(t, Limits{})
		s := g.newRC(nil)
		c.end(s)
		n := 0
		for _, e := range g.events {
			if e.typ == abi.EventQPFatal && e.number == s.number {
				n++
			}
		}
		if n != c.fatal || s.State() != c.state || uint64(n) != g.Stats.QPErrors {
			t.Errorf("%s: events %+v, QP in %v, %d errors counted", name, g.events, s.State(), g.Stats.QPErrors)
		}
	}
}

// TestThePeerIsForgottenWithTheConnection: when the connection ends, the peer's identity is
// cleared, unless the driver named the peer.
func TestThePeerIsForgottenWithTheConnection(t *testing.T) {
	for _, wired := range []bool{false, true} {
		g := newGuest(t, Limits{})
		s := g.newRC(nil)
		s.peer.wired = wired
		s.Disconnected(0)
		q, st := g.QueryQP(s.number)
		g.good(st)
		if known := q.PeerQPN == 0x77 && q.PeerGID == [16]byte{15: 9}; known != wired || !known && q.PeerQPN != 0 {
			t.Errorf("named by its driver %t: peer %#x at % x", wired, q.PeerQPN, q.PeerGID)
		}
	}
}

// TestTheLastReceiveOfASharedQueueIsReportedOnce: the driver is told once that a failed queue pair
// takes no more receives of a shared queue. A queue pair with its own receive queue, or with none,
// has no such event. (DEV-923)
func TestTheLastReceiveOfASharedQueueIsReportedOnce(t *testing.T) {
	for name, c := range map[string]struct {
		typ    abi.QPType
		change func(g *guest, c *abi.CreateQP)
		want   int
	}{
		"own queue":    {abi.QPTypeRC, func(*guest, *abi.CreateQP) {}, 0},
		"shared queue": {abi.QPTypeRC, func(g *guest, c *abi.CreateQP) { g.newSRQ(abi.CreateSRQ{}).use(c) }, 1},
		"XRC initiator": {abi.QPTypeXRCSend, func(_ *guest, c *abi.CreateQP) {
			c.RecvCQ, c.RQLog2Entries, c.RQLog2Stride, c.RQLevels, c.RQPages, c.MaxRecvSGE = 0, 0, 0, 0, 0, 0
		}, 0},
	} {
		g := newGuest(t, Limits{})
		s := g.newQP(c.typ, func(x *abi.CreateQP) { c.change(g, x) })
		s.connect(0)
		s.fail(0, abi.WCGeneralErr, "for a test")
		for range 3 {
			s.Turn(0)
		}
		n := 0
		for _, e := range g.events {
			if e.typ == abi.EventLastWQE && e.number == s.number {
				n++
			}
		}
		if n != c.want {
			t.Errorf("%s: %d events of the last receive", name, n)
		}
	}
}

// TestDrainedIsReportedOncePerMoveToSQD: a driver that asked for it is told that the send queue has
// drained when the last started request is done, once for each move to SQD.
func TestDrainedIsReportedOncePerMoveToSQD(t *testing.T) {
	g := newGuest(t, Limits{})
	s := g.newRC(nil)
	to := func(state abi.QPState, notify uint8) {
		t.Helper()
		m := &abi.ModifyQP{QPN: s.number, Mask: abi.QPAttrState, State: state, SQDNotify: notify}
		if state == abi.QPStateSQD {
			m.Mask |= abi.QPAttrSQDNotify
		}
		g.good(g.ModifyQP(0, m))
	}
	drained := func(want int, draining uint8) {
		t.Helper()
		q, _ := g.QueryQP(s.number)
		n := len(slices.DeleteFunc(slices.Clone(g.events), func(e event) bool { return e != event{abi.EventSQDrained, s.number, 0} }))
		if n != want || q.Draining != draining {
			t.Errorf("%d events, want %d; draining %d", n, want, q.Draining)
		}
	}
	s.post(0, write(1))
	s.post(0, write(2))
	s.Turn(0)
	to(abi.QPStateSQD, 1)
	drained(0, 1)
	s.done(0, abi.WCSuccess)
	drained(0, 1)
	s.done(0, abi.WCSuccess)
	drained(1, 0)
	to(abi.QPStateRTS, 0)
	drained(1, 0)
	to(abi.QPStateSQD, 0) // not asked for
	drained(1, 0)
	to(abi.QPStateRTS, 0)
	to(abi.QPStateSQD, 1)
	drained(2, 0)
	s.post(0, write(3)) // nothing is begun in SQD
	s.Turn(0)
	drained(2, 0)
}

// TestStartedRequestsFinishInSQD: a request that was started continues in SQD until its last
// packet.
func TestStartedRequestsFinishInSQD(t *testing.T) {
	g := newGuest(t, Limits{})
	g.shared.TurnBytes = 1024 // a packet a turn
	m := g.region(g.pdn, abi.PageSize, allRights)
	s := g.newRC(nil)
	s.post(0, write(1), m.sge(0, 3000))
	s.post(0, write(2), m.sge(0, 10))
	s.Turn(0)
	g.good(g.ModifyQP(0, &abi.ModifyQP{QPN: s.number, Mask: abi.QPAttrState | abi.QPAttrSQDNotify, State: abi.QPStateSQD, SQDNotify: 1}))
	for range 5 {
		s.Turn(0)
	}
	if q, _ := g.QueryQP(s.number); len(s.wire.issued) != 3 || q.Draining != 1 {
		t.Fatalf("%d packets issued, draining %d", len(s.wire.issued), q.Draining)
	}
	for range 3 {
		s.done(0, abi.WCSuccess)
	}
	if q, _ := g.QueryQP(s.number); q.Draining != 0 || len(g.events) != 1 {
		t.Errorf("draining %d, events %+v", q.Draining, g.events)
	}
}
