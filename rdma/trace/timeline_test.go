package trace

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// line is the marks of an operation, as text.
func line(o *Operation) string {
	var words []string
	for _, m := range o.Marks() {
		words = append(words, fmt.Sprintf("%s=%d", m.Step, m.At))
	}
	return strings.Join(words, " ")
}

// lines assembles events, which happen one after the other from time 1 on, and says of each
// operation how it went, in the order in which they came out; "…" stands before those that were not
// whole.
func lines(events ...Event) (list []string) {
	a := NewAssembler(func(o *Operation) { list = append(list, line(o)) })
	for i := range events {
		events[i].At = int64(1 + i)
		a.Take(&events[i])
	}
	n := len(list)
	if a.Finish(); len(list) > n {
		list = slices.Insert(list, n, "…")
	}
	return list
}

// TestAnOperationComesOutWhenItIsWhole: which events make an operation whole, and what is known of it then.
func TestAnOperationComesOutWhenItIsWhole(t *testing.T) {
	for name, c := range map[string]struct {
		events []Event
		want   []string
	}{
		"request": {
			[]Event{
				{Kind: Doorbell, Work: 7, Index: 1},
				{Kind: Read, Work: 7},
				{Kind: Issued, Work: 7, Extra: 5},
				{Kind: Scheduled, Work: 7, Extra: 5},
				{Kind: Sealed, Work: 7, Extra: 5},
				{Kind: Acked, Work: 7, Extra: 5},
				{Kind: Completed, Work: 7, Extra: 4, Flags: Wanted},
				{Kind: Signalled, Extra: 3},
				{Kind: Signalled, Extra: 4},
			},
			[]string{"doorbell=1 wqe_read=2 issued=3 scheduled=4 sealed=5 acked=6 cqe_written=7 event=9"},
		},
		"request that wants no event": {
			[]Event{{Kind: Read, Work: 7}, {Kind: Completed, Work: 7, Extra: 4}, {Kind: Signalled, Extra: 4}},
			[]string{"wqe_read=1 cqe_written=2"},
		},
		"request that wants no completion": {
			[]Event{{Kind: Read, Work: 7}, {Kind: Acked, Work: 7}, {Kind: Completed, Work: 7, Flags: Silent}},
			[]string{"wqe_read=1 acked=2"},
		},
		"several packets": {
			[]Event{
				{Kind: Read, Work: 7},
				{Kind: Scheduled, Work: 7, Extra: 5},
				{Kind: Sealed, Work: 7, Extra: 5},
				{Kind: Scheduled, Work: 7, Extra: 6},
				{Kind: Sealed, Work: 7, Extra: 6},
				{Kind: Acked, Work: 7, Extra: 5},
				{Kind: Acked, Work: 7, Extra: 6},
				{Kind: Completed, Work: 7},
			},
			[]string{"wqe_read=1 scheduled=2 sealed=3 last_sealed=5 acked=7 cqe_written=8"},
		},
		"packet that was sent again": {
			[]Event{
				{Kind: Read, Work: 7},
				{Kind: Scheduled, Work: 7, Extra: 5},
				{Kind: Sealed, Work: 7, Extra: 5},
				{Kind: Scheduled, Work: 7, Extra: 5},
				{Kind: Sealed, Work: 7, Extra: 5},
				{Kind: Completed, Work: 7},
			},
			[]string{"wqe_read=1 scheduled=2 sealed=3 last_sealed=5 cqe_written=6"},
		},
		"several packets, before the first is sealed": {
			[]Event{
				{Kind: Read, Work: 7},
				{Kind: Scheduled, Work: 7, Extra: 5},
				{Kind: Scheduled, Work: 7, Extra: 6},
				{Kind: Sealed, Work: 7, Extra: 6},
				{Kind: Completed, Work: 7},
			},
			[]string{"wqe_read=1 scheduled=2 sealed=4 cqe_written=5"},
		},
		"one packet": {
			[]Event{
				{Kind: Read, Work: 7},
				{Kind: Scheduled, Work: 7},
				{Kind: Sealed, Work: 7},
				{Kind: Sealed, Work: 7},
				{Kind: Completed, Work: 7},
			},
			[]string{"wqe_read=1 scheduled=2 sealed=3 cqe_written=5"},
		},
		"request that ends with its completion": {
			[]Event{{Kind: Read, Work: 7}, {Kind: Issued, Work: 7, Wire: 1}, {Kind: Completed, Work: 7}},
			[]string{"wqe_read=1 issued=2 cqe_written=3"},
		},
		"datagram": {
			[]Event{
				{Kind: Read, Work: 7},
				{Kind: Issued, Work: 7, Flags: Owed},
				{Kind: Completed, Work: 7},
				{Kind: Acked, Work: 7},
			},
			[]string{"wqe_read=1 issued=2 cqe_written=3 acked=4"},
		},
		"datagram that nobody acknowledges": {
			[]Event{
				{Kind: Read, Work: 7},
				{Kind: Issued, Work: 7, Flags: Owed},
				{Kind: Gone, Work: 7},
				{Kind: Completed, Work: 7},
			},
			[]string{"wqe_read=1 issued=2 cqe_written=4"},
		},
		"datagram that is under way": {
			[]Event{{Kind: Read, Work: 7}, {Kind: Issued, Work: 7, Flags: Owed}, {Kind: Completed, Work: 7}},
			[]string{"…", "wqe_read=1 issued=2 cqe_written=3"},
		},
		"packet of the peer": {
			[]Event{
				{Kind: Received, Conn: 3, Index: 2, Extra: 8},
				{Kind: Opened, Conn: 3, Index: 2},
				{Kind: Delivered, Conn: 3, Index: 2},
				{Kind: Answered, Conn: 3, Index: 9},
			},
			[]string{"received=1 opened=2 delivered=3 acked=4"},
		},
		"packet of the peer that ends a message": {
			[]Event{
				{Kind: Received, Conn: 3, Index: 2, Extra: 8},
				{Kind: Delivered, Conn: 3, Index: 2, Flags: Wanted},
				{Kind: Answered, Conn: 3, Index: 9},
				{Kind: Completed, Conn: 3, Index: 2, Extra: 4, Flags: Responder | Wanted},
				{Kind: Signalled, Extra: 4},
			},
			[]string{"received=1 delivered=2 acked=3 cqe_written=4 event=5"},
		},
		"request of the peer": {
			[]Event{
				{Kind: Received, Conn: 3, Index: 2, Extra: 8},
				{Kind: Delivered, Conn: 3, Index: 2, Flags: Answering},
				{Kind: Scheduled, Conn: 3, Index: 2, Flags: Responder},
				{Kind: Sealed, Conn: 3, Index: 2, Flags: Responder},
				{Kind: Answered, Conn: 3, Index: 9},
				{Kind: Acked, Conn: 3, Index: 2, Flags: Responder},
			},
			[]string{"received=1 delivered=2 scheduled=3 sealed=4 acked=6"},
		},
		"request of the peer whose response nobody acknowledges": {
			[]Event{
				{Kind: Received, Conn: 3, Index: 2, Extra: 8},
				{Kind: Delivered, Conn: 3, Index: 2, Flags: Answering},
				{Kind: Gone, Conn: 3, Index: 2, Flags: Responder},
			},
			[]string{"received=1 delivered=2"},
		},
		"inside the NIC": {
			[]Event{{Kind: Delivered, Conn: 3, Index: 2, Flags: Loopback}, {Kind: Concluded, Conn: 3, Index: 2}},
			[]string{"delivered=1 acked=2"},
		},
		"packet that nothing became of": {
			[]Event{{Kind: Received, Conn: 3, Index: 2, Extra: 8}, {Kind: Opened, Conn: 3, Index: 2}},
			nil,
		},
	} {
		if got := lines(c.events...); !slices.Equal(got, c.want) {
			t.Errorf("%s:\n%q, want\n%q", name, got, c.want)
		}
	}
}

