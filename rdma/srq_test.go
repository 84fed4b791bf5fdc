package rdma

import (
	"bytes"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// srq is a shared receive queue with its driver side.
type srq struct {
	h      *host
	number uint32
	ring   *ring.Producer
	mem    []byte
	cmd    abi.CreateSRQ
}

// queueMem makes memory for a queue of 2^log2 entries of 512 bytes.
func (h *host) queueMem(log2 uint8) (mem []byte, root uint64, levels uint8) {
	n := int(ring.QueueLayout(log2, 9).Size())
	at := h.alloc(n)
	return h.bytes(at, n), h.pageList(at, n, levelsFor(n)), levelsFor(n)
}

func (h *host) createSRQ(c abi.CreateSRQ) *srq {
	h.w.t.Helper()
	if c.Log2Entries == 0 {
		c.Log2Entries = 6
	}
	c.Log2Stride, c.MaxSGE = 9, 4
	s := &srq{h: h}
	s.mem, c.Pages, c.Levels = h.queueMem(c.Log2Entries)
	s.ring = ring.NewProducer(ring.Mem(s.mem), ring.QueueLayout(c.Log2Entries, 9))
	var st abi.Status
	s.number, st = h.fn.CreateSRQ(&c)
	ok(h.w.t, st)
	s.cmd = c
	return s
}

// receive posts a receive.
func (s *srq) receive(wrid uint64, sges ...abi.SGE) {
	s.h.w.t.Helper()
	var b [512]byte
	x := abi.RecvWQE{WRID: wrid, NumSGE: uint8(len(sges))}
	x.Marshal(b[:])
	for i := range sges {
		sges[i].Marshal(b[abi.RecvWQEHeader+i*abi.SGESize:])
	}
	if err := s.ring.Push(b[:]); err != nil {
		s.h.w.t.Fatal(err)
	}
	index, _, err := s.ring.Publish()
	if err != nil {
		s.h.w.t.Fatal(err)
	}
	s.h.fn.Doorbell(s.h.w.now, &abi.Doorbell{Kind: abi.DoorbellSRQ, Queue: s.number, Index: index})
}

// setLimit sets the limit.
func (s *srq) setLimit(n uint32) abi.Status {
	_, st := s.h.fn.ModifySRQ(&abi.ModifySRQ{SRQN: s.number, Mask: abi.SRQAttrLimit, Limit: n})
	return st
}

// TestASharedQueueServesManyQueuePairs lets three connections take the receives of one queue: each
// message once, in the order of arrival, whole, and with the queue's number in the completion.
// (DEV-920)
func TestASharedQueueServesManyQueuePairs(t *testing.T) {
	orders(t, func(t *testing.T, ordered bool) {
		w := newWorld(t, worldConfig{})
		pd0, _ := w.hosts[0].fn.AllocPD()
		pd1, _ := w.hosts[1].fn.AllocPD()
		data := w.hosts[0].register(pd0, 64<<10, allAccess)
		box := w.hosts[1].register(pd1, 256<<10, allAccess)
		fill(data.bytes(), 1)
		s := w.hosts[1].createSRQ(abi.CreateSRQ{PDN: pd1})
		recv := w.hosts[1].createCQ(10)
		var senders, receivers []*qp
		for range 3 {
			a := w.hosts[0].createQP(pd0, qpConfig{})
			b := w.hosts[1].createQP(pd1, qpConfig{srq: s, recv: recv})
			w.connect(a, b, ordered)
			senders, receivers = append(senders, a), append(receivers, b)
		}
		const each = 12
		for i := range 3 * each {
			s.receive(uint64(i), box.sge(i*4096, 4096))
		}
		for i := range each {
			for j, a := range senders {
				x := abi.SendWQE{WRID: uint64(i), Opcode: abi.OpSendImm, Flags: abi.SendSignaled, Imm: uint32(j<<16 | i)}
				a.post(x, data.sge(j*1000+i, 100+i*200))
			}
		}
		for _, a := range senders {
			success(t, a.send.wait(each))
		}
		next := map[int]int{}
		seen := map[uint64]bool{}
		for _, c := range recv.wait(3 * each) {
			j, i := int(c.Imm>>16), int(c.Imm&0xffff)
			if c.Status != abi.WCSuccess || c.SRQN != s.number || c.QPN != receivers[j].number || c.SrcQP != senders[j].number || int(c.ByteLen) != 100+i*200 {
				t.Fatalf("completion %+v", c)
			}
			if next[j] != i || seen[c.WRID] {
				t.Fatalf("connection %d: message %d where %d was due (receive %d)", j, i, next[j], c.WRID)
			}
			next[j], seen[c.WRID] = i+1, true
			if !bytes.Equal(box.bytes()[c.WRID*4096:][:c.ByteLen], data.bytes()[j*1000+i:][:c.ByteLen]) {
				t.Fatalf("connection %d, message %d: wrong bytes", j, i)
			}
		}
	})
}

// TestTheSRQLimitIsReportedOnce holds the event: once, when fewer entries than the limit are left,
// and at once when that is so already. (DEV-921)
func TestTheSRQLimitIsReportedOnce(t *testing.T) {
	p := newPair(t, true, 64<<10, worldConfig{}, qpConfig{})
	h := p.hosts[1]
	h.fn.UseFeatures(abi.FeatureExtendedVerbs)
	s := h.createSRQ(abi.CreateSRQ{PDN: p.pd[1], Limit: 4})
	a, b := p.hosts[0].createQP(p.pd[0], qpConfig{}), h.createQP(p.pd[1], qpConfig{srq: s})
	p.connect(a, b, true)
	for i := range 6 {
		s.receive(uint64(i), p.mb.sge(0, 100))
	}
	send := func() {
		t.Helper()
		a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.ma.sge(0, 10))
		success(t, a.send.wait(1))
	}
	send()
	send()
	if len(h.async) != 0 {
		t.Fatalf("events with 4 entries left: %+v", h.async)
	}
	send()
	if len(h.async) != 1 || h.async[0].typ != abi.EventSRQLimit || h.async[0].number != s.number {
		t.Fatalf("events %+v", h.async)
	}
	send()
	if q, _ := h.fn.QuerySRQ(s.number); q.Limit != 0 || q.Entries != 64 || q.MaxSGE != 4 {
		t.Fatalf("query %+v", q)
	}
	ok(t, s.setLimit(2)) // two are left
	if len(h.async) != 1 {
		t.Fatalf("events %+v", h.async)
	}
	ok(t, s.setLimit(3))
	if len(h.async) != 2 {
		t.Fatalf("no event for a limit above what is there: %+v", h.async)
	}
	if st := s.setLimit(65); st != abi.StatusInvalidArgument {
		t.Errorf("limit above the entries: %v", st)
	}
}

