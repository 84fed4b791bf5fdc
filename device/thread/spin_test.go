package thread

import "testing"

// sleeps makes n short sleeps that input ended.
func (s *spin) sleeps(now int64, n int) int64 {
	for range n {
		now += 50_000
		s.learn(now, true, 50_000)
	}
	return now
}

// TestThreadLooksLongerIfThatFoundWork checks that short sleeps make a thread look longer for work,
// and long ones shorter.
func TestThreadLooksLongerIfThatFoundWork(t *testing.T) {
	s := spin{most: 200_000}
	now := s.sleeps(0, 1)
	if s.length() != minSpin {
		t.Errorf("%d ns after the first short sleep", s.length())
	}
	now = s.sleeps(now, 20)
	if s.length() != s.most {
		t.Errorf("%d ns after many", s.length())
	}
	for range 8 {
		now += 1_000_000
		s.learn(now, true, 1_000_000)
	}
	if s.length() != 0 {
		t.Errorf("%d ns after long sleeps", s.length())
	}
}

// TestThreadGivesWayToOthers checks that a thread that other threads keep from running when it
// yields notices this about once in half a second, and not once in each millisecond.
func TestThreadGivesWayToOthers(t *testing.T) {
	s := spin{most: 200_000}
	now, lost := int64(0), 0
	for now < 10e9 {
		now = s.sleeps(now, 1)
		if s.length() < 8*minSpin { // so short that it ends before the first yield
			continue
		}
		now += 3_000_000 // time slice of another thread
		lost++
		if s.yielded(now, 3_000_000) {
			t.Fatal("goes on")
		}
		if s.length() != 0 {
			t.Fatal("looks on")
		}
	}
	if lost > 40 {
		t.Errorf("gave way %d times in 10 s", lost)
	}
	// When it has been alone again, it looks for more work, and one contention is short.
	now = s.sleeps(s.until, 1000)
	if s.length() != s.most || !s.yielded(now, 10_000) {
		t.Errorf("%d ns when nobody else is there", s.length())
	}
	s.yielded(now, 3_000_000)
	if s.pause != shortPause {
		t.Errorf("a pause of %d ns after one contention", s.pause)
	}
}

// TestThreadLooksForAnswersOnly checks that a thread that sends, gets an answer soon, and then
// nothing for long, learns to look for the answer, and not for what comes after it.
func TestThreadLooksForAnswersOnly(t *testing.T) {
	s := spin{most: 200_000}
	now := int64(0)
	for range 20 {
		s.last = sentOut
		now = s.sleeps(now, 1)
		s.last = tookWork
		now += 2_000_000
		s.learn(now, true, 2_000_000)
	}
	if s.last = sentOut; s.length() != s.most {
		t.Errorf("looks %d ns for answers", s.length())
	}
	if s.last = tookWork; s.length() != 0 {
		t.Errorf("looks %d ns for requests", s.length())
	}
}
