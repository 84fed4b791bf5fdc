package device

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon/cm"
)

// TestRoutesTold: routes name the port or the peer that has an address, and a peer's that is sealed says so (F65).
func TestRoutesTold(t *testing.T) {
	v := newPortWorld(t, 1)
	kinds := map[string]int{}
	for _, r := range v.shards[0].routes() {
		kinds[r.Kind]++
		if named := r.Port != ""; named != (r.Kind == "port") {
			t.Errorf("%+v names a port: %v", r, named)
		}
		if sealed := r.Sealed && r.Peer != 0; sealed != (r.Kind == "peer") {
			t.Errorf("%+v names a peer: %v", r, sealed)
		}
	}
	if kinds["port"] == 0 || kinds["peer"] == 0 {
		t.Errorf("routes by kind: %v", kinds)
	}
}

// TestWiringEnds: an attempt that was refused is made again, and a connection that ended is not (F65).
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
		if f.wirings[a.qpn] == nil {
			f = b.fn // the one with the smaller GID asks
		}
		asked := 0
		for qpn, w := range f.wirings {
			s := f.shard
			f.wireEnded(v.now, &cm.Output{Kind: tc.kind, ID: w.id}, f.conns[w.id])
			if len(s.rewire) != tc.again || len(f.wirings) != tc.again || w.qpn != qpn {
				t.Errorf("%v: %d attempts to come, %d wirings; want %d", tc.kind, len(s.rewire), len(f.wirings), tc.again)
			}
			asked++
			break
		}
		if asked != 1 {
			t.Error("nobody asks")
		}
	}
}
