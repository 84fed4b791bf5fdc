package controller

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/falcon/cm"
)

// changer returns a NIC with peer 2 and a function that changes its peers as an operator does.
func changer(t *testing.T) (*nic, func(control.PeerChange) error) {
	n := newNIC(t)
	return n, func(c control.PeerChange) error { return n.Peers.operate(n.now, &c) }
}

// third is what an operator says of a third NIC.
func third() control.PeerChange {
	underlay, addr := "10.99.0.3", "127.0.0.1:3"
	return control.PeerChange{
		Action: "add", Name: "3", Underlay: &underlay, CM: &addr, Tenants: &[]uint32{7},
		Addresses: &[]control.PeerAddress{{Tenant: 7, Address: "192.168.100.31"}},
	}
}

// TestEachRoomHearsOfAPeerThatComesChangesAndGoes: the shards, the link and the registry of
// functions are told, once each.
func TestEachRoomHearsOfAPeerThatComesChangesAndGoes(t *testing.T) {
	n, change := changer(t)
	listed := []control.PeerAddress{{Tenant: 7, Address: "192.168.100.21"}} // two peers share the tenant
	if err := change(control.PeerChange{Action: "set", Name: "2", Addresses: &listed}); err != nil {
		t.Fatal(err)
	}
	n.told()
	links := func() (is []LinkChange) {
		n.Step(n.now, &n.out)
		return n.out.Links
	}
	if err := change(third()); err != nil {
		t.Fatal(err)
	}
	id := n.Peers.Find("3").ID
	if l := links(); len(l) != 1 || l[0].Name != "3" || l[0].Gone || l[0].Is.CM.String() != "127.0.0.1:3" {
		t.Errorf("links: %+v", l)
	}
	if got := n.told(); !strings.Contains(got[0], "peer 3 at 10.99.0.3") || !strings.Contains(got[1], "peer 3 at 10.99.0.3") {
		t.Errorf("shards: %q", got)
	}
	moved := "10.99.0.33"
	if err := change(control.PeerChange{Action: "set", Name: "3", Underlay: &moved}); err != nil {
		t.Fatal(err)
	}
	if l := links(); len(l) != 1 || n.Peers.Find("3").ID != id {
		t.Errorf("links: %+v", l)
	}
	if got := n.told(); !strings.Contains(got[0], "peer 3 at 10.99.0.33") {
		t.Errorf("shards: %q", got)
	}
	if err := n.Functions.AddGID(vf(1), netip.MustParseAddr("192.168.100.31").As16(), [16]byte{}); err == nil {
		t.Error("a driver gets an address that is listed for a peer")
	}
	if err := change(control.PeerChange{Action: "remove", Name: "3"}); err != nil {
		t.Fatal(err)
	}
	if l := links(); len(l) != 1 || !l[0].Gone || l[0].ID != id {
		t.Errorf("links: %+v", l)
	}
	if got := n.told(); !strings.Contains(got[0], "no peer 3") || !strings.Contains(got[1], "no peer 3") {
		t.Errorf("shards: %q", got)
	}
	if err := n.Functions.AddGID(vf(1), netip.MustParseAddr("192.168.100.31").As16(), [16]byte{}); err != nil {
		t.Error("an address that was a peer's:", err)
	}
	if err := change(third()); err == nil {
		t.Error("a peer gets an address that a driver has")
	}
}

