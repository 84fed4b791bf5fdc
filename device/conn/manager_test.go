package conn

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
)

// side is one NIC's connection manager with everything that it uses.
type side struct {
	*Manager
	t        *testing.T
	now      falcon.Time
	shard    int
	cids     *CIDs
	outputs  []cm.Output
	answers  []Answer
	to       []netip.AddrPort // of outputs
	resolved []netip.AddrPort
	keys     []cm.OutputKind
	ports    int
	forgot   int
}

func (s *side) Decide(shard int, o Decision) {
	if shard != s.shard {
		s.t.Errorf("an order for shard %d", shard)
	}
	s.outputs, s.to = append(s.outputs, o.Output), append(s.to, o.Underlay)
}

func (s *side) Answer(_ int, a Answer) { s.answers = append(s.answers, a) }

func (s *side) Receive(*cm.Params) (Receiving, error) { return nil, nil }

func (s *side) RxSA(cm.Use) (cm.SA, error) {
	return cm.SA{SPI: 7, Key: make([]byte, 16)}, nil
}
func (s *side) ForgetSAs(cm.PeerID)                         { s.forgot++ }
func (s *side) HandleKeys(_ falcon.Time, o *cm.Output)      { s.keys = append(s.keys, o.Kind) }
func (s *side) PortsChanged(falcon.Time, cm.PeerID)         { s.ports++ }
func (s *side) Resolve(_ falcon.Time, a netip.AddrPort)     { s.resolved = append(s.resolved, a) }
func (s *side) log(falcon.Time, slog.Level, string, ...any) {}

// take returns the outputs so far, and their destinations.
func (s *side) take() ([]cm.Output, []netip.AddrPort) {
	o, to := s.outputs, s.to
	s.outputs, s.to = nil, nil
	return o, to
}

func gid(host, n byte) [16]byte {
	return netip.AddrFrom4([4]byte{192, 168, host, n}).As16()
}

func function(host, n byte) uint32 { return uint32(host)<<16 | uint32(n) }

func underlayOf(host byte) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, host}), underlay.SealedPort)
}

// newSides returns two NICs whose shards have numbers other than 0, each with two functions.
func newSides(t *testing.T) [2]*side {
	var sides [2]*side
	for i := range sides {
		host := byte(i + 1)
		s := &side{t: t, now: 1e9, shard: 4 + i, cids: NewCIDs(4+i, 64)}
		cids := make([]*CIDs, 4+i+1)
		for j := range cids {
			cids[j] = NewCIDs(j, 0)
		}
		cids[s.shard] = s.cids
		var err error
		s.Manager, err = NewManager(ManagerConfig{
			Host: host, MTU: 4096, CIDs: cids, ShardOf: func(uint32) int { return s.shard }, Shards: s, Keys: s, Log: s.log, PortsChanged: s.PortsChanged, Resolve: s.Resolve,
		}, rand.NewChaCha8([32]byte{host}))
		if err == nil {
			err = s.CM.AddPeer(cm.Peer{ID: cm.PeerID(3 - host), Host: 3 - host, Underlay: underlayOf(3 - host), Tenants: []uint32{7}})
		}
		if err != nil {
			t.Fatal(err)
		}
		var ends []cm.Endpoint
		for n := range byte(2) {
			s.cids.SetQuota(function(host, n), 8)
			ends = append(ends, cm.Endpoint{Tenant: 7, GID: gid(host, n), Function: function(host, n)})
		}
		if err := s.CM.SetEndpoints(ends); err != nil {
			t.Fatal(err)
		}
		if err := s.CM.Listen(function(host, 0), 9); err != nil {
			t.Fatal(err)
		}
		sides[i] = s
	}
	for i, s := range sides {
		s.CM.PeerUp(s.now, sides[1-i].id())
		s.Run(s.now)
	}
	settle(sides)
	for _, s := range sides {
		s.resolved = nil
	}
	return sides
}

// id returns the ID that the other NIC has for this one.
func (s *side) id() cm.PeerID { return cm.PeerID(s.cfg.Host) }

