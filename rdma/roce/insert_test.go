package roce

import (
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/rdma/roce/wire"
)

// TestRepeatedReadCounts: a READ that is repeated while its answer has not begun waits for its
// first answer as before; once it was answered, what is repeated does not count.
func TestRepeatedReadCounts(t *testing.T) {
	for _, tt := range []struct{ before, repeated, want bool }{
		{false, true, false}, {true, true, true}, {false, false, false}, {true, false, false},
	} {
		var s responder
		s.insert(answer{psn: 5, left: 4, again: tt.before})
		s.insert(answer{psn: 5, left: 4, again: tt.repeated})
		if n := s.answers.Len(); n != 1 {
			t.Fatalf("%+v: %d answers", tt, n)
		}
		if again := s.unanswered() == 0; again != tt.want {
			t.Errorf("%+v: again is %v", tt, again)
		}
	}
}

// TestInsertOverlap: an answer that shares a packet with one that is due is not due twice. The
// first of those that are due begins anew, and the others are unchanged. Other answers are sent in
// the order of their PSNs.
func TestInsertOverlap(t *testing.T) {
	type span struct{ psn, left int }
	for _, c := range []struct {
		name string
		add  span
		want []span // due before are 10 to 13 and 20 to 23
	}{
		{"before all", span{6, 4}, []span{{6, 4}, {10, 4}, {20, 4}}},
		{"into the first", span{6, 5}, []span{{6, 5}, {20, 4}}},
		{"the first", span{10, 4}, []span{{10, 4}, {20, 4}}},
		{"the end of the first", span{13, 1}, []span{{13, 1}, {20, 4}}},
		{"behind the first", span{14, 6}, []span{{10, 4}, {14, 6}, {20, 4}}},
		{"into the second", span{14, 7}, []span{{10, 4}, {20, 4}}},
		{"the second", span{20, 4}, []span{{10, 4}, {20, 4}}},
		{"the end of the second", span{23, 1}, []span{{10, 4}, {20, 4}}},
		{"behind all", span{24, 1}, []span{{10, 4}, {20, 4}, {24, 1}}},
	} {
		var s responder
		for _, a := range []span{{10, 4}, {20, 4}, c.add} {
			s.insert(answer{psn: wire.PSN(a.psn), left: a.left})
		}
		var got []span
		for i := range s.answers.Len() {
			got = append(got, span{int(s.answers.At(i).psn), s.answers.At(i).left})
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestResultsKept: as many results of atomics are kept as a peer may have in flight.
func TestResultsKept(t *testing.T) {
	var s responder
	for i := range 300 {
		s.keep(result{psn: wire.PSN(i), original: uint64(i)})
	}
	for i := range 300 {
		r := s.result(wire.PSN(i))
		if kept := i >= 300-maxAtomics; (r != nil) != kept || kept && r.original != uint64(i) {
			t.Errorf("result of %d: %+v", i, r)
		}
	}
}

// TestTheNewestAtomicOfAPSNIsRepeated: PSNs come again after 2^24 packets, when the result of an
// atomic before may still be kept (IBA §9.7.5.1.1).
func TestTheNewestAtomicOfAPSNIsRepeated(t *testing.T) {
	for _, between := range []int{0, 1, 5, maxAtomics - 2, maxAtomics, 3*maxAtomics + 7} {
		var s responder
		s.keep(result{psn: 5, original: 1})
		for i := range between {
			s.keep(result{psn: wire.PSN(1000 + i)})
		}
		s.keep(result{psn: 5, original: 2})
		if r := s.result(5); r == nil || r.original != 2 {
			t.Errorf("%d others between: %+v", between, r)
		}
	}
}

// TestMessagesWrap: messages are counted in 24 bits.
func TestMessagesWrap(t *testing.T) {
	s := responder{msn: 1<<24 - 2, expected: 1<<24 - 1, missed: true}
	s.took(1, true)
	if s.msn != 1<<24-1 || s.expected != 0 || s.missed {
		t.Errorf("%d messages, next %d", s.msn, s.expected)
	}
	s.took(2, false)
	if s.took(1, true); s.msn != 0 || s.expected != 3 {
		t.Errorf("%d messages, next %d", s.msn, s.expected)
	}
}