// TestTheFirstDoorbellOfAnEntryCounts: an entry's doorbell is the first that spoke of it; a doorbell speaks of all
// entries before its index, which wraps. Of very many that nobody read for the oldest are
// forgotten.
func TestTheFirstDoorbellOfAnEntryCounts(t *testing.T) {
	last := ^uint32(0)
	got := lines(
		Event{Kind: Doorbell, Work: 7, Index: last}, // 1
		Event{Kind: Found, Work: 7, Index: 1},       // 2
		Event{Kind: Doorbell, Work: 8, Index: 9},    // 3
		Event{Kind: Doorbell, Work: 7, Index: 2},    // 4
		Event{Kind: Read, Work: 7, Index: last - 1},
		Event{Kind: Read, Work: 7, Index: last},
		Event{Kind: Read, Work: 7, Index: 0},
		Event{Kind: Read, Work: 7, Index: 1},
		Event{Kind: Read, Work: 7, Index: 2},
	)
	want := []string{
		"…", "doorbell=1 wqe_read=5", "doorbell=2 wqe_read=6", "doorbell=2 wqe_read=7",
		"doorbell=4 wqe_read=8", "wqe_read=9",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want\n%q", got, want)
	}
	for _, rung := range []int{maxBells, maxBells + 1} {
		var events []Event
		for i := range rung {
			events = append(events, Event{Kind: Doorbell, Work: 7, Index: uint32(1 + i)})
		}
		got := lines(append(events, Event{Kind: Read, Work: 7})...)
		want := fmt.Sprintf("doorbell=%d wqe_read=%d", 1+rung-maxBells, 1+rung)
		if !slices.Equal(got, []string{"…", want}) {
			t.Errorf("%d doorbells: %q, want %q", rung, got, want)
		}
	}
}

