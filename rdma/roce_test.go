package rdma

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/roce"
	rocewire "github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// roceNet is the network of a world where RoCEv2 is spoken.
type roceNet struct {
	w      *world
	ports  [2]*roce.Port
	links  [2]*sim.Link // from each host
	packet [9000]byte
}

var _ network = (*roceNet)(nil)

// speakRoCE adds such a network.
func (w *world) speakRoCE(seed uint64, imp sim.Impairment) *roceNet {
	n := &roceNet{w: w}
	w.roce, w.nets = n, append(w.nets, n)
	for i, h := range w.hosts {
		n.ports[i] = Wire[*roce.Engine](h.e).NewPort(roce.Address(h.gid()), 1500, nil).(*roce.Port)
		h.fn.UsePort(n.ports[i], func([16]byte) bool { return true })
		n.links[i] = sim.NewLink(seed*2+uint64(i), imp)
	}
	return n
}

// step implements network: it carries packets.
func (n *roceNet) step(now falcon.Time) (busy bool) {
	for i, h := range n.w.hosts {
		for f, ok := n.links[1-i].Receive(now); ok; f, ok = n.links[1-i].Receive(now) {
			n.ports[i].Receive(now, f.Data)
			busy = true
		}
		e := Wire[*roce.Engine](h.e)
		for k, from := e.Transmit(now, n.packet[:]); k > 0; k, from = e.Transmit(now, n.packet[:]) {
			from.NoteSent(true)
			n.links[i].Send(now, n.packet[:k])
			busy = true
		}
	}
	return busy
}

func (n *roceNet) deadline() falcon.Time { return min(n.links[0].Deadline(), n.links[1].Deadline()) }

func (n *roceNet) connect(a, b *qp, numberOfB, numberOfA uint32) {
	n.w.t.Helper()
	for i, p := range []*qp{a, b} {
		peer := n.ports[1-i].Addr
		c := n.ports[i].Open(n.w.now, transport.Way{Peer: peer}, nil).(*roce.Conn)
		ok(n.w.t, p.q.Connect(n.w.now, c, []uint32{numberOfB, numberOfA}[i], n.w.mtu, peer.As16()))
	}
}

// TestRoCEWorldsUseRoCE checks that these worlds really use RoCEv2.
func TestRoCEWorldsUseRoCE(t *testing.T) {
	worldsOver(t, byRoCE)
	p := newPair(t, true, 1<<16, worldConfig{}, qpConfig{})
	x := p.remote(abi.OpWrite, 0)
	p.a.post(x, p.ma.sge(0, 50_000))
	success(t, p.a.send.wait(1))
	if s := Wire[*roce.Engine](p.hosts[0].e).Stats(); s.Sent < 49 || s.Received == 0 || s.Wrong != 0 {
		t.Errorf("%+v", s)
	}
	if n := p.hosts[0].fe.Stats().PacketsSent; n != 0 {
		t.Errorf("Falcon sent %d packets", n)
	}
}

// TestAnOverlongWriteWritesNothing: the first packet of a WRITE names its whole length, so one that
// is too long is refused before anything of it is written, as Linux's rdma_rxe does it.
func TestAnOverlongWriteWritesNothing(t *testing.T) {
	worldsOver(t, byRoCE)
	for _, n := range []int{4097, 9000, 40_000} {
		p := newPair(t, true, 4096, worldConfig{}, qpConfig{})
		from := p.hosts[0].register(p.pd[0], 1<<16, allAccess)
		fill(from.bytes(), 1)
		fill(p.mb.bytes(), 2)
		before := bytes.Clone(p.mb.bytes())
		p.a.post(p.remote(abi.OpWrite, 0), from.sge(0, n))
		if st := p.a.send.wait(1)[0].Status; st != abi.WCRemAccessErr {
			t.Errorf("a WRITE of %d bytes to 4096: %v", n, st)
		}
		if !bytes.Equal(p.mb.bytes(), before) {
			t.Errorf("a WRITE of %d bytes was refused, and wrote some", n)
		}
	}
}

// group is the GID of the IPv4 multicast group 239.0.0.n.
func group(n byte) [16]byte { return [16]byte{10: 0xff, 11: 0xff, 12: 239, 15: n} }

// groupWorld is a world where host 1 has n datagram queue pairs.
func groupWorld(t *testing.T, n, most int) (*udPair, []*qp) {
	worldsOver(t, byRoCE)
	p := newUDPair(t, worldConfig{limits: verbs.Limits{Objects: verbs.Counts{abi.ObjectMCG: most}}}, qpConfig{})
	list := []*qp{p.qps[1]}
	for len(list) < n {
		list = append(list, p.hosts[1].createUD(p.pd[1], qpConfig{}))
	}
	return p, list
}

