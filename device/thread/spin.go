package thread

// Tuning of the search for more work before a sleep, in ns.
const (
	minSpin    = 2_000       // the first try
	contended  = 300_000     // away for letting others run: they need the processor more
	shortPause = 2_000_000   // not looking after that
	longPause  = 500_000_000 // the same after it happened again and again
	uncrowded  = 20_000_000  // looking again without contention: the next one is the first
)

// spin is how long the shard's thread looks for more work before it sleeps: longer while that paid
// lately. Each yield in between shows whether others want the processor. If they do, the thread
// would be away for a slice of theirs, milliseconds, whenever it looked, but when it wakes up from
// a sleep the kernel lets it run at once. So it does not look for a pause, longer each time.
//
// An answer to what was sent comes soon, the next request at any time: the thread learns about the
// two apart.
type spin struct {
	most    int64    // limit; 0: never
	lengths [2]int64 // ns, by the last thing done
	last    int      // the last thing done
	pause   int64    // the last one
	until   int64    // its end, by the thread's clock
}

// What a thread did last.
const (
	tookWork = iota
	sentOut  // something by the uplink
)

// length is how long the thread looks now.
func (s *spin) length() int64 { return s.lengths[s.last] }

// learn takes a sleep that has ended: by input or not, after ns.
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
