package rdma

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/abi/schema"
)

// TestEveryMistakeHasItsStatus checks the completion status of every mistake that a requester can
// make, and that it costs both QPs their connection but nothing else. (DEV-706)
func TestEveryMistakeHasItsStatus(t *testing.T) {
	for _, c := range []struct {
		name   string
		access uint32 // of B's region
		qp     uint32 // remote access B's QP allows; 0 all
		post   func(p *pair)
		want   abi.WCStatus
		recv   abi.WCStatus // of B's posted receive
	}{
		{name: "WRITE with a wrong rkey", post: func(p *pair) {
			x := p.remote(abi.OpWrite, 0)
			x.RKey ^= 1 << 24
			p.a.post(x, p.ma.sge(0, 8))
		}, want: abi.WCRemAccessErr},
		{name: "WRITE beyond the region", post: func(p *pair) {
			p.a.post(p.remote(abi.OpWrite, 4089), p.ma.sge(0, 8))
		}, want: abi.WCRemAccessErr},
		{name: "WRITE at the end of the address space", post: func(p *pair) {
			x := p.remote(abi.OpWrite, 0)
			x.RemoteAddr = 1<<64 - 4
			p.a.post(x, p.ma.sge(0, 8))
		}, want: abi.WCRemAccessErr},
		{name: "WRITE without the region's right", access: abi.AccessLocalWrite | abi.AccessRemoteRead, post: func(p *pair) {
			p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
		}, want: abi.WCRemAccessErr},
		{name: "WRITE without the QP's right", qp: abi.AccessRemoteRead, post: func(p *pair) {
			p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
		}, want: abi.WCRemAccessErr},
		{name: "third segment of a long WRITE beyond the region", post: func(p *pair) {
			p.a.post(p.remote(abi.OpWrite, 1), p.ma.sge(0, 4096))
		}, want: abi.WCRemAccessErr},
		{name: "READ with a wrong rkey", post: func(p *pair) {
			x := p.remote(abi.OpRead, 0)
			x.RKey ^= 1 << 24
			p.a.post(x, p.ma.sge(0, 8))
		}, want: abi.WCRemAccessErr},
		{name: "READ without the region's right", access: abi.AccessLocalWrite | abi.AccessRemoteWrite, post: func(p *pair) {
			p.a.post(p.remote(abi.OpRead, 0), p.ma.sge(0, 8))
		}, want: abi.WCRemAccessErr},
		{name: "READ without the QP's right", qp: abi.AccessRemoteWrite, post: func(p *pair) {
			p.a.post(p.remote(abi.OpRead, 0), p.ma.sge(0, 8))
		}, want: abi.WCRemAccessErr},
		{name: "atomic without the region's right", access: abi.AccessLocalWrite | abi.AccessRemoteWrite, post: func(p *pair) {
			p.a.post(p.remote(abi.OpFetchAdd, 0), p.ma.sge(0, 8))
		}, want: abi.WCRemAccessErr},
		{name: "atomic at an odd address", post: func(p *pair) { // DEV-613
			p.a.post(p.remote(abi.OpCmpSwap, 4), p.ma.sge(0, 8))
		}, want: abi.WCRemInvReqErr},
		{name: "atomic in odd memory", post: func(p *pair) {
			h := p.hosts[1]
			key, _, st := h.fn.RegMR(&abi.RegMR{
				PDN: p.pd[1], Access: allAccess, IOVA: 1 << 40, Length: 64, Offset: 4, Pages: h.pageList(p.mb.addr, 4096, 1), Levels: 1,
			})
			ok(h.w.t, st)
			x := p.remote(abi.OpFetchAdd, 0)
			x.RKey, x.RemoteAddr = key, 1<<40
			p.a.post(x, p.ma.sge(0, 8))
		}, want: abi.WCRemInvReqErr},
		{name: "masked atomic at an odd address", post: func(p *pair) {
			p.a.postMasked(p.remote(abi.OpMaskedFetchAdd, 4), abi.AtomicMasks{}, p.ma.sge(0, 8))
		}, want: abi.WCRemInvReqErr},
		{name: "masked atomic without an SGE", post: func(p *pair) {
			p.a.post(p.remote(abi.OpMaskedCmpSwap, 0))
		}, want: abi.WCLocLenErr},
		{name: "atomic with a result of 4 bytes", post: func(p *pair) {
			p.a.post(p.remote(abi.OpCmpSwap, 0), p.ma.sge(0, 4))
		}, want: abi.WCLocLenErr},
		{name: "atomic with two results", post: func(p *pair) {
			p.a.post(p.remote(abi.OpCmpSwap, 0), p.ma.sge(0, 4), p.ma.sge(4, 4))
		}, want: abi.WCLocLenErr},
		{name: "SEND longer than the receive", post: func(p *pair) {
			p.b.receive(7, p.mb.sge(0, 99))
			p.a.post(abi.SendWQE{Opcode: abi.OpSend}, p.ma.sge(0, 100))
		}, want: abi.WCRemInvReqErr, recv: abi.WCLocLenErr},
		{name: "long SEND longer than the receive", post: func(p *pair) {
			p.b.receive(7, p.mb.sge(0, 2050))
			p.a.post(abi.SendWQE{Opcode: abi.OpSend}, p.ma.sge(0, 4096))
		}, want: abi.WCRemInvReqErr, recv: abi.WCLocLenErr},
		{name: "SEND into a receive with a wrong lkey", post: func(p *pair) {
			s := p.mb.sge(0, 100)
			s.LKey ^= 1 << 24
			p.b.receive(7, s)
			p.a.post(abi.SendWQE{Opcode: abi.OpSend}, p.ma.sge(0, 100))
		}, want: abi.WCRemOpErr, recv: abi.WCLocProtErr},
		{name: "SEND into a receive without local write", access: abi.AccessRemoteRead, post: func(p *pair) {
			p.b.receive(7, p.mb.sge(0, 100))
			p.a.post(abi.SendWQE{Opcode: abi.OpSend}, p.ma.sge(0, 100))
		}, want: abi.WCRemOpErr, recv: abi.WCLocProtErr},
		{name: "SEND with invalidate of an unknown key", post: func(p *pair) {
			p.b.receive(7, p.mb.sge(0, 100))
			p.a.post(abi.SendWQE{Opcode: abi.OpSendInv, Imm: p.mb.key ^ 1<<24}, p.ma.sge(0, 100))
		}, want: abi.WCRemAccessErr, recv: abi.WCWRFlushErr},
		{name: "SEND from a wrong lkey", post: func(p *pair) {
			s := p.ma.sge(0, 100)
			s.LKey ^= 1
			p.a.post(abi.SendWQE{Opcode: abi.OpSend}, s)
		}, want: abi.WCLocProtErr},
		{name: "SEND from beyond the region", post: func(p *pair) {
			p.a.post(abi.SendWQE{Opcode: abi.OpSend}, p.ma.sge(4000, 97))
		}, want: abi.WCLocProtErr},
		{name: "SEND longer than a message can be", post: func(p *pair) {
			p.a.post(abi.SendWQE{Opcode: abi.OpSend}, p.ma.sge(0, 0), abi.SGE{Addr: p.ma.addr, Length: 1 << 31, LKey: p.ma.key})
		}, want: abi.WCLocProtErr},
		{name: "READ into memory without local write", post: func(p *pair) {
			ro := p.hosts[0].register(p.pd[0], 4096, abi.AccessRemoteRead)
			p.a.post(p.remote(abi.OpRead, 0), ro.sge(0, 100))
		}, want: abi.WCLocProtErr},
		{name: "region of another protection domain", post: func(p *pair) {
			pd, _ := p.hosts[0].fn.AllocPD()
			m := p.hosts[0].register(pd, 4096, allAccess)
			p.a.post(p.remote(abi.OpWrite, 0), m.sge(0, 100))
		}, want: abi.WCLocProtErr},
		{name: "rkey of another protection domain", post: func(p *pair) {
			pd, _ := p.hosts[1].fn.AllocPD()
			m := p.hosts[1].register(pd, 4096, allAccess)
			x := p.remote(abi.OpWrite, 0)
			x.RKey, x.RemoteAddr = m.key, m.addr
			p.a.post(x, p.ma.sge(0, 100))
		}, want: abi.WCRemAccessErr},
		{name: "unknown opcode", post: func(p *pair) {
			p.a.post(p.remote(abi.Opcode(7), 0), p.ma.sge(0, 100))
		}, want: abi.WCLocQPOpErr},
		{name: "too many SGEs", post: func(p *pair) {
			x := p.remote(abi.OpWrite, 0)
			x.NumSGE = 5
			p.a.post(x, p.ma.sge(0, 1))
		}, want: abi.WCLocQPOpErr},
		{name: "inline READ", post: func(p *pair) {
			x := p.remote(abi.OpRead, 0)
			x.Flags |= abi.SendInline
			p.a.post(x)
		}, want: abi.WCLocQPOpErr},
		{name: "more inline data than the QP takes", post: func(p *pair) {
			x := p.remote(abi.OpWrite, 0)
			x.Flags, x.InlineLen = abi.SendInline, 193
			p.a.postRaw(x, nil)
			p.a.ring()
		}, want: abi.WCLocLenErr},
	} {
		orders(t, func(t *testing.T, ordered bool) {
			t.Run(c.name, func(t *testing.T) {
				p := newPair(t, ordered, 4096, worldConfig{}, qpConfig{access: c.qp})
				if c.access != 0 {
					p.mb = p.hosts[1].register(p.pd[1], 4096, c.access)
				}
				// One valid request before and two behind it.
				good := p.hosts[1].register(p.pd[1], 64, allAccess)
				x := abi.SendWQE{WRID: 1, Opcode: abi.OpWrite, RemoteAddr: good.addr, RKey: good.key}
				if c.qp != 0 && c.qp&abi.AccessRemoteWrite == 0 {
					x.Opcode = abi.OpRead
				}
				x.Flags = abi.SendSignaled
				p.a.post(x, p.ma.sge(8, 8))
				c.post(p)
				x.WRID, x.Flags = 3, 0
				p.a.post(x, p.ma.sge(8, 8))
				x.WRID = 4
				p.a.post(x, p.ma.sge(8, 8))
				got := p.a.send.wait(4)
				if got[0].Status != abi.WCSuccess || got[1].Status != c.want || got[2].Status != abi.WCWRFlushErr || got[3].Status != abi.WCWRFlushErr ||
					got[0].WRID != 1 || got[2].WRID != 3 || got[3].WRID != 4 {
					t.Fatalf("completions %s, want success, %v, flushed, flushed", describe(got), c.want)
				}
				if p.a.q.State() != abi.QPStateErr {
					t.Fatalf("QP is in %v", p.a.q.State())
				}
				remote := c.want != abi.WCLocProtErr && c.want != abi.WCLocLenErr && c.want != abi.WCLocQPOpErr
				p.settle(1e9)
				if remote != (p.b.q.State() == abi.QPStateErr) {
					t.Fatalf("peer is in %v", p.b.q.State())
				}
				if c.recv != 0 {
					r := p.b.recv.wait(1)
					if r[0].Status != c.recv || r[0].WRID != 7 {
						t.Fatalf("receive %s, want %v", describe(r), c.recv)
					}
				}
				for i, h := range p.hosts {
					if h.credits.InUse() != (credit.Cost{}) {
						t.Fatalf("host %d: credits in use %v", i, h.credits.InUse())
					}
				}
				if len(p.hosts[0].async) != 1 || p.hosts[0].async[0].typ != abi.EventQPFatal || p.hosts[0].async[0].number != p.a.number {
					t.Fatalf("events %+v", p.hosts[0].async)
				}
				// The rest of the function works: a new pair on the same memory.
				a2, b2 := p.hosts[0].createQP(p.pd[0], qpConfig{}), p.hosts[1].createQP(p.pd[1], qpConfig{})
				p.connect(a2, b2, ordered)
				a2.post(abi.SendWQE{Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: good.addr, RKey: good.key}, p.ma.sge(8, 8))
				success(t, a2.send.wait(1))
			})
		})
	}
}

