package rdma

import (
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// TestWithFalcon: only datagrams that falcon has are found by their number. One that waits is not,
// and neither is one that was given up, though another has its place by now. (F65)
func TestWithFalcon(t *testing.T) {
	head := ^uint32(0) - 2 // numbers wrap
	o := outgoing{held: make([]*datagram, linkQueue), head: head, next: head + 5, tail: head + 9}
	for n := o.head; n != o.tail; n++ {
		*o.place(n) = &datagram{Datagram: transport.Datagram{Serial: n}}
	}
	for i := range uint32(3 * linkQueue) {
		n := head - linkQueue + i
		d, with := o.get(n), i >= linkQueue && i < linkQueue+5
		if (d != nil) != with || with && d.Serial != n {
			t.Errorf("number head%+d: found is %t, want %t", int32(n-head), d != nil, with)
		}
	}
	*o.place(head + 2) = nil
	if o.get(head+2) != nil {
		t.Error("one that is over is found")
	}
}

// TestFullFunction: a queue pair waits while its function holds as many datagrams as it may, until
// the destination heard of the longest ago has said nothing for linkStall: at that time its
// datagrams are given up, and no others. (F65)
func TestFullFunction(t *testing.T) {
	p := newUDPair(t, worldConfig{arena: 64 << 20}, qpConfig{})
	p.step()
	h := p.hosts[0]
	a := h.createUD(p.pd[0], qpConfig{log2: 12, send: h.createCQ(13)})
	start := p.now
	const links = functionQueue / linkQueue
	for i := range links {
		x := p.to(0, abi.OpSend)
		x.AHN = p.silent(i)
		for range linkQueue {
			a.post(x, p.mem[0].sge(0, 100))
		}
	}
	h.e.Run(p.now)
	success(t, a.send.wait(functionQueue))
	if h.fn.held != functionQueue || p.now != start {
		t.Fatalf("%d datagrams held after %d ns", h.fn.held, p.now-start)
	}
	var other *Link
	for k, l := range h.fn.links {
		if k.GID == p.hosts[1].gid() {
			other = l
		}
	}
	if end := start + linkStall; other.room(end-1, a.q) || h.fn.held != functionQueue {
		t.Errorf("just before the end: %d held", h.fn.held)
	} else if !other.room(end, a.q) || h.fn.held != functionQueue-linkQueue {
		t.Errorf("at the end: %d held", h.fn.held)
	}
}
