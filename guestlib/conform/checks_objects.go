package conform

import (
	"bytes"

	"github.com/falcon-vnic/vnic/queues/abi"
)

var sharedChecks = []check{
	{"srq.receive", "DEV-920", abi.FeatureExtendedVerbs, srqReceive},
	{"srq.limit", "DEV-921", abi.FeatureExtendedVerbs, srqLimit},
	{"srq.area", "DEV-922", abi.FeatureExtendedVerbs, srqArea},
	{"srq.last-wqe", "DEV-923", abi.FeatureExtendedVerbs, srqLastWQE},
	{"xrc.receive", "DEV-924", abi.FeatureExtendedVerbs, xrcReceive},
}

// srq is a shared receive queue.
type srq struct {
	*queue
	c    *client
	srqn uint32
}

func (c *client) newSRQ(in abi.CreateSRQ) *srq {
	s := &srq{queue: c.newQueue(abi.DoorbellSRQ, queueLog2, recvStride), c: c}
	in.Log2Entries, in.Log2Stride, in.MaxSGE, in.Levels, in.Pages = queueLog2, recvStride, maxSGE, s.list.Levels, s.list.Root
	var r abi.CreateSRQResult
	c.must(abi.AdminOpCreateSRQ, &in, &r)
	s.srqn = r.SRQN
	return s
}

// post posts a receive.
func (s *srq) post(wrid uint64, sgl ...abi.SGE) {
	s.c.t.noError(s.ring.Push(recvEntry(wrid, sgl...)))
	index, _, err := s.ring.Publish()
	s.c.t.noError(err)
	s.last = index
	s.c.ring(abi.Doorbell{Kind: abi.DoorbellSRQ, Queue: s.srqn, Index: index})
}

// sharing is a pair whose b receives from a shared queue.
func (c *client) sharing() (*qpPair, *srq) {
	r := &qpPair{client: c, pdn: c.allocPD()}
	r.cq, r.rcq = c.newCQ(6), c.newCQ(6)
	r.mr = c.regMR(r.pdn, pairMemory, allAccess)
	s := c.newSRQ(abi.CreateSRQ{PDN: r.pdn})
	r.a = c.newQP(r.pdn, r.cq, r.rcq, nil)
	r.b = c.newQP(r.pdn, r.cq, r.rcq, shares(s.srqn))
	r.a.connect(r.b.qpn)
	r.b.connect(r.a.qpn)
	return r, s
}

func shares(srqn uint32) func(*abi.CreateQP) {
	return func(q *abi.CreateQP) {
		q.SRQN, q.RQLog2Entries, q.RQLog2Stride, q.MaxRecvSGE, q.RQLevels, q.RQPages = srqn, 0, 0, 0, 0, 0
	}
}

func (r *qpPair) sendTo(wrid uint64, n int) {
	r.a.post(abi.SendWQE{WRID: wrid, Opcode: abi.OpSend, Flags: abi.SendSignaled}, r.mr.sge(4096, n))
}

func srqReceive(t *T) {
	r, s := t.ready().sharing()
	for i := range uint64(20) { // more than a time round
		s.post(i, r.mr.sge(0, 64))
		r.sendTo(i, 32)
		r.cq.want(i, abi.WCSuccess)
		if e := r.rcq.want(i, abi.WCSuccess); e.SRQN != s.srqn || e.QPN != r.b.qpn || e.ByteLen != 32 {
			t.Fatalf("receive %d from SRQ %#x: completion %+v", i, s.srqn, e)
		}
		t.until(func() bool { return s.word(t, abi.QueueHeaderConsumer) == uint32(i)+1 }, "the slot of receive %d", i)
	}
	r.refuse(abi.AdminOpDestroySRQ, &abi.DestroySRQ{SRQN: s.srqn}, abi.StatusBusy)
}

func srqLimit(t *T) {
	r, s := t.ready().sharing()
	limit := func(n uint32) {
		r.must(abi.AdminOpModifySRQ, &abi.ModifySRQ{SRQN: s.srqn, Mask: abi.SRQAttrLimit, Limit: n}, nil)
	}
	for i := range uint64(4) {
		s.post(i, r.mr.sge(0, 64))
	}
	limit(3)
	r.sendTo(0, 8)
	r.rcq.want(0, abi.WCSuccess)
	r.stream.never("EventSRQLimit with three of three left", isEvent(abi.EventSRQLimit))
	r.sendTo(1, 8)
	r.rcq.want(1, abi.WCSuccess)
	if e := r.stream.event(abi.EventSRQLimit); e.Number != s.srqn {
		t.Fatalf("EventSRQLimit of %#x, want %#x", e.Number, s.srqn)
	}
	var q abi.QuerySRQResult
	if r.must(abi.AdminOpQuerySRQ, &abi.QuerySRQ{SRQN: s.srqn}, &q); q.Limit != 0 {
		t.Fatalf("the limit is %d after the event, want 0", q.Limit)
	}
	r.sendTo(2, 8)
	r.rcq.want(2, abi.WCSuccess)
	r.stream.never("EventSRQLimit a second time", isEvent(abi.EventSRQLimit))
	limit(5) // it is so already
	r.stream.event(abi.EventSRQLimit)
}

