package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// watchdog finds out that a worker's event loop is stuck.
//
// The wall clock alone would blame a thread for a machine that has no time for it. So
// time counts only as far as the worker had what it wanted: while one of its threads is
// ready to run, an interval counts for no more than that thread ran in it. A thread that
// sleeps, is stopped or waits in the kernel wants no processor, so then all of the time
// counts; of a thread that runs in circles its processor time does. All threads are
// looked at, since in Go any of them can hold up the others.
type watchdog struct {
	limit time.Duration
	pulse *Pulse
	look  func() (map[int]threadTime, error) // at the worker's threads

	turns  uint64
	seen   time.Time          // the last check
	still  time.Duration      // wall time without a turn, as the checks saw it
	stuck  time.Duration      // what of it counts
	before map[int]threadTime // at the last check; nil: not looked yet
}

// threadTime is what the kernel says of a thread.
type threadTime struct {
	state byte          // as in ps: R, S, D, T…
	ran   time.Duration // on a processor so far
}

// A thread with nothing to do turns every half second. So long nothing is suspected, and
// nothing but the pulse is looked at.
const patience = 500 * time.Millisecond

// every is the time between checks.
func (w *watchdog) every() time.Duration { return w.limit / 4 }

// check reports true when the event loop has made no step for the limit.
func (w *watchdog) check(now time.Time) (stuck bool) {
	elapsed := min(now.Sub(w.seen), 2*w.every()) // more, and this process had no time itself
	w.seen = now
	turns := w.pulse.turns.Load()
	if w.pulse.thread.Load() == 0 || turns != w.turns {
		w.turns, w.still, w.stuck, w.before = turns, 0, 0, nil
		return false
	}
	if w.still += elapsed; w.still < patience {
		return false
	}
	threads, err := w.look()
	if err != nil {
		return false // it has ended, which others notice
	}
	if w.before != nil {
		w.stuck += counted(elapsed, w.before, threads)
	} else {
		w.stuck = patience
	}
	w.before = threads
	return w.stuck >= w.limit
}

// counted is how much of an interval counts against the worker.
func counted(elapsed time.Duration, before, after map[int]threadTime) time.Duration {
	n := elapsed
	for id, t := range after {
		if t.state == 'R' {
			n = min(n, t.ran-before[id].ran)
		}
	}
	return max(n, 0)
}

// why says where the thread is.
func (w *watchdog) why(pid int) string {
	id := int(w.pulse.thread.Load())
	s := fmt.Sprintf("thread %d in state %c", id, w.before[id].state)
	if at, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/wchan", pid, id)); err == nil && len(at) > 1 {
		s += ", in the kernel at " + string(at)
	}
	return s
}

// threadsOf looks at the threads of a process.
func threadsOf(pid int) (map[int]threadTime, error) {
	dir := fmt.Sprintf("/proc/%d/task", pid)
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	threads := make(map[int]threadTime, len(list))
	for _, e := range list {
		id, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if t, err := threadOf(filepath.Join(dir, e.Name())); err == nil { // it may have ended
			threads[id] = t
		}
	}
	return threads, nil
}

// threadOf reads proc_pid_stat(5), and schedstat for a finer clock where there is one.
func threadOf(dir string) (t threadTime, err error) {
	b, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return t, err
	}
	line := string(b)
	f := strings.Fields(line[strings.LastIndexByte(line, ')')+1:]) // the name may hold anything
	if len(f) < 13 {
		return t, fmt.Errorf("%s/stat: %q", dir, line)
	}
	t.state = f[0][0]
	if b, err := os.ReadFile(filepath.Join(dir, "schedstat")); err == nil {
		if ns, _, found := strings.Cut(string(b), " "); found {
			n, err := strconv.ParseInt(ns, 10, 64)
			t.ran = time.Duration(n)
			return t, err
		}
	}
	for _, ticks := range f[11:13] { // utime and stime, in hundredths of a second
		n, err := strconv.ParseInt(ticks, 10, 64)
		if err != nil {
			return t, err
		}
		t.ran += time.Duration(n) * 10 * time.Millisecond
	}
	return t, nil
}
