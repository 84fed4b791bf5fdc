package cm

import (
	"errors"
	"math/rand"
	"testing"
)

// keyless is a Resources that provides nothing for connections.
type keyless struct{ Resources }

func (keyless) ForgetSAs(HostID) {}

// portWorld is a Manager of host 1 with peers 2 (tenants 7, 8) and 3 (tenant 7) whose links are up.
func portWorld(t *testing.T) *Manager {
	t.Helper()
	m, err := New(Config{Host: 1, Peers: []Peer{{Host: 2, Tenants: []uint32{7, 8}}, {Host: 3, Tenants: []uint32{7}}}}, keyless{}, rand.New(rand.NewSource(1)))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range []HostID{2, 3} {
		m.PeerUp(0, h)
		greet(t, m, h, uint64(h))
	}
	outputs(m)
	return m
}

func greet(t *testing.T, m *Manager, h HostID, instance uint64) {
	t.Helper()
	hello := Hello{Host: h, Instance: instance}
	if err := m.Receive(0, h, hello.Append(nil)); err != nil {
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

func tell(t *testing.T, m *Manager, h HostID, ports ...Port) {
	t.Helper()
	msg := PORTS{ports}
	if err := m.Receive(0, h, msg.Append(nil)); err != nil {
		t.Fatal(err)
	}
}

var addr1, addr2 = gid4(10, 0, 0, 1), gid4(10, 0, 0, 2)

func TestPortsAreTold(t *testing.T) {
	m := portWorld(t)
	if err := m.SetPorts([]Port{{7, addr1, 0x010001, 1432}, {8, addr1, 0x010002, 1432}}); err != nil {
		t.Fatal(err)
	}
	said := map[HostID]int{}
	for _, o := range outputs(m) {
		p, err := ParsePORTS(o.Msg)
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
	if err := m.SetPorts([]Port{{7, addr1, 0x020001, 1432}}); !errors.Is(err, ErrInvalid) {
		t.Error("a port of another host:", err)
	}
	if err := m.SetPorts(make([]Port, MaxPorts+1)); !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrLimit) {
		t.Error("too many:", err)
	}
}

func TestPortsAreLearned(t *testing.T) {
	m := portWorld(t)
	tell(t, m, 2, Port{7, addr1, 0x020001, 1432}, Port{8, addr1, 0x020001, 1432})
	if n := len(m.PortsOf(2)); n != 2 {
		t.Fatalf("%d ports", n)
	}
	before := m.Stats()
	// Another tenant's, another host's, and what peer 2 has already.
	tell(t, m, 3, Port{8, addr2, 0x030001, 1432}, Port{7, addr2, 0x020001, 1432}, Port{7, addr1, 0x030001, 1432}, Port{7, addr2, 0x030001, 1432})
	if got := m.PortsOf(3); len(got) != 1 || got[0].Addr != addr2 {
		t.Errorf("%+v", got)
	}
	after := m.Stats()
	if after.RouteTenantRefused != before.RouteTenantRefused+1 || after.RouteFunctionRefused != before.RouteFunctionRefused+1 || after.RouteConflicts != before.RouteConflicts+1 {
		t.Errorf("%+v", after)
	}
	outputs(m)
	m.PeerDown(0, 2) // what another claims goes to it: the function may have moved
	changed := map[HostID]bool{}
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