func srqArea(t *T) {
	r, s := t.ready().sharing()
	for i := range uint64(3) {
		s.post(i, r.mr.sge(0, 64))
	}
	r.sendTo(0, 8)
	r.rcq.want(0, abi.WCSuccess)
	fresh := r.newQueue(abi.DoorbellSRQ, queueLog2, recvStride)
	var out abi.ModifySRQResult
	r.must(abi.AdminOpModifySRQ, &abi.ModifySRQ{SRQN: s.srqn, Mask: abi.SRQAttrArea, Log2Entries: queueLog2, Levels: fresh.list.Levels, Pages: fresh.list.Root}, &out)
	if out.Consumer != 1 {
		t.Fatalf("ModifySRQ says that %d entries of the old area were read, want 1", out.Consumer)
	}
	s.queue = fresh
	s.post(11, r.mr.sge(0, 64))
	r.sendTo(1, 8)
	r.rcq.want(11, abi.WCSuccess)
}

func srqLastWQE(t *T) {
	r, s := t.ready().sharing()
	s.post(1, r.mr.sge(0, 64))
	r.b.modify(abi.ModifyQP{State: abi.QPStateErr, Mask: abi.QPAttrState})
	if e := r.stream.event(abi.EventLastWQE); e.Number != r.b.qpn {
		t.Fatalf("EventLastWQE of QP %#x, want %#x", e.Number, r.b.qpn)
	}
	r.stream.never("EventLastWQE a second time", isEvent(abi.EventLastWQE))
	c := r.newQP(r.pdn, r.cq, r.rcq, shares(s.srqn)) // the entry is still there for others
	d := r.newQP(r.pdn, r.cq, r.rcq, nil)
	c.connect(d.qpn)
	d.connect(c.qpn)
	d.post(abi.SendWQE{WRID: 5, Opcode: abi.OpSend, Flags: abi.SendSignaled}, r.mr.sge(0, 8))
	r.rcq.want(1, abi.WCSuccess)
}

func xrcReceive(t *T) {
	c := t.ready()
	r := &qpPair{client: c, pdn: c.allocPD()}
	r.cq, r.rcq = c.newCQ(6), c.newCQ(6)
	r.mr = c.regMR(r.pdn, pairMemory, allAccess)
	var domain, other abi.OpenXRCDResult
	c.must(abi.AdminOpOpenXRCD, nil, &domain)
	c.must(abi.AdminOpOpenXRCD, nil, &other)
	s := c.newSRQ(abi.CreateSRQ{PDN: r.pdn, CQN: r.rcq.cqn, XRCDN: domain.XRCDN, Type: abi.SRQTypeXRC})
	foreign := c.newSRQ(abi.CreateSRQ{PDN: r.pdn, CQN: r.rcq.cqn, XRCDN: other.XRCDN, Type: abi.SRQTypeXRC})
	r.a = c.newQP(r.pdn, r.cq, r.rcq, func(q *abi.CreateQP) {
		shares(0)(q)
		q.Type, q.RecvCQ = abi.QPTypeXRCSend, 0
	})
	r.b = c.newQP(r.pdn, r.cq, r.rcq, func(q *abi.CreateQP) { *q = abi.CreateQP{Type: abi.QPTypeXRCRecv, XRCDN: domain.XRCDN} })
	r.b.connect(r.a.qpn)
	r.a.connect(r.b.qpn)
	s.post(1, r.mr.sge(0, 64))
	copy(r.mr.bytes()[4096:], "across domains")
	send := abi.SendWQE{WRID: 2, Opcode: abi.OpSend, Flags: abi.SendSignaled, RemoteSRQN: s.srqn}
	r.a.post(send, r.mr.sge(4096, 14))
	r.cq.want(2, abi.WCSuccess)
	if e := r.rcq.want(1, abi.WCSuccess); e.SRQN != s.srqn || !bytes.Equal(r.mr.bytes()[:14], []byte("across domains")) {
		t.Fatalf("an XRC receive: completion %+v, data %q", e, r.mr.bytes()[:14])
	}
	send.WRID, send.RemoteSRQN = 3, foreign.srqn // of another domain
	r.a.post(send, r.mr.sge(4096, 14))
	if e := r.cq.next(); e.WRID != 3 || e.Status == abi.WCSuccess {
		t.Fatalf("an XRC SEND to an SRQ of another domain: work request %d, %s", e.WRID, e.Status)
	}
}

