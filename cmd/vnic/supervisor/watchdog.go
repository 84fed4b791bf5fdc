package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// watchdog finds out that one of a worker's event loops is stuck.
//
// The wall clock alone would blame a thread for a machine that has no time for it. So
// time counts only as far as the worker had what it wanted: while one of its threads is
// ready to run, an interval counts for no more than that thread ran in it. A thread that
// sleeps, is stopped or waits in the kernel wants no processor, so then all of the time
// counts; of a thread that runs in circles its processor time does. All threads are
// looked at, since in Go any of them can hold up the others.
//
// A thread may also oversleep: where the machine is a guest itself, whoever runs it can take
// away the processor whose clock was to wake the thread. So a thread that is suspected is
// woken, and one that then turns was not stuck.
type watchdog struct {
	limit  time.Duration
	pulses *Pulses
	look   func() (map[int]threadTime, error) // at the worker's threads
	rouse  func(thread int)                   // ends a sleep of it

	seen  time.Time // the last check
	loops [maxThreads]suspect
	stuck *suspect // the one that check found
}

// suspect is what is known of one event loop.
type suspect struct {
	pulse  *Pulse
	turns  uint64
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

// check reports true when an event loop has made no step for the limit.
func (w *watchdog) check(now time.Time) (stuck bool) {
	elapsed := min(now.Sub(w.seen), 2*w.every()) // more, and this process had no time itself
	w.seen = now
	var threads map[int]threadTime
	for i := range w.loops {
		s := &w.loops[i]
		s.pulse = &w.pulses[i].Pulse
		if s.turned(elapsed) {
			continue
		}
		if threads == nil {
			var err error
			if threads, err = w.look(); err != nil {
				return false // it has ended, which others notice
			}
		}
		if s.before == nil {
			w.rouse(int(s.pulse.thread.Load()))
		}
		if s.suspected(elapsed, threads) >= w.limit {
			w.stuck = s
			return true
		}
	}
	return false
}

// turned reports whether a loop is above suspicion.
func (s *suspect) turned(elapsed time.Duration) bool {
	turns := s.pulse.turns.Load()
	if s.pulse.thread.Load() == 0 || turns != s.turns {
		s.turns, s.still, s.stuck, s.before = turns, 0, 0, nil
		return true
	}
	s.still += elapsed
	return s.still < patience
}

// suspected is for how long the loop has been stuck.
func (s *suspect) suspected(elapsed time.Duration, threads map[int]threadTime) time.Duration {
	if s.before != nil {
		s.stuck += counted(elapsed, s.before, threads)
	} else {
		s.stuck = patience
	}
	s.before = threads
	return s.stuck
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

// why says where the thread is that check found.
func (w *watchdog) why(pid int) string {
	id := int(w.stuck.pulse.thread.Load())
	s := fmt.Sprintf("thread %d in state %c", id, w.stuck.before[id].state)
	if at, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/wchan", pid, id)); err == nil && len(at) > 1 {
		s += ", in the kernel at " + string(at)
	}
	return s
}

// rouse interrupts what a thread of a process waits for. Go's scheduler sends this signal to
// threads all the time, to be let in, and takes no harm from one more.
func rouse(pid, thread int) { _ = unix.Tgkill(pid, thread, unix.SIGURG) }

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
