package leak

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long Main waits, on a busy machine, for goroutines and descriptors to end.
const patience = time.Minute

// The process's first thread cannot end. Lock it to the goroutine of TestMain, so that no goroutine
// that moves its thread to another network namespace gets it: that namespace would end only with
// the process.
func init() { runtime.LockOSThread() }

// Main runs the tests and ends the process.
func Main(m *testing.M) { os.Exit(Code(m)) }

// Code runs the tests and returns the exit status, for a TestMain that has to clean up.
func Code(m *testing.M) int {
	before, err := start()
	if err != nil {
		fmt.Fprintln(os.Stderr, "leak:", err)
		return 1
	}
	code := m.Run()
	if code != 0 {
		return code // a test that failed may have left anything
	}
	if err := before.wait(patience); err != nil {
		fmt.Fprintln(os.Stderr, "leak:", err)
		return 1
	}
	return 0
}

// state describes the resources of a process.
type state struct {
	descriptors []string // link targets, sorted
	namespaces  []string // network namespaces of its threads, each once
}

// start returns the state before the tests. It first makes the runtime open the descriptors that it
// opens on demand.
func start() (state, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return state{}, err
	}
	return look(), errors.Join(r.Close(), w.Close())
}

func look() (s state) {
	for _, fd := range links("/proc/self/fd/*") {
		if filepath.Dir(fd) != "/proc/self" && fd != "" {
			s.descriptors = append(s.descriptors, fd)
		}
	}
	slices.Sort(s.descriptors)
	s.namespaces = links("/proc/self/task/*/ns/net")
	slices.Sort(s.namespaces)
	s.namespaces = slices.Compact(s.namespaces)
	return s
}

// links returns the targets of all links that match a pattern.
func links(pattern string) (list []string) {
	names, _ := filepath.Glob(pattern)
	for _, n := range names {
		if l, err := os.Readlink(n); err == nil {
			list = append(list, l)
		}
	}
	return list
}

// wait returns nil once nothing is left that did not exist before. After patience it returns an
// error with what is left.
func (s state) wait(patience time.Duration) error {
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		err := errors.Join(goleak.Find(), s.more(look()))
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

// more returns an error that names what is in now but not in s.
func (s state) more(now state) error {
	var err error
	if d := without(now.descriptors, s.descriptors); len(d) > 0 {
		err = fmt.Errorf("%d descriptors are left open: %q", len(d), d)
	}
	if n := without(now.namespaces, s.namespaces); len(n) > 0 {
		err = errors.Join(err, fmt.Errorf("threads are left in network namespaces: %q", n))
	}
	return err
}

// without returns the elements of a that are not in b, or are more often in a than in b. Both are
// sorted.
func without(a, b []string) (rest []string) {
	for _, x := range a {
		if i, ok := slices.BinarySearch(b, x); ok {
			b = slices.Delete(slices.Clone(b), i, i+1)
			continue
		}
		rest = append(rest, x)
	}
	return rest
}