// reached is where a status was seen: in a send completion, a receive completion, or the event of a
// queue pair that failed.
type reached struct{ send, recv, event abi.WCStatus }

// statuses has one legitimate way to reach each completion status of the ABI. Each way begins with
// a pair of connected queue pairs.
var statuses = []struct {
	name string
	qp   qpConfig
	way  func(p *pair)
	at   int // of the pair: who sees it
	want reached
}{
	{
		name: "a WRITE", want: reached{send: abi.WCSuccess},
		way: func(p *pair) { p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8)) },
	},
	{
		name: "an atomic whose result does not fit", want: reached{send: abi.WCLocLenErr, event: abi.WCLocLenErr},
		way: func(p *pair) { p.a.post(p.remote(abi.OpFetchAdd, 0), p.ma.sge(0, 4)) },
	},
	{
		name: "a SEND that does not fit the receive", at: 1, want: reached{recv: abi.WCLocLenErr, event: abi.WCRemInvReqErr},
		way: func(p *pair) {
			p.b.receive(1, p.mb.sge(0, 9))
			p.a.post(abi.SendWQE{Opcode: abi.OpSend}, p.ma.sge(0, 10))
		},
	},
	{
		name: "an operation that there is not", want: reached{send: abi.WCLocQPOpErr, event: abi.WCLocQPOpErr},
		way: func(p *pair) { p.a.post(p.remote(77, 0), p.ma.sge(0, 8)) },
	},
	{
		name: "memory beyond the region", want: reached{send: abi.WCLocProtErr, event: abi.WCLocProtErr},
		way: func(p *pair) { p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(8190, 8)) },
	},
	{
		name: "a receive beyond the region", at: 1, want: reached{recv: abi.WCLocProtErr, event: abi.WCRemOpErr},
		way: func(p *pair) {
			p.b.receive(1, p.mb.sge(8190, 8))
			p.a.post(abi.SendWQE{Opcode: abi.OpSend}, p.ma.sge(0, 8))
		},
	},
	{
		name: "the driver's move to ERR", want: reached{send: abi.WCWRFlushErr, recv: abi.WCWRFlushErr},
		way: func(p *pair) {
			p.a.receive(1, p.ma.sge(0, 8))
			p.cut(0, true)
			p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
			p.a.modify(abi.ModifyQP{Mask: abi.QPAttrState, State: abi.QPStateErr})
		},
	},
	{
		name: "a window on a region that allows none", want: reached{send: abi.WCMWBindErr, event: abi.WCMWBindErr},
		way: func(p *pair) {
			key := incKey(p.hosts[0].window(p.pd[0]))
			p.a.postBind(key, abi.BindMW{Addr: p.ma.addr, Length: 8, LKey: p.ma.key, Access: abi.AccessRemoteRead})
		},
	},
	{
		name: "a receive whose WRITE had no key, completed in error", qp: qpConfig{cie: true}, at: 1, want: reached{recv: abi.WCLocAccessErr},
		way: func(p *pair) {
			p.b.receive(1)
			x := p.remote(abi.OpWriteImm, 0)
			x.RKey++
			p.a.post(x, p.ma.sge(0, 8))
		},
	},
	{
		name: "an atomic at an odd address", want: reached{send: abi.WCRemInvReqErr, event: abi.WCRemInvReqErr},
		way: func(p *pair) { p.a.post(p.remote(abi.OpFetchAdd, 1), p.ma.sge(0, 8)) },
	},
	{
		name: "a READ beyond the peer's region", want: reached{send: abi.WCRemAccessErr, event: abi.WCRemAccessErr},
		way: func(p *pair) { p.a.post(p.remote(abi.OpRead, 8190), p.ma.sge(0, 8)) },
	},
	{
		name: "a receive of the peer that is not its own memory", want: reached{send: abi.WCRemOpErr, event: abi.WCRemOpErr},
		way: func(p *pair) {
			p.b.receive(1, p.mb.sge(8190, 8))
			p.a.post(abi.SendWQE{Opcode: abi.OpSend}, p.ma.sge(0, 8))
		},
	},
	{
		name: "a peer that is not there", want: reached{send: abi.WCRetryExcErr, event: abi.WCRetryExcErr},
		way: func(p *pair) {
			p.cut(0, true)
			p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
		},
	},
	{
		name: "a peer without receives", want: reached{send: abi.WCRNRRetryExcErr, event: abi.WCRNRRetryExcErr},
		way: func(p *pair) {
			p.a.modify(abi.ModifyQP{Mask: abi.QPAttrRNRRetry, RNRRetry: 2})
			p.a.post(abi.SendWQE{Opcode: abi.OpSend}, p.ma.sge(0, 8))
		},
	},
	{
		name: "a message whose data the sender lost, completed in error", qp: qpConfig{cie: true}, at: 1, want: reached{recv: abi.WCRemAbortErr},
		way: func(p *pair) {
			p.b.receive(1, p.mb.sge(0, 8000))
			vanish(p, abi.OpSend, 3000)
		},
	},
	{
		name: "a receive queue's completion queue that overflowed", at: 1, want: reached{event: abi.WCGeneralErr},
		way: func(p *pair) {
			for i := range 4 {
				p.b.receive(uint64(i), p.mb.sge(0, 8))
				p.a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.ma.sge(0, 8))
			}
		},
	},
	{
		name: "a READ that is answered with nonsense", want: reached{send: abi.WCBadRespErr, event: abi.WCBadRespErr},
		way: func(p *pair) { p.answer(func(a *answerer) { a.skew = 1 }) },
	},
	{
		name: "a READ whose answer is for another queue pair", want: reached{send: abi.WCRespTimeoutErr, event: abi.WCRespTimeoutErr},
		way: func(p *pair) { p.answer(func(a *answerer) { a.dest++ }) },
	},
}

