package cm

import "testing"

// TestCountersOfAnExchange: both managers count their events exactly.
func TestCountersOfAnExchange(t *testing.T) {
	w, a, b := two(t, nil)
	ida, _ := establish(t, w, a, b)
	if _, err := a.connect(0, 2, 0, 99); err != nil { // nobody listens
		t.Fatal(err)
	}
	w.settle()
	if !a.rekey(sealedBy(2, 0)) {
		t.Fatal("no new SA")
	}
	w.settle()
	if err := a.disconnect(ida); err != nil {
		t.Fatal(err)
	}
	wantEmpty(t, w)
	w.setLink(1, 2, false, nil)
	w.settle()
	want(t, b, Stats{Sent: 6, Received: 7, NoListener: 1, Established: 1, Disconnected: 1, KeysReceived: 2})
	b.start() // a new life
	w.setLink(1, 2, true, nil)
	w.settle()
	want(t, a, Stats{Sent: 8, Received: 7, Established: 1, Disconnected: 1, PeerRestarts: 1, KeysReceived: 1, Rekeyed: 1})
	want(t, b, Stats{Sent: 1, Received: 1})
}

func want(t *testing.T, n *node, s Stats) {
	t.Helper()
	if got := n.m.Stats(); got != s {
		t.Errorf("host %d: %+v\nwant %+v", n.host, got, s)
	}
}
