package verbs

import (
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// wrids are the numbers of completions.
func wrids(list []abi.CQE) (ids []uint64) {
	for _, x := range list {
		ids = append(ids, x.WRID)
	}
	return ids
}

// TestATurnIsBoundedInRequestsAndBytes: a turn starts a limited number of requests, and issues
// packets until its bytes are used up. An empty packet counts as one byte.
func TestATurnIsBoundedInRequestsAndBytes(t *testing.T) {
	for _, c := range []struct {
		name       string
		ops, bytes int
		length     int // of each of 8 requests
		packets    int
		more       bool
	}{
		{"requests used up", 3, 1 << 20, 10, 3, true},
		{"requests used up, of many packets", 2, 1 << 20, 3000, 4, true}, // the second is begun
		{"bytes used up", 8, 2048, 2000, 3, true},
		{"bytes used up exactly", 8, 2048, 1024, 2, true},
		{"empty requests", 8, 5, 0, 5, true},
		{"all are issued", 9, 1 << 20, 10, 8, false},
	} {
		g := newGuest(t, Limits{})
		g.shared.TurnOps, g.shared.TurnBytes = c.ops, c.bytes
		m := g.region(g.pdn, abi.PageSize, allRights)
		s := g.newRC(nil)
		for i := range uint64(sideEntries) {
			s.post(0, write(i), m.sge(0, c.length))
		}
		more := s.Turn(0)
		if len(s.wire.issued) != c.packets || more != c.more {
			t.Errorf("%s: %d packets, more %t", c.name, len(s.wire.issued), more)
		}
	}
	g := newGuest(t, Limits{})
	s := g.newRC(nil)
	s.post(0, write(1))
	if g.resting = true; !s.Turn(0) || len(s.wire.issued) != 0 {
		t.Errorf("%d packets issued that the scheduler does not allow", len(s.wire.issued))
	}
}

// TestTheSchedulerIsChargedForSentData: the scheduler is charged for data that is sent, not for
// data that is asked for.
func TestTheSchedulerIsChargedForSentData(t *testing.T) {
	g := newGuest(t, Limits{})
	m := g.region(g.pdn, abi.PageSize, allRights)
	s := g.newRC(nil)
	s.post(0, write(1), m.sge(0, 1500))
	read := write(2)
	read.Opcode = abi.OpRead
	s.post(0, read, m.sge(0, 1500))
	if s.Turn(0); !slices.Equal(g.spent, []int{1024, 476, 0, 0}) {
		t.Errorf("charged %v", g.spent)
	}
}

// TestReadsAreLimitedAndFencesWaitForThem: no more READs and atomics are started than the queue
// pair may have, and a request with a fence waits for them. (DEV-607)
func TestReadsAreLimitedAndFencesWaitForThem(t *testing.T) {
	g := newGuest(t, Limits{})
	m := g.region(g.pdn, abi.PageSize, allRights)
	s := g.newQP(abi.QPTypeRC, nil)
	g.good(g.ModifyQP(0, &abi.ModifyQP{QPN: s.number, Mask: abi.QPAttrMaxRdAtomic, MaxRdAtomic: 2}))
	s.connect(0)
	if s.wire.terms.Reads != 2 {
		t.Errorf("the wire may have %d READs under way", s.wire.terms.Reads)
	}
	under := func(want ...uint64) {
		t.Helper()
		s.Turn(0)
		var got []uint64
		for _, r := range s.wire.issued {
			got = append(got, r.WQE.WRID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("under way %v, want %v", got, want)
		}
	}
	post := func(wrid uint64, op abi.Opcode, flags uint8) {
		t.Helper()
		x := write(wrid)
		x.Opcode, x.Flags = op, x.Flags|flags
		s.post(0, x, m.sge(0, 8))
	}
	post(1, abi.OpWrite, abi.SendFence) // there is nothing to wait for
	post(2, abi.OpRead, 0)
	post(3, abi.OpWrite, 0)
	post(4, abi.OpFetchAdd, 0)
	post(5, abi.OpRead, 0)
	under(1, 2, 3, 4)
	s.done(0, abi.WCSuccess)
	under(2, 3, 4)
	s.done(0, abi.WCSuccess)
	under(3, 4, 5)
	post(6, abi.OpWrite, abi.SendFence)
	under(3, 4, 5)
	s.done(0, abi.WCSuccess)
	s.done(0, abi.WCSuccess)
	under(5)
	s.done(0, abi.WCSuccess)
	under(6)
	if n := s.send.works.reads; n != 0 {
		t.Errorf("%d READs are counted", n)
	}
}

// TestTheFirstFailureOfARequestCounts: a request with several failed packets completes once, with
// the first status.
func TestTheFirstFailureOfARequestCounts(t *testing.T) {
	g := newGuest(t, Limits{})
	m := g.region(g.pdn, abi.PageSize, allRights)
	s := g.newRC(func(c *abi.CreateQP) { c.ErrorMode = abi.ErrorModeCompleteInError })
	s.post(0, write(1), m.sge(0, 3000))
	s.post(0, write(2), m.sge(0, 10))
	s.Turn(0)
	for i, st := range []abi.WCStatus{abi.WCSuccess, abi.WCRemAccessErr, abi.WCRemOpErr} {
		r := s.wire.issued[i]
		r.Pending--
		s.Done(0, r, st, uint32(100+i))
	}
	if got := s.sent.poll(); len(got) != 1 || got[0].Status != abi.WCRemAccessErr || got[0].VendorErr != 101 || got[0].WRID != 1 {
		t.Errorf("completions %+v", got)
	}
	s.wire.issued = s.wire.issued[3:]
	s.done(0, abi.WCSuccess)
	if got := s.sent.statuses(); !slices.Equal(got, []abi.WCStatus{abi.WCSuccess}) || s.State() != abi.QPStateRTS {
		t.Errorf("completions %v, QP in %v", got, s.State())
	}
}

// TestSignaledAndFailedRequestsCompleteInOrder: a request gets a completion if it is signaled or
// failed. Completions are in order, whatever the order in which requests end; in unordered mode
// they are in that order.
func TestSignaledAndFailedRequestsCompleteInOrder(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(c *abi.CreateQP)
		flags  uint8
		want   [3][]uint64 // after the third, the first and the second of three is done
	}{
		{"in order", nil, abi.SendSignaled, [3][]uint64{nil, {1}, {2, 3}}},
		{"unsignaled", nil, 0, [3][]uint64{}},
		{"all of the queue pair", func(c *abi.CreateQP) { c.SigAll = 1 }, 0, [3][]uint64{nil, {1}, {2, 3}}},
		{"in any order", func(c *abi.CreateQP) {
			c.Ordering, c.ErrorMode = abi.OrderingUnordered, abi.ErrorModeCompleteInError
		}, 0, [3][]uint64{{3}, {1}, {2}}},
	} {
		g := newGuest(t, Limits{})
		s := g.newRC(c.change)
		for i := range uint64(3) {
			x := write(i + 1)
			x.Flags = c.flags
			s.post(0, x)
		}
		s.Turn(0)
		for i, which := range []int{2, 0, 1} {
			r := s.wire.issued[which]
			r.Pending--
			s.Done(0, r, abi.WCSuccess, 0)
			if got := wrids(s.sent.poll()); !slices.Equal(got, c.want[i]) {
				t.Errorf("%s: after %d of 3: %v, want %v", c.name, i+1, got, c.want[i])
			}
		}
		if s.send.works.head != s.send.works.tail {
			t.Errorf("%s: %d requests are left", c.name, s.send.works.tail-s.send.works.head)
		}
	}
}

// TestCompletionsDescribeWhatSucceeded: the length is that of what came back, and the key the one
// that a READ made invalid, of what succeeded alone.
func TestCompletionsDescribeWhatSucceeded(t *testing.T) {
	for _, st := range []abi.WCStatus{abi.WCSuccess, abi.WCRemAccessErr} {
		g := newGuest(t, Limits{})
		m := g.region(g.pdn, 64, allRights)
		s := g.newRC(func(c *abi.CreateQP) { c.ErrorMode = abi.ErrorModeCompleteInError })
		for i, op := range []abi.Opcode{abi.OpWrite, abi.OpRead, abi.OpFetchAdd, abi.OpReadInv} {
			x := write(uint64(i))
			x.Opcode, x.Imm = op, m.key
			s.post(0, x, m.sge(0, 8))
		}
		s.Turn(0)
		want := []abi.CQE{
			{WRID: 0, Opcode: abi.WCOpWrite},
			{WRID: 1, Opcode: abi.WCOpRead, ByteLen: 8},
			{WRID: 2, Opcode: abi.WCOpFetchAdd, ByteLen: 8},
			{WRID: 3, Opcode: abi.WCOpRead, ByteLen: 8, Flags: abi.WCFlagInv, Imm: m.key},
		}
		for i := range want {
			want[i].QPN, want[i].SrcQP = s.number, 0x77
			if st != abi.WCSuccess {
				want[i].Status, want[i].ByteLen, want[i].Flags, want[i].Imm = st, 0, 0, 0
			}
			s.done(0, st)
		}
		if got := s.sent.poll(); !slices.Equal(got, want) {
			t.Errorf("%v: %+v\nwant %+v", st, got, want)
		}
		if m.usable() != (st != abi.WCSuccess) {
			t.Errorf("%v: the region is usable: %t", st, m.usable())
		}
	}
}

// TestAnInvalidRequestFailsInItsTurn: an invalid request fails in its turn: those before it
// complete first, and those behind it are not started.
func TestAnInvalidRequestFailsInItsTurn(t *testing.T) {
	for _, inError := range []bool{false, true} {
		g := newGuest(t, Limits{})
		m := g.region(g.pdn, 64, allRights)
		s := g.newRC(func(c *abi.CreateQP) {
			if inError {
				c.ErrorMode = abi.ErrorModeCompleteInError
			}
		})
		s.post(0, write(1), m.sge(0, 8))
		s.post(0, write(2), abi.SGE{Addr: m.iova, Length: 8, LKey: m.key ^ 1<<20})
		s.post(0, write(3), m.sge(0, 8))
		for range 3 {
			s.Turn(0)
		}
		issued := 1
		if inError {
			issued = 2
		}
		if len(s.wire.issued) != issued || len(s.sent.poll()) != 0 {
			t.Fatalf("complete in error %t: %d packets issued, want %d", inError, len(s.wire.issued), issued)
		}
		s.done(0, abi.WCSuccess)
		got, want := s.sent.statuses(), []abi.WCStatus{abi.WCSuccess, abi.WCLocProtErr}
		if inError {
			s.done(0, abi.WCSuccess)
		} else {
			s.Turn(0)
		}
		got = append(got, s.sent.statuses()...)
		if inError {
			want = append(want, abi.WCSuccess)
		} else {
			want = append(want, abi.WCWRFlushErr)
		}
		if !slices.Equal(got, want) {
			t.Errorf("complete in error %t: %v, want %v", inError, got, want)
		}
	}
}

// TestFailuresOfTheConnectionFailTheQueuePair: if requests complete in error, a refusal by the peer
// or an error of the own side fails only the request. An error of the connection fails the queue
// pair.
func TestFailuresOfTheConnectionFailTheQueuePair(t *testing.T) {
	for st, alone := range map[abi.WCStatus]bool{
		abi.WCRemAccessErr: true, abi.WCRemOpErr: true, abi.WCLocProtErr: true, abi.WCRemInvReqErr: true,
		abi.WCRetryExcErr: false, abi.WCRNRRetryExcErr: false, abi.WCRespTimeoutErr: false, abi.WCBadRespErr: false, abi.WCGeneralErr: false,
	} {
		for _, inError := range []bool{false, true} {
			g := newGuest(t, Limits{})
			s := g.newRC(func(c *abi.CreateQP) {
				if inError {
					c.ErrorMode = abi.ErrorModeCompleteInError
				}
			})
			s.post(0, write(1))
			s.Turn(0)
			s.done(0, st)
			want := abi.QPStateErr
			if alone && inError {
				want = abi.QPStateRTS
			}
			if got := s.sent.statuses(); !slices.Equal(got, []abi.WCStatus{st}) || s.State() != want {
				t.Errorf("%v, complete in error %t: completions %v, QP in %v", st, inError, got, s.State())
			}
		}
	}
}

// TestNotReadyIsRepeatedAsTheDriverAllows: a request to a peer that is not ready is repeated as
// often as the driver allows; 7 means without limit.
func TestNotReadyIsRepeatedAsTheDriverAllows(t *testing.T) {
	for _, c := range []struct {
		retry uint8
		times int
		fails bool
	}{{0, 1, true}, {2, 2, false}, {2, 3, true}, {6, 6, false}, {6, 7, true}, {7, 1000, false}} {
		g := newGuest(t, Limits{})
		s := g.newRC(nil)
		s.attr.rnrRetry = c.retry
		s.post(0, abi.SendWQE{WRID: 1, Opcode: abi.OpSend, Flags: abi.SendSignaled})
		s.Turn(0)
		s.PeerNotReady(0, s.wire.issued[0], c.times)
		got := s.sent.statuses()
		if fails := slices.Equal(got, []abi.WCStatus{abi.WCRNRRetryExcErr}); fails != c.fails || !fails && len(got) > 0 {
			t.Errorf("not ready %d times, of %d: %v", c.times, c.retry, got)
		}
	}
	g := newGuest(t, Limits{})
	s := g.newRC(nil)
	s.attr.rnrRetry = 0
	s.post(0, abi.SendWQE{WRID: 1, Opcode: abi.OpSend, Flags: abi.SendSignaled})
	s.Turn(0)
	s.wire.issued[0].Status = abi.WCRemOpErr // it failed before
	s.PeerNotReady(0, s.wire.issued[0], 1)
	if got := s.sent.statuses(); !slices.Equal(got, []abi.WCStatus{abi.WCRemOpErr}) {
		t.Errorf("failed before: %v", got)
	}
}

// TestRequestsToALeavingPeerAreFlushed: requests that a peer no longer carries out because it ends
// the connection are flushed; if the driver named the peer itself, they fail as unanswered. Missing
// memory is still an error of this side.
func TestRequestsToALeavingPeerAreFlushed(t *testing.T) {
	for _, c := range []struct {
		leaves, wired bool
		st, want      abi.WCStatus
	}{
		{false, false, abi.WCRetryExcErr, abi.WCRetryExcErr},
		{true, false, abi.WCRetryExcErr, abi.WCWRFlushErr},
		{true, true, abi.WCRemOpErr, abi.WCRetryExcErr},
		{true, false, abi.WCLocProtErr, abi.WCLocProtErr},
		{true, false, abi.WCSuccess, abi.WCSuccess},
	} {
		g := newGuest(t, Limits{})
		s := g.newRC(nil)
		s.peer.wired = c.wired
		s.post(0, write(1))
		s.Turn(0)
		if c.leaves {
			s.PeerLeaves()
		}
		s.done(0, c.st)
		if got := s.sent.statuses(); !slices.Equal(got, []abi.WCStatus{c.want}) {
			t.Errorf("leaves %t, wired %t: %v completes as %v, want %v", c.leaves, c.wired, c.st, got, c.want)
		}
		if fatal := slices.ContainsFunc(g.events, func(e event) bool { return e.typ == abi.EventQPFatal }); fatal != (c.want != abi.WCSuccess && c.want != abi.WCWRFlushErr) {
			t.Errorf("leaves %t, wired %t, %v: events %+v", c.leaves, c.wired, c.st, g.events)
		}
	}
}

// TestALostResponseFailsItsRequestInTheEnd: a request whose response went to another queue pair
// fails when no answer can be in flight any more, the oldest of them first, and never if the
// timeout is infinite.
func TestALostResponseFailsItsRequestInTheEnd(t *testing.T) {
	for _, c := range []struct {
		timeout, retry uint8
		after          vtime.Time // 0: never
	}{{14, 7, 8e9}, {22, 7, 8 * 4096 << 22}, {0, 7, 0}} {
		g := newGuest(t, Limits{})
		m := g.region(g.pdn, 64, allRights)
		s := g.newRC(nil)
		s.attr.timed, s.attr.sending = true, transport.Sending{Timeout: c.timeout, RetryCount: c.retry}
		for i := range uint64(3) {
			x := write(i + 1)
			x.Opcode = abi.OpRead
			s.post(0, x, m.sge(0, 8))
		}
		s.Turn(0)
		const begin = 1000
		s.Unanswered(begin, s.wire.issued[1])
		s.Unanswered(begin+5e6, s.wire.issued[2]) // the time of the first counts
		if c.after == 0 {
			if g.shared.Deadline() != vtime.Never {
				t.Errorf("it ends at %d", g.shared.Deadline())
			}
			continue
		}
		g.shared.Timers.Run(begin + c.after - 1e6)
		if s.State() != abi.QPStateRTS {
			t.Errorf("timeout %d: QP in %v before its time", c.timeout, s.State())
		}
		g.shared.Timers.Run(begin + c.after)
		if got := s.sent.poll(); len(got) != 1 || got[0].WRID != 2 || got[0].Status != abi.WCRespTimeoutErr || s.State() != abi.QPStateErr {
			t.Errorf("timeout %d: completions %+v, QP in %v", c.timeout, got, s.State())
		}
	}
}

// TestUnorderedMessagesWithReceivesHaveOnePacket: in unordered mode messages that take a receive
// have one packet.
func TestUnorderedMessagesWithReceivesHaveOnePacket(t *testing.T) {
	for _, c := range []struct {
		op       abi.Opcode
		length   int
		ordering abi.Ordering
		want     bool
	}{
		{abi.OpSend, 1024, abi.OrderingUnordered, false},
		{abi.OpSend, 1025, abi.OrderingUnordered, true},
		{abi.OpWrite, 1025, abi.OrderingUnordered, false},
		{abi.OpSend, 1025, abi.OrderingWeak, false},
	} {
		g := newGuest(t, Limits{})
		m := g.region(g.pdn, abi.PageSize, allRights)
		s := g.newRC(func(x *abi.CreateQP) { x.Ordering, x.ErrorMode = c.ordering, abi.ErrorModeCompleteInError })
		x := write(1)
		x.Opcode = c.op
		s.post(0, x, m.sge(0, c.length))
		s.Turn(0)
		if failed := slices.Equal(s.sent.statuses(), []abi.WCStatus{abi.WCLocLenErr}); failed != c.want {
			t.Errorf("%v of %d bytes, ordering %v: failed %t", c.op, c.length, c.ordering, failed)
		}
	}
}

// TestInvalidationWaitsForEarlierRequests: a request that makes a key invalid waits until nothing
// before it can use the key.
func TestInvalidationWaitsForEarlierRequests(t *testing.T) {
	g := newGuest(t, Limits{})
	m := g.region(g.pdn, 64, allRights)
	s := g.newRC(nil)
	s.post(0, write(1), m.sge(0, 8))
	s.post(0, abi.SendWQE{WRID: 2, Opcode: abi.OpLocalInv, Flags: abi.SendSignaled, Imm: m.key})
	s.post(0, write(3))
	if s.Turn(0); !m.usable() || len(s.wire.issued) != 1 {
		t.Fatalf("usable %t, %d packets issued", m.usable(), len(s.wire.issued))
	}
	s.done(0, abi.WCSuccess)
	if s.Turn(0); m.usable() || len(s.wire.issued) != 1 {
		t.Fatalf("usable %t, %d packets issued", m.usable(), len(s.wire.issued))
	}
	s.done(0, abi.WCSuccess)
	if got := wrids(s.sent.poll()); !slices.Equal(got, []uint64{1, 2, 3}) {
		t.Errorf("completions %v", got)
	}
}

// TestWithoutCreditThereAreNoTurns: a queue pair without credit gets no turns until there is some.
func TestWithoutCreditThereAreNoTurns(t *testing.T) {
	g := newGuest(t, Limits{})
	s := g.newRC(nil)
	s.post(0, write(1))
	s.wire.says = transport.ErrBlocked
	s.Turn(0)
	g.turns = 0
	if s.post(0, write(2)); g.turns != 0 {
		t.Error("a doorbell brings it a turn")
	}
	s.wire.says = nil
	if s.Unblocked(0); g.turns != 1 {
		t.Error("credit brings it none")
	}
	if s.Turn(0); len(s.wire.issued) != 2 {
		t.Errorf("%d packets issued", len(s.wire.issued))
	}
}

// TestARequestThatTheWireRefusesFailsInItsTurn: a request that the wire does not take completes
// with the wire's status, when those before it are done.
func TestARequestThatTheWireRefusesFailsInItsTurn(t *testing.T) {
	g := newGuest(t, Limits{})
	m := g.region(g.pdn, 64, allRights)
	s := g.newRC(nil)
	s.post(0, write(1), m.sge(0, 8))
	s.Turn(0)
	s.post(0, write(2), m.sge(0, 8))
	s.wire.says, s.wire.fails = transport.ErrFailed, abi.WCLocProtErr
	s.Turn(0)
	if got := s.sent.poll(); len(got) != 0 {
		t.Errorf("before its turn: %+v", got)
	}
	s.done(0, abi.WCSuccess)
	if got := s.sent.statuses(); !slices.Equal(got, []abi.WCStatus{abi.WCSuccess, abi.WCLocProtErr}) || s.State() != abi.QPStateErr {
		t.Errorf("completions %v, QP in %v", got, s.State())
	}
}

// TestERRIsEnteredOnce: a queue pair that is in ERR is not brought there again: its connection
// lingers as long as it did, and credit is freed once.
func TestERRIsEnteredOnce(t *testing.T) {
	g := newGuest(t, Limits{})
	s := g.newRC(nil)
	freed := g.freed
	s.fail(1000, abi.WCGeneralErr, "for a test")
	s.fail(5000, abi.WCLocQPOpErr, "for a test")
	s.enterErr(9000)
	if g.freed != freed+1 || s.wire.forgotten != 1 || g.shared.Deadline() != 1000+g.shared.Linger || len(g.events) != 1 || g.Stats.QPErrors != 1 {
		t.Errorf("credit freed %d times, forgotten %d times, it lingers until %d, events %+v", g.freed-freed, s.wire.forgotten, g.shared.Deadline(), g.events)
	}
	s.reset(0)
	if s.fail(0, abi.WCGeneralErr, "for a test"); s.State() != abi.QPStateReset || len(g.events) != 1 {
		t.Errorf("one in RESET is in %v, events %+v", s.State(), g.events)
	}
}

// TestEntriesStayInTheQueueWhileNoMoreMayStart: entries stay in the driver's queue while the
// maximum of requests is in progress, and while the queue pair is drained.
func TestEntriesStayInTheQueueWhileNoMoreMayStart(t *testing.T) {
	g := newGuest(t, Limits{})
	g.shared.TurnOps = 2 * sideEntries
	s := g.newRC(nil)
	for i := range uint64(sideEntries) {
		s.post(0, write(i))
	}
	s.Turn(0)
	s.post(0, write(sideEntries)) // the slots are the driver's again
	if s.Turn(0); len(s.wire.issued) != sideEntries || s.send.queue.Ready() != 1 {
		t.Errorf("%d packets issued, %d entries left", len(s.wire.issued), s.send.queue.Ready())
	}
	s.done(0, abi.WCSuccess)
	if s.Turn(0); len(s.wire.issued) != sideEntries || s.send.queue.Ready() != 0 {
		t.Errorf("one is done: %d packets issued, %d entries left", len(s.wire.issued), s.send.queue.Ready())
	}
	s.done(0, abi.WCSuccess)
	s.change(0, abi.QPStateSQD)
	s.post(0, write(sideEntries+1))
	if s.Turn(0); s.send.queue.Ready() != 1 {
		t.Errorf("drained: %d entries left", s.send.queue.Ready())
	}
}

// TestLocalRequestsRunAtOnceAndCompleteInOrder: a request that concerns this side only is carried
// out while those before it are in progress. It completes behind them, and those behind it follow
// at once.
func TestLocalRequestsRunAtOnceAndCompleteInOrder(t *testing.T) {
	g := newGuest(t, Limits{})
	s := g.newRC(nil)
	s.post(0, write(1))
	s.postRaw(0, local(2, g.window(g.pdn, abi.MWType1)), make([]byte, abi.BindMWSize))
	s.post(0, write(3))
	if s.Turn(0); len(s.wire.issued) != 2 || s.wire.issued[1].WQE.WRID != 3 || s.sent.poll() != nil {
		t.Fatalf("%d packets issued", len(s.wire.issued))
	}
	s.done(0, abi.WCSuccess)
	if got := wrids(s.sent.poll()); !slices.Equal(got, []uint64{1, 2}) {
		t.Errorf("completions %v", got)
	}
	s.done(0, abi.WCSuccess)
	if got := wrids(s.sent.poll()); !slices.Equal(got, []uint64{3}) {
		t.Errorf("completions %v", got)
	}
}

// TestQueuePairsGetTurnsWhenTheyCanDoSomething: a queue pair is queued when it can do something:
// when it has a send queue, and a peer or no need of one, or when there is something to flush.
func TestQueuePairsGetTurnsWhenTheyCanDoSomething(t *testing.T) {
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