// TestOperationsFoundWithoutADoorbellSaySo: an operation knows whether a doorbell said that it was there.
func TestOperationsFoundWithoutADoorbellSaySo(t *testing.T) {
	for kind, found := range map[Kind]bool{Doorbell: false, Found: true} {
		a := NewAssembler(func(o *Operation) {
			if o.Found != found {
				t.Errorf("kind %d: found is %t", kind, o.Found)
			}
		})
		a.Take(&Event{Kind: kind, Work: 7, Index: 1, At: 1})
		a.Take(&Event{Kind: Read, Work: 7, At: 2})
		a.Finish()
	}
}

// TestAnAcknowledgementCoversOnlyEarlierPackets: an acknowledgement is about the packets before its numbers, in the window that each
// is of, and about one connection. Numbers wrap.
func TestAnAcknowledgementCoversOnlyEarlierPackets(t *testing.T) {
	last := ^uint32(0)
	for name, c := range map[string]struct {
		psn      uint32
		flags    uint8
		conn     uint32
		requests uint32
		data     uint32
		acked    bool
	}{
		"request behind":  {10, 0, 3, 11, 0, true},
		"request itself":  {10, 0, 3, 10, 99, false},
		"request ahead":   {10, 0, 3, 9, 99, false},
		"data behind":     {10, Data, 3, 0, 11, true},
		"data itself":     {10, Data, 3, 99, 10, false},
		"wrapped":         {last, 0, 3, 0, 0, true},
		"not yet wrapped": {0, 0, 3, last, last, false},
		"another's":       {10, 0, 4, 11, 11, false},
	} {
		var got []*Operation
		a := NewAssembler(func(o *Operation) { got = append(got, o) })
		a.Take(&Event{Kind: Received, Conn: 3, Index: 2, Extra: c.psn, Flags: c.flags, At: 1})
		a.Take(&Event{Kind: Delivered, Conn: 3, Index: 2, At: 2})
		a.Take(&Event{Kind: Answered, Conn: c.conn, Index: c.requests, Extra: c.data, At: 3})
		if (len(got) == 1) != c.acked || (len(a.conns) == 0) != c.acked {
			t.Errorf("%s: %d came out, %d connections wait", name, len(got), len(a.conns))
		}
	}
}

// TestPacketsAnsweredTogether: of a connection's packets those that are acknowledged go, and the
// others wait on.
func TestPacketsAnsweredTogether(t *testing.T) {
	var events []Event
	for i := range uint32(3) {
		events = append(events, Event{Kind: Received, Conn: 3, Index: i, Extra: 8 + i}, Event{
			Kind: Delivered, Conn: 3,
			Index: i,
		})
	}
	events = append(events, Event{Kind: Answered, Conn: 3, Index: 10}, Event{Kind: Answered, Conn: 3, Index: 11})
	want := []string{"received=1 delivered=2 acked=7", "received=3 delivered=4 acked=7", "received=5 delivered=6 acked=8"}
	if got := lines(events...); !slices.Equal(got, want) {
		t.Errorf("%q, want\n%q", got, want)
	}
}

// TestLateEventsDoNotEndTheNextOperation: what is still to come of an operation whose queue began anew does not end the one
// in its place.
func TestLateEventsDoNotEndTheNextOperation(t *testing.T) {
	got := lines(
		Event{Kind: Read, Work: 7},
		Event{Kind: Completed, Work: 7, Extra: 4, Flags: Wanted},
		Event{Kind: Read, Work: 7}, // the first comes out
		Event{Kind: Signalled, Extra: 4},
		Event{Kind: Completed, Work: 7},
	)
	if want := []string{"wqe_read=1 cqe_written=2", "wqe_read=3 cqe_written=5"}; !slices.Equal(got, want) {
		t.Errorf("%q, want\n%q", got, want)
	}
}

