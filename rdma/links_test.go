package rdma

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// TestDatagramsToNobodySucceedAndAreLost sends to an address where nobody is. The sends succeed,
// after a short wait the first time, and datagrams arrive as soon as there is somebody.
func TestDatagramsToNobodySucceedAndAreLost(t *testing.T) {
	p := newUDPair(t, worldConfig{}, qpConfig{})
	a, b := p.qps[0], p.qps[1]
	p.refuse = true
	for i := range 10 {
		x := p.to(0, abi.OpSend)
		x.WRID = uint64(i)
		a.post(x, p.mem[0].sge(0, 100))
	}
	success(t, a.send.wait(10))
	if n := p.hosts[0].fn.Stats().DatagramsLost; n != 10 {
		t.Fatalf("%d lost", n)
	}
	p.refuse = false
	p.settle(2e9)
	b.receive(1, p.mem[1].sge(0, 200))
	a.post(p.to(0, abi.OpSend), p.mem[0].sge(0, 100))
	success(t, a.send.wait(1))
	success(t, b.recv.wait(1))
}

// TestSendsDoNotWaitForALink never answers a link. Sends do not wait for it, and their datagrams
// wait no longer than rof.LinkPatience.
func TestSendsDoNotWaitForALink(t *testing.T) {
	p := newUDPair(t, worldConfig{}, qpConfig{})
	p.step()
	a, f := p.qps[0], p.hosts[0].fn
	ah := p.nobody(99)
	x := p.to(0, abi.OpSend)
	x.AHN = ah
	start := p.now
	a.post(x, p.mem[0].sge(0, 100))
	success(t, a.send.wait(1))
	if took := p.now - start; took != 0 || f.Links.Held() != 1 {
		t.Fatalf("waited %d ms, %d datagrams held", took/1e6, f.Links.Held())
	}
	p.settle(rof.LinkPatience - 1)
	if lost := f.Stats().DatagramsLost; lost != 0 {
		t.Fatalf("%d lost early", lost)
	}
	p.settle(1)
	if lost := f.Stats().DatagramsLost; lost != 1 || f.Links.Held() != 0 {
		t.Fatalf("%d lost, %d held", lost, f.Links.Held())
	}
	ok(t, f.DestroyAH(p.now, ah))
	p.settle(100e9)
	if n := f.Links.Len(); n != 1 {
		t.Fatalf("%d links", n)
	}
}

// nobody makes a handle of host 0 whose link is never answered.
func (p *udPair) nobody(n int) uint32 {
	p.t.Helper()
	ah := p.hosts[0].createAH(p.pd[0], [16]byte{10: 0xff, 11: 0xff, 12: 11, 14: byte(n >> 8), 15: byte(n)}, 0, 0)
	if p.hosts[0].rof().NextLink() == nil {
		p.t.Fatal("no link is wanted") // and it is not answered
	}
	return ah
}

// silent makes a handle of host 0 whose link is open, but whose connection has nobody at the other
// end.
func (p *udPair) silent(n int) uint32 {
	p.t.Helper()
	ah := p.hosts[0].createAH(p.pd[0], [16]byte{10: 0xff, 11: 0xff, 12: 12, 14: byte(n >> 8), 15: byte(n)}, 0, 0)
	p.hosts[0].rof().NextLink().Open(p.now, p.unanswered(), p.hosts[0].gid())
	return ah
}

