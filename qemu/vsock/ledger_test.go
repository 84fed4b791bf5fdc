package vsock

import (
	"testing"
	"time"
)

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

// TestAFlowIsRecordedUntilItsResetIsSent: a process that ends before it has a link, or room for all
// resets, leaves them to the next. One whose link ended sends them by its next link.
func TestAFlowIsRecordedUntilItsResetIsSent(t *testing.T) {
	mem := make([]byte, LedgerSize)
	begin := func() *Transport {
		tr := NewTransport(HostCID, guestCID)
		tr.UseLedger(NewLedger(mem))
		return tr
	}
	open := func(tr *Transport) {
		l, err := tr.Listen(7)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		tr.SetLink(newWire(3776, 3))
		for port := range uint32(3) {
			inject(tr, fromGuest(OpRequest, port, 7), nil)
			if _, err := l.AcceptConn(); err != nil {
				t.Fatal(err)
			}
		}
		tr.SetLink(nil)
	}
	resets := func(tr *Transport, room int) (n int) {
		w := newWire(3776, room)
		tr.SetLink(w)
		for n = len(w.packets); len(w.packets) > 0; {
			if h := w.header(t); h.Op != OpReset || h.SrcPort != 7 {
				t.Errorf("sent: %+v", h)
			}
		}
		return n
	}
	tr := begin()
	open(tr)
	tr.Close()
	begin().Close()
	for i, want := range []int{1, 1, 1, 0} {
		if n := resets(begin(), 1); n != want {
			t.Errorf("process %d, with room for one, sent %d resets, want %d", i, n, want)
		}
	}
	tr = begin()
	open(tr)
	tr.Reset()
	if n := resets(tr, 9); n != 3 {
		t.Errorf("by the next link: %d resets", n)
	}
	open(tr)
	tr.Reset()
	clear(mem) // the peer has lost its flows
	if n := resets(tr, 9); n != 0 {
		t.Errorf("after the ledger was cleared: %d resets", n)
	}
}

// TestADialTakesNoPortOfAnEarlierFlow: the peer may still have that flow.
func TestADialTakesNoPortOfAnEarlierFlow(t *testing.T) {
	mem := make([]byte, LedgerSize)
	NewLedger(mem).add(flowKey{local: firstPort, remote: 9})
	tr := NewTransport(HostCID, guestCID)
	tr.UseLedger(NewLedger(mem))
	defer tr.Close()
	if _, err := tr.Dial(9, time.Nanosecond); err == nil {
		t.Fatal("nobody is there")
	}
	if !NewLedger(mem).has(flowKey{local: firstPort + 1, remote: 9}) {
		t.Error("it has another port than the next")
	}
}
