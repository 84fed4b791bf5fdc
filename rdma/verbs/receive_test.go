package verbs

import (
	"bytes"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// TestBadReceivesAreTakenWithTheirError: a receive has the elements that its entry has room for.
// One that announces more, or names memory that it may not use, is taken with its error. (DRV-608)
func TestBadReceivesAreTakenWithTheirError(t *testing.T) {
	for _, c := range []struct {
		name     string
		elements uint8 // as the entry says
		foreign  bool
		want     abi.WCStatus
		capacity uint64
		broken   bool
	}{
		{"none", 0, false, abi.WCSuccess, 0, false},
		{"all", sideSGEs, false, abi.WCSuccess, sideSGEs * 10, false},
		{"one more than there is room for", sideSGEs + 1, false, abi.WCLocQPOpErr, 0, true},
		{"most that can be said", 255, false, abi.WCLocQPOpErr, 0, true},
		{"foreign memory", 1, true, abi.WCLocProtErr, 0, false},
	} {
		g := newGuest(t, Limits{})
		m := g.region(g.pdn, 100, abi.AccessLocalWrite)
		if c.foreign {
			m = g.region(g.newPD(), 100, abi.AccessLocalWrite)
		}
		s := g.newRC(nil)
		sge := m.sge(0, 10)
		b := make([]byte, 128)
		for i := range sideSGEs {
			sge.Marshal(b[abi.RecvWQEHeader+i*abi.SGESize:])
		}
		x := abi.RecvWQE{WRID: 6, NumSGE: c.elements}
		x.Marshal(b)
		s.push(s.recvs, b)
		v := s.recv.receiveFor(1)
		if v == nil || !v.Taken || v.WRID != 6 || v.Status != c.want || c.want == abi.WCSuccess && v.Capacity != c.capacity {
			t.Errorf("%s: %+v", c.name, v)
		}
		if broken := len(g.violations) == 1 && g.violations[0].Clause == 608; broken != c.broken || !broken && len(g.violations) > 0 {
			t.Errorf("%s: violations %+v", c.name, g.violations)
		}
	}
}

// TestMessagesTakeReceivesByTheirNumber: messages take the receives of a queue in the order of
// their numbers, in whichever they come, as many at a time as the queue has entries, or one where
// the connection is ordered.
func TestMessagesTakeReceivesByTheirNumber(t *testing.T) {
	for _, c := range []struct {
		ordering abi.Ordering
		most     uint32
	}{{abi.OrderingStrong, 1}, {abi.OrderingWeak, sideEntries}} {
		g := newGuest(t, Limits{})
		m := g.region(g.pdn, 100, abi.AccessLocalWrite)
		s := g.newRC(func(x *abi.CreateQP) { x.Ordering = c.ordering })
		if s.recv.receiveFor(1) != nil {
			t.Error("a receive of an empty queue")
		}
		for i := range uint64(sideEntries) {
			s.receive(0, 101+i, m.sge(0, 10))
		}
		if s.recv.receiveFor(c.most+1) != nil || s.recv.receiveFor(0) != nil {
			t.Errorf("ordering %v: a receive for message %d", c.ordering, c.most+1)
		}
		for _, number := range []uint32{c.most, 1, c.most} {
			if v := s.recv.receiveFor(number); v == nil || v.WRID != 100+uint64(number) {
				t.Errorf("ordering %v: message %d has receive %+v", c.ordering, number, v)
			}
		}
		if u := &s.recv.queue; u.Index() != c.most {
			t.Errorf("ordering %v: %d receives are read", c.ordering, u.Index())
		}
		s.Complete(0, &transport.Packet{Op: abi.OpSend, Last: true, Message: 1}, 5, abi.WCSuccess)
		if v := s.recv.receiveFor(c.most + 1); c.most == 1 && (v == nil || v.WRID != 102) || c.most > 1 && v != nil {
			t.Errorf("ordering %v: message %d has receive %+v", c.ordering, c.most+1, v)
		}
		if got := s.received.poll(); len(got) != 1 || got[0].WRID != 101 || got[0].ByteLen != 5 || got[0].SrcQP != 0x77 || got[0].QPN != s.number {
			t.Errorf("completions %+v", got)
		}
	}
}

// TestUnorderedMessagesCompleteAsTheyArrive: with unordered completion the receives of messages
// complete as the messages arrive, and there is room for a further one when the oldest is complete.
func TestUnorderedMessagesCompleteAsTheyArrive(t *testing.T) {
	g := newGuest(t, Limits{})
	m := g.region(g.pdn, 100, abi.AccessLocalWrite)
	s := g.newRC(func(x *abi.CreateQP) { x.Ordering, x.ErrorMode = abi.OrderingUnordered, abi.ErrorModeCompleteInError })
	for i := range uint64(sideEntries) {
		s.receive(0, 101+i, m.sge(0, 10))
	}
	for _, number := range []uint32{3, 2} {
		s.recv.receiveFor(number)
		s.Complete(0, &transport.Packet{Op: abi.OpSend, Last: true, Message: number}, 5, abi.WCSuccess)
	}
	for i := range uint64(3) {
		s.receive(0, 201+i, m.sge(0, 10))
	}
	if s.recv.receiveFor(sideEntries+1) != nil {
		t.Error("room while the oldest is not complete")
	}
	s.recv.receiveFor(1)
	s.Complete(0, &transport.Packet{Op: abi.OpSend, Last: true, Message: 1}, 5, abi.WCSuccess)
	for i := range uint32(3) {
		if v := s.recv.receiveFor(sideEntries + 1 + i); v == nil || v.WRID != uint64(201+i) {
			t.Errorf("message %d has receive %+v", sideEntries+1+i, v)
		}
	}
	if s.receive(0, 301, m.sge(0, 10)); s.recv.receiveFor(sideEntries+4) != nil {
		t.Error("room for one more than are complete")
	}
	var order []uint64
	for _, x := range s.received.poll() {
		order = append(order, x.WRID)
	}
	if len(order) != 3 || order[0] != 103 || order[1] != 102 || order[2] != 101 {
		t.Errorf("completions %v", order)
	}
}

// TestAQueuePairHoldsAsManyReceivesAsItsQueue: a queue pair holds as many receives at a time as its
// queue has entries, with as many elements as these may have, wherever they come from.
func TestAQueuePairHoldsAsManyReceivesAsItsQueue(t *testing.T) {
	g := newGuest(t, Limits{SGEs: 9})
	own, small := g.newQP(abi.QPTypeRC, nil), g.newSRQ(abi.CreateSRQ{MaxSGE: 2})
	shared := g.newQP(abi.QPTypeRC, func(x *abi.CreateQP) { small.use(x) })
	if own.recv.most() != sideEntries || own.recv.messages.maxSGE != sideSGEs {
		t.Errorf("its own queue: %d receives of %d elements", own.recv.most(), own.recv.messages.maxSGE)
	}
	if shared.recv.most() != 4 || shared.recv.messages.maxSGE != 2 {
		t.Errorf("a shared queue: %d receives of %d elements", shared.recv.most(), shared.recv.messages.maxSGE)
	}
	domain, st := g.OpenXRCD()
	g.good(st)
	target, st := g.CreateQP(&abi.CreateQP{Type: abi.QPTypeXRCRecv, XRCDN: domain})
	g.good(st)
	if q := g.QP(target); q.recv.most() != maxMessages || q.recv.messages.maxSGE != 9 {
		t.Errorf("whatever packets name: %d receives of %d elements", q.recv.most(), q.recv.messages.maxSGE)
	}
}

// TestReceivesAreFlushedInOrder: receives that messages have taken are flushed in the order of the
// queue, and before those that are still in it. (DEV-610)
func TestReceivesAreFlushedInOrder(t *testing.T) {
	g := newGuest(t, Limits{})
	s := g.newRC(func(c *abi.CreateQP) { c.Ordering = abi.OrderingWeak })
	for i := range uint64(sideEntries) {
		s.receive(0, i)
	}
	s.recv.receiveFor(4)
	s.fail(0, abi.WCGeneralErr, "for a test")
	s.Turn(0)
	got := s.received.poll()
	if len(got) != sideEntries {
		t.Fatalf("%d completions", len(got))
	}
	for i, x := range got {
		if x.WRID != uint64(i) || x.Status != abi.WCWRFlushErr {
			t.Errorf("completion %d: %d %v", i, x.WRID, x.Status)
		}
	}
}

// target is a queue pair that serves its peer, with a receive of 20 bytes and memory to write to.
type target struct {
	*side
	m    *MR
	data []byte // of packets
}

func newTarget(t *testing.T, typ abi.QPType, inError bool) *target {
	t.Helper()
	g := newGuest(t, Limits{})
	x := &target{m: g.region(g.pdn, 100, allRights), data: bytes.Repeat([]byte{0xaa}, 64)}
	x.side = g.newQP(typ, func(c *abi.CreateQP) {
		if inError {
			c.ErrorMode = abi.ErrorModeCompleteInError
		}
	})
	x.connect(0)
	x.receive(0, 7, x.m.sge(0, 20))
	return x
}

// TestPacketsArePlacedOrRefused: where packets of each kind are placed, which are refused, and how
// the receive that a packet took ends, at the limits of everything.
func TestPacketsArePlacedOrRefused(t *testing.T) {
	send := func(offset, n uint32) transport.Packet {
		return transport.Packet{Op: abi.OpSend, Message: 1, Offset: offset, Length: n}
	}
	to := func(m *MR, at uint64, n uint32) transport.Packet {
		return transport.Packet{Op: abi.OpWrite, Addr: m.iova + at, RKey: m.key, Claimed: n, Length: n}
	}
	for _, c := range []struct {
		name   string
		packet func(x *target) transport.Packet
		want   transport.Refusal
		at, n  int // written
		recv   abi.WCStatus
	}{
		{"SEND", func(*target) transport.Packet { return send(0, 10) }, transport.Accepted, 0, 10, 0},
		{"SEND, the rest of it", func(*target) transport.Packet { return send(12, 8) }, transport.Accepted, 12, 8, 0},
		{"SEND of all there is room for", func(*target) transport.Packet { return send(0, 20) }, transport.Accepted, 0, 20, 0},
		{"SEND of a byte more", func(*target) transport.Packet { return send(0, 21) }, transport.Invalid, 0, 0, abi.WCLocLenErr},
		{"SEND of a byte more in its last packet", func(*target) transport.Packet { return send(12, 9) }, transport.Invalid, 0, 0, abi.WCLocLenErr},
		{"SEND of a message that is over", func(*target) transport.Packet {
			p := send(0, 1)
			p.Message = 0
			return p
		}, transport.Invalid, 0, 0, 0},
		{"SEND without a receive", func(*target) transport.Packet {
			p := send(0, 1)
			p.Message = 2
			return p
		}, transport.NotReady, 0, 0, 0},
		{"SEND that the peer could not read", func(*target) transport.Packet {
			p := send(0, 0)
			p.Spoiled = true
			return p
		}, transport.Operation, 0, 0, abi.WCRemAbortErr},
		{"SEND with a key", func(x *target) transport.Packet {
			p := send(0, 10)
			p.Op, p.Imm = abi.OpSendInv, x.m.key
			return p
		}, transport.Accepted, 0, 10, 0},
		{"SEND with a key that there is not", func(*target) transport.Packet {
			p := send(0, 10)
			p.Op, p.Imm = abi.OpSendInv, 0x123456
			return p
		}, transport.Access, 0, 0, abi.WCWRFlushErr},
		{"WRITE", func(x *target) transport.Packet { return to(x.m, 40, 60) }, transport.Accepted, 40, 60, 0},
		{"WRITE past the end", func(x *target) transport.Packet { return to(x.m, 41, 60) }, transport.OutOfBounds, 0, 0, 0},
		{"WRITE with more behind", func(x *target) transport.Packet {
			p := to(x.m, 40, 20)
			p.Ahead = 40
			return p
		}, transport.Accepted, 40, 20, 0},
		{"WRITE with too much behind", func(x *target) transport.Packet {
			p := to(x.m, 40, 20)
			p.Ahead = 41
			return p
		}, transport.OutOfBounds, 0, 0, 0},
		{"WRITE of another length than it says", func(x *target) transport.Packet {
			p := to(x.m, 40, 20)
			p.Claimed++
			return p
		}, transport.Invalid, 0, 0, 0},
		{"empty WRITE to nowhere", func(*target) transport.Packet { return transport.Packet{Op: abi.OpWrite} }, transport.Accepted, 0, 0, 0},
		{"WRITE with immediate data", func(x *target) transport.Packet {
			p := to(x.m, 40, 20)
			p.Op, p.Message = abi.OpWriteImm, 1
			return p
		}, transport.Accepted, 40, 20, 0},
		{"WRITE without the right of the queue pair", func(x *target) transport.Packet {
			x.attr.access = abi.AccessRemoteRead
			return to(x.m, 40, 20)
		}, transport.Access, 0, 0, 0},
	} {
		x := newTarget(t, abi.QPTypeRC, false)
		p := c.packet(x)
		v := x.Place(0, &p, x.data[:p.Length])
		want := make([]byte, 100)
		copy(want[c.at:], x.data[:c.n])
		if v.Refusal != c.want || v.Alone || !bytes.Equal(x.g.mem(x.m.iova, 100), want) {
			t.Errorf("%s: %+v, memory % x", c.name, v, x.g.mem(x.m.iova, 100))
		}
		state := abi.QPStateRTS
		if c.want != transport.Accepted && c.want != transport.NotReady {
			state = abi.QPStateErr
		}
		if x.State() != state || x.violated != (c.want == transport.Invalid) {
			t.Errorf("%s: QP in %v, violated %t", c.name, x.State(), x.violated)
		}
		x.Turn(0)
		var recv []abi.WCStatus
		if c.recv != 0 {
			recv = append(recv, c.recv)
		} else if state == abi.QPStateErr {
			recv = append(recv, abi.WCWRFlushErr)
		}
		if got := x.received.statuses(); !slices.Equal(got, recv) {
			t.Errorf("%s: receives end in %v, want %v", c.name, got, recv)
		}
	}
}

// TestARefusalFailsWhatTheErrorModeSays: an error in a message fails the queue pair; if requests
// complete in error, only the message; on an unreliable connection only this side, if it is to
// blame.
func TestARefusalFailsWhatTheErrorModeSays(t *testing.T) {
	for _, c := range []struct {
		name   string
		packet func(x *target) transport.Packet
		alone  abi.WCStatus // how the receive fails where the message fails alone
		costs  bool         // it is the receive's own fault
	}{
		{"too long", func(x *target) transport.Packet {
			return transport.Packet{Op: abi.OpSend, Message: 1, Length: 21}
		}, abi.WCLocLenErr, false},
		{"wrong key", func(x *target) transport.Packet {
			return transport.Packet{Op: abi.OpWrite, RKey: x.m.key + 1, Addr: x.m.iova, Claimed: 1, Length: 1}
		}, abi.WCLocAccessErr, false},
		{"wrong key, with immediate data", func(x *target) transport.Packet {
			return transport.Packet{Op: abi.OpWriteImm, Message: 1, RKey: x.m.key + 1, Addr: x.m.iova, Claimed: 1, Length: 1}
		}, abi.WCLocAccessErr, false},
		{"the receive names foreign memory", func(x *target) transport.Packet {
			x.recv.receiveFor(1).Status = abi.WCLocProtErr
			return transport.Packet{Op: abi.OpSend, Message: 1, Length: 1}
		}, abi.WCLocProtErr, true},
		{"the receive breaks the rules", func(x *target) transport.Packet {
			x.recv.receiveFor(1).Status = abi.WCLocQPOpErr
			return transport.Packet{Op: abi.OpSend, Message: 1, Length: 1}
		}, abi.WCLocQPOpErr, true},
	} {
		reliable, inError, unreliable := newTarget(t, abi.QPTypeRC, false), newTarget(t, abi.QPTypeRC, true), newTarget(t, abi.QPTypeUC, false)
		place := func(x *target) transport.Verdict {
			p := c.packet(x)
			return x.Place(0, &p, x.data[:p.Length])
		}
		if v := place(reliable); v.Alone || v.Refusal == transport.Accepted || reliable.State() != abi.QPStateErr {
			t.Errorf("%s: %+v, QP in %v", c.name, v, reliable.State())
		}
		if v := place(inError); !v.Alone || v.Refusal == transport.Accepted || v.Failed != c.alone || inError.State() != abi.QPStateRTS || len(inError.received.poll()) != 0 {
			t.Errorf("%s, complete in error: %+v, QP in %v", c.name, v, inError.State())
		}
		state := abi.QPStateRTS
		if c.costs {
			state = abi.QPStateErr
		}
		if v := place(unreliable); v.Alone || v.Refusal == transport.Accepted || unreliable.State() != state || (len(unreliable.received.poll()) == 1) != c.costs {
			t.Errorf("%s, unreliable: %+v, QP in %v", c.name, v, unreliable.State())
		}
	}
	// A packet that should have taken a receive, but did not, cannot fail alone.
	x := newTarget(t, abi.QPTypeRC, true)
	if v := x.Place(0, &transport.Packet{Op: abi.OpSend, Message: 0}, nil); v.Alone || v.Refusal != transport.Invalid || x.State() != abi.QPStateErr {
		t.Errorf("a message that is over: %+v, QP in %v", v, x.State())
	}
	x = newTarget(t, abi.QPTypeRC, true)
	if v := x.Place(0, &transport.Packet{Op: abi.OpSend, Message: 1, Spoiled: true}, nil); v.Refusal != transport.Accepted || v.Failed != abi.WCRemAbortErr {
		t.Errorf("a message that the peer gave up: %+v", v)
	}
}

// TestMissingMemoryIsTheReceiversError: memory that is gone when a message arrives is an error of
// the receiver, or of the side that let the peer write there. If requests complete in error, only
// the message fails.
func TestMissingMemoryIsTheReceiversError(t *testing.T) {
	for name, c := range map[string]struct {
		packet func(x *target) transport.Packet
		recv   []abi.WCStatus
	}{
		"of a receive": {func(*target) transport.Packet {
			return transport.Packet{Op: abi.OpSend, Message: 1, Length: 5}
		}, []abi.WCStatus{abi.WCLocProtErr}},
		"of a region": {func(x *target) transport.Packet {
			return transport.Packet{Op: abi.OpWrite, RKey: x.m.key, Addr: x.m.iova, Claimed: 5, Length: 5}
		}, nil},
	} {
		x := newTarget(t, abi.QPTypeRC, false)
		p := c.packet(x)
		x.recv.receiveFor(1) // it is read
		x.g.UseFaults(&trouble{access: true})
		if v := x.Place(0, &p, x.data[:5]); v.Refusal != transport.Operation || v.Alone || x.State() != abi.QPStateErr {
			t.Errorf("%s: %+v, QP in %v", name, v, x.State())
		}
		if got := x.received.statuses(); !slices.Equal(got, c.recv) {
			t.Errorf("%s: receives end in %v, want %v", name, got, c.recv)
		}
		if _, why := x.Atomic(&transport.Atomic{Op: abi.OpFetchAdd, Addr: x.m.iova, RKey: x.m.key}); why != transport.Operation {
			t.Errorf("%s: an atomic: %v", name, why)
		}
	}
}

// TestAMessageTakesOneReceiveOfOneQueue: a message takes its receive of the shared queue that its
// packets name, all of the same; a packet that names another, or a message that is complete, is
// refused.
func TestAMessageTakesOneReceiveOfOneQueue(t *testing.T) {
	for name, c := range map[string]struct {
		second  int // the queue that the second packet names
		over    bool
		refusal transport.Refusal
	}{"the same": {0, false, transport.Accepted}, "another": {1, false, transport.Invalid}, "it is over": {0, true, transport.Invalid}} {
		g := newGuest(t, Limits{})
		domain, st := g.OpenXRCD()
		g.good(st)
		cq := g.newCQ(3)
		var queues [2]*sharedQueue
		for i := range queues {
			queues[i] = g.newSRQ(abi.CreateSRQ{Type: abi.SRQTypeXRC, XRCDN: domain, CQN: cq.number})
			queues[i].receive(2)
		}
		s := g.newQP(abi.QPTypeXRCRecv, func(c *abi.CreateQP) { *c = abi.CreateQP{Type: c.Type, XRCDN: domain} })
		s.connect(0)
		place := func(queue int) transport.Refusal {
			if !s.Address(queues[queue].number) {
				t.Fatal("it is not reached")
			}
			return s.Place(0, &transport.Packet{Op: abi.OpSend, Message: 1}, nil).Refusal
		}
		if why := place(0); why != transport.Accepted || queues[0].Taken() != 1 {
			t.Errorf("%s: the first packet: %v", name, why)
		}
		s.recv.messages.at(1).Done = c.over
		if why := place(c.second); why != c.refusal || queues[1].Taken() != 0 {
			t.Errorf("%s: the second packet: %v, want %v", name, why, c.refusal)
		}
	}
}

// TestXRCKeysBelongToTheDomainOfTheSharedQueue: what makes a key invalid at an XRC target is
// checked against the domain of the shared queue, at the message's end, too. Its completion is in
// that queue's own CQ.
func TestXRCKeysBelongToTheDomainOfTheSharedQueue(t *testing.T) {
	g := newGuest(t, Limits{})
	domain, st := g.OpenXRCD()
	g.good(st)
	cq := g.newCQ(3)
	q := g.newSRQ(abi.CreateSRQ{Type: abi.SRQTypeXRC, XRCDN: domain, CQN: cq.number})
	q.receive(2)
	own, foreign := g.region(g.pdn, 64, allRights), g.region(g.newPD(), 64, allRights)
	s := g.newQP(abi.QPTypeXRCRecv, func(c *abi.CreateQP) { *c = abi.CreateQP{Type: c.Type, XRCDN: domain} })
	s.connect(0)
	s.Address(q.number)
	p := &transport.Packet{Op: abi.OpSendInv, Message: 1, Imm: own.key, Last: true}
	if why := s.Place(0, p, nil).Refusal; why != transport.Accepted {
		t.Fatalf("a key of the domain: %v", why)
	}
	s.Complete(0, p, 0, abi.WCSuccess)
	want := abi.CQE{QPN: s.number, SrcQP: 0x77, SRQN: q.number, Opcode: abi.WCOpRecv, Flags: abi.WCFlagInv, Imm: own.key}
	if got := cq.poll(); len(got) != 1 || got[0] != want || own.access&RemoteRights != 0 {
		t.Errorf("%+v, rights %#x", got, own.access)
	}
	p.Message, p.Imm = 2, foreign.key
	if why := s.Place(0, p, nil).Refusal; why != transport.Access {
		t.Errorf("a key of another domain: %v", why)
	}
}

// TestReceiveCompletionsDescribeTheMessage: the completion of a message describes what was
// received; that of a failed one says how it failed.
func TestReceiveCompletionsDescribeTheMessage(t *testing.T) {
	for _, c := range []struct {
		op     abi.Opcode
		failed abi.WCStatus
		want   abi.CQE
	}{
		{abi.OpSend, abi.WCSuccess, abi.CQE{ByteLen: 9, Opcode: abi.WCOpRecv}},
		{abi.OpSendImm, abi.WCSuccess, abi.CQE{ByteLen: 9, Opcode: abi.WCOpRecv, Flags: abi.WCFlagImm, Imm: 0x123456}},
		{abi.OpWriteImm, abi.WCSuccess, abi.CQE{ByteLen: 9, Opcode: abi.WCOpRecvWriteImm, Flags: abi.WCFlagImm, Imm: 0x123456}},
		{abi.OpSendInv, abi.WCSuccess, abi.CQE{ByteLen: 9, Opcode: abi.WCOpRecv, Flags: abi.WCFlagInv, Imm: 0x123456}}, // it is gone by now
		{abi.OpSendImm, abi.WCRemAbortErr, abi.CQE{Status: abi.WCRemAbortErr, Opcode: abi.WCOpRecv}},
	} {
		x := newTarget(t, abi.QPTypeRC, true)
		x.recv.receiveFor(1)
		x.Complete(0, &transport.Packet{Op: c.op, Message: 1, Imm: 0x123456, Last: true}, 9, c.failed)
		c.want.WRID, c.want.QPN, c.want.SrcQP = 7, x.number, 0x77
		if got := x.received.poll(); len(got) != 1 || got[0] != c.want {
			t.Errorf("%v, %v: %+v\nwant %+v", c.op, c.failed, got, c.want)
		}
	}
}

// TestAPeerReadsOnlyWhatItMay: a peer reads only what its queue pair and the region allow.
func TestAPeerReadsOnlyWhatItMay(t *testing.T) {
	x := newTarget(t, abi.QPTypeRC, false)
	for _, c := range []struct {
		name string
		key  uint32
		at   uint64
		n    uint32
		want transport.Refusal
	}{
		{"all of the region", x.m.key, 0, 100, transport.Accepted},
		{"a byte more", x.m.key, 0, 101, transport.OutOfBounds},
		{"nothing", 0x123456, 0, 0, transport.Accepted},
		{"a key that there is not", 0x123456, 0, 1, transport.UnknownKey},
	} {
		if m, why := x.Read(c.key, x.m.iova+c.at, c.n); why != c.want || (m != nil) != (why == transport.Accepted && c.n > 0) {
			t.Errorf("%s: %v", c.name, why)
		}
	}
	for what, access := range map[string]uint32{"of others": abi.AccessRemoteWrite | abi.AccessRemoteAtomic, "none": 0} {
		x.attr.access = access
		if _, why := x.Read(x.m.key, x.m.iova, 1); why != transport.Access {
			t.Errorf("right %s: %v", what, why)
		}
	}
	x.attr.maxDest = 0
	if _, why := x.Read(x.m.key, x.m.iova, 0); why != transport.Invalid {
		t.Errorf("no READs at all: %v", why)
	}
}

// TestAtomicsNeedAnAlignedWord: an atomic runs on a word that is aligned for the peer and in
// memory.
func TestAtomicsNeedAnAlignedWord(t *testing.T) {
	x := newTarget(t, abi.QPTypeRC, false)
	odd := *x.m
	odd.iova, odd.length = odd.iova+4, odd.length-4 // so that in memory it is not
	odd.area = x.m.area
	odd.key = 0
	if !x.g.Regions.add(&odd) {
		t.Fatal("no room")
	}
	for _, c := range []struct {
		name string
		m    *MR
		addr uint64
		want transport.Refusal
	}{
		{"a word", x.m, x.m.iova + 8, transport.Accepted},
		{"the last one", x.m, x.m.iova + 88, transport.Accepted},
		{"past the end", x.m, x.m.iova + 96, transport.OutOfBounds},
		{"between words", x.m, x.m.iova + 4, transport.Invalid},
		{"between words in memory", &odd, x.m.iova + 8, transport.Invalid},
	} {
		original, why := x.Atomic(&transport.Atomic{Op: abi.OpFetchAdd, Addr: c.addr, RKey: c.m.key, SwapAdd: 5})
		if why != c.want || original != 0 {
			t.Errorf("%s: %v, was %d", c.name, why, original)
		}
	}
	if original, why := x.Atomic(&transport.Atomic{Op: abi.OpFetchAdd, Addr: x.m.iova + 8, RKey: x.m.key}); why != transport.Accepted || original != 5 {
		t.Errorf("added up: %v, %d", why, original)
	}
	x.attr.maxDest = 0
	if _, why := x.Atomic(&transport.Atomic{Op: abi.OpFetchAdd, Addr: x.m.iova + 8, RKey: x.m.key}); why != transport.Invalid {
		t.Errorf("no atomics at all: %v", why)
	}
}

// TestTheFirstPacketInRTRIsReportedOnce: a driver that waits in RTR is told once that its peer
// sends; in other states it is not told. (DEV-909)
func TestTheFirstPacketInRTRIsReportedOnce(t *testing.T) {
	for state, want := range map[abi.QPState]int{abi.QPStateRTR: 1, abi.QPStateRTS: 0, abi.QPStateSQD: 0} {
		g := newGuest(t, Limits{})
		s := g.newQP(abi.QPTypeRC, nil)
		s.state = state
		s.connect(0)
		for range 3 {
			s.Heard()
		}
		if len(g.events) != want || want > 0 && g.events[0] != (event{abi.EventCommEst, s.number, 0}) {
			t.Errorf("in %v: events %+v", state, g.events)
		}
	}
}

// TestXRCPacketsReachTheirDomainOnly: packets reach the shared queues of an XRC target's domain and
// no others.
func TestXRCPacketsReachTheirDomainOnly(t *testing.T) {
	g := newGuest(t, Limits{})
	own, st := g.OpenXRCD()
	g.good(st)
	other, st := g.OpenXRCD()
	g.good(st)
	cq := g.newCQ(3)
	inside := g.newSRQ(abi.CreateSRQ{Type: abi.SRQTypeXRC, XRCDN: own, CQN: cq.number})
	outside := g.newSRQ(abi.CreateSRQ{Type: abi.SRQTypeXRC, XRCDN: other, CQN: cq.number})
	basic := g.newSRQ(abi.CreateSRQ{})
	target := g.newQP(abi.QPTypeXRCRecv, func(c *abi.CreateQP) { *c = abi.CreateQP{Type: c.Type, XRCDN: own} })
	for name, c := range map[string]struct {
		srqn uint32
		want bool
	}{"of its domain": {inside.number, true}, "of another": {outside.number, false}, "of none": {basic.number, false}, "none": {0x777, false}} {
		if got := target.Address(c.srqn); got != c.want {
			t.Errorf("a queue %s is reached: %t", name, got)
		}
	}
	if g.newRC(nil).Address(inside.number) {
		t.Error("reached by a reliable connection")
	}
}

// TestAPostedReceiveBringsATurnOnlyInERR: posting a receive gives a turn only to a queue pair in
// ERR, which flushes it. In other states a message takes it.
func TestAPostedReceiveBringsATurnOnlyInERR(t *testing.T) {
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
