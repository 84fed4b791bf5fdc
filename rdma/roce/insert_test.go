package roce

import "testing"

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
