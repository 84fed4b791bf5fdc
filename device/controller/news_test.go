package controller

import (
	"encoding/hex"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/internal/vtime"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// TestAPeerWaitsForTheCore checks that a peer that sends faster than the core works has to wait,
// and stops waiting when its mailbox is closed.
func TestAPeerWaitsForTheCore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNIC(t)
		m, sent := n.mail(2), 0
		send := func() {
			for range peerMailSize + 1 {
				m.Message([]byte("x"))
				sent++
			}
		}
		go send()
		if synctest.Wait(); sent != peerMailSize {
			t.Errorf("%d messages wait for a core that does nothing", sent)
		}
		n.told()
		if synctest.Wait(); sent != peerMailSize+1 {
			t.Errorf("%d messages were sent when there was room", sent)
		}
		go send()
		synctest.Wait()
		m.Close()
		if synctest.Wait(); sent != 2*(peerMailSize+1) {
			t.Errorf("%d messages were sent, and a peer waits for a closed mailbox", sent)
		}
	})
}

// TestTheManagerIsToldOfAPeersLink checks that the manager is told of link up, link down and
// messages, and that invalid messages are counted.
func TestTheManagerIsToldOfAPeersLink(t *testing.T) {
	core, err := NewCore(CoreConfig{
		NIC: devicetest.Config(t, 1, "/nowhere", [2]string{"127.0.0.1:1", "127.0.0.1:2"}), Shards: 1, Rand: devicetest.Seeded(1),
		ShardOf: func(uint32) int { return 0 }, Log: func(vtime.Time, slog.Level, string, ...any) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	core.ShardLink(0).Serve(func([]Order) {})
	m := core.Peers.Find("2").Mail
	step := func() (messages int) {
		var out CoreOutput
		core.Step(1e9, &out)
		return len(out.Messages)
	}
	up := func() bool { return core.Manager.CM.Peers()[0].Up }
	if step(); up() {
		t.Error("the peer is there")
	}
	m.Up()
	if n := step(); n == 0 {
		t.Error("the peer is not greeted")
	}
	m.Message([]byte("nonsense"))
	if step(); core.refused != 1 {
		t.Errorf("%d messages were refused", core.refused)
	}
	m.Down()
	if step(); up() || core.refused != 1 {
		t.Error("the peer is there still")
	}
}

// TestAPeerWithoutFunctionsIsExplained checks the notes of two connected NICs that have no
// functions for each other: each says what is missing on its side.
func TestAPeerWithoutFunctionsIsExplained(t *testing.T) {
	for name, tc := range map[string]struct {
		ours []uint32 // shared tenants
		says []cm.Endpoint
		want string
	}{
		"the peer has none there":   {[]uint32{7}, nil, "announces no function in the tenants that are shared with it, [7]"},
		"the tenant is not shared":  {[]uint32{7}, []cm.Endpoint{{Tenant: 9, Function: 2 << 16, GID: [16]byte{1}}}, "of tenant 9: the tenant is not shared with it (peers[].tenants)"},
		"this NIC has none there":   {[]uint32{9}, []cm.Endpoint{{Tenant: 9, Function: 2 << 16, GID: [16]byte{1}}}, "learns of no function of this NIC: none is enabled in the tenants that are shared with it, [9]"},
		"there are some, both ways": {[]uint32{7}, []cm.Endpoint{{Tenant: 7, Function: 2 << 16, GID: [16]byte{1}}}, ""},
	} {
		n := newNIC(t, func(c *config.Config) { c.Peers[0].Tenants = tc.ours })
		n.told()
		if p := n.DescribePeers(nil)[0]; p.Note != "" {
			t.Errorf("%s: %q while the peer is down", name, p.Note)
		}
		m := n.mail(2)
		m.Up()
		hello := cm.Hello{Host: 2, Instance: 2, Endpoints: tc.says}
		m.Message(cm.Encode(&hello))
		n.told()
		if p := n.DescribePeers(nil)[0]; !p.Up || (p.Note == "") != (tc.want == "") || !strings.Contains(p.Note, tc.want) {
			t.Errorf("%s: up %v, %q", name, p.Up, p.Note)
		}
	}
}

// TestAPeerGetsItsOwnAddressesAlone checks that a peer cannot claim an address that the
// configuration gives to another peer, by any message that announces addresses and in any order,
// nor one in the settings of this NIC's functions, enabled or not. The log and `vnic show nic`
// report it.
func TestAPeerGetsItsOwnAddressesAlone(t *testing.T) {
	const tenant = 7
	hosts, ours, off := netip.MustParseAddr("192.168.100.21"), netip.MustParseAddr("192.168.100.11"), netip.MustParseAddr("192.168.100.12")
	n := newNIC(t, func(c *config.Config) {
		c.Peers[0].Functions = []config.PeerFunction{{Tenant: tenant, Address: hosts}}
		third := c.Peers[0]
		third.Name, third.Host, third.Underlay.AddrPort, third.Identity = "3", 3, netip.MustParseAddrPort("10.99.0.3:1000"), "vnic://test/host/3"
		third.Functions = []config.PeerFunction{{Tenant: tenant, Address: netip.MustParseAddr("192.168.100.31")}}
		c.Peers = append(c.Peers, third)
	})
	n.Change(vf(2), func(_, to *config.Function) error { to.Enabled = new(bool); return nil }, func(error) {})
	n.told()
	say := func(host cm.HostID, addrs ...[16]byte) {
		t.Helper()
		hello, ports := cm.Hello{Host: host, Instance: uint64(host)}, cm.PORTS{}
		for _, a := range addrs {
			f := uint32(host)<<16 | 1
			hello.Endpoints = append(hello.Endpoints, cm.Endpoint{Tenant: tenant, GID: a, Function: f})
			ports.Ports = append(ports.Ports, cm.PortAddress{Tenant: tenant, Addr: a, Function: f, MTU: 1400})
		}
		m := n.mail(host)
		m.Message(cm.Encode(&hello))
		m.Message(cm.Encode(&ports))
		n.told()
	}
	for _, h := range []cm.HostID{3, 2} {
		n.mail(h).Up()
		n.told()
	}
	mac := pfvf.LinkLocal(config.FunctionMAC("2", 0, 1))
	say(3, hosts.As16(), ours.As16(), off.As16(), mac)
	leads := func(a netip.Addr) (to []uint8) {
		for _, r := range n.Routes() {
			if r.Kind == "peer" && r.Prefix == netip.PrefixFrom(a, a.BitLen()).String() {
				to = append(to, r.Peer)
			}
		}
		return to
	}
	for _, a := range []netip.Addr{hosts, ours, off, netip.AddrFrom16(mac)} {
		if by, has := n.Manager.CM.Offered(tenant, a.As16()); has || leads(a) != nil {
			t.Errorf("%s: offered by host %d, plain IP goes to %v", a, by, leads(a))
		}
	}
	p := n.DescribePeers(nil)[1]
	if p.Functions != 0 || p.Refused != 8 || !strings.Contains(p.Note, "192.168.100.21 of tenant 7: peers[] gives it to NIC 2; 192.168.100.11 of") || !strings.Contains(p.Note, "1 more") {
		t.Errorf("shown: %+v", p)
	}
	named := 0
	for _, line := range n.log {
		if strings.HasPrefix(line, "a peer tells of addresses that it does not get peer 3 addresses 192.168.100.21 of") {
			named++
		}
	}
	if named != 2 {
		t.Errorf("functions and ports are named in %d lines of the log: %q", named, n.log)
	}
	say(2, hosts.As16(), mac)
	if by, has := n.Manager.CM.Offered(tenant, hosts.As16()); !has || by != n.id(2) || !slices.Equal(leads(hosts), []uint8{2}) {
		t.Errorf("the owner is second: offered %v by host %d, plain IP goes to %v", has, by, leads(hosts))
	}
	if by, has := n.Manager.CM.Offered(tenant, mac); !has || by != n.id(2) {
		t.Errorf("the link-local address of its function: offered %v by host %d", has, by)
	}
	var err error
	n.ShardLink(1).Announce(vf(1), netip.MustParseAddr("192.168.100.31").As16(), [16]byte{}, func(e error) { err = e })
	n.ShardLink(1).Flush()
	n.now += vtime.Time(gidPause)
	n.told()
	n.told()
	if err == nil || !strings.Contains(err.Error(), "NIC 3") {
		t.Errorf("a driver adds the address of NIC 3, which has not told of it yet: %v", err)
	}
}

// stranger sends messages over a link in the name of another NIC.
type stranger struct {
	n        *nic
	host     cm.HostID
	mail     *PeerMail
	instance uint64 // instance number of the NIC, from its last Hello
	ids      uint32
}

const (
	service = 9
	secret  = "a key of 16 byte"
)

// newListener returns a NIC with the peers 2 and 3, whose first VF listens.
func newListener(t *testing.T) *nic {
	n := newNIC(t, func(c *config.Config) {
		other := c.Peers[0]
		other.Name, other.Host, other.Underlay.AddrPort, other.Identity = "3", 3, netip.MustParseAddrPort("10.99.0.3:1000"), "vnic://test/host/3"
		c.Peers = append(c.Peers, other)
	})
	link := n.ShardLink(1)
	for _, r := range []conn.Request{{Kind: conn.Begin, Epoch: 1}, {Kind: conn.Quota, N: 8}, {Kind: conn.Listen, Service: service}} {
		r.Function = uint32(vf(1))
		link.Ask(r)
	}
	link.Flush()
	n.told()
	return n
}

func meet(n *nic, host cm.HostID) *stranger {
	s := &stranger{n: n, host: host, mail: n.mail(host), ids: uint32(host) << 8}
	s.greet()
	return s
}

func (s *stranger) gid() [16]byte { return netip.AddrFrom4([4]byte{192, 168, s.host, 1}).As16() }

// says sends a message, and returns the NIC's answers.
func (s *stranger) says(msg []byte) (answers [][]byte) {
	s.mail.Message(msg)
	return s.hears()
}

func (s *stranger) hears() (list [][]byte) {
	s.n.Step(s.n.now, &s.n.out)
	for _, m := range s.n.out.Messages {
		if m.Peer == s.n.id(s.host) {
			list = append(list, m.Data)
		}
	}
	return list
}

// greet starts a link.
func (s *stranger) greet() {
	s.n.t.Helper()
	s.mail.Up()
	list := s.hears()
	if len(list) == 0 {
		s.n.t.Fatalf("host %d is not greeted", s.host)
	}
	h, err := cm.Parse[cm.Hello](list[0])
	if err != nil {
		s.n.t.Fatal(err)
	}
	s.instance = h.Instance
	s.says(s.hello(1))
}

func (s *stranger) hello(instance uint64) []byte {
	h := cm.Hello{Host: s.host, Instance: instance, Endpoints: []cm.Endpoint{{Tenant: 7, GID: s.gid(), Function: uint32(s.host)<<16 | 1}}}
	return cm.Encode(&h)
}

func (s *stranger) request() []byte {
	s.ids++
	q := cm.REQ{
		SenderID: s.ids, Service: service, Tenant: 7, Function: uint32(s.host)<<16 | 1, PeerFunction: uint32(vf(1)), SGID: s.gid(),
		DGID: netip.MustParseAddr("192.168.100.11").As16(), QPN: 5,
		Offer: cm.Offer{Shard: 1, CID: s.ids, MTU: 1500, Ordered: true, SA: cm.SA{SPI: 77, Key: []byte(secret)}},
	}
	return cm.Encode(&q)
}

// connects makes a connection to the NIC's first VF.
func (s *stranger) connects() {
	s.n.t.Helper()
	s.says(s.request())
	list := s.connections(cm.StateReqReceived)
	if len(list) != 1 {
		s.n.t.Fatalf("host %d: %d requests, want one", s.host, len(list))
	}
	link := s.n.ShardLink(1)
	link.Ask(conn.Request{Kind: conn.Accept, Function: uint32(vf(1)), ID: list[0].ID, N: 6})
	link.Flush()
	for _, m := range s.hears() {
		if rep, err := cm.Parse[cm.REP](m); err == nil {
			rtu := cm.RTU{SenderID: s.ids, ReceiverID: rep.SenderID}
			s.says(cm.Encode(&rtu))
		}
	}
	if len(s.connections(cm.StateEstablished)) == 0 {
		s.n.t.Fatalf("host %d is not connected", s.host)
	}
}

func (s *stranger) connections(in cm.State) (list []control.Connection) {
	for _, c := range s.n.Connections(s.n.now) {
		if c.PeerHost == s.host && c.State == in.String() {
			list = append(list, c)
		}
	}
	return list
}

func (s *stranger) up() bool {
	for _, p := range s.n.DescribePeers(nil) {
		if p.Host == s.host {
			return p.Up
		}
	}
	return false
}

// failOnce makes the next order for a function panic.
func (n *nic) failOnce() {
	shardOf := n.shardOf
	n.shardOf = func(uint32) int { n.shardOf = shardOf; panic("no shard") }
}

// TestAPeersMessageEndsNoNIC checks that a message that makes its handling, or what follows from
// it, panic ends its peer's link, keys and connections, even if ending them panics too. Other peers
// keep theirs, and the NIC goes on. The peer comes back to a NIC of another instance. No message is
// known that causes a panic, so the test breaks the core's state.
func TestAPeersMessageEndsNoNIC(t *testing.T) {
	for _, c := range []struct {
		name   string
		breaks func(s *stranger) (message []byte, mend func())
		typ    string
		faults uint64
	}{
		{"what follows", func(s *stranger) ([]byte, func()) {
			s.n.failOnce()
			return s.request(), func() {}
		}, "REQ", 1},
		{"the handler, and the end", func(s *stranger) ([]byte, func()) {
			s.mail.Down()
			s.greet()
			s.mail.Down() // it restarts
			s.mail.Up()
			s.hears()
			keys := s.n.Keys
			s.n.Keys = nil
			return s.hello(2), func() { s.n.Keys = keys }
		}, "Hello", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newListener(t)
			bad, good := meet(n, 2), meet(n, 3)
			bad.connects()
			good.connects()
			met := bad.instance

			message, mend := c.breaks(bad)
			bad.mail.Message(message)
			bad.mail.Message(bad.request()) // queued behind the bad message
			bad.mail.in.Drain(n.now)
			mend()
			bad.hears()
			if bad.up() || !slices.Equal(n.out.Ends, []cm.PeerID{n.id(2)}) {
				t.Errorf("the peer is there: %t, links that end: %v", bad.up(), n.out.Ends)
			}
			bad.hears()
			if len(n.out.Ends) > 0 {
				t.Errorf("a new link ends as well: %v", n.out.Ends)
			}
			counted := control.Counters{}
			n.count(counted)
			if counted["drop.peer_panic"] != c.faults {
				t.Errorf("%d faults are counted, want %d", counted["drop.peer_panic"], c.faults)
			}
			log := strings.Join(n.log, "\n")
			if n := strings.Count(log, "fault in the program"); n != int(c.faults) || !strings.Contains(log, "peer 2 handling "+c.typ) {
				t.Errorf("%d faults in the log:\n%s", n, log)
			}
			if strings.Contains(log, secret) || strings.Contains(log, hex.EncodeToString([]byte(secret))) {
				t.Errorf("the log has the peer's key:\n%s", log)
			}
			if !good.up() || len(good.connections(cm.StateEstablished)) != 1 {
				t.Error("another peer has lost its connection")
			}
			good.connects()

			bad.mail.Down()
			bad.greet()
			if bad.instance == met {
				t.Error("the peer is not told that the NIC has forgotten it")
			}
			if left := bad.connections(cm.StateEstablished); len(left) > 0 {
				t.Errorf("%d connections are left", len(left))
			}
			bad.connects()
			if !good.up() || len(good.connections(cm.StateEstablished)) != 2 {
				t.Error("another peer has suffered")
			}
		})
	}
}

// TestAPeersConnectionEndsNoNIC checks that a panic in what the NIC does with a peer's connection
// costs that peer its link: when a driver asks for something, when a timer is due, and when a shard
// carries out a decision. The driver's command ends with an error. Other peers keep their links.
func TestAPeersConnectionEndsNoNIC(t *testing.T) {
	for name, breaks := range map[string]func(s *stranger, link *ShardLink){
		"a driver accepts its request": func(s *stranger, link *ShardLink) {
			s.says(s.request())
			list := s.connections(cm.StateReqReceived)
			if len(list) != 1 {
				s.n.t.Fatalf("%d requests", len(list))
			}
			s.n.failOnce()
			link.Ask(conn.Request{Kind: conn.Accept, Function: uint32(vf(1)), ID: list[0].ID, N: 6, Question: conn.Question{N: 77}})
			link.Flush()
			s.n.sides[1].told = nil
			s.hears()
			if told := s.n.sides[1].told; !slices.Contains(told, "answer") {
				s.n.t.Errorf("the driver's command has no answer: %q", told)
			}
		},
		"it does not answer": func(s *stranger, link *ShardLink) {
			link.Ask(conn.Request{Kind: conn.Connect, Function: uint32(vf(1)), Connect: &cm.ConnectRequest{
				Function: uint32(vf(1)), Tenant: 7, QPN: 5, Service: service, SGID: netip.MustParseAddr("192.168.100.11").As16(), DGID: s.gid(), MTU: 1500,
			}})
			link.Flush()
			if len(s.hears()) == 0 {
				s.n.t.Fatal("the peer is not asked")
			}
			s.n.failOnce()
			for range 100 {
				s.n.now += 1e9
				if s.hears(); len(s.n.out.Ends) > 0 {
					return
				}
			}
		},
		"a shard cannot carry out a decision": func(s *stranger, link *ShardLink) {
			link.Ask(conn.Request{Kind: conn.PeerFault, Function: uint32(vf(1)), N: uint32(s.n.id(s.host))})
			link.Flush()
			s.hears()
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newListener(t)
			bad, good := meet(n, 2), meet(n, 3)
			good.connects()
			breaks(bad, n.ShardLink(1))
			if bad.up() || !slices.Equal(n.out.Ends, []cm.PeerID{n.id(2)}) || n.faults != 1 {
				t.Errorf("the peer is there: %t, links that end: %v, %d faults", bad.up(), n.out.Ends, n.faults)
			}
			if !good.up() || len(good.connections(cm.StateEstablished)) != 1 {
				t.Error("another peer has lost its connection")
			}
			bad.mail.Down()
			bad.greet()
			bad.connects()
		})
	}
}

