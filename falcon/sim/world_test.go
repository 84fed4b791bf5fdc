package sim_test

import (
	"bytes"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// joined is a World with one connection whose packets are traced.
func joined(t *testing.T, imp sim.Impairment) (w *sim.World, a *falcon.Conn, ulps [2]*sim.ULP) {
	t.Helper()
	ulps = [2]*sim.ULP{{Record: true}, {Record: true}}
	cfg := falcon.Config{Profile: falcon.Hardware()}
	cfg.Profile.OpGap = 0
	w = sim.NewWorld(1, [2]falcon.Config{cfg, cfg}, [2]sim.Handler{ulps[0], ulps[1]}, imp)
	w.Now, w.Tracing = ms, true
	a, _, err := w.Connect(falcon.ConnConfig{LocalCID: 1, RemoteCID: 2, Protocol: wire.ProtocolRDMA, MTU: 4200})
	if err != nil {
		t.Fatal(err)
	}
	return w, a, ulps
}

func push(t *testing.T, w *sim.World, c *falcon.Conn, n int) {
	t.Helper()
	for i := range n {
		if err := c.Push(w.Now, uint64(i), 100); err != nil {
			t.Fatal(err)
		}
	}
}

// TestStepEndsAtRest: over links without delay one step does all of an exchange.
func TestStepEndsAtRest(t *testing.T) {
	w, a, ulps := joined(t, sim.Impairment{})
	w.FlushAcks = true
	push(t, w, a, 1)
	w.Step()
	if n := len(ulps[0].Events); n != 1 || ulps[0].Events[0].Kind != falcon.EvPushDone {
		t.Errorf("%d events, want the completion", n)
	}
}

// TestRunToTheBorder: what happens exactly at the end of a run happens in it.
func TestRunToTheBorder(t *testing.T) {
	w, a, ulps := joined(t, sim.Impairment{Delay: 5 * us})
	start := w.Now
	push(t, w, a, 1)
	w.Run(start+5*us-1, nil)
	if len(ulps[1].Events) != 0 || w.Now != start+5*us-1 {
		t.Errorf("%d events at %d, before the packet is there", len(ulps[1].Events), w.Now-start)
	}
	w.Run(start+5*us, nil)
	if len(ulps[1].Events) != 1 || w.Now != start+5*us {
		t.Errorf("%d events at %d", len(ulps[1].Events), w.Now-start)
	}
}

// TestAHeldPacketIsLateAndOthersAreNot: a packet that is held back enters the link that much later, others at once.
func TestAHeldPacketIsLateAndOthersAreNot(t *testing.T) {
	w, a, ulps := joined(t, sim.Impairment{Delay: 5 * us})
	start, seen := w.Now, 0
	w.Filter = func(from int, _ []byte) sim.Verdict {
		if seen++; from == 0 && seen == 1 {
			return sim.Verdict{Delay: 2 * us}
		}
		return sim.Verdict{}
	}
	push(t, w, a, 2)
	w.Step()
	if n := w.Links[0].InFlight(); n != 1 {
		t.Errorf("%d packets on the link, want the one that is not held", n)
	}
	w.Run(start+20*us, nil)
	var at []falcon.Time
	for _, e := range ulps[1].Events {
		at = append(at, e.At-start)
	}
	if len(at) != 2 || at[0] != 5*us || at[1] != 7*us {
		t.Errorf("delivered after %v, want 5 and 7 µs", at)
	}
}

// TestTraceTellsOfLosses: a packet counts as lost if the filter or the link dropped it, but not if
// only its copy found no room.
func TestTraceTellsOfLosses(t *testing.T) {
	for what, c := range map[string]struct {
		imp    sim.Impairment
		filter bool
		want   []bool
	}{
		"a good link":       {sim.Impairment{}, false, []bool{false, false}},
		"the filter":        {sim.Impairment{}, true, []bool{true, true}},
		"a link down":       {sim.Impairment{Down: true}, false, []bool{true, true}},
		"a full link":       {sim.Impairment{Delay: us, Queue: 1}, false, []bool{false, true}},
		"a copy of a frame": {sim.Impairment{Delay: us, Queue: 1, Duplicate: 1}, false, []bool{false, true}},
	} {
		w, a, _ := joined(t, sim.Impairment{})
		w.Links[0].Set(c.imp)
		w.Filter = func(from int, _ []byte) sim.Verdict { return sim.Verdict{Drop: c.filter && from == 0} }
		push(t, w, a, 2)
		w.Step()
		var got []bool
		for _, s := range w.Trace {
			if s.From == 0 {
				got = append(got, s.Lost)
			}
		}
		if len(got) != 2 || got[0] != c.want[0] || got[1] != c.want[1] {
			t.Errorf("%s: lost %v, want %v", what, got, c.want)
		}
	}
}

// TestLinkKeepsOrder: frames that take equally long arrive in the order in which they were sent.
func TestLinkKeepsOrder(t *testing.T) {
	l := sim.NewLink(1, sim.Impairment{Delay: 100})
	for i := range 100 {
		l.Send(5, []byte{byte(i)})
	}
	if _, ok := l.Receive(104); ok || l.Deadline() != 105 {
		t.Errorf("due at %d, received before: %v", l.Deadline(), ok)
	}
	for i := range 100 {
		if f, ok := l.Receive(105); !ok || f.Data[0] != byte(i) {
			t.Fatalf("frame %d: %v, %v", i, f, ok)
		}
	}
}

// TestLinkCorruptsABit: of a corrupted frame exactly one bit is another, which may be any; one
// without bits passes.
func TestLinkCorruptsABit(t *testing.T) {
	l := sim.NewLink(1, sim.Impairment{Corrupt: 1})
	const size = 4
	seen := map[int]bool{}
	for range 2000 {
		l.Send(0, make([]byte, size))
		f, ok := l.Receive(0)
		if !ok {
			t.Fatal("lost")
		}
		changed := 0
		for i := range 8 * size {
			if f.Data[i/8]>>(i%8)&1 != 0 {
				changed++
				seen[i] = true
			}
		}
		if changed != 1 {
			t.Fatalf("%x: %d bits changed", f.Data, changed)
		}
	}
	if len(seen) != 8*size {
		t.Errorf("only %d of %d bits are ever changed", len(seen), 8*size)
	}
	if st := l.Stats(); st.Corrupted != 2000 || st.Delivered != 2000 {
		t.Errorf("%+v", st)
	}
	l.Send(0, nil)
	if f, ok := l.Receive(0); !ok || len(f.Data) != 0 {
		t.Errorf("an empty frame: %x, %v", f.Data, ok)
	}
}

// TestLinkCountsOverflow: a frame that finds no room is lost, and so is a copy. Each is counted,
// and takes no time of the line.
func TestLinkCountsOverflow(t *testing.T) {
	l := sim.NewLink(1, sim.Impairment{Queue: 3, Duplicate: 1, Rate: 8e9, ReorderDelay: 7})
	for range 3 {
		l.Send(0, bytes.Repeat([]byte{1}, 100)) // 100 ns each
	}
	var at []falcon.Time
	for l.InFlight() > 0 {
		now := l.Deadline()
		if _, ok := l.Receive(now); !ok {
			t.Fatal("nothing is there at the deadline")
		}
		at = append(at, now)
	}
	if len(at) != 3 || at[0] != 100 || at[1] != 100 || at[2] != 200 {
		t.Errorf("arrive at %v", at)
	}
	want := sim.LinkStats{Sent: 3, Duplicated: 2, Overflowed: 2, Delivered: 3}
	if got := l.Stats(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	l.Send(250, bytes.Repeat([]byte{1}, 100))
	if l.Deadline() != 350 {
		t.Errorf("a frame on a line that is idle again arrives at %d", l.Deadline())
	}
}

// TestEachMarkedFrameIsCounted: of frames that are marked each one is counted.
func TestEachMarkedFrameIsCounted(t *testing.T) {
	l := sim.NewLink(1, sim.Impairment{Mark: 1})
	for range 5 {
		l.Send(0, []byte{1})
		if f, _ := l.Receive(0); !f.CE {
			t.Error("not marked")
		}
	}
	if st := l.Stats(); st.Marked != 5 {
		t.Errorf("%d marked", st.Marked)
	}
}

// TestACorruptedPacketIsDroppedAndCounted: a node drops and counts corrupted packets.
func TestACorruptedPacketIsDroppedAndCounted(t *testing.T) {
	w, a, ulps := joined(t, sim.Impairment{})
	w.Links[0].Set(sim.Impairment{Corrupt: 1})
	push(t, w, a, 3)
	w.Step()
	if n := w.Nodes[1]; n.Bad != 3 || len(ulps[1].Events) != 0 {
		t.Errorf("%d bad packets, %d events", n.Bad, len(ulps[1].Events))
	}
}

// TestEachPayloadThatMismatchesItsKeyIsCounted: each payload that does not match its key is counted.
func TestEachPayloadThatMismatchesItsKeyIsCounted(t *testing.T) {
	u := &sim.ULP{OnPush: func(falcon.Time, *falcon.Event, uint64) {}}
	good := make([]byte, 20)
	sim.WritePayload(good, 9)
	bad := append(bytes.Clone(good), 0)
	for _, b := range [][]byte{good, bad, good, bad} {
		u.HandleEvent(0, &falcon.Event{Kind: falcon.EvPush, Data: b})
	}
	if u.Corrupt != 2 {
		t.Errorf("%d corrupt payloads, want 2", u.Corrupt)
	}
}

// TestTheLongestPacketsAreCarried: a World carries the longest packets there are.
func TestTheLongestPacketsAreCarried(t *testing.T) {
	ulps := [2]*sim.ULP{{Record: true}, {}}
	cfg := falcon.Config{Profile: falcon.Hardware()}
	w := sim.NewWorld(1, [2]falcon.Config{cfg, cfg}, [2]sim.Handler{ulps[0], ulps[1]}, sim.Impairment{})
	a, _, err := w.Connect(falcon.ConnConfig{LocalCID: 1, RemoteCID: 2, Protocol: wire.ProtocolRDMA, MTU: 0xffff})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Push(0, 1, 0xffff); err != nil {
		t.Fatal(err)
	}
	w.FlushAcks = true
	w.Step()
	if len(ulps[0].Events) != 1 || ulps[1].Corrupt != 0 {
		t.Errorf("%d events, %d corrupt payloads", len(ulps[0].Events), ulps[1].Corrupt)
	}
}
