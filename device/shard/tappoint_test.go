package shard

import (
	"bytes"
	"testing"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/gateway"
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

// TestTapPointPorts: a frame of a port is in the captures that name the port, and in those that
// take any port, which learn of it then.
func TestTapPointPorts(t *testing.T) {
	shown := capture.Port{Name: "vp0"}
	for _, c := range []struct {
		sink func(*capture.Capture) capture.Sink
		want int
	}{
		{func(to *capture.Capture) capture.Sink {
			return capture.Sink{To: to, Ports: map[capture.Port]int{{Name: "vp1"}: 2}}
		}, 0},
		{func(to *capture.Capture) capture.Sink {
			return capture.Sink{To: to, Ports: map[capture.Port]int{shown: 2}}
		}, 2},
		{func(to *capture.Capture) capture.Sink {
			return capture.Sink{To: to, Ports: map[capture.Port]int{}, AnyPort: true}
		}, 2},
	} {
		var file bytes.Buffer
		to, err := capture.New(&file, shown)
		if err != nil {
			t.Fatal(err)
		}
		var p tapPoint
		p.set([]capture.Sink{c.sink(to)})
		frame := []byte("a frame of a port, as it is")
		for range 2 {
			p.port(captureIn, 0, &Port{shown: shown}, &gateway.Offload{}, frame)
		}
		if err := to.Close(); err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(file.Bytes(), frame); n != c.want {
			t.Errorf("%d frames are captured, want %d", n, c.want)
		}
	}
}