// settle delivers messages until there are none.
func settle(sides [2]*side) {
	for again := true; again; {
		again = false
		for i, s := range sides {
			for _, m := range append([]Message(nil), s.Messages()...) {
				to := sides[1-i]
				if m.Peer != to.id() {
					s.t.Fatalf("a message for peer %d", m.Peer)
				}
				if err := to.CM.Receive(to.now, s.id(), m.Data); err != nil {
					s.t.Error(err)
				}
				to.Run(to.now)
				again = true
			}
		}
	}
}

// rest lets time pass until all CIDs are released.
func (s *side) rest(sides [2]*side) {
	for s.CIDsInUse() > 0 {
		at := s.CM.Deadline()
		if at > s.now+1e12 {
			s.t.Fatalf("%d CIDs are never given back", s.CIDsInUse())
		}
		s.now = at
		s.CM.Advance(at)
		s.Run(at)
		settle(sides)
	}
}

// connect makes function 1 of side a request a connection to function 0 of side b.
func connect(a, b *side) (uint32, error) {
	id, err := a.CM.Connect(a.now, cm.ConnectRequest{
		Function: function(a.cfg.Host, 1), Tenant: 7, QPN: 5, Service: 9, SGID: gid(a.cfg.Host, 1), DGID: gid(b.cfg.Host, 0), Ordered: true,
	})
	a.Run(a.now)
	return id, err
}

// TestTwoManagersConnectFunctions follows a connection from its request to its end: decisions reach
// the functions, with the peer's address if that is another NIC, and CIDs come from the function's
// shard. Messages between functions of one NIC never leave it.
func TestTwoManagersConnectFunctions(t *testing.T) {
	for _, inside := range []bool{false, true} {
		sides := newSides(t)
		a, b := sides[0], sides[1]
		if inside {
			b = a
		}
		id, err := connect(a, b)
		if err != nil {
			t.Fatal(err)
		}
		settle(sides)
		asked, _ := b.take()
		if len(asked) != 1 || asked[0].Kind != cm.OutRequest || asked[0].Function != function(b.cfg.Host, 0) {
			t.Fatalf("inside %t: %+v", inside, asked)
		}
		if err := b.CM.Accept(b.now, asked[0].Function, asked[0].ID, 6, 1, nil); err != nil {
			t.Fatal(err)
		}
		b.Run(b.now)
		settle(sides)
		opened := 0
		for _, s := range []*side{a, b} {
			outs, to := s.take()
			for i, o := range outs {
				if o.Kind != cm.OutOpen {
					continue
				}
				opened++
				want := netip.AddrPort{}
				if !inside {
					want = underlayOf(3 - s.cfg.Host)
				}
				if to[i] != want || ShardOf(o.Params.LocalCID) != 3+int(s.cfg.Host) {
					t.Errorf("inside %t: open towards %v, CID %#x", inside, to[i], o.Params.LocalCID)
				}
			}
		}
		if opened != 2 {
			t.Fatalf("inside %t: %d ends opened", inside, opened)
		}
		if n := len(a.resolved); (n == 0) != inside {
			t.Errorf("inside %t: the way to the peer was asked for %d times", inside, n)
		}
		if err := a.CM.Disconnect(a.now, function(a.cfg.Host, 1), id); err != nil {
			t.Fatal(err)
		}
		if !inside {
			if !a.Disconnecting() {
				t.Error("nobody waits for the peer's word")
			}
			a.CM.PeerDown(a.now, b.id())
			if a.Disconnecting() || a.Reachable(b.id()) {
				t.Error("waits for a peer that cannot be reached")
			}
			a.Run(a.now)
			a.Messages() // lost with the link
			a.CM.PeerUp(a.now, b.id())
			b.CM.PeerUp(b.now, a.id())
			b.Run(b.now)
		}
		a.Run(a.now)
		settle(sides)
		for _, s := range sides {
			s.rest(sides)
		}
	}
}

