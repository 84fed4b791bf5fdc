package vsock

import "testing"

// TestFlowsOfADeadProcessAreReset: flows that end with their process are reset by the next, each
// once; those that ended before are not.
func TestFlowsOfADeadProcessAreReset(t *testing.T) {
	mem := make([]byte, LedgerSize)
	begin := func() (*Transport, *wire) {
		tr := NewTransport(HostCID, guestCID)
		tr.UseLedger(NewLedger(mem))
		w := newWire(3776, 2*maxFlows)
		tr.SetLink(w)
		return tr, w
	}
	tr, w := begin()
	l, err := tr.Listen(7)
	if err != nil {
		t.Fatal(err)
	}
	const first = 1 << 31
	for i := range uint32(maxFlows) {
		inject(tr, fromGuest(OpRequest, first+i, 7), nil)
		if _, err := l.AcceptConn(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint32(10) {
		inject(tr, fromGuest(OpReset, first+i*3, 7), nil)
	}
	inject(tr, fromGuest(OpRequest, first+3, 7), nil) // in the place of another
	w.ops(t)
	_, w = begin()
	seen := map[uint32]int{}
	for len(w.packets) > 0 {
		h := w.header(t)
		if h.Op != OpReset || h.SrcPort != 7 || h.DstCID != guestCID || h.Type != TypeStream {
			t.Fatalf("%+v", h)
		}
		seen[h.DstPort]++
	}
	for i := range uint32(maxFlows) {
		want := 1
		if i < 30 && i%3 == 0 && i != 3 {
			want = 0
		}
		if seen[first+i] != want {
			t.Errorf("flow %d was reset %d times, want %d", i, seen[first+i], want)
		}
	}
	if len(seen) != maxFlows-9 {
		t.Errorf("%d flows were reset", len(seen))
	}
	if _, w = begin(); len(w.packets) != 0 {
		t.Errorf("%d flows are reset again", len(w.packets))
	}
}
