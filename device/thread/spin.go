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
type spin struct {
	most   int64 // limit; 0: never
	length int64 // ns
	pause  int64 // the last one
	until  int64 // its end, by the thread's clock
}

// learn takes a sleep that has ended: by input or not, after ns.
func (s *spin) learn(now int64, input bool, slept int64) {
	switch {
	case now < s.until:
	case input && slept < s.most:
		s.length = min(max(2*s.length, minSpin), s.most)
	default:
		if s.length /= 2; s.length < minSpin {
			s.length = 0
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
	s.length, s.until = 0, now+s.pause
	return false
}
