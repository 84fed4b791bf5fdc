package rdma

import (
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/abi/schema"
)

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

// TestEveryStatus tries each way, and fails if a status of the ABI has none.
func TestEveryStatus(t *testing.T) {
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