// answer puts a peer in the place of B that answers READs as change says, and posts one.
func (p *pair) answer(change func(*answerer)) {
	peer := &answerer{}
	w := newWorld(p.t, worldConfig{peer: peer})
	p.world = w
	pd, _ := w.hosts[1].fn.AllocPD()
	m := w.hosts[1].register(pd, 8192, allAccess)
	p.a = w.hosts[1].createQP(pd, qpConfig{})
	w.attack(p.a, true)
	peer.dest = p.a.number
	change(peer)
	p.a.post(abi.SendWQE{Opcode: abi.OpRead, RemoteAddr: 1, RKey: 1}, m.sge(0, 4))
}

// TestEveryStatusIsReached tries each way, and fails if a status of the ABI has none.
func TestEveryStatusIsReached(t *testing.T) {
	missing := map[abi.WCStatus]bool{}
	for _, v := range schema.Current.Enum("WCStatus").Values {
		missing[abi.WCStatus(v.Value)] = true
	}
	for _, c := range statuses {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, true, 8192, worldConfig{}, c.qp)
			if c.want.event == abi.WCGeneralErr {
				recv := p.hosts[1].createCQ(1)
				p.a, p.b = p.hosts[0].createQP(p.pd[0], c.qp), p.hosts[1].createQP(p.pd[1], qpConfig{recv: recv})
				p.connect(p.a, p.b, true)
			}
			c.way(p)
			q := []*qp{p.a, p.b}[c.at]
			if c.want.send != 0 || c.want == (reached{}) {
				if got := q.send.wait(1)[0]; got.Status != c.want.send {
					t.Errorf("send completion %v, want %v", got.Status, c.want.send)
				}
			}
			if c.want.recv != 0 {
				if got := q.recv.wait(1)[0]; got.Status != c.want.recv || got.Opcode&abi.WCOpRecv == 0 {
					t.Errorf("receive completion %+v, want %v", got, c.want.recv)
				}
			}
			p.settle(1e9)
			var event abi.WCStatus
			for _, e := range q.h.async {
				if e.typ == abi.EventQPFatal && e.number == q.number {
					event = abi.WCStatus(e.status)
				}
			}
			if event != c.want.event {
				t.Errorf("event with %v, want %v: %+v", event, c.want.event, q.h.async)
			}
		})
		for _, st := range []abi.WCStatus{c.want.send, c.want.recv, c.want.event} {
			delete(missing, st)
		}
	}
	for st := range missing {
		t.Errorf("no way to %v", st)
	}
}

// TestEntriesHoldWhatCreateQPAnnounced: an entry with all the SGEs or inline bytes that CreateQP
// announced is valid and breaks no clause; one more does. (DRV-608)
func TestEntriesHoldWhatCreateQPAnnounced(t *testing.T) {
	for name, c := range map[string]struct {
		sges, inline int
		broken       bool
	}{
		"all SGEs":         {sges: 4},
		"one SGE more":     {sges: 5, broken: true},
		"all inline bytes": {inline: 64},
		"one byte more":    {inline: 65, broken: true},
	} {
		p := newPair(t, true, 4096, worldConfig{}, qpConfig{sge: 4, inline: 64})
		x := p.remote(abi.OpWrite, 0)
		if c.inline > 0 {
			p.a.postInline(x, make([]byte, c.inline))
		} else {
			var sges []abi.SGE
			for range c.sges {
				sges = append(sges, p.ma.sge(0, 10))
			}
			p.a.post(x, sges...)
		}
		ok := p.a.send.wait(1)[0].Status == abi.WCSuccess
		if v := p.hosts[0].violations; ok == c.broken || (len(v) == 1 && v[0].Clause == 608) != c.broken {
			t.Errorf("%s: success %t, violations %+v", name, ok, v)
		}
	}
}
