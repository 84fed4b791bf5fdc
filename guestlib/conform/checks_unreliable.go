package conform

import (
	"bytes"

	"github.com/falcon-vnic/vnic/queues/abi"
)

var unreliableChecks = []check{
	{"uc.deliver", "DEV-960 DEV-961", abi.FeatureExtendedVerbs, ucDeliver},
	{"uc.lost", "DEV-960 DEV-961", abi.FeatureExtendedVerbs, ucLost},
	{"uc.error", "DEV-962", abi.FeatureExtendedVerbs, ucError},
	{"uc.nobody", "DEV-963", abi.FeatureExtendedVerbs, ucNobody},
	{"uc.modes", "DEV-961", abi.FeatureExtendedVerbs, ucModes},
}

// unreliable is a pair whose queue pairs are of type UC.
func (t *T) unreliable() *qpPair {
	c := t.ready()
	r := &qpPair{client: c, pdn: c.allocPD()}
	r.cq, r.rcq = c.newCQ(6), c.newCQ(6)
	r.mr = c.regMR(r.pdn, pairMemory, allAccess)
	r.a, r.b = r.newUC(), r.newUC()
	r.a.connect(r.b.qpn)
	r.b.connect(r.a.qpn)
	return r
}

func (r *qpPair) newUC() *qp {
	return r.newQP(r.pdn, r.cq, r.rcq, func(q *abi.CreateQP) { q.Type = abi.QPTypeUC })
}

func ucDeliver(t *T) {
	r := t.unreliable()
	for i, n := range []int{0, 1, 1024, 5000} {
		for j := range n {
			r.mr.bytes()[j] = byte(i + j*7)
		}
		for k, op := range []abi.Opcode{abi.OpSend, abi.OpSendImm, abi.OpWriteImm, abi.OpWrite} {
			clear(r.mr.bytes()[16<<10:])
			if op != abi.OpWrite {
				r.b.postRecv(uint64(k), r.mr.sge(16<<10, n))
			}
			r.a.post(abi.SendWQE{
				WRID: 9, Opcode: op, Flags: abi.SendSignaled, Imm: 0x55, RemoteAddr: r.mr.sge(16<<10, n).Addr, RKey: r.mr.rkey,
			}, r.mr.sge(0, n))
			r.cq.want(9, abi.WCSuccess)
			arrived := func() bool { return bytes.Equal(r.mr.bytes()[:n], r.mr.bytes()[16<<10:][:n]) }
			if op == abi.OpWrite {
				t.until(arrived, "a WRITE of %d bytes", n)
				continue
			}
			e := r.rcq.want(uint64(k), abi.WCSuccess)
			if imm := op != abi.OpSend; int(e.ByteLen) != n || imm != (e.Flags&abi.WCFlagImm != 0) || imm && e.Imm != 0x55 || !arrived() {
				t.Fatalf("a %s of %d bytes: completion %+v, or other data", op, n, e)
			}
		}
	}
}

func ucLost(t *T) {
	r := t.unreliable()
	send := func(x abi.SendWQE, n int) {
		x.WRID, x.Flags = 5, abi.SendSignaled
		r.a.post(x, r.mr.sge(0, n))
		r.cq.want(5, abi.WCSuccess) // nothing tells the sender
	}
	send(abi.SendWQE{Opcode: abi.OpSend}, 8) // there is no receive
	r.rcq.empty()
	r.b.postRecv(1, r.mr.sge(16<<10, 2000))
	send(abi.SendWQE{Opcode: abi.OpSend}, 4000)
	send(abi.SendWQE{Opcode: abi.OpWriteImm, RemoteAddr: r.mr.sge(0, 8).Addr, RKey: r.mr.rkey ^ 0x40_0000}, 8)
	r.rcq.empty()
	copy(r.mr.bytes(), "what is not lost")
	send(abi.SendWQE{Opcode: abi.OpSend}, 16)
	if e := r.rcq.want(1, abi.WCSuccess); e.ByteLen != 16 || string(r.mr.bytes()[16<<10:][:16]) != "what is not lost" {
		t.Fatalf("a SEND behind messages that were lost: completion %+v", e)
	}
	r.a.wantState(abi.QPStateRTS)
	r.b.wantState(abi.QPStateRTS)
}

func ucError(t *T) {
	r := t.unreliable()
	r.a.postRecv(7, r.mr.sge(16<<10, 64))
	r.a.post(abi.SendWQE{WRID: 1, Opcode: abi.OpRead, Flags: abi.SendSignaled, RemoteAddr: r.mr.sge(0, 8).Addr, RKey: r.mr.rkey}, r.mr.sge(0, 8))
	r.cq.want(1, abi.WCLocQPOpErr)
	r.a.wantState(abi.QPStateSQE)
	r.a.post(abi.SendWQE{WRID: 2, Opcode: abi.OpSend}, r.mr.sge(0, 8))
	r.cq.want(2, abi.WCWRFlushErr)
	r.b.post(abi.SendWQE{WRID: 3, Opcode: abi.OpSend, Flags: abi.SendSignaled}, r.mr.sge(0, 8))
	r.rcq.want(7, abi.WCSuccess) // receives go on
	r.cq.want(3, abi.WCSuccess)
	r.a.modify(abi.ModifyQP{State: abi.QPStateRTS, Mask: abi.QPAttrState})
	bad := r.mr.sge(16<<10, 64)
	bad.LKey ^= 0x40_0000
	r.b.postRecv(8, bad)
	r.a.post(abi.SendWQE{WRID: 4, Opcode: abi.OpSend, Flags: abi.SendSignaled}, r.mr.sge(0, 8))
	r.cq.want(4, abi.WCSuccess)
	r.rcq.want(8, abi.WCLocProtErr)
	r.b.wantState(abi.QPStateErr)
}

func ucNobody(t *T) {
	r := t.unreliable()
	r.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: r.b.qpn}, nil)
	for wrid := range uint64(3) {
		r.a.post(abi.SendWQE{WRID: wrid, Opcode: abi.OpSend, Flags: abi.SendSignaled}, r.mr.sge(0, 4000))
		r.cq.want(wrid, abi.WCSuccess)
	}
	r.a.wantState(abi.QPStateRTS)
}

func ucModes(t *T) {
	c := t.ready()
	in := abi.CreateQP{PDN: c.allocPD(), SendCQ: c.newCQ(4).cqn, Type: abi.QPTypeUC, Ordering: abi.OrderingWeak}
	in.RecvCQ = in.SendCQ
	c.refuse(abi.AdminOpCreateQP, &in, abi.StatusInvalidArgument)
}