var keyChecks = []check{
	{"mw.bind", "DEV-930", abi.FeatureExtendedVerbs, mwBind},
	{"mw.type1", "DEV-936", abi.FeatureExtendedVerbs, mwType1},
	{"mw.invalidate", "DEV-931", abi.FeatureExtendedVerbs, mwInvalidate},
	{"mw.freed", "DEV-932", abi.FeatureExtendedVerbs, mwFreed},
	{"mr.reregister", "DEV-933", abi.FeatureExtendedVerbs, mrReregister},
}

// windowed is a pair with a region that windows may be bound to, and a window.
type windowed struct {
	*qpPair
	region *region
	rkey   uint32 // of the window
}

func (t *T) windowed() *windowed {
	w := &windowed{qpPair: t.qpPair()}
	w.region = w.regMR(w.pdn, 8192, allAccess|abi.AccessMWBind)
	var r abi.AllocMWResult
	w.must(abi.AdminOpAllocMW, &abi.AllocMW{PDN: w.pdn, Type: abi.MWType2}, &r)
	w.rkey = r.RKey
	return w
}

// bind posts a bind of bytes 4096 to 4351, at QP b, with another low byte of the key.
func (w *windowed) bind(wrid uint64) {
	w.rkey = w.rkey&^0xff | (w.rkey+1)&0xff
	b := make([]byte, abi.SendWQEHeader+abi.BindMWSize)
	(&abi.SendWQE{WRID: wrid, Opcode: abi.OpBindMW, Flags: abi.SendSignaled, RKey: w.rkey}).Marshal(b)
	(&abi.BindMW{Addr: w.region.iova + 4096, Length: 256, LKey: w.region.lkey, Access: abi.AccessRemoteWrite | abi.AccessRemoteRead}).Marshal(b[abi.SendWQEHeader:])
	w.b.push(w.b.sq, b)
}

// through posts a WRITE of a with the window's key.
func (w *windowed) through(wrid uint64, off, n int) {
	w.a.post(abi.SendWQE{WRID: wrid, Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: w.region.iova + uint64(off), RKey: w.rkey}, w.mr.sge(0, n))
}

// mwType1 checks that any queue pair of the PD can use a window of type 1, and that the window can
// be bound again without an invalidation.
func mwType1(t *T) {
	w := t.windowed()
	var r abi.AllocMWResult
	w.must(abi.AdminOpAllocMW, &abi.AllocMW{PDN: w.pdn, Type: abi.MWType1}, &r)
	w.rkey = r.RKey
	a, b := w.a, w.b
	w.a, w.b = w.newQP(w.pdn, w.cq, w.rcq, nil), w.newQP(w.pdn, w.cq, w.rcq, nil)
	w.a.connect(w.b.qpn)
	w.b.connect(w.a.qpn)
	for wrid := range uint64(2) { // the queue pair that binds it is not the one that peers use it by
		w.bind(1)
		w.cq.want(1, abi.WCSuccess)
		for _, q := range []*qp{a, w.a} {
			q.post(abi.SendWQE{WRID: 10 + wrid, Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: w.region.iova + 4096, RKey: w.rkey}, w.mr.sge(0, 16))
			w.cq.want(10+wrid, abi.WCSuccess)
		}
		w.b, b = b, w.b
	}
	entry := make([]byte, abi.SendWQEHeader+abi.BindMWSize)
	(&abi.SendWQE{WRID: 2, Opcode: abi.OpBindMW, Flags: abi.SendSignaled, RKey: w.rkey}).Marshal(entry) // of no bytes
	w.b.push(w.b.sq, entry)
	w.cq.want(2, abi.WCSuccess)
	w.must(abi.AdminOpDeregMR, &abi.DeregMR{LKey: w.region.lkey}, nil)
	w.through(3, 4096, 16)
	w.cq.want(3, abi.WCRemAccessErr)
}

