package shard

import (
	"testing"

	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/falcon/cm"
)

// TestRoutesTold checks that routes name the port or the peer that has an address, and whether the
// way to the peer is sealed.
func TestRoutesTold(t *testing.T) {
	v := newPortWorld(t, 1)
	kinds := map[string]int{}
	for _, r := range v.cores[0].Routes() {
		kinds[r.Kind]++
		if named := r.Port != ""; named != (r.Kind == "port") {
			t.Errorf("%+v names a port: %v", r, named)
		}
		if named := r.Peer != 0; named != (r.Kind == "peer") {
			t.Errorf("%+v names a peer: %v", r, named)
		}
	}
	var list []control.Route
	for _, s := range v.nics[0] {
		list = append(list, s.View().Tunnels()...)
	}
	for _, r := range list {
		if !r.Sealed || r.Peer != 2 {
			t.Errorf("tunnel %+v", r)
		}
	}
	if len(list) != 2 { // in both tenants
		t.Errorf("tunnels %+v", list)
	}
	if kinds["port"] == 0 || kinds["peer"] == 0 {
		t.Errorf("routes by kind: %v", kinds)
	}
}

// TestWiringEnds checks that a refused connection attempt is repeated, and that a connection that
// ended is not made again.
func TestWiringEnds(t *testing.T) {
	for _, tc := range []struct {
		kind  cm.OutputKind
		again int
	}{{cm.OutRejected, 1}, {cm.OutDisconnected, 0}} {
		v := newVirtual(t, 1, wire100us)
		a, b := drivers(v)
		a.toRTR(b.qpn, b.fn.GID())
		b.toRTR(a.qpn, a.fn.GID())
		f := a.fn
		if n, _ := f.conns.Waiting(); n == 0 {
			f = b.fn // the one with the smaller GID asks
		}
		ids := f.conns.IDs()
		if len(ids) != 1 {
			t.Fatalf("%d attempts", len(ids))
		}
		later := f.set.conns.Deadline()
		for epoch := range uint32(10) { // in one of them it is in service
			f.set.conns.Decide(v.now, &conn.Decision{Output: cm.Output{Kind: tc.kind, ID: ids[0], Function: uint32(f.ID)}, Epoch: epoch})
		}
		n, _ := f.conns.Waiting()
		if again := f.set.conns.Deadline() < later; n != tc.again || again != (tc.again == 1) {
			t.Errorf("%v: %d wirings, want %d; made again: %t", tc.kind, n, tc.again, again)
		}
	}
}
