package shard

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// setPeers gives a NIC another list of peers.
func (v *virtual) setPeers(nic int, list ...config.Peer) {
	v.t.Helper()
	if err := v.cores[nic].Peers.Set(v.now, list); err != nil {
		v.t.Fatal(err)
	}
	v.step()
}

// leftOfPeers describes what a NIC without peers still has of any.
func (v *virtual) leftOfPeers(nic int) (left []string) {
	note := func(what string, n int) {
		if n != 0 {
			left = append(left, fmt.Sprintf("%d %s", n, what))
		}
	}
	k := v.cores[nic]
	keys := k.Keys.Stats()
	note("keys", keys.Uses+keys.SPIs+keys.Unsettled)
	note("connections of the manager", len(k.Manager.CM.Connections()))
	note("CIDs", k.Manager.CIDsInUse())
	note("peers of the manager", len(k.Manager.CM.Peers()))
	for _, r := range k.Routes() {
		if r.Kind == "peer" {
			left = append(left, fmt.Sprintf("route %+v", r))
		}
	}
	for _, s := range v.nics[nic] {
		note("transmit SAs", s.txSAs.Len())
		note("open connections", s.falcon.table.Named())
		note("transport connections", int(s.falcon.engine.Stats().Conns))
		note("peers of the shard", len(s.peers))
		note("tunnels", len(s.View().Peers.Tunnels()))
		note("keys asked for probes", len(s.probes.asked))
		for f := range s.funcs.members.all() {
			note("connections of "+f.ID.String(), len(f.conns.IDs())+f.conns.QPs())
		}
	}
	return left
}

// TestARemovedPeerLeavesNothing: when a NIC removes a peer, connections, tunnels and keys end at
// both within 2 s, and their drivers are told; at the NIC that removed it nothing is left.
func TestARemovedPeerLeavesNothing(t *testing.T) { eachShards(t, testARemovedPeerLeavesNothing) }

func testARemovedPeerLeavesNothing(t *testing.T) {
	for by := range 2 {
		v := newPortWorld(t, 1)
		a, b := pair(v)
		exchange(t, a, b, 5000)
		a.send(abi.OpWrite, 0, 1<<20, b, 0) // is under way
		v.idle(10_000)
		v.setPeers(by)
		begun := v.now
		a.event(abi.EventDisconnected)
		b.event(abi.EventDisconnected)
		if cqe := a.done(); cqe.Status == abi.WCSuccess {
			t.Error("the WRITE was done")
		}
		v.idle(10 * cmDelay)
		if left := v.leftOfPeers(by); len(left) != 0 {
			t.Errorf("left at the NIC that removed the other: %v", left)
		}
		if took := v.now - begun; took > 2e9 {
			t.Errorf("it took %d ns", took)
		}
		if keys := v.cores[1-by].Keys.Stats(); keys.SPIs != 0 {
			t.Errorf("%d keys at the other NIC", keys.SPIs)
		}
		for _, s := range v.nics[1-by] {
			if n := s.txSAs.Len() + s.falcon.table.Named(); n != 0 {
				t.Errorf("%d keys and connections of a shard at the other NIC", n)
			}
			for _, r := range s.View().Peers.Tunnels() {
				if r.Sealed {
					t.Errorf("the other NIC has a tunnel %+v", r)
				}
			}
		}
		v.say(1-by, 0, [][4]byte{host1, host2}[1-by], [][4]byte{host1, host2}[by], 100)
		if got := v.received(by); len(got) != 0 {
			t.Errorf("%d frames arrive from a NIC that is no peer", len(got))
		}
		if st, _ := []*driver{a, b}[by].command(abi.AdminOpCMConnect, &abi.CMConnect{QPN: a.qpn, Service: 5, DGID: []*driver{b, a}[by].fn.GID()}); st == abi.StatusOK {
			t.Error("a connection to a NIC that is no peer")
		}
	}
}

// TestAPeerThatComesBackWorks: a peer that was removed and is added again gets new keys,
// connections and routes, whichever NIC did so, or both.
func TestAPeerThatComesBackWorks(t *testing.T) { eachShards(t, testAPeerThatComesBackWorks) }