func mwBind(t *T) {
	w := t.windowed()
	w.bind(1)
	if e := w.cq.want(1, abi.WCSuccess); e.Opcode != abi.WCOpBindMW {
		t.Fatalf("a bind completes with opcode %s", e.Opcode)
	}
	copy(w.mr.bytes(), "through a window")
	w.through(2, 4096+16, 16)
	w.cq.want(2, abi.WCSuccess)
	if !bytes.Equal(w.region.bytes()[4096+16:][:16], []byte("through a window")) {
		t.Fatalf("a WRITE through a window did not arrive")
	}
	w.refuse(abi.AdminOpDeregMR, &abi.DeregMR{LKey: w.region.lkey}, abi.StatusBusy)
	w.refuse(abi.AdminOpReregMR, &abi.ReregMR{LKey: w.region.lkey, Mask: abi.ReregAccess, Access: allAccess}, abi.StatusBusy)
	other, peer := w.newQP(w.pdn, w.cq, w.rcq, nil), w.newQP(w.pdn, w.cq, w.rcq, nil) // not the QP that it was bound at
	other.connect(peer.qpn)
	peer.connect(other.qpn)
	other.post(abi.SendWQE{WRID: 3, Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: w.region.iova + 4096, RKey: w.rkey}, w.mr.sge(0, 8))
	w.cq.want(3, abi.WCRemAccessErr)
	w.bind(4) // bound already
	w.rkey--
	w.cq.want(4, abi.WCMWBindErr)
}

func mwInvalidate(t *T) {
	w := t.windowed()
	w.bind(1)
	w.cq.want(1, abi.WCSuccess)
	w.b.post(abi.SendWQE{WRID: 2, Opcode: abi.OpLocalInv, Flags: abi.SendSignaled, Imm: w.rkey})
	if e := w.cq.want(2, abi.WCSuccess); e.Opcode != abi.WCOpLocalInv {
		t.Fatalf("LocalInv completes with opcode %s", e.Opcode)
	}
	w.bind(3) // it is free again
	w.cq.want(3, abi.WCSuccess)
	w.b.postRecv(4, w.mr.sge(0, 16))
	w.a.post(abi.SendWQE{WRID: 5, Opcode: abi.OpSendInv, Flags: abi.SendSignaled, Imm: w.rkey}, w.mr.sge(64, 8))
	if e := w.rcq.want(4, abi.WCSuccess); e.Flags&abi.WCFlagInv == 0 || e.Imm != w.rkey {
		t.Fatalf("the receive of a SEND with invalidate has flags %#x and key %#x, want %#x", e.Flags, e.Imm, w.rkey)
	}
	w.cq.want(5, abi.WCSuccess)
	w.through(6, 4096, 8)
	w.cq.want(6, abi.WCRemAccessErr)
}

func mwFreed(t *T) {
	w := t.windowed()
	w.bind(1)
	w.cq.want(1, abi.WCSuccess)
	w.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: w.b.qpn}, nil)
	w.must(abi.AdminOpDeregMR, &abi.DeregMR{LKey: w.region.lkey}, nil)
	w.must(abi.AdminOpDeallocMW, &abi.DeallocMW{RKey: w.rkey}, nil)
}

func mrReregister(t *T) {
	r := t.qpPair()
	old := *r.mr
	r.refuse(abi.AdminOpReregMR, &abi.ReregMR{LKey: old.lkey, Mask: abi.ReregPD, PDN: 0x77_7777}, abi.StatusNotFound)
	r.nop(1) // after an error the region is as it was
	r.cq.want(1, abi.WCSuccess)
	var out abi.RegMRResult
	r.must(abi.AdminOpReregMR, &abi.ReregMR{LKey: old.lkey, Mask: abi.ReregAccess, Access: allAccess}, &out)
	if out.LKey != old.lkey || out.RKey != old.rkey {
		t.Fatalf("ReregMR gave keys %#x and %#x for the same memory, %#x and %#x before", out.LKey, out.RKey, old.lkey, old.rkey)
	}
	r.nop(2)
	r.cq.want(2, abi.WCSuccess)
	other := region{block: r.alloc(abi.PageSize), iova: old.iova}
	other.list = r.pages(other.block)
	r.must(abi.AdminOpReregMR, &abi.ReregMR{
		LKey: old.lkey, Mask: abi.ReregTranslation, IOVA: other.iova, Length: abi.PageSize, Pages: other.list.Root, Levels: other.list.Levels,
	}, &out)
	if out.LKey == old.lkey || out.RKey == old.rkey {
		t.Fatalf("ReregMR gave keys %#x and %#x for other memory, the same as before", out.LKey, out.RKey)
	}
	other.lkey, other.rkey = out.LKey, out.RKey
	*r.mr = other
	r.a.post(abi.SendWQE{WRID: 3, Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: old.iova, RKey: old.rkey}, r.mr.sge(0, 8))
	r.cq.want(3, abi.WCRemAccessErr)
}