// TestASharedQueueMovesToAnotherArea moves the queue to a smaller and a larger area; the driver
// posts again what was not read. (DEV-922)
func TestASharedQueueMovesToAnotherArea(t *testing.T) {
	p := newPair(t, true, 64<<10, worldConfig{}, qpConfig{})
	h := p.hosts[1]
	s := h.createSRQ(abi.CreateSRQ{PDN: p.pd[1]})
	a, b := p.hosts[0].createQP(p.pd[0], qpConfig{}), h.createQP(p.pd[1], qpConfig{srq: s})
	p.connect(a, b, true)
	next := uint64(0)
	for _, log2 := range []uint8{3, 8} {
		for i := range 5 {
			s.receive(next+uint64(i), p.mb.sge(0, 100))
		}
		for range 2 {
			a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.ma.sge(0, 10))
		}
		success(t, a.send.wait(2))
		m := &abi.ModifySRQ{SRQN: s.number, Mask: abi.SRQAttrArea, Log2Entries: log2}
		var mem []byte
		mem, m.Pages, m.Levels = h.queueMem(log2)
		old := s.ring.Next()
		consumer, st := h.fn.ModifySRQ(m)
		ok(t, st)
		if old-consumer != 3 {
			t.Fatalf("%d of %d entries read", consumer, old)
		}
		for i := range s.mem {
			s.mem[i] = 0xff // it is the driver's
		}
		s.mem, s.ring = mem, ring.NewProducer(ring.Mem(mem), ring.QueueLayout(log2, 9))
		for i := range uint64(3) {
			s.receive(next+2+i, p.mb.sge(0, 100))
		}
		for range 3 {
			a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.ma.sge(0, 10))
		}
		success(t, a.send.wait(3))
		for i, c := range b.recv.wait(5) {
			if c.WRID != next+uint64(i) || c.Status != abi.WCSuccess {
				t.Fatalf("receive %d: %+v", i, c)
			}
		}
		next += 5
	}
}