func testAPeerThatComesBackWorks(t *testing.T) {
	for _, by := range [][]int{{0}, {1}, {0, 1}} {
		v := newPortWorld(t, 2)
		a, b := pair(v)
		exchange(t, a, b, 5000)
		var was [2][]config.Peer
		for _, i := range by {
			was[i] = v.cores[i].Peers.List()
			v.setPeers(i)
		}
		v.idle(1e9)
		for _, i := range by {
			v.setPeers(i, was[i]...)
		}
		v.until("keys for the tunnels", func() bool { return v.keyless() == 0 })
		v.idle(5 * cmDelay)
		a.createQPAgain()
		b.createQPAgain()
		a.connectTo(b, 100)
		exchange(t, a, b, 5000)
		v.say(0, 0, host1, host2, 100)
		if got := v.received(1); len(got) != 1 {
			t.Errorf("removed by %v: %d frames", by, len(got))
		}
	}
}

// TestPeersThatComeAndGoUnderTrafficLeaveNothing removes and adds peers again and again, in an order
// that the seed decides, while WRITEs, plain IP and handshakes are under way. When the last one is
// gone nothing is left, and while it was there everything else worked.
func TestPeersThatComeAndGoUnderTrafficLeaveNothing(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			before := perNIC
			defer func() { perNIC = before }()
			perNIC = 1 + int(seed%3)
			v := newPortWorld(t, seed+10)
			a, b := drivers(v)
			var lists [2][]config.Peer
			for i := range lists {
				lists[i] = v.cores[i].Peers.List()
			}
			connected := false
			for range 60 {
				switch v.queue.IntN(6) {
				case 0, 1:
					i := v.queue.IntN(2)
					if v.cores[i].Peers.Len() > 0 {
						v.setPeers(i)
					} else {
						v.setPeers(i, lists[i]...)
					}
					connected = false
				case 2: // a tenant less, and all of them again
					if i := v.queue.IntN(2); v.cores[i].Peers.Len() > 0 {
						fewer := slices.Clone(lists[i])
						fewer[0].Tenants = []uint32{8}
						v.setPeers(i, fewer...)
						v.idle(falcon.Time(v.queue.IntN(500_000)))
						v.setPeers(i, lists[i]...)
						connected = false
					}
				case 3:
					a.createQPAgain()
					b.createQPAgain()
					_, _ = b.command(abi.AdminOpCMListen, &abi.CMListen{Service: 9})
					if st, _ := a.command(abi.AdminOpCMConnect, &abi.CMConnect{QPN: a.qpn, Service: 9, DGID: b.fn.GID()}); st != abi.StatusOK {
						continue
					}
					v.idle(3 * cmDelay)
					b.collect()
					if i := slices.IndexFunc(b.async, func(e abi.AsyncEvent) bool { return e.Type == abi.EventConnectRequest }); i >= 0 {
						st, _ := b.command(abi.AdminOpCMAccept, &abi.CMAccept{CMID: b.async[i].Number, QPN: b.qpn})
						connected = st == abi.StatusOK
					}
					b.async = nil
				default:
					if connected {
						a.send(abi.OpWrite, 0, 100_000, b, 0)
					}
					for i := range 2 {
						v.say(i, 0, [][4]byte{host1, host2}[i], [][4]byte{host1, host2}[1-i], 1000)
					}
				}
				v.idle(falcon.Time(v.queue.IntN(2_000_000)))
				for _, d := range []*driver{a, b} {
					for _, ok := d.completion(); ok; _, ok = d.completion() {
					}
				}
			}
			for i := range 2 {
				v.setPeers(i)
			}
			v.idle(2e9)
			for i := range 2 {
				if left := v.leftOfPeers(i); len(left) != 0 {
					t.Errorf("NIC %d: %v", i+1, left)
				}
			}
			for i := range 2 {
				v.setPeers(i, lists[i]...)
			}
			v.until("keys for the tunnels", func() bool { return v.keyless() == 0 })
			v.idle(5 * cmDelay)
			a.createQPAgain()
			b.createQPAgain()
			a.connectTo(b, 101)
			exchange(t, a, b, 50_000)
		})
	}
}

