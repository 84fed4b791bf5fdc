package rdma

import (
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// TestNoAllocationsOfKinds: the data path of every kind of queue pair allocates nothing per
// operation.
func TestNoAllocationsOfKinds(t *testing.T) {
	for _, c := range []struct {
		name string
		qp   qpConfig
		xrc  bool
		srq  bool
	}{
		{name: "SRQ", srq: true},
		{name: "UC", qp: qpConfig{typ: abi.QPTypeUC}},
		{name: "XRC", xrc: true},
		{name: "weak", qp: qpConfig{ordering: abi.OrderingWeak}},
		{name: "unordered", qp: qpConfig{ordering: abi.OrderingUnordered, cie: true}},
		{name: "complete in error", qp: qpConfig{cie: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDirect(t)
			d.hosts[0].fn.UseFeatures(abi.FeatureExtendedVerbs)
			h := d.hosts[1]
			var rq *ring.Producer
			var srqn uint32
			from, to := qpConfig{typ: c.qp.typ, ordering: c.qp.ordering, cie: c.qp.cie}, c.qp
			recv := h.createCQ(10)
			switch {
			case c.srq:
				s := h.createSRQ(abi.CreateSRQ{PDN: d.pd[1], Log2Entries: 8})
				to.srq, rq = s, s.ring
			case c.xrc:
				xrcd, _ := h.fn.OpenXRCD()
				s := h.createSRQ(abi.CreateSRQ{PDN: d.pd[1], Log2Entries: 8, Type: abi.SRQTypeXRC, XRCDN: xrcd, CQN: recv.number})
				rq, srqn = s.ring, s.number
				from.typ, to.typ, to.xrcd = abi.QPTypeXRCSend, abi.QPTypeXRCRecv, xrcd
			}
			to.recv = recv
			a, b := d.hosts[0].createQP(d.pd[0], from), h.createQP(d.pd[1], to)
			d.connect(a, b, c.qp.ordering == abi.OrderingStrong)
			if rq == nil {
				rq = b.rq
			}
			receive := make([]byte, 512)
			(&abi.RecvWQE{NumSGE: 1}).Marshal(receive)
			s := d.mb.sge(0, 65536)
			s.Marshal(receive[abi.RecvWQEHeader:])
			for _, op := range []abi.Opcode{abi.OpSend, abi.OpWrite, abi.OpWriteImm, abi.OpRead, abi.OpMaskedFetchAdd} {
				if c.qp.typ == abi.QPTypeUC && op != abi.OpSend && op != abi.OpWrite && op != abi.OpWriteImm {
					continue
				}
				n := 1000
				if op == abi.OpMaskedFetchAdd {
					n = 8
				}
				entry := d.entry(op, n, abi.SendSignaled)
				var x abi.SendWQE
				x.Unmarshal(entry)
				x.RemoteSRQN = srqn
				x.Marshal(entry)
				bell := &abi.Doorbell{Kind: abi.DoorbellSQ, Queue: a.number}
				takes := op == abi.OpSend || op == abi.OpWriteImm
				once := func() {
					if takes {
						d.push(rq, receive)
					}
					d.push(a.sq, entry)
					bell.Index = a.sq.Next()
					a.h.fn.Doorbell(d.now, bell)
					d.reap(a.send, 1)
					if takes {
						d.reap(recv, 1)
					}
				}
				for range 300 {
					once() // pools of the transport fill
				}
				if n := testing.AllocsPerRun(200, once); n != 0 {
					t.Errorf("%v: %v allocations, want 0", op, n)
				}
			}
		})
	}
}
