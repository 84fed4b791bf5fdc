package cm

import (
	"bytes"
	"errors"
	"math/rand"
	"slices"
	"strings"
	"testing"
)

func TestConnectionsOutliveAnOutage(t *testing.T) {
	w, a, b := two(t, nil)
	ida, idb := establish(t, w, a, b)
	pend, _ := a.connect(1, 2, 0, 1)
	w.settle()
	w.setLink(1, 2, false, nil)
	w.settle()
	wantEnd(t, a, pend, OutUnreachable, ReasonPeerDown)
	wantEnd(t, b, b.order[1], OutUnreachable, ReasonPeerDown)
	w.advance(3600_000 * ms)
	if !a.conns[ida].live() || !b.conns[idb].live() {
		t.Error("an established connection ended with the link")
	}
	w.setLink(1, 2, true, nil)
	w.settle()
	w.checkRest()
	if !a.conns[ida].live() || !b.conns[idb].live() {
		t.Error("an established connection ended when the link came back")
	}
}

func TestEndedDuringAnOutage(t *testing.T) {
	w, a, b := two(t, nil)
	ida, idb := establish(t, w, a, b)
	w.setLink(1, 2, false, nil)
	w.settle()
	if err := a.disconnect(ida); err != nil {
		t.Fatal(err)
	}
	w.advance(60_000 * ms)
	if s := a.m.Stats(); s.SendDropped != 1+s.Retries {
		t.Errorf("%d messages dropped, want a DREQ and %d repetitions", s.SendDropped, s.Retries)
	}
	w.setLink(1, 2, true, nil)
	w.settle()
	wantEnd(t, b, idb, OutDisconnected, ReasonStale)
	for _, n := range []*node{a, b} {
		if s := n.m.Stats(); s.Disconnected != 1 {
			t.Errorf("host %d: %d connections ended, want 1", n.host, s.Disconnected)
		}
	}
	wantEmpty(t, w)
}

func TestAPeersRestartEndsItsConnections(t *testing.T) {
	w, a, b := two(t, nil)
	ida, _ := establish(t, w, a, b)
	before := a.saGen[sealedBy(2, 0)]
	w.setLink(1, 2, false, nil)
	w.settle()
	b.start()
	if err := b.m.Listen(fnOf(2, 0), 1); err != nil {
		t.Fatal(err)
	}
	w.setLink(1, 2, true, nil)
	w.settle()
	wantEnd(t, a, ida, OutDisconnected, ReasonPeerRestarted)
	if a.saGen[sealedBy(2, 0)] != before+1 {
		t.Error("the key issued to the peer's last process is still in use")
	}
	if s := a.m.Stats(); s.PeerRestarts != 1 || s.Disconnected != 1 {
		t.Errorf("stats %+v", s)
	}
	establish(t, w, a, b)
	w.advance(10_000 * ms)
	w.checkRest()
}

// TestAPeerOfAnotherVersionIsRefusedWithAReason: no connection is made with a peer of another
// version, connections with its earlier process end, and the error and the peer's entry name the
// cause.
func TestAPeerOfAnotherVersionIsRefusedWithAReason(t *testing.T) {
	w, a, b := two(t, nil)
	ida, _ := establish(t, w, a, b)
	w.setLink(1, 2, false, nil)
	w.settle()
	a.m.PeerUp(w.now, 2)
	hello := Encode(&Hello{Host: 2, Instance: 9, Endpoints: []Endpoint{{Tenant: 7, GID: gid4(10, 0, 0, 2), Function: fnOf(2, 0)}}})
	hello[0] = 1
	err := a.m.Receive(w.now, 2, hello)
	a.drain()
	const want = "NIC 2: the peer speaks version 1 of the connection managers' protocol, this NIC version 2: install the same release of vnic at both"
	if err == nil || err.Error() != want || !errors.Is(err, ErrProtocol) {
		t.Errorf("%v, want %q", err, want)
	}
	wantEnd(t, a, ida, OutDisconnected, ReasonPeerRestarted)
	if p := a.m.Peers()[0]; p.Up || p.Speaks != 1 || p.Offers != 0 {
		t.Errorf("%+v", p)
	}
	a.m.PeerDown(w.now, 2)
	a.m.PeerUp(w.now, 2)
	hello[0] = Version
	if err := a.m.Receive(w.now, 2, hello); err != nil {
		t.Error(err)
	}
	if p := a.m.Peers()[0]; !p.Up || p.Speaks != 0 {
		t.Errorf("after its upgrade: %+v", p)
	}
}

