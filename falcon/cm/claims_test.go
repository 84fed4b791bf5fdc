package cm

import (
	"math/rand"
	"slices"
	"testing"
)

// claimWorld is a Manager of host 1 whose peers 2 and 3 share tenant 7 with it. addr1 is assigned
// to host 2 and addr2 to host 3; claims of others for them are refused.
func claimWorld(t *testing.T) *Manager {
	t.Helper()
	given := func(host PeerID) Peer {
		p := peerOf(host)
		p.MayHave = func(a Address) string {
			switch {
			case a.GID == addr1 && host != 2, a.GID == addr2 && host != 3:
				return "it is given to another"
			}
			return ""
		}
		return p
	}
	m := managerOf(t, given(2), given(3))
	for _, h := range []PeerID{2, 3} {
		m.PeerUp(0, h)
		greet(t, m, h, uint64(h))
	}
	outputs(m)
	return m
}

// say makes a host announce addresses, as functions and as ports.
func say(t *testing.T, m *Manager, h PeerID, addrs ...[16]byte) {
	t.Helper()
	hello := Hello{Host: HostID(h), Instance: uint64(h)}
	var ports []PortAddress
	for _, a := range addrs {
		hello.Endpoints = append(hello.Endpoints, Endpoint{7, a, fnOf(h, 1), 0})
		ports = append(ports, PortAddress{7, a, fnOf(h, 1), 1432})
	}
	if err := m.Receive(0, h, Encode(&hello)); err != nil {
		t.Fatal(err)
	}
	tell(t, m, h, ports...)
}

// holder returns who has an address, by functions and by ports; 0: nobody.
func holder(t *testing.T, m *Manager, addr [16]byte) (h PeerID) {
	t.Helper()
	if p, _, ok := m.dir.find(Address{7, addr}); ok {
		if h = p.ID; p == m.peers.self {
			h = 1
		}
	}
	var by PeerID
	for _, p := range []PeerID{2, 3} {
		if slices.ContainsFunc(m.PortsOf(p), func(e PortAddress) bool { return e.Addr == addr }) {
			if by != 0 {
				t.Fatalf("%x is a port of hosts %d and %d", addr, by, p)
			}
			by = p
		}
	}
	if by != h && h != 1 {
		t.Fatalf("%x: host %d has the function, host %d the port", addr, h, by)
	}
	return h
}

// TestAnAddressIsWhoseItIsGiven: an address leads to the host to which it is assigned, whoever
// announced it first and with whatever message, and to nobody until that host announces it.
func TestAnAddressIsWhoseItIsGiven(t *testing.T) {
	for name, order := range map[string][]PeerID{"the owner first": {2, 3}, "the thief first": {3, 2}} {
		m := claimWorld(t)
		before := m.Stats()
		for _, h := range order {
			say(t, m, h, addr1)
			if got := holder(t, m, addr1); got != 2 && (got != 0 || h == 2) {
				t.Errorf("%s: host %d has it after host %d spoke", name, got, h)
			}
		}
		if got := holder(t, m, addr1); got != 2 {
			t.Errorf("%s: host %d has it", name, got)
		}
		if n := m.Stats().RouteAddressRefused - before.RouteAddressRefused; n != 2 {
			t.Errorf("%s: %d refusals are counted, want one of the function and one of the port", name, n)
		}
		if m.Known().Has(7, addr2) {
			t.Errorf("%s: an address that nobody tells of is known", name)
		}
		m.PeerDown(0, 2)
		say(t, m, 3, addr1)
		if got := holder(t, m, addr1); got != 2 {
			t.Errorf("%s: host %d has it while the link of its owner is down", name, got)
		}
		if _, err := m.Connect(0, ConnectRequest{Tenant: 7, DGID: addr1}); err == nil {
			t.Errorf("%s: there is a connection", name)
		}
	}
}

// TestARefusedAddressIsReportedOnce: an address that a peer announces but does not get is reported
// once, with a reason, and shown until the peer no longer announces it.
func TestARefusedAddressIsReportedOnce(t *testing.T) {
	m := claimWorld(t)
	refused := func() (n int) {
		for _, o := range outputs(m) {
			if o.Kind == OutRefused {
				n++
				if o.Peer != 3 || o.Refused.Count != 1 || o.Refused.String() != "10.0.0.1 of tenant 7: it is given to another" {
					t.Errorf("%+v", o)
				}
			}
		}
		return n
	}
	for i, want := range []int{2, 0} {
		say(t, m, 3, addr1, addr2)
		if n := refused(); n != want {
			t.Errorf("told %d times after message %d, want %d", n, i, want)
		}
	}
	if p := m.Peers()[1]; p.Functions.Count != 1 || p.Ports.Count != 1 || p.Offers != 1 {
		t.Errorf("shown: %+v", p)
	}
	say(t, m, 3, addr2)
	if p := m.Peers()[1]; p.Functions.Count != 0 || p.Ports.Count != 0 {
		t.Errorf("shown when it is over: %+v", p)
	}
}