// TestATenantThatIsNoLongerSharedEnds: connections and addresses in it go, those in others stay, and
// when it is shared again it works again, without the peer doing anything.
func TestATenantThatIsNoLongerSharedEnds(t *testing.T) {
	v := newPortWorld(t, 3)
	a, b := pair(v) // in tenant 7
	list := v.cores[0].Peers.List()
	fewer := slices.Clone(list)
	fewer[0].Tenants = []uint32{8}
	v.setPeers(0, fewer...)
	a.event(abi.EventDisconnected)
	b.event(abi.EventDisconnected)
	frames := func(port int) int {
		v.say(0, port, host1, host2, 100)
		return len(v.received(1))
	}
	if n := frames(0); n != 0 {
		t.Errorf("%d frames in the tenant that is not shared", n)
	}
	if n := frames(1); n != 1 {
		t.Errorf("%d frames in the other tenant", n)
	}
	v.setPeers(0, list...)
	v.idle(5 * cmDelay)
	a.createQPAgain()
	b.createQPAgain()
	a.connectTo(b, 100)
	exchange(t, a, b, 5000)
	if n := frames(0); n != 1 {
		t.Errorf("%d frames in the tenant that is shared again", n)
	}
}

// TestAPeerThatMovesKeepsItsConnections: packets go to a peer's new underlay address, over the
// connections and tunnels that there are.
func TestAPeerThatMovesKeepsItsConnections(t *testing.T) {
	v := newPortWorld(t, 4)
	a, b := pair(v)
	exchange(t, a, b, 5000)
	list := slices.Clone(v.cores[0].Peers.List())
	was := list[0].Underlay
	list[0].Underlay.AddrPort = netip.MustParseAddrPort("10.99.0.77:1000")
	v.setPeers(0, list...)
	a.send(abi.OpWrite, 0, 100, b, 0)
	v.idle(1e6)
	if _, ok := a.completion(); ok {
		t.Fatal("a packet reached an address that nobody has")
	}
	back := slices.Clone(list)
	back[0].Underlay = was
	v.setPeers(0, back...)
	if cqe := a.done(); cqe.Status != abi.WCSuccess {
		t.Fatal(cqe.Status)
	}
	exchange(t, a, b, 5000)
	v.say(0, 0, host1, host2, 100)
	if n := len(v.received(1)); n != 1 {
		t.Errorf("%d frames", n)
	}
	if n := v.reason(1, gateway.DropWrongSource); n != 0 {
		t.Errorf("%d frames from a wrong source", n)
	}
}

// sameHost gives both NICs one nic.host and names that are no numbers.
func sameHost(t testing.TB) func(i int, c *config.Config) {
	return func(i int, c *config.Config) {
		same := devicetest.SameHost(t, i+1, "/nowhere", [2]string{"127.0.0.1:1", "127.0.0.1:2"})
		same.NIC.Shards, same.Peers[0].Tenants = c.NIC.Shards, c.Peers[0].Tenants
		for vf := range same.Functions[0].VFs {
			if p := c.Functions[0].VFs[vf].Port; p != nil {
				devicetest.AddPort(same, vf, &config.Port{Name: p.Name, Addresses: p.Addresses})
			}
		}
		*c = *same
	}
}

// TestTwoNICsOfOneHostExchange: NICs with one nic.host are peers like others. Functions of the same
// number reach each other by RDMA and by plain IP.
func TestTwoNICsOfOneHostExchange(t *testing.T) { eachShards(t, testTwoNICsOfOneHostExchange) }

func testTwoNICsOfOneHostExchange(t *testing.T) {
	v := newPortWorldWith(t, 3, sameHost(t))
	a, b := pair(v)
	if a.fn.ID != b.fn.ID || a.fn.cfg.MAC == b.fn.cfg.MAC {
		t.Fatalf("functions %v and %v with MACs %v and %v", a.fn.ID, b.fn.ID, a.fn.cfg.MAC, b.fn.cfg.MAC)
	}
	exchange(t, a, b, 5000)
	for i, c := range v.cores[0].Connections(v.now) {
		if c.PeerName != v.names[1] || c.PeerHost != 7 {
			t.Errorf("connection %d: with host %d of %s", i, c.PeerHost, c.PeerName)
		}
	}
	v.say(0, 0, host1, host2, 100)
	if got := v.received(1); len(got) != 1 {
		t.Errorf("%d frames of plain IP arrive", len(got))
	}
	for i := range v.cores {
		if p := v.cores[i].DescribePeers(nil)[0]; p.Refused != 0 || p.Host != 7 || p.Functions == 0 {
			t.Errorf("NIC %d knows of its peer %+v", i+1, p)
		}
	}
}
