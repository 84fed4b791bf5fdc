package conform

import (
	"github.com/falcon-vnic/vnic/queues/abi"
)

// iwarpChecks run where the function's connections are iWARP's. Most of the others need a function
// that has Falcon.
var iwarpChecks = []check{
	{"iwarp.connect", "DEV-970 DEV-971 DEV-972", abi.FeatureIWARP, iwarpConnect},
	{"iwarp.reject", "DEV-973", abi.FeatureIWARP, iwarpReject},
}

// The service is the same TCP port, alone and as RDMA CM writes it.
const (
	tcpService  = 5000
	rdmaService = 0x0106<<16 | tcpService
	callPort    = 40000
)

// streamPair is two queue pairs of one function in INIT, with different depths of READs.
func (c *client) streamPair() *cmPair {
	p := &cmPair{qpPair: c.newQPs(nil)}
	for i, q := range []*qp{p.a, p.b} {
		m := q.step(abi.QPStateInit, 0)
		m.Mask |= abi.QPAttrMaxRdAtomic | abi.QPAttrMaxDestRdAtomic
		m.MaxRdAtomic, m.MaxDestRdAtomic = uint8(1+i), uint8(3+i)
		q.modify(m)
	}
	return p
}

// call has a call the listener from callPort, and returns the request that arrives.
func (p *cmPair) call() abi.AsyncEvent {
	in := abi.CMConnect{QPN: p.a.qpn, Service: rdmaService, DGID: p.gid(), SrcPort: callPort}
	in.Priv, in.PrivLen = p.private("please")
	var out abi.CMConnectResult
	p.must(abi.AdminOpCMConnect, &in, &out)
	p.id = out.CMID
	e := p.stream.event(abi.EventConnectRequest)
	if e.Service != tcpService || e.SrcGID != in.DGID || e.PeerPort != callPort || e.QPN != 0 || string(e.Priv[:e.PrivLen]) != "please" {
		p.t.Fatalf("EventConnectRequest %+v, want service %d, port %d, no QP, private data \"please\"", e, tcpService, callPort)
	}
	if e.IRD != 3 || e.ORD != 1 {
		p.t.Fatalf("EventConnectRequest has IRD %d and ORD %d, want 3 and 1", e.IRD, e.ORD)
	}
	return e
}

func iwarpConnect(t *T) {
	c := t.ready()
	for _, s := range []uint64{0, 0x0107<<16 | tcpService, 1 << 32} {
		c.refuse(abi.AdminOpCMListen, &abi.CMListen{Service: s}, abi.StatusInvalidArgument)
	}
	c.must(abi.AdminOpCMListen, &abi.CMListen{Service: tcpService}, nil)
	c.refuse(abi.AdminOpCMListen, &abi.CMListen{Service: rdmaService}, abi.StatusAddressInUse)
	p := c.streamPair()
	request := p.call()
	other := c.streamPair()
	other.refuse(abi.AdminOpCMConnect, &abi.CMConnect{QPN: other.a.qpn, Service: tcpService, DGID: c.gid(), SrcPort: callPort}, abi.StatusAddressInUse)
	p.accept(request.Number)
	qps := map[uint32]uint32{p.id: p.a.qpn, request.Number: p.b.qpn}
	for range 2 {
		e := p.stream.event(abi.EventEstablished)
		if e.QPN == 0 || qps[e.Number] != e.QPN {
			t.Fatalf("EventEstablished of connection %d has QP %#x, want %#x", e.Number, e.QPN, qps[e.Number])
		}
		if e.Number == p.id && (e.PeerPort != tcpService || e.IRD != 4) {
			t.Fatalf("EventEstablished %+v, want port %d and IRD 4", e, tcpService)
		}
	}
	p.nop(1)
	p.cq.want(1, abi.WCSuccess)
	p.a.modify(abi.ModifyQP{State: abi.QPStateErr, Mask: abi.QPAttrState})
	qps[p.id] = 0 // its driver has ended it
	for range 2 {
		e := p.stream.event(abi.EventDisconnected)
		if want, ok := qps[e.Number]; !ok || e.QPN != want {
			t.Fatalf("EventDisconnected of connection %d has QP %#x, want %#x", e.Number, e.QPN, want)
		}
	}
	p.b.wantState(abi.QPStateErr)
}

func iwarpReject(t *T) {
	c := t.ready()
	c.must(abi.AdminOpCMListen, &abi.CMListen{Service: tcpService}, nil)
	p := c.streamPair()
	in := abi.CMReject{CMID: p.call().Number, Reason: 4711}
	in.Priv, in.PrivLen = p.private("sorry")
	p.must(abi.AdminOpCMReject, &in, nil)
	e := p.stream.event(abi.EventRejected)
	if e.Number != p.id || e.QPN != p.a.qpn || e.Status != 0 || string(e.Priv[:e.PrivLen]) != "sorry" {
		t.Fatalf("EventRejected %+v, want connection %d, QP %#x, status 0, private data \"sorry\"", e, p.id, p.a.qpn)
	}
	p.a.wantState(abi.QPStateInit)
}