// unanswered returns a pipe of host 0 with nobody at the other end.
func (p *udPair) unanswered() *falcon.Conn {
	p.t.Helper()
	h := p.hosts[0]
	p.cid += 2
	c, err := h.fe.Open(p.now, falcon.ConnConfig{
		LocalCID: p.cid, RemoteCID: p.cid + 1, LocalFunction: 1, RemoteFunction: 2, Protocol: falconwire.ProtocolRDMA,
		Ordered: true, MTU: p.mtu + 56, Credits: h.credits,
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

// TestADeadDestinationDelaysNoOther: if destinations do not answer, one or many, with any limit of
// the function's credits, datagrams to another destination arrive soon and without loss, from an
// ordinary queue pair or from QP 1. (Falcon §8.2.3)
func TestADeadDestinationDelaysNoOther(t *testing.T) {
	for name, c := range map[string]struct {
		dead func(p *udPair, n int) uint32
		many int
		typ  abi.QPType
		most falcon.Time // that all may take
	}{
		"not found":           {(*udPair).nobody, 1, abi.QPTypeUD, rof.LinkStall},
		"silent":              {(*udPair).silent, 1, abi.QPTypeUD, rof.LinkStall},
		"silent, QP 1":        {(*udPair).silent, 1, abi.QPTypeGSI, rof.LinkStall},
		"many not found":      {(*udPair).nobody, 1500, abi.QPTypeUD, rof.LinkStall},
		"many silent":         {(*udPair).silent, 40, abi.QPTypeUD, 2 * rof.LinkStall},
		"silent again, later": {(*udPair).silent, 1, abi.QPTypeUD, rof.LinkStall},
	} {
		t.Run(name, func(t *testing.T) {
			p := newUDPair(t, worldConfig{arena: 64 << 20}, qpConfig{})
			p.step()
			a := p.hosts[0].createUD(p.pd[0], qpConfig{log2: 12, typ: c.typ, send: p.hosts[0].createCQ(13)})
			b := p.hosts[1].createUD(p.pd[1], qpConfig{log2: 10})
			ahs := make([]uint32, c.many)
			for i := range ahs {
				ahs[i] = c.dead(p, i)
			}
			for round := range 2 {
				start := p.now
				for i := range 1500 {
					x := p.to(0, abi.OpSendImm)
					x.AHN = ahs[i%c.many]
					a.post(x, p.mem[0].sge(0, 1000))
					if i%3 == 0 {
						b.receive(uint64(i), p.mem[1].sge(0, 2000))
						x := p.to(0, abi.OpSendImm)
						x.RemoteQPN, x.Imm = b.number, uint32(i)
						a.post(x, p.mem[0].sge(0, 1000))
					}
				}
				for i, r := range b.recv.wait(500) {
					if r.Status != abi.WCSuccess || r.Imm != uint32(3*i) {
						t.Fatalf("round %d: receive %d: %+v", round, i, r)
					}
				}
				success(t, a.send.wait(2000))
				if took := p.now - start; took > c.most+20e6 {
					t.Errorf("round %d took %d ms", round, took/1e6)
				}
				if held := p.hosts[0].fn.Links.Held(); held > rof.FunctionQueue {
					t.Errorf("%d datagrams held", held)
				}
				if name == "silent again, later" {
					p.settle(20e9) // falcon gives the connection up
				}
			}
		})
	}
}

// TestASlowDestinationSlowsTheSender: a destination that is slow, or has to wait for credits, slows
// the sender down, and nothing is lost.
func TestASlowDestinationSlowsTheSender(t *testing.T) {
	overAll(t, func(t *testing.T) {
		p := newUDPair(t, worldConfig{net: sim.Impairment{Delay: 1e6}, credit: credit.Cost{3, 200, 3, 200, 3, 200}}, qpConfig{log2: 9})
		a, b := p.qps[0], p.qps[1]
		for i := range 400 {
			b.receive(uint64(i), p.mem[1].sge(0, 2000))
			x := p.to(0, abi.OpSendImm)
			x.Imm = uint32(i)
			a.post(x, p.mem[0].sge(0, 1000))
		}
		for i, r := range b.recv.wait(400) {
			if r.Status != abi.WCSuccess || r.Imm != uint32(i) {
				t.Fatalf("receive %d: %+v", i, r)
			}
		}
		success(t, a.send.wait(400))
		if s := p.hosts[0].fn.Stats(); s.DatagramsLost != 0 || (s.CreditWaits == 0) != (over == byRoCE) {
			t.Errorf("%+v", s)
		}
	})
}

// TestAFullFunctionGivesUpTheLongestSilence: a queue pair waits while its function holds the
// maximum of datagrams, until the destination that was heard of longest ago has been silent for
// rof.LinkStall. Then the datagrams to that destination are given up, and no others.
func TestAFullFunctionGivesUpTheLongestSilence(t *testing.T) {
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

// TestADestinationThatReturnsIsSentToAtOnce: a destination that was away for long is sent to again
// as soon as it is back.
func TestADestinationThatReturnsIsSentToAtOnce(t *testing.T) {
	p := newUDPair(t, worldConfig{}, qpConfig{log2: 9})
	a, b := p.qps[0], p.qps[1]
	p.step()
	p.cut(0, true)
	for range 300 {
		a.post(p.to(0, abi.OpSend), p.mem[0].sge(0, 100))
	}
	success(t, a.send.wait(300))
	p.settle(1e9)
	p.cut(0, false)
	p.settle(3e9) // a retransmission
	if p.hosts[0].fn.Links.Held() != 0 {
		t.Fatalf("%d datagrams held", p.hosts[0].fn.Links.Held())
	}
	b.receive(1, p.mem[1].sge(0, 200))
	a.post(p.to(0, abi.OpSend), p.mem[0].sge(0, 100))
	success(t, a.send.wait(1))
	success(t, b.recv.wait(1))
}

// TestLinksOutliveTheirHandlesForAWhile: links outlive their handles for a while and then end on
// both sides. The peer's end goes with the connection. Sends in progress on a connection that ends
// complete.
func TestLinksOutliveTheirHandlesForAWhile(t *testing.T) {
	overAll(t, func(t *testing.T) {
		p := newUDPair(t, worldConfig{}, qpConfig{})
		a := p.qps[0]
		send := func() {
			t.Helper()
			p.qps[1].receive(1, p.mem[1].sge(0, 200))
			a.post(p.to(0, abi.OpSend), p.mem[0].sge(0, 100))
			success(t, a.send.wait(1))
			success(t, p.qps[1].recv.wait(1))
		}
		send()
		ok(t, p.hosts[0].fn.DestroyAH(p.now, p.ah[0]))
		p.settle(10e9)
		p.ah[0] = p.hosts[0].createAH(p.pd[0], p.hosts[1].gid(), 0x20, 9)
		send()
		for i, h := range p.hosts {
			ok(t, h.fn.DestroyAH(p.now, p.ah[i]))
		}
		p.settle(100e9)
		active := 0
		for _, h := range p.hosts {
			h.fn.Links.Each(func(l *rof.Link) {
				if !l.Passive() {
					active++
				}
			})
		}
		if active != 0 {
			t.Fatalf("%d links left", active)
		}
		p.ah[0] = p.hosts[0].createAH(p.pd[0], p.hosts[1].gid(), 0x20, 9)
		p.step()
		for range 20 {
			a.post(p.to(0, abi.OpSend), p.mem[0].sge(0, 100))
		}
		p.hosts[0].e.Run(p.now)
		p.hosts[0].fn.Links.Each(func(l *rof.Link) { l.Disconnected(p.now) })
		success(t, a.send.wait(20))
		if u := p.hosts[0].credits.InUse(); u != (credit.Cost{}) {
			t.Fatalf("credits in use %v", u)
		}
		ok(t, p.hosts[0].fn.DestroyQP(p.now, a.number))
		p.hosts[0].fn.Close(p.now)
		p.settle(1e9)
		if p.hosts[0].e.shared.Timers.Deadline() != vtime.Never {
			t.Fatal("timers are left")
		}
	})
}

// TestTheNextHandleUsesTheSameLink: the connection of a handle stays for a while, and the next
// handle for the same path uses it. The number of links is limited if a function makes and destroys
// handles to ever new addresses.
func TestTheNextHandleUsesTheSameLink(t *testing.T) {
	p := newUDPair(t, worldConfig{limits: verbs.Limits{Links: 5}}, qpConfig{})
	h := p.hosts[0]
	links := func() (n int) {
		h.fn.Links.Each(func(*rof.Link) { n++ })
		return n
	}
	before := links()
	ok(t, h.fn.DestroyAH(p.now, p.ah[0]))
	if n := links(); n != before || n == 0 {
		t.Errorf("%d links are kept of %d", n, before)
	}
	p.ah[0] = h.createAH(p.pd[0], p.hosts[1].gid(), 0x20, 9)
	if n := links(); n != before {
		t.Errorf("%d links for the handle that came back, want %d", n, before)
	}
	most := 0
	for i := range 200 {
		ah := h.createAH(p.pd[0], [16]byte{0: 0xfd, 14: 1, 15: byte(i)}, 0x20, 9)
		ok(t, h.fn.DestroyAH(p.now, ah))
		most = max(most, links())
	}
	if most < 20 || most > 100 {
		t.Errorf("%d links are kept of 200", most)
	}
}

// Links outlive the handles that use them. A driver that keeps making and destroying handles, to
// ever new addresses, holds no more links than its limits allow.
func TestLinksOfDestroyedHandlesAreBounded(t *testing.T) {
	w := newWorld(t, worldConfig{limits: verbs.Limits{Objects: verbs.Counts{abi.ObjectAH: 4}, Links: 8}})
	h := w.hosts[0]
	pd, st := h.fn.AllocPD()
	ok(t, st)
	gid := w.hosts[1].gid()
	for i := range 5000 {
		if i%100 == 0 {
			gid[3]++
		}
		ahn := h.createAH(pd, gid, uint8(i%64)<<2, uint8(i/64))
		if i%3 == 0 { // the device has been asked already
			for l := h.rof().NextLink(); l != nil; l = h.rof().NextLink() {
				if i%2 == 0 {
					l.Refused(h.w.now)
				}
			}
		}
		ok(t, h.fn.DestroyAH(h.w.now, ahn))
		if n := h.fn.Links.Len(); n > 8+8+64 {
			t.Fatalf("%d links after %d handles, none of which is left", n, i+1)
		}
	}
	h.createAH(pd, w.hosts[1].gid(), 0, 0)
	if h.fn.Links.Find(rof.LinkKey{GID: w.hosts[1].gid(), Ordered: true}) == nil {
		t.Error("a handle has no link")
	}
}

// TestPeersOpenALimitedNumberOfLinks lets a peer open links without limit.
func TestPeersOpenALimitedNumberOfLinks(t *testing.T) {
	w := newWorld(t, worldConfig{limits: verbs.Limits{Links: 20}})
	f, accepted := w.hosts[1].fn, 0
	for g := range 10 {
		for class := range 10 {
			if f.Links.Accept(rof.LinkKey{GID: [16]byte{15: byte(g)}, TrafficClass: uint8(class << 2), HopLimit: 1}, uint32(g)) != nil {
				accepted++
			}
		}
	}
	if accepted != 20 || f.Links.Len() != 20 {
		t.Fatalf("%d accepted, %d links", accepted, f.Links.Len())
	}
	f.Links.Each(func(l *rof.Link) { l.Refused(w.now) })
	if f.Links.Len() != 0 {
		t.Fatalf("%d links left", f.Links.Len())
	}
	accepted = 0
	for g := range 10 { // one function with many addresses, to many
		if f.Links.Accept(rof.LinkKey{GID: [16]byte{15: byte(g)}, SGID: [16]byte{1, 15: byte(g)}}, 1) != nil {
			accepted++
		}
	}
	if accepted != 8 {
		t.Fatalf("%d accepted of one function", accepted)
	}
	if f.Links.Accept(rof.LinkKey{GID: [16]byte{1}}, 2) == nil {
		t.Fatal("none is accepted any more")
	}
}

// TestALinkHasTheFlowLabelOfItsFirstHandle: a link has the flow label of the first handle that uses
// it.
func TestALinkHasTheFlowLabelOfItsFirstHandle(t *testing.T) {
	w := newWorld(t, worldConfig{})
	h := w.hosts[0]
	pd, st := h.fn.AllocPD()
	ok(t, st)
	for _, flow := range []uint32{5, 9} {
		_, st := h.fn.CreateAH(w.now, &abi.CreateAH{PDN: pd, DGID: w.hosts[1].gid(), FlowLabel: flow})
		ok(t, st)
	}
	if l := h.fn.Links.Find(rof.LinkKey{GID: w.hosts[1].gid(), Ordered: true}); l == nil || l.FlowLabel() != 5 || l.Handles() != 2 {
		t.Errorf("link %+v, want flow label 5 and two handles", l)
	}
}

// TestALinkDisconnectsOnce: a link gives up its connection in Disconnected, and a second call
// changes nothing.
func TestALinkDisconnectsOnce(t *testing.T) {
	p := newUDPair(t, worldConfig{}, qpConfig{})
	p.qps[0].post(p.to(0, abi.OpSend), p.mem[0].sge(0, 100))
	success(t, p.qps[0].send.wait(1))
	n := 0
	p.hosts[0].fn.Links.Each(func(l *rof.Link) {
		if !l.Connected() {
			return
		}
		n++
		for range 2 {
			if l.Disconnected(p.now); l.Connected() {
				t.Error("still connected")
			}
		}
	})
	if n == 0 {
		t.Error("no link has a connection")
	}
}

// TestALinkOwnsOneConnectionAtATime: a link has one connection at a time, and no longer owns an
// earlier one.
func TestALinkOwnsOneConnectionAtATime(t *testing.T) {
	p := newUDPair(t, worldConfig{}, qpConfig{})
	h := p.hosts[0]
	l := h.rof().NextLink() // that of its address handle
	conns := [2]*falcon.Conn{p.unanswered(), p.unanswered()}
	check := func(when string, own [2]bool) {
		t.Helper()
		if got := [2]bool{l.Owns(conns[0]), l.Owns(conns[1])}; got != own {
			t.Errorf("%s: owns %v, want %v", when, got, own)
		}
	}
	check("none", [2]bool{})
	l.Open(p.now, conns[0], h.gid())
	check("the first", [2]bool{true, false})
	l.Disconnected(p.now)
	check("none again", [2]bool{})
	l.Open(p.now, conns[1], h.gid())
	check("the second", [2]bool{false, true})
}