// TestAnOperationIsNotWholeWhileItWaits: what an operation still waits for.
func TestAnOperationIsNotWholeWhileItWaits(t *testing.T) {
	acked, completed := [NumSteps]int64{StepAcked: 1}, [NumSteps]int64{StepCompleted: 1}
	both := [NumSteps]int64{StepAcked: 1, StepCompleted: 2}
	for name, c := range map[string]struct {
		o    Operation
		want bool
	}{
		"begun":                           {Operation{}, false},
		"over":                            {Operation{over: true}, true},
		"acknowledged":                    {Operation{At: acked}, false},
		"over, before its event":          {Operation{over: true, wantEvt: true}, false},
		"over, to be acknowledged":        {Operation{over: true, owed: true}, false},
		"over, acknowledged":              {Operation{over: true, owed: true, At: acked}, true},
		"over, gone":                      {Operation{over: true, owed: true, gone: true}, true},
		"gone":                            {Operation{owed: true, gone: true}, false},
		"peer's":                          {Operation{Responder: true}, false},
		"peer's, acknowledged":            {Operation{Responder: true, At: acked}, true},
		"peer's, gone":                    {Operation{Responder: true, gone: true}, true},
		"peer's, completed":               {Operation{Responder: true, wantCQE: true, At: completed}, false},
		"peer's, acknowledged, no CQE":    {Operation{Responder: true, wantCQE: true, At: acked}, false},
		"peer's, gone, no CQE":            {Operation{Responder: true, wantCQE: true, gone: true}, false},
		"peer's, all of it":               {Operation{Responder: true, wantCQE: true, At: both}, true},
		"peer's, all of it but the event": {Operation{Responder: true, wantCQE: true, wantEvt: true, At: both}, false},
	} {
		if got := c.o.Whole(); got != c.want {
			t.Errorf("%s: whole is %t", name, got)
		}
	}
}

// TestStepsAreInOrderOfTimeAndCause: the steps that were seen come in the order of time, and at the same time in that of
// cause: a responder acknowledges what it has delivered, and a requester completes what was
// acknowledged.
func TestStepsAreInOrderOfTimeAndCause(t *testing.T) {
	at := [NumSteps]int64{StepDelivered: 5, StepAcked: 5, StepCompleted: 5, StepReceived: 4, StepScheduled: 3}
	for responder, want := range map[bool]string{
		false: "scheduled=3 received=4 delivered=5 acked=5 cqe_written=5",
		true:  "scheduled=3 received=4 delivered=5 cqe_written=5 acked=5",
	} {
		if got := line(&Operation{Responder: responder, At: at}); got != want {
			t.Errorf("responder %t: %s, want %s", responder, got, want)
		}
	}
}

// TestSweepKeepsWhatIsOpen: when the list of operations is full those that are over leave it; as
// long as no more than maxOpen are left none of them is let go.
func TestSweepKeepsWhatIsOpen(t *testing.T) {
	for _, c := range []struct{ open, out int }{{maxOpen, 0}, {maxOpen + 1, maxOpen / 2}} {
		n := 0
		a := NewAssembler(func(*Operation) { n++ })
		for i := range uint32(2 * maxOpen) {
			a.Take(&Event{Kind: Read, Work: 1, Index: i, At: 1})
			if int(i) >= c.open {
				a.Take(&Event{Kind: Completed, Work: 1, Index: i, At: 2, Flags: Silent})
			}
		}
		over := n
		a.Take(&Event{Kind: Read, Work: 2, At: 3})
		if n-over != c.out || len(a.order) != c.open-c.out+1 || len(a.open) != len(a.order) {
			t.Errorf("%d open: %d came out, %d in order, %d open", c.open, n-over, len(a.order), len(a.open))
		}
	}
}

// TestSweepKeepsWhatWaits: what waits for an acknowledgement or an event goes on waiting; what came
// out meanwhile is kept nowhere.
func TestSweepKeepsWhatWaits(t *testing.T) {
	var list []string
	a := NewAssembler(func(o *Operation) { list = append(list, line(o)) })
	for i, e := range []Event{
		{Kind: Received, Conn: 3, Index: 2, Extra: 8},
		{Kind: Delivered, Conn: 3, Index: 2},
		{Kind: Received, Conn: 4, Index: 2, Extra: 8},
		{Kind: Delivered, Conn: 4, Index: 2},
		{Kind: Gone, Conn: 4, Index: 2, Flags: Responder}, // comes out
		{Kind: Read, Work: 7},
		{Kind: Completed, Work: 7, Extra: 5, Flags: Wanted},
		{Kind: Read, Work: 8},
		{Kind: Completed, Work: 8, Extra: 6, Flags: Wanted},
		{Kind: Read, Work: 8}, // the one before comes out
	} {
		e.At = int64(1 + i)
		a.Take(&e)
	}
	for i := range uint32(2 * maxOpen) {
		a.Take(&Event{Kind: Read, Work: 1, Index: i, At: 20})
		a.Take(&Event{Kind: Completed, Work: 1, Index: i, At: 21, Flags: Silent})
	}
	if len(a.conns) != 1 || len(a.conns[3]) != 1 || len(a.cqs) != 1 || len(a.cqs[5]) != 1 {
		t.Fatalf("connections %v, CQs %v", a.conns, a.cqs)
	}
	list = nil
	a.Take(&Event{Kind: Answered, Conn: 3, Index: 9, At: 30})
	a.Take(&Event{Kind: Signalled, Extra: 5, At: 31})
	want := []string{"received=1 delivered=2 acked=30", "wqe_read=6 cqe_written=7 event=31"}
	if !slices.Equal(list, want) {
		t.Errorf("%q, want\n%q", list, want)
	}
}

