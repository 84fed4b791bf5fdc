package verbs

import (
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestQueuesShowIndicesAndState: the information about each queue: its owner, the indices of driver
// and device, and whether it is polled, armed or overflowed.
func TestQueuesShowIndicesAndState(t *testing.T) {
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

// TestQueuePairsShowRequestsInFlight: requests that were seen, that are in flight and that wait for
// credit.
func TestQueuePairsShowRequestsInFlight(t *testing.T) {
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
