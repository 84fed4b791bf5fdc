package cm

import (
	"errors"
	"math/rand"
	"slices"
	"testing"
)

// keyless is a Resources that provides nothing for connections.
type keyless struct{ Resources }

func (keyless) ForgetSAs(PeerID) {}

// portWorld is a Manager of host 1 with peers 2 (tenants 7, 8) and 3 (tenant 7) whose links are up.
func portWorld(t *testing.T) *Manager {
	t.Helper()
	second := peerOf(2)
	second.Tenants = []uint32{7, 8}
	m := managerOf(t, second, peerOf(3))
	for _, h := range []PeerID{2, 3} {
		m.PeerUp(0, h)
		greet(t, m, h, uint64(h))
	}
	outputs(m)
	return m
}

// managerOf returns a Manager of host 1 with these peers.
func managerOf(t *testing.T, peers ...Peer) *Manager {
	t.Helper()
	m, err := New(Config{Host: 1}, keyless{}, rand.New(rand.NewSource(1)))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range peers {
		if err := m.AddPeer(p); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func greet(t *testing.T, m *Manager, h PeerID, instance uint64) {
	t.Helper()
	hello := Hello{Host: HostID(h), Instance: instance}
	if err := m.Receive(0, h, Encode(&hello)); err != nil {
		t.Fatal(err)
	}
}

func outputs(m *Manager) (list []Output) {
	var o Output
	for m.Next(&o) {
		list = append(list, o)
	}
	return list
}

func tell(t *testing.T, m *Manager, h PeerID, ports ...PortAddress) {
	t.Helper()
	msg := PORTS{ports}
	if err := m.Receive(0, h, Encode(&msg)); err != nil {
		t.Fatal(err)
	}
}

var addr1, addr2 = gid4(10, 0, 0, 1), gid4(10, 0, 0, 2)

func TestPortsAreTold(t *testing.T) {
	m := portWorld(t)
	if err := m.SetPorts([]PortAddress{{7, addr1, 0x010001, 1432}, {8, addr1, 0x010002, 1432}}); err != nil {
		t.Fatal(err)
	}
	said := map[PeerID]int{}
	for _, o := range outputs(m) {
		p, err := Parse[PORTS](o.Msg)
		if o.Kind != OutSend || err != nil {
			t.Fatalf("%v %v", o.Kind, err)
		}
		said[o.Peer] = len(p.Ports)
	}
	if said[2] != 2 || said[3] != 1 {
		t.Errorf("told %v: only of tenants that are shared", said)
	}
	m.PeerDown(0, 3)
	m.PeerUp(0, 3)
	if o := outputs(m); len(o) != 2 || o[1].Peer != 3 || MessageType(o[1].Msg[1]) != TypePORTS {
		t.Errorf("a new link begins with %+v", o)
	}
	if err := m.SetPorts(nil); err != nil { // withdrawn
		t.Fatal(err)
	}
	if o := outputs(m); len(o) != 2 || len(o[0].Msg) != headerLen+4 {
		t.Errorf("%+v", o)
	}
	if err := m.SetPorts([]PortAddress{{7, addr1, 0x020001, 1432}}); !errors.Is(err, ErrInvalid) {
		t.Error("a port of another host:", err)
	}
	if err := m.SetPorts(make([]PortAddress, MaxPorts+1)); !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrLimit) {
		t.Error("too many:", err)
	}
}

func TestPortsAreLearned(t *testing.T) {
	m := portWorld(t)
	tell(t, m, 2, PortAddress{7, addr1, 0x020001, 1432}, PortAddress{8, addr1, 0x020001, 1432})
	if n := len(m.PortsOf(2)); n != 2 {
		t.Fatalf("%d ports", n)
	}
	before := m.Stats()
	// Another tenant's, another host's, and what peer 2 has already.
	tell(t, m, 3, PortAddress{8, addr2, 0x030001, 1432}, PortAddress{7, addr2, 0x020001, 1432}, PortAddress{7, addr1, 0x030001, 1432}, PortAddress{7, addr2, 0x030001, 1432})
	if got := m.PortsOf(3); len(got) != 1 || got[0].Addr != addr2 {
		t.Errorf("%+v", got)
	}
	after := m.Stats()
	if after.RouteTenantRefused != before.RouteTenantRefused+1 || after.RouteFunctionRefused != before.RouteFunctionRefused+1 || after.RouteConflicts != before.RouteConflicts+1 {
		t.Errorf("%+v", after)
	}
	outputs(m)
	m.PeerDown(0, 2) // what another claims goes to it: the function may have moved
	changed := map[PeerID]bool{}
	for _, o := range outputs(m) {
		if o.Kind == OutPorts {
			changed[o.Peer] = true
		}
	}
	if len(m.PortsOf(2)) != 1 || len(m.PortsOf(3)) != 2 || !changed[2] || !changed[3] {
		t.Errorf("%+v %+v %v", m.PortsOf(2), m.PortsOf(3), changed)
	}
	tell(t, m, 3) // withdrawn
	if len(m.PortsOf(3)) != 0 {
		t.Error("not withdrawn")
	}
	m.PeerUp(0, 2)
	greet(t, m, 2, 99) // restarted, without ports
	if len(m.PortsOf(2)) != 0 {
		t.Error("a restarted peer's ports were kept")
	}
}

// TestAsManyAddressesAsAllowedCanBeOffered: the maximum number of addresses of functions and ports
// can be offered.
func TestAsManyAddressesAsAllowedCanBeOffered(t *testing.T) {
	_, a, _ := two(t, nil)
	endpoints, ports := make([]Endpoint, MaxEndpoints+1), make([]PortAddress, MaxPorts+1)
	for i := range endpoints {
		endpoints[i] = Endpoint{7, gid4(10, 9, byte(i>>8), byte(i)), fnOf(1, 0), 0}
	}
	for i := range ports {
		ports[i] = PortAddress{Tenant: 7, Addr: gid4(10, 8, byte(i>>8), byte(i)), Function: fnOf(1, 0)}
	}
	if err := a.m.SetEndpoints(endpoints); !errors.Is(err, ErrLimit) {
		t.Errorf("%d functions: %v", len(endpoints), err)
	}
	if err := a.m.SetPorts(ports); !errors.Is(err, ErrLimit) {
		t.Errorf("%d ports: %v", len(ports), err)
	}
	endpoints[5].Tenant, ports[5].Tenant = 8, 8 // which the peer is not told of
	if err := errors.Join(a.m.SetEndpoints(endpoints), a.m.SetPorts(ports)); err != nil {
		t.Error(err)
	}
	if err := a.m.SetPorts([]PortAddress{{Tenant: 7, Function: 1<<24 | fnOf(1, 0)}}); !errors.Is(err, ErrInvalid) {
		t.Errorf("a port of a function of 25 bits: %v", err)
	}
	last := fnOf(255, 0xffff)
	w := newWorld(t.Fatalf)
	m := w.add(255, 2).m
	if err := errors.Join(m.SetEndpoints([]Endpoint{{7, gidOf(1, 0), last, 0}}), m.SetPorts([]PortAddress{{Tenant: 7, Function: last}})); err != nil {
		t.Errorf("the last function there is: %v", err)
	}
}

// TestAPeerThatWasToldOfNoPortsIsNotToldThatThereAreNone: a peer to which no ports were announced
// is not told that there are none.
func TestAPeerThatWasToldOfNoPortsIsNotToldThatThereAreNone(t *testing.T) {
	m := portWorld(t)
	said := func(ports ...PortAddress) (to []PeerID) {
		t.Helper()
		if err := m.SetPorts(ports); err != nil {
			t.Fatal(err)
		}
		for _, o := range outputs(m) {
			to = append(to, o.Peer)
		}
		return to
	}
	for i, step := range []struct {
		ports []PortAddress
		want  []PeerID
	}{
		{nil, nil},
		{[]PortAddress{{8, addr1, 0x010001, 1432}}, []PeerID{2}}, // of a tenant that 3 does not share
		{nil, []PeerID{2}},
		{nil, nil},
	} {
		if got := said(step.ports...); !slices.Equal(got, step.want) {
			t.Errorf("step %d: told %v, want %v", i, got, step.want)
		}
	}
	m.ForgetPeer(0, 2)
	for _, o := range outputs(m) {
		if o.Kind == OutPorts {
			t.Error("a change is told of ports that a peer did not have")
		}
	}
}

// TestPortsThatGoWhileALinkIsDownAreWithdrawn: a peer that was told of ports hears that there are
// none at the beginning of each link, as a link may break before it hears.
func TestPortsThatGoWhileALinkIsDownAreWithdrawn(t *testing.T) {
	m := portWorld(t)
	said := func() (list []*PORTS) {
		t.Helper()
		for _, o := range outputs(m) {
			if o.Kind != OutSend || o.Peer != 2 || MessageType(o.Msg[1]) != TypePORTS {
				continue
			}
			p, err := Parse[PORTS](o.Msg)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, &p)
		}
		return list
	}
	if err := m.SetPorts([]PortAddress{{8, addr1, 0x010001, 1432}}); err != nil { // of a tenant of peer 2 only
		t.Fatal(err)
	}
	if got := said(); len(got) != 1 || len(got[0].Ports) != 1 {
		t.Fatalf("%+v", got)
	}
	m.PeerDown(0, 2)
	if err := m.SetPorts(nil); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		m.PeerUp(0, 2)
		if got := said(); len(got) != 1 || len(got[0].Ports) != 0 {
			t.Errorf("a new link begins with %+v", got)
		}
	}
	if m.PeerUp(0, 3); len(outputs(m)) != 1 {
		t.Error("a peer that was told of no ports is told that there are none")
	}
}
