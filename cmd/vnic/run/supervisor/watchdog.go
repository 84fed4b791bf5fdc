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

// watchdog detects that one of a worker's event loops is stuck.
//
// It cannot use the wall clock alone, because a thread also makes no progress if the machine gives
// it no processor time. So while a thread of the worker is ready to run, an interval counts only as
// much as that thread ran in it: a thread in an endless loop is charged its processor time. If all
// threads sleep, are stopped or wait in the kernel, none of them needs a processor, and the whole
// interval counts. All threads are examined, because in Go any thread can block the others.
//
// A thread may also oversleep: if this machine is itself a guest, its hypervisor can pause the
// processor whose timer was to wake the thread. So the watchdog wakes a suspected thread first. If
// the thread then makes progress, it was not stuck.
type watchdog struct {
	limit  time.Duration
	pulses *Pulses
	look   func() (map[int]threadTime, error) // reads the state of the worker's threads
	wake   func(thread int)                   // wakes a sleeping thread

	seen  time.Time // time of the last check
	loops [maxThreads]suspect
	stuck *suspect // the loop that findStuck found
}

// suspect is the state of one event loop.
type suspect struct {
	pulse  *Pulse
	turns  uint64
	still  time.Duration      // wall time without a turn, measured by the checks
	stuck  time.Duration      // the part of still that counts
	before map[int]threadTime // threads at the last check; nil: not read yet
}

// threadTime is the kernel's state of a thread.
type threadTime struct {
	state byte          // as in ps: R, S, D, T…
	ran   time.Duration // processor time so far
}

// patience is the time without a turn after which a loop is suspected. An idle thread turns every
// half second. Before that only the pulse is read.
const patience = 500 * time.Millisecond

// every is the time between checks.
func (w *watchdog) every() time.Duration { return w.limit / 4 }

// findStuck reports whether an event loop has been stuck for the limit.
func (w *watchdog) findStuck(now time.Time) (stuck bool) {
	elapsed := min(now.Sub(w.seen), 2*w.every()) // if more time has passed, this process itself got no processor
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
				return false // the worker has ended, which is handled elsewhere
			}
		}
		if s.before == nil {
			w.wake(int(s.pulse.thread.Load()))
		}
		if s.suspected(elapsed, threads) >= w.limit {
			w.stuck = s
			return true
		}
	}
	return false
}

// turned reports whether a loop is not suspected: it has turned, or patience is not over.
func (s *suspect) turned(elapsed time.Duration) bool {
	turns := s.pulse.turns.Load()
	if s.pulse.thread.Load() == 0 || turns != s.turns {
		s.turns, s.still, s.stuck, s.before = turns, 0, 0, nil
		return true
	}
	s.still += elapsed
	return s.still < patience
}

// suspected adds an interval and returns how long the loop has been stuck.
func (s *suspect) suspected(elapsed time.Duration, threads map[int]threadTime) time.Duration {
	if s.before != nil {
		s.stuck += counted(elapsed, s.before, threads)
	} else {
		s.stuck = patience
	}
	s.before = threads
	return s.stuck
}

// counted returns the part of an interval that counts against the worker.
func counted(elapsed time.Duration, before, after map[int]threadTime) time.Duration {
	n := elapsed
	for id, t := range after {
		if t.state == 'R' {
			n = min(n, t.ran-before[id].ran)
		}
	}
	return max(n, 0)
}

// why describes where the stuck thread is.
func (w *watchdog) why(pid int) string {
	id := int(w.stuck.pulse.thread.Load())
	s := fmt.Sprintf("thread %d in state %c", id, w.stuck.before[id].state)
	if at, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/wchan", pid, id)); err == nil && len(at) > 1 {
		s += ", in the kernel at " + string(at)
	}
	return s
}

// wake interrupts a wait of a thread. It uses SIGURG, which Go's scheduler itself often sends to
// threads to preempt them, so one more signal does no harm.
func wake(pid, thread int) { _ = unix.Tgkill(pid, thread, unix.SIGURG) }

// threadsOf reads the state of all threads of a process.
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

// threadOf reads proc_pid_stat(5), and schedstat if it exists, because its clock is finer.
func threadOf(dir string) (t threadTime, err error) {
	b, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return t, err
	}
	line := string(b)
	f := strings.Fields(line[strings.LastIndexByte(line, ')')+1:]) // the name may contain any characters
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