func TestMessagesBeforeHelloAreIgnored(t *testing.T) {
	_, a, b := two(t, nil)
	b.m.PeerDown(0, 1)
	if err := b.m.Receive(0, 1, reqTo(nil)); !errors.Is(err, ErrBeforeHello) {
		t.Errorf("link down: %v", err)
	}
	b.m.PeerUp(0, 1)
	if err := b.m.Receive(0, 1, reqTo(nil)); !errors.Is(err, ErrBeforeHello) {
		t.Errorf("before Hello: %v", err)
	}
	if err := b.m.Receive(0, 77, reqTo(nil)); !errors.Is(err, ErrNotFound) {
		t.Errorf("unknown host: %v", err)
	}
	if len(b.m.conns.byID) != 0 {
		t.Error("a connection was made")
	}
	_ = a
}

func TestHelloIsChecked(t *testing.T) {
	_, _, b := two(t, nil)
	for name, h := range map[string]Hello{
		"other host":               {Host: 3, Instance: b.m.peers.byID[1].instance},
		"instance 0":               {Host: 1},
		"instance changes midway":  {Host: 1, Instance: 12345},
		"other host, same process": {Host: 2, Instance: b.m.peers.byID[1].instance},
	} {
		if err := b.m.Receive(0, 1, Encode(&h)); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
	h := Hello{Host: 1, Instance: b.m.peers.byID[1].instance, Endpoints: []Endpoint{
		{7, gidOf(1, 9), fnOf(1, 9), 0}, // new
		{8, gidOf(1, 0), fnOf(1, 0), 0}, // tenant not shared
		{7, gidOf(5, 0), fnOf(5, 0), 0}, // function of another host
		{7, gidOf(2, 0), fnOf(1, 0), 0}, // an address of ours
		{7, gidOf(1, 9), fnOf(1, 8), 0}, // twice
	}}
	if err := b.m.Receive(0, 1, Encode(&h)); err != nil {
		t.Fatal(err)
	}
	s := b.m.Stats()
	if s.RouteTenantRefused != 1 || s.RouteFunctionRefused != 1 || s.RouteConflicts != 2 {
		t.Errorf("stats %+v", s)
	}
	if p := b.m.Peers()[0]; p.Offers != 1 || !p.Up {
		t.Errorf("peer %+v", p)
	}
}

func TestAFunctionMovesToAnotherHost(t *testing.T) {
	w := newWorld(t.Fatalf)
	a := w.add(1, 2, 3)
	b, c := w.add(2, 1), w.add(3, 1)
	c.local = append(c.local, Endpoint{7, gidOf(2, 0), fnOf(3, 0), 0})
	if err := c.m.SetEndpoints(c.local); err != nil {
		t.Fatal(err)
	}
	w.setLink(1, 2, true, nil)
	w.settle()
	w.setLink(1, 3, true, nil)
	w.settle()
	owner := func() PeerID {
		p, _, _ := a.m.dir.find(Address{7, gidOf(2, 0)})
		if p == a.m.peers.self {
			return 1
		}
		return p.ID
	}
	if owner() != 2 || a.m.Stats().RouteConflicts != 1 {
		t.Fatalf("owner %d, stats %+v", owner(), a.m.Stats())
	}
	w.setLink(1, 2, false, nil)
	w.settle()
	if owner() != 3 {
		t.Error("the route did not move to who claims the address and can be reached")
	}
	w.setLink(1, 3, false, nil)
	w.settle()
	if owner() != 3 {
		t.Error("the route is forgotten with the link")
	}
	if len(b.m.conns.byID) != 0 {
		t.Error("connections out of nothing")
	}
	if err := a.m.SetEndpoints([]Endpoint{{7, gidOf(2, 0), fnOf(1, 0), 0}}); err != nil {
		t.Fatal(err)
	}
	if owner() != 1 {
		t.Error("a peer keeps an address that is ours")
	}
}

func TestSetEndpointsRefuses(t *testing.T) {
	_, a, _ := two(t, nil)
	many := make([]Endpoint, MaxEndpoints+1)
	for i := range many {
		many[i] = Endpoint{7, gid4(10, 9, byte(i>>8), byte(i)), fnOf(1, 0), 0}
	}
	for name, tt := range map[string]struct {
		local []Endpoint
		want  error
	}{
		"other host": {[]Endpoint{{7, gidOf(1, 0), fnOf(2, 0), 0}}, ErrInvalid},
		"25 bits":    {[]Endpoint{{7, gidOf(1, 0), 1<<24 | fnOf(1, 0), 0}}, ErrInvalid},
		"twice":      {[]Endpoint{{7, gidOf(1, 0), fnOf(1, 0), 0}, {7, gidOf(1, 0), fnOf(1, 1), 0}}, ErrInvalid},
		"too many":   {many, ErrLimit},
	} {
		if err := a.m.SetEndpoints(tt.local); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(a.m.dir.local) != 4 {
		t.Error("a refused list changed something")
	}
}

func TestConfigIsChecked(t *testing.T) {
	for name, cfg := range map[string]Config{
		"MTU":        {MTU: 100},
		"ReqTimeout": {ReqTimeout: -1},
	} {
		if _, err := New(cfg, nil, rand.New(rand.NewSource(1))); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, mtu := range []int{MinMTU, MaxMTU} {
		if _, err := New(Config{MTU: mtu}, nil, rand.New(rand.NewSource(1))); err != nil {
			t.Errorf("MTU %d: %v", mtu, err)
		}
	}
	if _, err := New(Config{}, nil, bytes.NewReader(nil)); err == nil {
		t.Error("no randomness, no error")
	}
}

// TestAForgottenPeerLeavesNothing: what a peer had here goes, as with its certificate, and comes
// back only when it does. The peer forgets, too, though neither has restarted.
func TestAForgottenPeerLeavesNothing(t *testing.T) {
	w, a, b := two(t, nil)
	ida, idb := establish(t, w, a, b)
	before, beforeB := a.saGen[sealedBy(2, 0)], b.saGen[sealedBy(1, 0)]
	w.setLink(1, 2, false, nil)
	w.settle()
	a.m.ForgetPeer(w.now, 2)
	a.m.ForgetPeer(w.now, 9) // nobody
	a.drain()
	wantEnd(t, a, ida, OutDisconnected, ReasonPeerRestarted)
	if a.saGen[sealedBy(2, 0)] != before+1 {
		t.Error("the keys that the peer has are good still")
	}
	if _, err := a.connect(0, b.host, 0, 1); err == nil {
		t.Error("there is a way to it")
	}
	w.setLink(1, 2, true, nil)
	w.settle()
	wantEnd(t, b, idb, OutDisconnected, ReasonPeerRestarted)
	if b.saGen[sealedBy(1, 0)] != beforeB+1 {
		t.Error("the peer accepts what is sealed with keys that are forgotten here")
	}
	establish(t, w, a, b)
}

func TestAFaultInAParserCostsTheMessage(t *testing.T) {
	h := taking(func(b []byte) (REQ, error) { return REQ{QPN: uint32(b[len(b)])}, nil }, faultless((*Manager).req))
	err := h(nil, 0, nil, Encode(&RTU{}))
	if !errors.Is(err, ErrProtocol) || !strings.Contains(err.Error(), "please report it") {
		t.Error(err)
	}
}

// TestKnownFollowsWhatPeersOffer: the addresses of this NIC and of peers are known as long as they are
// there.
func TestKnownFollowsWhatPeersOffer(t *testing.T) {
	w := newWorld(t.Fatalf)
	m := w.add(1, 2).m
	w.add(2, 1)
	w.setLink(1, 2, true, nil)
	w.settle()
	known := m.Known()
	if !known.Has(7, gidOf(1, 0)) || !known.Has(7, gidOf(2, 0)) || known.Has(9, gidOf(2, 0)) {
		t.Error("who is there is not known")
	}
	m.Hold([]Address{{7, gidOf(2, 0)}})
	if known.Has(7, gidOf(2, 0)) {
		t.Error("an address that this NIC holds is known to be a peer's")
	}
	m.Hold(nil)
	if !known.Has(7, gidOf(2, 0)) {
		t.Error("an address that this NIC held is not known")
	}
	m.ForgetPeer(w.now, 2)
	if known.Has(7, gidOf(2, 0)) || !known.Has(7, gidOf(1, 0)) {
		t.Error("a peer that is not to be trusted is still known")
	}
}

// TestPeersAreInOrder: operations on all peers are made in one order, so that a run can be
// replayed.
func TestPeersAreInOrder(t *testing.T) {
	w := newWorld(t.Fatalf)
	a := w.add(9, 7, 3, 8, 1, 5)
	var hosts []PeerID
	for _, p := range a.m.Peers() {
		hosts = append(hosts, p.ID)
	}
	if want := []PeerID{1, 3, 5, 7, 8}; !slices.Equal(hosts, want) {
		t.Errorf("peers in the order %v, want %v", hosts, want)
	}
}
