package shard

import (
	"bytes"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/security"
)

// TestSurvivesPanics checks that a frame that makes the code that parses it panic is counted and
// logged, and that all other traffic continues. No such frame is known, so the test breaks the
// state that the code works on.
func TestSurvivesPanics(t *testing.T) {
	v := newPortWorld(t, 61)
	a, b := pair(v)
	s := v.shards[1]
	var log bytes.Buffer
	v.logTo(1, &log)
	var sealed []byte
	v.tap = func(from int, f []byte) []byte {
		if from == 0 && len(f) > 500 {
			sealed = bytes.Clone(f[42:])
		}
		return f
	}
	exchange(t, a, b, 1000)

	underlay := s.underlay
	s.underlay = nil
	if _, verdict := s.in.input(v.now, []byte("a frame")); verdict.String() != "drop-runt" || s.drops[dropPanic] != 1 {
		t.Errorf("%s, counted %d times", verdict, s.drops[dropPanic])
	}
	s.underlay = underlay

	opener := s.in.opener
	s.in.opener = nil
	if _, ok := s.in.openSealed(v.now, sealed); ok || s.drops[dropPanic] != 2 {
		t.Errorf("opened: %v, counted %d times", ok, s.drops[dropPanic])
	}
	s.in.opener = opener
	if _, ok := s.in.findFalcon(v.now, &security.Opened{}); ok {
		t.Error("there is something in nothing")
	}

	v.ports[1] = append(v.ports[1], gateway.PortInput{Frame: make([]byte, 100)}) // from no port
	v.heard(0)
	if n := v.reason(1, gateway.DropPanic); n != 1 {
		t.Errorf("the gateway counted %d", n)
	}
	if n := strings.Count(log.String(), "please report"); n != 3 || !strings.Contains(log.String(), "fromPort") {
		t.Errorf("%d lines in the log:\n%s", n, log.String())
	}

	exchange(t, a, b, 1000)
	v.say(0, 0, host1, host2, 500)
	v.say(1, 0, host2, host1, 500)
	v.idle(1e6)
	if len(v.heard(1)) != 1 || len(v.heard(0)) != 1 {
		t.Error("plain IP does not pass any more")
	}
}
