package rdma

import (
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// TestFullFunction: a queue pair waits while its function holds the maximum of datagrams, until the
// destination that was heard of longest ago has been silent for rof.LinkStall. Then the datagrams
// to that destination are given up, and no others.
func TestFullFunction(t *testing.T) {
	p := newUDPair(t, worldConfig{arena: 64 << 20}, qpConfig{})
	p.step()
	h := p.hosts[0]
	a := h.createUD(p.pd[0], qpConfig{log2: 12, send: h.createCQ(13)})
	start := p.now
	const links = rof.FunctionQueue / rof.LinkQueue
	for i := range links {
		x := p.to(0, abi.OpSend)
		x.AHN = p.silent(i)
		for range rof.LinkQueue {
			a.post(x, p.mem[0].sge(0, 100))
		}
	}
	h.e.Run(p.now)
	success(t, a.send.wait(rof.FunctionQueue))
	if h.fn.Links.Held() != rof.FunctionQueue || p.now != start {
		t.Fatalf("%d datagrams held after %d ns", h.fn.Links.Held(), p.now-start)
	}
	var other *rof.Link
	h.fn.Links.Each(func(l *rof.Link) {
		if l.Key().GID == p.hosts[1].gid() {
			other = l
		}
	})
	one := &verbs.Datagram{From: patient{}}
	if end := start + rof.LinkStall; other.Send(end-1, one) != verbs.Full || h.fn.Links.Held() != rof.FunctionQueue {
		t.Errorf("just before the end: %d held", h.fn.Links.Held())
	} else if other.Send(end, one) != verbs.Taken || h.fn.Links.Held() != rof.FunctionQueue-rof.LinkQueue+1 {
		t.Errorf("at the end: %d held", h.fn.Links.Held())
	}
}

// patient waits for a place for as long as it takes.
type patient struct{}

func (patient) Wait(verbs.Destination) (news bool) { return true }

func (patient) Resume(verbs.Destination) {}
