package rdma

import (
	"bytes"
	"testing"

	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// group is the GID of the IPv4 multicast group 239.0.0.n.
func group(n byte) [16]byte { return [16]byte{10: 0xff, 11: 0xff, 12: 239, 15: n} }

// groupWorld is a world where host 1 has n datagram queue pairs.
func groupWorld(t *testing.T, n, most int) (*udPair, []*qp) {
	roceWorlds(t)
	p := newUDPair(t, worldConfig{limits: verbs.Limits{Objects: verbs.Counts{abi.ObjectMCG: most}}}, qpConfig{})
	list := []*qp{p.qps[1]}
	for len(list) < n {
		list = append(list, p.hosts[1].createUD(p.pd[1], qpConfig{}))
	}
	return p, list
}

// TestGroups: a datagram to a group reaches all queue pairs that are attached to it, once each,
// with its data and header, and nobody else, until they leave it or are destroyed. (DEV-954)
func TestGroups(t *testing.T) {
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

// TestGroupsRefused: who and what cannot be attached is told why, and the quota counts attachments,
// one queue pair's to one group once.
func TestGroupsRefused(t *testing.T) {
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
	overRoCE = false
	q := newUDPair(t, worldConfig{}, qpConfig{})
	if st := q.hosts[0].fn.AttachMcast(&abi.Mcast{QPN: q.qps[0].number, GID: group(1)}); st != abi.StatusUnsupported {
		t.Errorf("over Falcon alone: %v", st)
	}
}

// TestWireChosen: datagrams go over the wire that is chosen at the moment, with the same handle.
func TestWireChosen(t *testing.T) {
	roceWorlds(t)
	p := newUDPair(t, worldConfig{}, qpConfig{})
	roce := false
	for i, h := range p.hosts {
		h.fn.UseRoCE(p.roce.ports[i], func(gid [16]byte) bool { return roce && gid == p.hosts[1-i].gid() })
	}
	var sent [2]uint64 // over Falcon, over RoCEv2
	counts := func() [2]uint64 {
		return [2]uint64{p.hosts[0].fe.Stats().PacketsSent, p.roce.ports[0].Stats().Sent}
	}
	for _, roce = range []bool{false, true, false, true, true} {
		p.settle(1e9) // acknowledgements
		sent = counts()
		p.qps[1].receive(1, p.mem[1].sge(0, 4096))
		success(t, p.unicast(p.qps[1], 100))
		now := counts()
		if over := [2]bool{now[0] > sent[0], now[1] > sent[1]}; over != [2]bool{!roce, roce} {
			t.Errorf("RoCEv2 %t: sent over Falcon and RoCEv2: %v", roce, over)
		}
	}
	ok(t, p.hosts[0].fn.DestroyAH(p.now, p.ah[0]))
	p.settle(100e9)
	if d := p.hosts[0].e.shared.Timers.Deadline(); d != vtime.Never {
		t.Errorf("something waits until %d for a handle that is gone", d)
	}
}