// TestGroupsReachAllTheirMembers: a datagram to a group reaches all queue pairs that are attached
// to it, once each, with its data and header, and no others, until they detach or are destroyed.
// (DEV-954)
func TestGroupsReachAllTheirMembers(t *testing.T) {
	p, members := groupWorld(t, 4, 100)
	h := p.hosts[1]
	attached := map[byte][4]bool{}
	ah := map[byte]uint32{}
	for _, g := range []byte{1, 2} {
		ah[g] = p.hosts[0].createAH(p.pd[0], group(g), 0x20, 9)
	}
	fill(p.mem[0].bytes()[:500], 1)
	check := func(what string) {
		t.Helper()
		for _, g := range []byte{1, 2} {
			of := attached[g]
			for i, q := range members {
				if q == nil {
					continue
				}
				q.receive(uint64(i), p.mem[1].sge(i*4096, 4096))
				clear(p.mem[1].bytes()[i*4096:][:4096])
			}
			x := p.to(0, abi.OpSend)
			x.AHN, x.RemoteQPN = ah[g], abi.GroupQPN
			p.qps[0].post(x, p.mem[0].sge(0, 500))
			success(t, p.qps[0].send.wait(1))
			p.settle(1e6)
			for i, q := range members {
				if q == nil {
					continue
				}
				c, came := q.recv.poll()
				if came != of[i] || came && (c.Status != abi.WCSuccess || c.ByteLen != 540 || c.SrcQP != p.qps[0].number || c.QPN != q.number) {
					t.Fatalf("%s: group %d, member %d: %t, %+v", what, g, i, came, c)
				}
				if came {
					mem := p.mem[1].bytes()[i*4096:]
					if to := group(g); !bytes.Equal(mem[40:540], p.mem[0].bytes()[:500]) || !bytes.Equal(mem[36:40], to[12:]) {
						t.Errorf("%s: group %d, member %d: data or header differ", what, g, i)
					}
					if _, more := q.recv.poll(); more {
						t.Errorf("%s: group %d, member %d has it twice", what, g, i)
					}
				} else { // takes the receive, so that there is one at a time
					success(t, p.unicast(q, 100))
				}
			}
		}
	}
	attach := func(g byte, i int) {
		t.Helper()
		ok(t, h.fn.AttachMcast(&abi.Mcast{QPN: members[i].number, GID: group(g)}))
		of := attached[g]
		of[i] = true
		attached[g] = of
	}
	detach := func(g byte, i int) {
		t.Helper()
		ok(t, h.fn.DetachMcast(&abi.Mcast{QPN: members[i].number, GID: group(g)}))
		of := attached[g]
		of[i] = false
		attached[g] = of
	}
	check("nobody")
	attach(1, 0)
	attach(1, 2)
	attach(2, 2)
	attach(2, 3)
	attach(1, 2) // again
	check("two each")
	detach(1, 2)
	check("one has left the first")
	attach(1, 1)
	ok(t, h.fn.DestroyQP(p.now, members[2].number))
	members[2] = nil
	attached[1], attached[2] = [4]bool{true, true}, [4]bool{3: true}
	check("one is destroyed")
	detach(1, 0)
	detach(1, 1)
	detach(2, 3)
	check("all have left")
}

// unicast sends n bytes to a queue pair of host 1 and returns its completion.
func (p *udPair) unicast(q *qp, n int) []abi.CQE {
	p.t.Helper()
	x := p.to(0, abi.OpSend)
	x.RemoteQPN = q.number
	p.qps[0].post(x, p.mem[0].sge(0, n))
	success(p.t, p.qps[0].send.wait(1))
	return q.recv.wait(1)
}