// TestAManagerKeepsTheQuotaOfCIDs: a function without room for another connection gets an error.
// Its connections end when nothing agreed with the peer can be trusted any more.
func TestAManagerKeepsTheQuotaOfCIDs(t *testing.T) {
	sides := newSides(t)
	a, b := sides[0], sides[1]
	for i := range 9 {
		_, err := connect(a, b)
		if i < 8 && err != nil || i == 8 && !errors.Is(err, ErrNoCID) {
			t.Errorf("connection %d: %v", i, err)
		}
	}
	if n, quota := a.CIDs(function(1, 1)); n != 8 || quota != 8 {
		t.Errorf("%d of %d", n, quota)
	}
	a.CM.ForgetPeer(a.now, 2)
	a.Run(a.now)
	if a.forgot != 1 || a.Reachable(2) {
		t.Errorf("%d times forgotten, reachable %t", a.forgot, a.Reachable(2))
	}
	a.Messages() // to nobody
	a.rest(sides)
}

// TestNewsOfKeysAndPortsIsPassedOn: changes of keys and of ports are passed to PeerKeys and Ports.
func TestNewsOfKeysAndPortsIsPassedOn(t *testing.T) {
	sides := newSides(t)
	a, b := sides[0], sides[1]
	if err := a.CM.SetPorts([]cm.PortAddress{{Tenant: 7, Addr: gid(1, 0), Function: function(1, 0), MTU: 1500}}); err != nil {
		t.Fatal(err)
	}
	sa, _ := a.RxSA(cm.Use{})
	if err := errors.Join(a.CM.Rekey(cm.Use{Peer: 2, Tenant: 7}, sa), a.CM.RequestRekey(cm.Use{Peer: 2, Tenant: 7, Class: cm.ClassGateway}, 0)); err != nil {
		t.Fatal(err)
	}
	a.CM.Advance(a.now)
	a.Run(a.now)
	settle(sides)
	if b.ports != 1 || len(b.keys) != 2 || len(a.keys) != 1 || a.keys[0] != cm.OutRekeyed {
		t.Errorf("ports %d, keys of the peer %v, our own %v", b.ports, b.keys, a.keys)
	}
	if len(a.outputs)+len(b.outputs) != 0 {
		t.Error("functions hear of it")
	}
}

// TestAQueuePairConnectedWithItselfTakesACID: CIDs of queue pairs connected with themselves count
// for their function's quota. They are released one by one or when the function ends, once each.
func TestAQueuePairConnectedWithItselfTakesACID(t *testing.T) {
	s := newSides(t)[0]
	fn := function(1, 1)
	take := func() Answer {
		s.answers = nil
		s.Take(s.now, &Request{Kind: TakeCID, Function: fn, Question: Question{N: 3}})
		if len(s.answers) != 1 || s.answers[0].Question.N != 3 {
			t.Fatalf("%+v", s.answers)
		}
		return s.answers[0]
	}
	var last Answer
	for range 8 {
		if last = take(); last.Err != nil || ShardOf(last.ID) != s.shard {
			t.Fatalf("%+v", last)
		}
	}
	if a := take(); !errors.Is(a.Err, ErrNoCID) {
		t.Errorf("%+v", a)
	}
	for range 2 { // a second time is nobody's
		s.Take(s.now, &Request{Kind: GiveCID, Function: fn, N: last.ID})
	}
	if n := s.CIDsInUse(); n != 7 {
		t.Errorf("%d in use", n)
	}
	s.Take(s.now, &Request{Kind: Gone, Function: fn})
	s.Take(s.now, &Request{Kind: GiveCID, Function: fn, N: last.ID})
	if n := s.CIDsInUse(); n != 0 || len(s.selves) != 0 {
		t.Errorf("%d in use", n)
	}
}

// TestADriverHasItsFullNumberOfListeners: a driver may listen on its full number of services, in
// addition to those of the NICs.
func TestADriverHasItsFullNumberOfListeners(t *testing.T) {
	s := newSides(t)[0]
	fn := function(1, 1)
	s.Take(s.now, &Request{Kind: Begin, Function: fn, Epoch: 1})
	for i := range uint64(driverListeners + 1) {
		s.answers = nil
		s.Take(s.now, &Request{Kind: Listen, Function: fn, Service: i, Question: Question{N: 1}})
		if len(s.answers) != 1 {
			t.Fatalf("listener %d: %+v", i, s.answers)
		}
		err := s.answers[0].Err
		if (err == nil) != (i < driverListeners) || err != nil && !errors.Is(err, cm.ErrLimit) {
			t.Fatalf("listener %d: %v", i, err)
		}
	}
}
