package verbs

import (
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestWhatQueuesShow: the information about each queue: its owner, the indices of driver and
// device, and whether it is polled, armed or overflowed.
func TestWhatQueuesShow(t *testing.T) {
	g := newGuest(t, Limits{})
	g.UseFeatures(abi.FeatureExtendedVerbs | abi.FeatureEventIndex)
	s := g.newRC(nil)
	queues := func() (list []QueueInfo) {
		g.EachQueue(func(i *QueueInfo) { list = append(list, *i) })
		return list
	}
	want := []QueueInfo{
		{Kind: SendQueue, Number: s.number, Entries: sideEntries},
		{Kind: RecvQueue, Number: s.number, Entries: sideEntries},
		{Kind: CompletionQueue, Number: s.sent.number, Entries: 32},
		{Kind: CompletionQueue, Number: s.received.number, Entries: 32},
	}
	check := func(what string) {
		t.Helper()
		if got := queues(); !slices.Equal(got, want) {
			t.Errorf("%s: %+v\nwant %+v", what, got, want)
		}
	}
	check("at first")
	for i := range uint64(3) {
		s.post(0, write(i))
	}
	s.receive(0, 1)
	want[0].Producer, want[1].Producer = 3, 1
	check("posted")
	s.Turn(0)
	want[0].Consumer, want[0].Polled = 3, true
	check("issued")
	g.Objects.Doorbell(0, &abi.Doorbell{Kind: abi.DoorbellCQArm, Queue: s.sent.number})
	want[2].Armed = true
	check("armed")
	s.done(0, abi.WCSuccess)
	want[2].Producer, want[2].Armed = 1, false
	check("complete")
	g.CQ(s.received.number).failed = true
	want[3].Overflowed = true
	check("overflowed")
}

// TestWhatQueuePairsShow: requests that were seen, that are in flight and that wait for credit.
func TestWhatQueuePairsShow(t *testing.T) {
	g := newGuest(t, Limits{})
	m := g.region(g.pdn, 64, allRights)
	s := g.newRC(nil)
	show := func() (info QPInfo) {
		g.EachQP(func(_ *QP, i *QPInfo) { info = *i })
		return info
	}
	want := QPInfo{
		Number: s.number, Peer: 0x77, PeerGID: [16]byte{15: 9}, Type: abi.QPTypeRC, State: abi.QPStateRTS, SendCQ: s.sent.number, RecvCQ: s.received.number,
		PathMTU: 1024, RetryCnt: 7, RNRRetry: 7, MaxRdAtomic: MaxReadAtomic,
	}
	check := func(what string) {
		t.Helper()
		if got := show(); got != want {
			t.Errorf("%s: %+v\nwant %+v", what, got, want)
		}
	}
	check("at first")
	read := write(1)
	read.Opcode = abi.OpRead
	s.post(0, read, m.sge(0, 8))
	s.post(0, write(2))
	want.Posted = 2
	check("posted")
	s.Turn(0)
	want.Posted, want.InFlight, want.Pushes, want.Reads = 0, 2, 2, 1
	check("issued")
	s.done(0, abi.WCSuccess)
	want.InFlight, want.Pushes, want.Reads = 1, 1, 0
	check("one is done")
	s.blocked = true
	want.CreditWait = true
	check("no credit")
}

// TestDoorbellsNameTheirQueue: a violation by a doorbell names the kind of queue that it was for.
// In RESET a doorbell with index 0 is no violation. (DRV-601, DRV-801)
func TestDoorbellsNameTheirQueue(t *testing.T) {
	g := newGuest(t, Limits{})
	for kind, ring := range map[abi.DoorbellKind]abi.Ring{
		abi.DoorbellSQ: abi.RingSQ, abi.DoorbellRQ: abi.RingRQ, abi.DoorbellCQArm: abi.RingCQ, abi.DoorbellSRQ: abi.RingSRQ, abi.DoorbellAdmin: abi.RingAdmin,
		99: abi.RingDoorbell,
	} {
		g.violations = nil
		g.Objects.Doorbell(0, &abi.Doorbell{Kind: kind, Queue: 0x777, Index: 3})
		if v := g.violations; len(v) != 1 || v[0].Clause != 801 || v[0].Ring != ring || v[0].Queue != 0x777 || v[0].Index != 3 || v[0].Length != abi.DoorbellSize {
			t.Errorf("%v: %+v", kind, v)
		}
	}
	if g.Stats.Doorbells != 6 || g.Stats.BadDoorbells != 6 {
		t.Errorf("%d doorbells, %d wrong", g.Stats.Doorbells, g.Stats.BadDoorbells)
	}
	s := g.newQP(abi.QPTypeRC, nil)
	s.reset(0)
	for kind, ring := range map[abi.DoorbellKind]abi.Ring{abi.DoorbellSQ: abi.RingSQ, abi.DoorbellRQ: abi.RingRQ} {
		for index, told := range []bool{false, true} {
			g.violations = nil
			g.Objects.Doorbell(0, &abi.Doorbell{Kind: kind, Queue: s.number, Index: uint32(index)})
			if v := g.violations; (len(v) == 1) != told || told && (v[0].Clause != 601 || v[0].Ring != ring || v[0].Index != 1) {
				t.Errorf("%v %d in RESET: %+v", kind, index, v)
			}
		}
	}
	g.Close(0)
	g.violations = nil
	g.Objects.Doorbell(0, &abi.Doorbell{Kind: abi.DoorbellSQ, Queue: 0x777})
	if len(g.violations) != 0 {
		t.Error("a function that has ended looks at doorbells")
	}
}

// TestReceivesBringTurnsInErr: posting a receive gives a turn only to a queue pair in ERR, which
// flushes it. In other states a message takes it.
func TestReceivesBringTurnsInErr(t *testing.T) {
	for state, want := range map[abi.QPState]int{abi.QPStateRTR: 0, abi.QPStateRTS: 0, abi.QPStateErr: 1} {
		g := newGuest(t, Limits{})
		s := g.newRC(nil)
		s.state = state
		g.turns = 0
		if s.receive(0, 1); g.turns != want {
			t.Errorf("in %v: %d turns", state, g.turns)
		}
	}
}

// TestWhoGetsTurns: a queue pair is queued when it can do something: when it has a send queue, and
// a peer or no need of one, or when there is something to flush.
func TestWhoGetsTurns(t *testing.T) {
	for _, c := range []struct {
		name   string
		typ    abi.QPType
		change func(s *side)
		want   int
	}{
		{"connected", abi.QPTypeRC, func(s *side) { s.connect(0) }, 1},
		{"drained", abi.QPTypeRC, func(s *side) { s.connect(0); s.state = abi.QPStateSQD }, 1},
		{"not connected", abi.QPTypeRC, func(s *side) { s.state = abi.QPStateRTS }, 0},
		{"its driver named the peer", abi.QPTypeRC, func(s *side) { s.state, s.peer.wired = abi.QPStateRTS, true }, 1},
		{"datagrams", abi.QPTypeUD, func(s *side) { s.state = abi.QPStateRTS }, 1},
		{"without credit", abi.QPTypeRC, func(s *side) { s.connect(0); s.blocked = true }, 0},
		{"in RTR", abi.QPTypeRC, func(s *side) { s.connect(0); s.state = abi.QPStateRTR }, 0},
		{"in INIT", abi.QPTypeRC, func(*side) {}, 0},
		{"in ERR", abi.QPTypeRC, func(s *side) { s.state = abi.QPStateErr }, 1},
		{"in SQE", abi.QPTypeUD, func(s *side) { s.state = abi.QPStateSQE }, 1},
	} {
		g := newGuest(t, Limits{})
		s := g.newQP(c.typ, nil)
		c.change(s)
		g.turns = 0
		if s.wake(); g.turns != c.want {
			t.Errorf("%s: %d turns", c.name, g.turns)
		}
	}
	g := newGuest(t, Limits{})
	domain, st := g.OpenXRCD()
	g.good(st)
	target := g.newQP(abi.QPTypeXRCRecv, func(c *abi.CreateQP) { *c = abi.CreateQP{Type: c.Type, XRCDN: domain} })
	target.connect(0)
	g.turns = 0
	if target.wake(); g.turns != 0 {
		t.Error("a target without a send queue has turns")
	}
}