// TestGroupsAreRefusedWithTheRightStatus: attaching fails with the right status, and the quota
// counts attachments: each queue pair in each group once.
func TestGroupsAreRefusedWithTheRightStatus(t *testing.T) {
	p, members := groupWorld(t, 3, 2)
	h := p.hosts[1]
	rc := h.createQP(p.pd[1], qpConfig{})
	attach := func(qpn uint32, gid [16]byte, want abi.Status) {
		t.Helper()
		if st := h.fn.AttachMcast(&abi.Mcast{QPN: qpn, GID: gid}); st != want {
			t.Errorf("attached: %v, want %v", st, want)
		}
	}
	detach := func(qpn uint32, gid [16]byte, want abi.Status) {
		t.Helper()
		if st := h.fn.DetachMcast(&abi.Mcast{QPN: qpn, GID: gid}); st != want {
			t.Errorf("detached: %v, want %v", st, want)
		}
	}
	a, b := members[0].number, members[1].number
	attach(rc.number, group(1), abi.StatusInvalidArgument)
	attach(a+100, group(1), abi.StatusNotFound)
	attach(a, p.hosts[0].gid(), abi.StatusInvalidArgument)
	attach(a, [16]byte{0: 0xff, 1: 5, 15: 1}, abi.StatusUnsupported) // the port has an IPv4 address
	detach(a, group(1), abi.StatusNotFound)
	attach(a, group(1), abi.StatusOK)
	attach(a, group(1), abi.StatusOK)
	detach(a, group(2), abi.StatusNotFound)
	detach(b, group(1), abi.StatusNotFound)
	detach(a+100, group(1), abi.StatusNotFound)
	attach(b, group(1), abi.StatusOK)
	attach(a, group(2), abi.StatusNoResources)
	attach(a, group(1), abi.StatusOK) // it is already
	detach(a, group(1), abi.StatusOK)
	attach(a, group(2), abi.StatusOK)
	ok(t, h.fn.DestroyQP(p.now, b))
	attach(a, group(3), abi.StatusOK)
	attach(a, group(4), abi.StatusNoResources)
	worldsOver(t, byFalcon)
	q := newUDPair(t, worldConfig{}, qpConfig{})
	if st := q.hosts[0].fn.AttachMcast(&abi.Mcast{QPN: q.qps[0].number, GID: group(1)}); st != abi.StatusUnsupported {
		t.Errorf("over Falcon alone: %v", st)
	}
}

// from makes a datagram of 8 bytes from host 0's queue pair to the one numbered, as it is on the
// wire.
func (p *udPair) from(to uint32, dst netip.Addr, class uint8, pkey uint16, qpn uint32) []byte {
	h := rocewire.Headers{
		BTH:      rocewire.BTH{Opcode: ib.UD | ib.SendOnly, PKey: pkey, DestQP: to},
		Extended: ib.Extended{Datagram: ib.DETH{QKey: testQKey, SourceQP: qpn}},
	}
	way := rocewire.Way{Src: p.roce.ports[0].Addr, Dst: dst, Class: class, Hops: 64, SrcPort: 0xc000}
	b := append(h.Append(make([]byte, way.HeaderLen())), make([]byte, 8+rocewire.ICRCLen)...)
	way.Put(b)
	return b
}

// sent are the packets that host 1 has for the network now.
func (p *udPair) sent() (list []rocewire.Headers, ways []rocewire.Way) {
	e := Wire[*roce.Engine](p.hosts[1].e)
	for n, _ := e.Transmit(p.now, p.roce.packet[:]); n > 0; n, _ = e.Transmit(p.now, p.roce.packet[:]) {
		var h rocewire.Headers
		way, part, err := rocewire.Parse(p.roce.packet[:n])
		if err == nil {
			_, err = h.Parse(part)
		}
		if err != nil {
			p.t.Fatal(err)
		}
		list, ways = append(list, h), append(ways, way)
	}
	return list, ways
}

// TestDatagramsOfOtherPartitionsAreDropped: a datagram in another partition is dropped, alone or to
// a group (CA17-25, IBA §9.6.1.1, DEV-945). One from a limited member of the partition is accepted.
func TestDatagramsOfOtherPartitionsAreDropped(t *testing.T) {
	p, members := groupWorld(t, 1, 1)
	q := members[0]
	ok(t, p.hosts[1].fn.AttachMcast(&abi.Mcast{QPN: q.number, GID: group(1)}))
	port := p.roce.ports[1]
	for i, c := range []struct {
		pkey uint16
		want bool
	}{{0xffff, true}, {0x7fff, true}, {0xfffe, false}, {0x8001, false}, {0, false}} {
		for _, b := range [][]byte{
			p.from(q.number, port.Addr, 0, c.pkey, 9), p.from(abi.GroupQPN, roce.Address(group(1)), 0, c.pkey, 9),
		} {
			before := port.Stats().Strange
			q.receive(uint64(i), p.mem[1].sge(0, 4096))
			port.Receive(p.now, b)
			_, came := q.recv.poll()
			if came != c.want || (port.Stats().Strange > before) == c.want {
				t.Errorf("P_Key %#x: delivered %t, want %t", c.pkey, came, c.want)
			}
		}
	}
}

