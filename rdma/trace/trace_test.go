package trace

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func newTestRing(size int, qpn uint32) *Ring {
	now := int64(0)
	return NewRing(size, func() int64 { now++; return now }, qpn)
}

// The latest events stay, older ones are counted, and the order is kept, however
// adding and taking alternate.
func TestARingKeepsTheLatestEventsInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newTestRing(10, 0) // 16
		var added, got, lost uint64
		for range rapid.IntRange(1, 50).Draw(t, "rounds") {
			adds := rapid.IntRange(0, 40).Draw(t, "adds")
			for range adds {
				r.Add(&Event{Kind: Read, Arg: added})
				added++
			}
			list, n := r.Take(nil)
			lost += n
			for _, e := range list {
				if e.Arg != got+lost {
					t.Fatalf("event %d after %d taken and %d lost", e.Arg, got, lost)
				}
				got++
			}
			if got+lost != added || len(list) != min(adds, 16) {
				t.Fatalf("%d taken of %d; all together %d taken, %d lost of %d", len(list), adds, got, lost, added)
			}
		}
	})
}

func TestRingDoesNotAllocate(t *testing.T) {
	r := newTestRing(64, 0)
	if n := testing.AllocsPerRun(1000, func() {
		r.Filled(&Event{Kind: Scheduled, Work: 1})
		r.SealedPacket()
		r.Completing(&Event{Kind: Completed})
		r.CompletionWritten(3, 0, true)
		r.Arrived(r.Now(), &Event{Conn: 1})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestAnAnnouncementIsUsedOnce: what names a packet or a completion in advance is used once.
func TestAnAnnouncementIsUsedOnce(t *testing.T) {
	r := newTestRing(64, 0)
	r.SealedPacket() // an acknowledgement
	r.CompletionWritten(1, 0, false)
	r.Filled(&Event{Kind: Scheduled, Work: 1})
	r.Unfilled()
	r.SealedPacket()
	r.Filled(&Event{Kind: Scheduled, Work: 2, Index: 5})
	r.SealedPacket()
	r.SealedPacket()
	list, _ := r.Take(nil)
	if len(list) != 3 || list[2].Kind != Sealed || list[2].Index != 5 || list[2].At != 3 {
		t.Errorf("%+v", list)
	}
}

// TestAssemblerIsBounded: requests that never end make room for others and come
// out as far as they were seen; nothing else is kept of them.
func TestAssemblerIsBounded(t *testing.T) {
	n := 0
	a := NewAssembler(func(*Operation) { n++ })
	const total = 10 * maxOpen
	for i := range uint32(total) {
		at := int64(i + 1)
		a.Take(&Event{Kind: Doorbell, Work: i % 3, Index: i, At: at})
		a.Take(&Event{Kind: Read, Work: i % 3, Index: i, At: at})
		a.Take(&Event{Kind: Completed, Work: i % 3, Index: i, At: at, Extra: i % 5, Flags: Wanted})
		a.Take(&Event{Kind: Received, Conn: i % 7, Index: i, Extra: i, At: at})
		a.Take(&Event{Kind: Delivered, Conn: i % 7, Index: i, At: at})
		if len(a.open) > 2*maxOpen || len(a.order) > 2*maxOpen {
			t.Fatalf("%d open, %d in order", len(a.open), len(a.order))
		}
	}
	for _, lists := range []map[uint32][]*Operation{a.conns, a.cqs} {
		sum := 0
		for _, l := range lists {
			sum += len(l)
		}
		if sum > 2*maxOpen {
			t.Errorf("%d operations are kept", sum)
		}
	}
	if a.Finish(); n != 2*total || len(a.open) != 0 {
		t.Errorf("%d of %d operations came out", n, 2*total)
	}
}

// TestOperationsThatOverlapAreToldApart: a queue that begins anew, a packet that comes twice, events of
// what began before the trace.
func TestOperationsThatOverlapAreToldApart(t *testing.T) {
	var got []*Operation
	a := NewAssembler(func(o *Operation) { got = append(got, o) })
	for i, e := range []Event{
		{Kind: Sealed, Work: 1, Index: 9},
		{Kind: Delivered, Conn: 3, Index: 1},
		{Kind: Signalled, Extra: 4},
		{Kind: Read, Work: 1, Index: 0, Arg: 1},
		{Kind: Read, Work: 1, Index: 0, Arg: 2}, // the QP was reset
		{Kind: Completed, Work: 1, Index: 0, Flags: Silent},
		{Kind: Received, Conn: 3, Index: 2, Extra: 8},
		{Kind: Opened, Conn: 3, Index: 2},
		{Kind: Received, Conn: 3, Index: 2, Extra: 8},
		{Kind: Opened, Conn: 3, Index: 2},
		{Kind: Delivered, Conn: 3, Index: 2, Arg: 1},
		{Kind: Answered, Conn: 3, Index: 100, Extra: 100}, // of the request window
	} {
		e.At = int64(i + 1)
		a.Take(&e)
	}
	if len(got) != 3 || got[0].WRID != 1 || got[1].WRID != 2 || got[1].At[StepCompleted] != 0 || !got[2].Responder {
		t.Fatalf("%+v", got)
	}
	if o := got[2]; o.Again != 1 || o.At[StepReceived] != 7 || o.At[StepOpened] != 8 || o.At[StepAcked] != 12 {
		t.Errorf("%+v", o)
	}
}

func BenchmarkAdd(b *testing.B) {
	base := time.Now()
	r := NewRing(1<<16, func() int64 { return int64(time.Since(base)) }, 0)
	for b.Loop() {
		r.Add(&Event{Kind: Scheduled, Work: 1})
	}
}

// TestPacketsOfARequest: a packet counts once by its number, and as sent again each further time;
// of a response only the repetitions count here.
func TestPacketsOfARequest(t *testing.T) {
	for _, responder := range []bool{false, true} {
		o := Operation{Responder: responder}
		for i, n := range []uint32{1<<32 - 1, 0, 0, 1<<32 - 1, 1} {
			e := Event{Kind: Scheduled, Extra: n, At: int64(10 + i)}
			o.scheduled(&e)
		}
		packets := 3
		if responder {
			packets = 0
		}
		if o.Packets != packets || o.Again != 2 || o.At[StepScheduled] != 10 || o.Loopback {
			t.Errorf("responder %v: %+v", responder, o)
		}
		o.scheduled(&Event{Kind: Scheduled, Extra: 2, At: 20, Flags: Loopback})
		if !o.Loopback {
			t.Error("a packet within the NIC is not seen as one")
		}
	}
}

// TestOldestRequestsMakeRoom: of too many operations that are not whole the older half comes out,
// the oldest first, and the others go on.
func TestOldestRequestsMakeRoom(t *testing.T) {
	var out []uint32
	a := NewAssembler(func(o *Operation) { out = append(out, o.Index) })
	for i := range uint32(2*maxOpen + 1) {
		a.Take(&Event{Kind: Read, Work: 1, Index: i, At: 1})
	}
	if len(out) != maxOpen/2 || len(a.open) != 2*maxOpen+1-maxOpen/2 || len(a.order) != len(a.open) {
		t.Fatalf("%d came out, %d are open, %d in order", len(out), len(a.open), len(a.order))
	}
	a.Finish()
	for i, index := range out {
		if index != uint32(i) {
			t.Fatalf("operation %d came out in place %d", index, i)
		}
	}
	if len(out) != 2*maxOpen+1 {
		t.Errorf("%d came out", len(out))
	}
}

// TestAcknowledgementsDoNotEndRequestsWithAResponse: what acknowledges a connection's packets is no sign that a request with
// a response, or one that stayed inside the NIC, was acknowledged.
func TestAcknowledgementsDoNotEndRequestsWithAResponse(t *testing.T) {
	for flags, want := range map[uint8]int64{0: 3, Answering: 0, Loopback: 0} {
		var got []*Operation
		a := NewAssembler(func(o *Operation) { got = append(got, o) })
		for i, e := range []Event{
			{Kind: Received, Conn: 3, Index: 2, Extra: 8},
			{Kind: Delivered, Conn: 3, Index: 2, Arg: 1, Flags: flags},
			{Kind: Answered, Conn: 3, Index: 100, Extra: 100},
		} {
			e.At = int64(i + 1)
			a.Take(&e)
		}
		a.Finish()
		if len(got) != 1 || got[0].At[StepAcked] != want {
			t.Errorf("flags %b: %+v, want it acknowledged at %d", flags, got, want)
		}
	}
}
