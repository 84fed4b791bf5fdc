package shard

import (
	"testing"

	"github.com/falcon-vnic/vnic/device/capture"
)

// TestTapPointWants: what passes is copied where a capture wants it, whichever of several that is.
func TestTapPointWants(t *testing.T) {
	ports := map[capture.Port]int{{Name: "vp0"}: 2}
	for _, c := range []struct {
		sinks                 []capture.Sink
		sealed, clear, ported bool
	}{
		{nil, false, false, false},
		{[]capture.Sink{{}}, false, false, false},
		{[]capture.Sink{{Sealed: true}}, true, false, false},
		{[]capture.Sink{{Clear: true}}, false, true, false},
		{[]capture.Sink{{AnyPort: true}}, false, false, true},
		{[]capture.Sink{{Ports: ports}}, false, false, true},
		{[]capture.Sink{{Ports: ports}, {Sealed: true}}, true, false, true},
		{[]capture.Sink{{Sealed: true}, {Clear: true}, {}}, true, true, false},
		{[]capture.Sink{{AnyPort: true, Clear: true}, {Sealed: true}}, true, true, true},
	} {
		var p tapPoint
		for _, before := range [][]capture.Sink{nil, {{Sealed: true, Clear: true, AnyPort: true}}} {
			p.set(before)
			p.set(c.sinks)
			if p.wantSealed != c.sealed || p.wantClear != c.clear || p.wantPorts != c.ported || len(p.sinks) != len(c.sinks) {
				t.Errorf("%+v: sealed %t, clear %t, ports %t", c.sinks, p.wantSealed, p.wantClear, p.wantPorts)
			}
		}
	}
}