// TestMarkedDatagramsAreNotified: the sender of a datagram with a congestion mark gets a CNP with
// the datagram's P_Key (CA17-44), at most one in 50 µs, for as many senders as there are queue
// pairs. Datagrams without a receiver, or without a mark, cause none.
func TestMarkedDatagramsAreNotified(t *testing.T) {
	p, members := groupWorld(t, 1, 1)
	q := members[0]
	ok(t, p.hosts[1].fn.AttachMcast(&abi.Mcast{QPN: q.number, GID: group(1)}))
	port, all := p.roce.ports[1], roce.Address(group(1))
	cnp := func(qpn uint32, pkey uint16) rocewire.Headers {
		return rocewire.Headers{BTH: rocewire.BTH{Opcode: rocewire.CNP, BECN: true, PKey: pkey, DestQP: qpn}}
	}
	for i, c := range []struct {
		after falcon.Time
		to    uint32
		dst   netip.Addr
		class uint8
		pkey  uint16
		qpn   uint32
		want  []rocewire.Headers
	}{
		{0, q.number, port.Addr, 0xb8, 0xffff, 9, nil},
		{0, q.number, port.Addr, 0xba, 0xffff, 9, nil},
		{0, q.number, port.Addr, 0xbb, 0xffff, 9, []rocewire.Headers{cnp(9, 0xffff)}},
		{49_999, q.number, port.Addr, 0xbb, 0xffff, 9, nil},
		{0, q.number, port.Addr, 0xbb, 0x7fff, 10, []rocewire.Headers{cnp(10, 0x7fff)}},
		{1, q.number, port.Addr, 0xbb, 0xffff, 9, []rocewire.Headers{cnp(9, 0xffff)}},
		{50_000, abi.GroupQPN, all, 0xbb, 0xffff, 9, []rocewire.Headers{cnp(9, 0xffff)}},
		{50_000, q.number + 100, port.Addr, 0xbb, 0xffff, 9, nil},
		{0, abi.GroupQPN, roce.Address(group(2)), 0xbb, 0xffff, 9, nil},
	} {
		p.now += c.after
		port.Receive(p.now, p.from(c.to, c.dst, c.class, c.pkey, c.qpn))
		got, ways := p.sent()
		if !slices.Equal(got, c.want) {
			t.Fatalf("datagram %d: %+v, want %+v", i, got, c.want)
		}
		for _, w := range ways {
			if w.Src != port.Addr || w.Dst != p.roce.ports[0].Addr || w.Class != 0xb8 {
				t.Errorf("datagram %d: notified by %+v", i, w)
			}
		}
	}
	if s := port.Stats(); s.Marked != 7 || s.CNPsSent != 4 {
		t.Errorf("%+v", s)
	}
	for i := range uint32(1000) { // more than are remembered
		port.Receive(p.now, p.from(q.number, port.Addr, 0xbb, 0xffff, 1000+i))
	}
	got, _ := p.sent()
	if len(got) == 0 || len(got) > 16 {
		t.Errorf("%d notifications wait, of 1000 senders", len(got))
	}
}

// TestDatagramsOfQueuePairsTakePortsOfTheirOwn: without a flow label the UDP source port is made of
// both queue pairs' numbers as Linux does it (Annex A17.9.4); with one it is made of that.
func TestDatagramsOfQueuePairsTakePortsOfTheirOwn(t *testing.T) {
	p, _ := groupWorld(t, 1, 1)
	h := p.hosts[0]
	to := roce.Address(p.hosts[1].gid()).As16()
	for _, label := range []uint32{0, 0x12345} {
		d := p.roce.ports[0].To(&verbs.Address{GID: to, Path: verbs.Path{FlowLabel: label}}, true)
		seen := map[uint16]bool{}
		for i := range uint32(64) {
			x := verbs.Datagram{Datagram: transport.Datagram{From: 16 + i, To: 1000 + i}}
			if got := d.Send(p.now, &x); got != verbs.Taken {
				t.Fatal(got)
			}
			n, _ := Wire[*roce.Engine](h.e).Transmit(p.now, p.roce.packet[:])
			way, _, err := rocewire.Parse(p.roce.packet[:n])
			if err != nil {
				t.Fatal(err)
			}
			v := uint64(16+i) * uint64(1000+i)
			v ^= v >> 20
			want := 0xc000 | uint16(v&0x3fff^v>>14&0x3f)
			if label != 0 {
				want = 0xc000 | uint16(label&0x3fff^label>>14)
			}
			if seen[way.SrcPort] = true; way.SrcPort != want {
				t.Errorf("label %#x, queue pairs %d and %d: port %#x, want %#x", label, 16+i, 1000+i, way.SrcPort, want)
			}
		}
		if many := len(seen) > 50; many != (label == 0) {
			t.Errorf("label %#x: %d ports", label, len(seen))
		}
	}
}
