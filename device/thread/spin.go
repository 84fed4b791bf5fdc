package thread

// Tuning of the search for more work before a sleep, in ns.
const (
	minSpin    = 2_000       // length of the first search
	shared     = 5_000       // a yield this long shows that another thread ran meanwhile
	contended  = 300_000     // a yield this long shows that others need the processor more
	shortPause = 2_000_000   // no search for this long after that
	longPause  = 500_000_000 // the same after it happened again and again
	uncrowded  = 20_000_000  // searching for so long without contention resets the pause
)

// spin decides how long the shard's thread looks for more work before it sleeps: longer if that
// found work lately. Each yield in between shows whether others want the processor. If they do, the
// thread would be away for one of their time slices, milliseconds, whenever it looked; but when it
// wakes up from a sleep, the kernel lets it run at once. So it does not look for a while, longer
// each time.
//
// An answer to what was sent comes soon, the next request at any time: the thread learns the two
// lengths separately.
type spin struct {
	most    int64    // upper limit; 0: it never looks
	lengths [2]int64 // ns, by the last thing done
	last    int      // the last thing done
	pause   int64    // length of the last pause
	until   int64    // end of that pause, by the thread's clock
}

// The last thing that a thread did.
const (
	tookWork = iota
	sentOut  // sent something on the uplink
)

// length returns how long the thread should look now.
func (s *spin) length() int64 { return s.lengths[s.last] }

// learn adjusts the length after a sleep of slept ns, which input ended or not.
func (s *spin) learn(now int64, input bool, slept int64) {
	length := &s.lengths[s.last]
	switch {
	case now < s.until:
	case input && slept < s.most:
		*length = min(max(2**length, minSpin), s.most)
	default:
		if *length /= 2; *length < minSpin {
			*length = 0
		}
	}
}

// yielded takes how long a yield took and reports whether to go on looking.
func (s *spin) yielded(now, away int64) bool {
	if away < contended {
		return true
	}
	if now > s.until+uncrowded {
		s.pause = 0
	}
	s.pause = min(max(2*s.pause, shortPause), longPause)
	s.lengths, s.until = [2]int64{}, now+s.pause
	return false
}
