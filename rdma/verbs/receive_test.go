package verbs

import (
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// TestReceiveEntries: a receive has the elements that its entry has room for. One that announces
// more, or names memory that it may not use, is taken with its error. (DRV-608)
func TestReceiveEntries(t *testing.T) {
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

// TestReceivesOfMessages: messages take the receives of a queue in the order of their numbers, in
// whichever they come, as many at a time as the queue has entries, or one where the connection is
// ordered.
func TestReceivesOfMessages(t *testing.T) {
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

// TestMessagesInAnyOrder: with unordered completion the receives of messages complete as the
// messages arrive, and there is room for a further one when the oldest is complete.
func TestMessagesInAnyOrder(t *testing.T) {
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

// TestRoomOfReceives: a queue pair holds as many receives at a time as its queue has entries, with
// as many elements as these may have, wherever they come from.
func TestRoomOfReceives(t *testing.T) {
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

// TestReceivesFlushedInOrder: receives that messages have taken are flushed in the order of the
// queue, and before those that are still in it. (DEV-610)
func TestReceivesFlushedInOrder(t *testing.T) {
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