// TestAClaimWaitsForItsTurn: an address that is assigned to nobody belongs to one of the peers that
// claim it. It passes to another claimant when that peer gives it up or cannot be reached, and to
// none while a function of this NIC has it.
func TestAClaimWaitsForItsTurn(t *testing.T) {
	m := claimWorld(t)
	free := gid4(10, 0, 0, 9)
	want := func(when string, h PeerID) {
		t.Helper()
		if got := holder(t, m, free); got != h {
			t.Errorf("%s: host %d has it, want %d", when, got, h)
		}
	}
	ports := func() (changed []PeerID) {
		for _, o := range outputs(m) {
			if o.Kind == OutPorts {
				changed = append(changed, o.Peer)
			}
		}
		slices.Sort(changed)
		return slices.Compact(changed)
	}
	say(t, m, 3, free)
	say(t, m, 2, free)
	want("the first", 3)
	say(t, m, 3)
	want("the first gives it up", 2)
	say(t, m, 3, free)
	want("it claims it again", 2)
	outputs(m)
	m.PeerDown(0, 2)
	want("its link went", 3)
	if got := ports(); !slices.Equal(got, []PeerID{2, 3}) {
		t.Errorf("ports of %v are said to be others", got)
	}
	m.PeerDown(0, 3)
	want("both went", 3)
	m.PeerUp(0, 2)
	greet(t, m, 2, 2)
	say(t, m, 2, free)
	want("the other is back", 2)

	outputs(m)
	m.Hold([]Address{{7, free}}) // of a function that is not in service
	want("ours", 0)
	if got := ports(); !slices.Equal(got, []PeerID{2}) || m.Known().Has(7, free) {
		t.Errorf("ports of %v are said to be others, known %v", got, m.Known().Has(7, free))
	}
	if err := m.SetEndpoints([]Endpoint{{7, free, fnOf(1, 0), 0}}); err != nil {
		t.Fatal(err)
	}
	m.Hold(nil)
	want("ours in service", 1)
	if by, is := m.Offered(7, free); is {
		t.Errorf("said to be host %d's", by)
	}
	outputs(m)
	if err := m.SetEndpoints(nil); err != nil {
		t.Fatal(err)
	}
	want("we give it up", 2)
	if got := ports(); !slices.Equal(got, []PeerID{2}) {
		t.Errorf("ports of %v are said to be others", got)
	}
}

// TestClaimsThatWereGivenUpLeaveNothing: claims that are made and given up in any order, while
// links come and go, leave nothing behind. At any time each claimed address has one holder, which
// claims it.
func TestClaimsThatWereGivenUpLeaveNothing(t *testing.T) {
	r := rand.New(rand.NewSource(3))
	m := claimWorld(t)
	claimed := map[PeerID][][16]byte{}
	for range 3000 {
		h := PeerID(2 + r.Intn(2))
		switch r.Intn(6) {
		case 0:
			m.PeerDown(0, h)
		case 1:
			m.Hold([]Address{{7, gid4(10, 0, 1, byte(r.Intn(4)))}})
		default:
			if !m.peers.byID[h].up {
				m.PeerUp(0, h)
			}
			claimed[h] = nil
			for _, i := range r.Perm(4)[:r.Intn(5)] {
				claimed[h] = append(claimed[h], gid4(10, 0, 1, byte(i)))
			}
			say(t, m, h, claimed[h]...)
		}
		outputs(m)
		for i := range byte(4) {
			a := gid4(10, 0, 1, i)
			switch by := holder(t, m, a); {
			case by == 0:
				if !m.peers.ours[Address{7, a}] && (slices.Contains(claimed[2], a) || slices.Contains(claimed[3], a)) {
					t.Fatalf("nobody has %x, which is claimed", a)
				}
			case !slices.Contains(claimed[by], a):
				t.Fatalf("host %d has %x and does not claim it", by, a)
			}
		}
	}
	for _, h := range []PeerID{2, 3} {
		m.PeerUp(0, h)
		say(t, m, h)
	}
	if n := len(m.dir.claims.all) + len(m.dir.claims.of) + len(m.ports.claims.all) + len(m.ports.claims.of); n != 0 {
		t.Errorf("%d things are left", n)
	}
}