// TestOperationKnowsItsWire: an operation knows over which wire it went, and whether it stayed
// inside the NIC.
func TestOperationKnowsItsWire(t *testing.T) {
	known := len(wires)
	defer func() { wires = wires[:known] }()
	number := AddWire(&Wire{Name: "string", Opcode: func(op uint8) string { return map[uint8]string{1: "first"}[op] }})
	for _, flags := range []uint8{0, Loopback} {
		for _, wire := range []uint8{0, number} {
			var got []*Operation
			a := NewAssembler(func(o *Operation) { got = append(got, o) })
			for i, e := range []Event{
				{Kind: Read, Work: 7, Op: 1},
				{Kind: Issued, Work: 7, Flags: flags, Wire: wire},
				{Kind: Scheduled, Work: 7, Flags: flags, Wire: wire},
				{Kind: Received, Conn: 3, Index: 2, Extra: 8},
				{Kind: Delivered, Conn: 3, Index: 2, Flags: flags, Wire: wire, Op: 1},
			} {
				e.At = int64(1 + i)
				a.Take(&e)
			}
			a.Finish()
			if len(got) != 2 {
				t.Fatalf("%+v", got)
			}
			name, packet := "none", "opcode 0x1"
			if wire == number {
				name, packet = "string", "first"
			}
			for _, o := range got {
				if o.Over().Name != name || o.PacketName() != packet || o.Loopback != (flags == Loopback) {
					t.Errorf("flags %b over %q: %+v", flags, name, o)
				}
			}
		}
	}
}

// TestRingSizesAreRoundedUpToPowersOfTwo: a ring holds at least as many events as asked for, a power of two.
func TestRingSizesAreRoundedUpToPowersOfTwo(t *testing.T) {
	for size, want := range map[int]int{0: 1, 1: 1, 2: 2, 3: 4, 16: 16, 17: 32} {
		r := newTestRing(size, 0)
		for range 100 {
			r.Add(&Event{Kind: Read})
		}
		if list, lost := r.Take(nil); len(list) != want || int(lost) != 100-want {
			t.Errorf("size %d: %d events, %d lost", size, len(list), lost)
		}
		if list, lost := r.Take(nil); len(list) != 0 || lost != 0 {
			t.Errorf("size %d: %d events, %d lost once more", size, len(list), lost)
		}
	}
}

// TestARingWantsOneQueuePairOrAll: a ring is for one queue pair, or for all.
func TestARingWantsOneQueuePairOrAll(t *testing.T) {
	all, one := newTestRing(1, 0), newTestRing(1, 5)
	if !all.Wants(1) || !all.Wants(5) || one.Wants(4) || !one.Wants(5) || one.Wants(6) {
		t.Error("a ring wants others")
	}
}

// TestArrivedAndCompleted: a packet is received when it came and opened now; a completion is of the
// request that was named before it, with the event that follows.
func TestArrivedAndCompleted(t *testing.T) {
	r := newTestRing(8, 0)
	r.Arrived(-7, &Event{Conn: 3, Index: 2, Extra: 8})
	for _, wanted := range []bool{false, true} {
		r.Completing(&Event{Kind: Completed, Work: 5, Flags: Silent})
		r.CompletionWritten(9, 2, wanted)
	}
	want := []Event{
		{Kind: Received, At: -7, Conn: 3, Index: 2, Extra: 8},
		{Kind: Opened, At: 1, Conn: 3, Index: 2, Extra: 8},
		{Kind: Completed, At: 2, Work: 5, Extra: 9, Status: 2, Flags: Silent},
		{Kind: Completed, At: 3, Work: 5, Extra: 9, Status: 2, Flags: Silent | Wanted},
	}
	if list, _ := r.Take(nil); !slices.Equal(list, want) {
		t.Errorf("%+v", list)
	}
}
