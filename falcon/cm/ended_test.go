package cm

import "testing"

// TestDisconnectWithoutALink: a disconnect waits for a peer that is up, not for one that is down.
func TestDisconnectWithoutALink(t *testing.T) {
	for _, tc := range []struct {
		up   bool
		want State
	}{{true, StateDreqSent}, {false, StateTimeWait}} {
		w, a, b := two(t, nil)
		ida, _ := establish(t, w, a, b)
		if !tc.up {
			w.setLink(1, 2, false, nil)
			w.settle()
		}
		if err := a.disconnect(ida); err != nil {
			t.Fatal(err)
		}
		if c := a.m.conns.byID[ida]; c.state != tc.want {
			t.Errorf("peer up %v: state %v, want %v", tc.up, c.state, tc.want)
		}
	}
}
