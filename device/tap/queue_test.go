package tap

import "testing"

func TestAQueueGivesFramesInOrder(t *testing.T) {
	q := NewQueue(4, 8)
	add := func(v byte) bool {
		b := q.Slot()
		if b == nil {
			return false
		}
		b[0] = v
		q.Commit(1)
		return true
	}
	next, want := byte(0), byte(0)
	for round := range 100 {
		for range round % 5 {
			if add(next) {
				next++
			}
		}
		for i, f := range q.Pending() {
			if len(f) != 1 || f[0] != want+byte(i) {
				t.Fatalf("round %d: frame %d is %v, want %d", round, i, f, want+byte(i))
			}
		}
		n := min(len(q.Pending()), round%3)
		q.Taken(n)
		want += byte(n)
	}
	if next < 50 {
		t.Errorf("only %d frames passed", next)
	}
}