// TestABadChangeOfPeersChangesNothing: the error names the peer, the value and the remedy.
func TestABadChangeOfPeersChangesNothing(t *testing.T) {
	n, change := changer(t)
	text := func(s string) *string { return &s }
	with := func(f func(*control.PeerChange)) control.PeerChange {
		c := third()
		f(&c)
		return c
	}
	for _, tc := range []struct {
		c    control.PeerChange
		want string
	}{
		{control.PeerChange{Action: "remove", Name: "9"}, "unknown peer 9; this NIC's peers are 2 (vnic peer list)"},
		{control.PeerChange{Action: "set", Name: "9"}, "unknown peer 9"},
		{control.PeerChange{Action: "add", Name: "2"}, "peer 2 exists already"},
		{control.PeerChange{Action: "move", Name: "2"}, `unknown action "move"; use add, set or remove`},
		{control.PeerChange{Action: "set"}, "the peer's name is missing"},
		{with(func(c *control.PeerChange) { c.Underlay = text("x") }), `peer 3: underlay: "x" is not an IPv4 or IPv6 address; write it as 10.0.0.2`},
		{with(func(c *control.PeerChange) { c.Underlay = nil }), "peer 3.underlay: missing"},
		{with(func(c *control.PeerChange) { c.Underlay = text("10.99.0.2") }), "10.99.0.2 is already used by peer 2"},
		{with(func(c *control.PeerChange) { c.CM = text("127.0.0.1") }), `peer 3: cm "127.0.0.1": write its cm.listen`},
		{with(func(c *control.PeerChange) { c.Identity = text("vnic://test/host/4") }), `peer 3.identity: "vnic://test/host/4" is the identity of NIC 4, but the peer is 3`},
		{with(func(c *control.PeerChange) { c.Tenants = &[]uint32{} }), "peer 3.tenants: missing"},
		{third(), "peer 2.functions: tenant 7 is shared by 2 peers and this one's functions in it are not listed"},
		{control.PeerChange{Action: "set", Name: "2", Addresses: &[]control.PeerAddress{{Tenant: 7, Address: "192.168.100.11"}}}, "192.168.100.11 of tenant 7 is the address of h1.pf0.vf1"},
	} {
		if err := change(tc.c); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v, want %q", tc.c, err, tc.want)
		}
	}
	if got := n.told(); got != [2]string{} || n.Peers.Len() != 1 {
		t.Errorf("something changed: %q, %d peers", got, n.Peers.Len())
	}
}

// TestAPeerWithAnotherIdentityIsAnotherNIC: the link, keys and connections of the one that had the name
// end, and then the other one gets a link.
func TestAPeerWithAnotherIdentityIsAnotherNIC(t *testing.T) {
	n, change := changer(t)
	old := n.id(2)
	for _, identity := range []string{"vnic://elsewhere/host/2", ""} {
		n.told()
		if err := change(control.PeerChange{Action: "set", Name: "2", Identity: &identity}); err != nil {
			t.Fatal(err)
		}
		n.Step(n.now, &n.out)
		id, l := n.id(2), n.out.Links
		if len(l) != 2 || !l[0].Gone || l[0].ID != old || l[1].Gone || l[1].ID != id || id == old || l[1].Is.Identity != identity {
			t.Errorf("identity %q: links %+v", identity, l)
		}
		var did ordered
		n.out.pass(&did)
		if want := []string{fmt.Sprint("remove ", old), fmt.Sprint("set ", id)}; !slices.Equal(did.list, want) {
			t.Errorf("identity %q: the links were told %v, want %v", identity, did.list, want)
		}
		if got := n.told(); !strings.Contains(got[0], "no peer 2, peer 2 at ") {
			t.Errorf("identity %q: shards are told %q", identity, got)
		}
		old = id
	}
}

// ordered is links that record in which order they are told.
type ordered struct {
	notes
	list []string
}

func (o *ordered) Set(p *Peer)         { o.list = append(o.list, fmt.Sprint("set ", p.ID)) }
func (o *ordered) Remove(id cm.PeerID) { o.list = append(o.list, fmt.Sprint("remove ", id)) }

// TestIDsOfPeersGoAround: an ID is not given again before all others were.
func TestIDsOfPeersGoAround(t *testing.T) {
	n, _ := changer(t)
	first := n.Peers.Find("2").ID
	n.Peers.last = cm.MaxPeerID - 1
	var got []cm.PeerID
	for range 3 {
		got = append(got, n.Peers.nextID())
	}
	if got[0] != cm.MaxPeerID || got[1] == first || got[1] == got[2] || got[1] == cm.Self {
		t.Errorf("IDs %v, and %d is in use", got, first)
	}
}

// TestRemovedPeersFreeTheCountOfWrongKeys: what a shard counts for a peer goes with the peer.
func TestRemovedPeersFreeTheCountOfWrongKeys(t *testing.T) {
	n, change := changer(t)
	c := n.ShardLink(0)
	c.SPIRefused(cm.Use{Peer: n.id(2), Tenant: 7})
	if err := change(control.PeerChange{Action: "remove", Name: "2"}); err != nil {
		t.Fatal(err)
	}
	if n.told(); len(c.refused) != 0 {
		t.Errorf("%d counts are left", len(c.refused))
	}
	if n.Peers.Set(n.now, []config.Peer{}) != nil || n.Peers.Len() != 0 {
		t.Error("there are peers")
	}
}