// TestFaultsOfThisNICAreNotHidden checks that a panic for which no peer is to blame goes on.
func TestFaultsOfThisNICAreNotHidden(t *testing.T) {
	n := newListener(t)
	n.failOnce()
	link := n.ShardLink(1)
	link.Ask(conn.Request{Kind: conn.Quota, Function: uint32(vf(1)), N: 9})
	link.Flush()
	defer func() {
		if recover() == nil {
			t.Error("nobody hears of it")
		}
	}()
	n.Step(n.now, &n.out)
}

// endings is links whose End is told.
type endings struct {
	notes
	end func(cm.PeerID, error)
}

func (e endings) End(peer cm.PeerID, reason error) { e.end(peer, reason) }

// TestTheLinkOfAPeerEndsAfterAPanic checks that the link of a peer ends when handling its message
// panicked.
func TestTheLinkOfAPeerEndsAfterAPanic(t *testing.T) {
	n := newListener(t)
	bad := meet(n, 2)
	n.failOnce()
	done, ended := make(chan struct{}), make(chan cm.PeerID, 1)
	go func() {
		defer close(done)
		n.Run(func() int64 { return n.now }, endings{notes{}, func(peer cm.PeerID, reason error) {
			if !errors.Is(reason, errFault) {
				t.Error(reason)
			}
			ended <- peer
		}})
	}()
	bad.mail.Message(bad.request())
	if peer := <-ended; peer != n.id(2) {
		t.Errorf("the link to peer %d ends", peer)
	}
	n.Halt()
	<-done
}