// TestAFailedQueuePairLeavesTheSharedQueueToOthers fails one of two QPs of a shared queue: what it
// had taken is flushed, then EventLastWQE, and the other QP takes the rest. (DEV-923)
func TestAFailedQueuePairLeavesTheSharedQueueToOthers(t *testing.T) {
	orders(t, func(t *testing.T, ordered bool) {
		p := newPair(t, ordered, 64<<10, worldConfig{}, qpConfig{})
		h := p.hosts[1]
		h.fn.UseFeatures(abi.FeatureExtendedVerbs)
		s := h.createSRQ(abi.CreateSRQ{PDN: p.pd[1]})
		recv := h.createCQ(8)
		a, b := p.hosts[0].createQP(p.pd[0], qpConfig{}), h.createQP(p.pd[1], qpConfig{srq: s, recv: recv})
		a2, b2 := p.hosts[0].createQP(p.pd[0], qpConfig{}), h.createQP(p.pd[1], qpConfig{srq: s, recv: recv})
		p.connect(a, b, ordered)
		p.connect(a2, b2, ordered)
		s.receive(1, p.mb.sge(0, 64<<10))
		s.receive(2, p.mb.sge(0, 5000))
		// A message longer than the window: when its first packets are there it has taken a
		// receive.
		a.post(abi.SendWQE{Opcode: abi.OpSend}, p.ma.sge(0, 64<<10))
		p.run(1e9, func() bool { return h.fn.SRQ(s.number).Taken() > 0 })
		b.modify(abi.ModifyQP{Mask: abi.QPAttrState, State: abi.QPStateErr})
		got := recv.wait(1)
		if got[0].WRID != 1 || got[0].Status != abi.WCWRFlushErr || got[0].SRQN != s.number {
			t.Fatalf("flushed %+v", got[0])
		}
		p.settle(1e8)
		if len(h.async) != 1 || h.async[0].typ != abi.EventLastWQE || h.async[0].number != b.number {
			t.Fatalf("events %+v", h.async)
		}
		a2.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.ma.sge(0, 4000))
		success(t, a2.send.wait(1))
		if got := recv.wait(1)[0]; got.WRID != 2 || got.Status != abi.WCSuccess || got.QPN != b2.number {
			t.Fatalf("received %+v", got)
		}
		if st := h.fn.DestroySRQ(s.number); st != abi.StatusBusy {
			t.Fatalf("destroyed a queue in use: %v", st)
		}
		ok(t, h.fn.DestroyQP(p.now, b.number))
		ok(t, h.fn.DestroyQP(p.now, b2.number))
		ok(t, h.fn.DestroySRQ(s.number))
	})
}

// TestADomainWithASharedQueueIsBusy: a protection domain is busy as long as it has a shared receive
// queue.
func TestADomainWithASharedQueueIsBusy(t *testing.T) {
	h := newWorld(t, worldConfig{}).hosts[0]
	pd, st := h.fn.AllocPD()
	ok(t, st)
	s := h.createSRQ(abi.CreateSRQ{PDN: pd})
	if st := h.fn.DeallocPD(pd); st != abi.StatusBusy {
		t.Errorf("with a queue: %v", st)
	}
	ok(t, h.fn.DestroySRQ(s.number))
	ok(t, h.fn.DeallocPD(pd))
}
