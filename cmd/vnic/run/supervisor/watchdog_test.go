package supervisor

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// turn is the event loop of a worker's thread: it turns until the worker must end.
func turn(ctx context.Context, p *Pulse) {
	begun := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		p.Begin()
		close(begun)
		for ctx.Err() == nil {
			p.Turn()
			time.Sleep(10 * time.Millisecond)
		}
		p.End()
	}()
	<-begun
}

// watched is a watchdog in virtual time, with threads that a test simulates.
type watched struct {
	watchdog
	now     time.Time
	threads map[int]threadTime
	looks   int
	sleeps  bool // the thread of the event loop, until it is woken
	woken   int
}

func newWatched() *watched {
	k := &watched{now: time.Unix(1, 0), threads: map[int]threadTime{1: {state: 'S'}, 2: {state: 'S'}}}
	k.watchdog = watchdog{limit: time.Second, pulses: &Pulses{}, seen: k.now, look: func() (map[int]threadTime, error) {
		k.looks++
		c := map[int]threadTime{}
		for id, t := range k.threads {
			c[id] = t
		}
		return c, nil
	}}
	k.wake = func(thread int) {
		if k.woken++; thread == 1 && k.sleeps {
			k.pulses[3].Turn()
		}
	}
	k.pulses[3].thread.Store(1)
	k.pulses[3].Turn()
	k.watchdog.findStuck(k.now)
	return k
}

// run lets time pass, of which each ready thread runs for a share, and returns the time after which
// the watchdog reported a stuck loop; 0: it did not.
func (k *watched) run(d time.Duration, share float64) time.Duration {
	for at := time.Duration(0); at < d; {
		at += k.every()
		k.now = k.now.Add(k.every())
		for id, t := range k.threads {
			if t.state == 'R' {
				t.ran += time.Duration(share * float64(k.every()))
				k.threads[id] = t
			}
		}
		if k.findStuck(k.now) {
			return at
		}
	}
	return 0
}

// TestTheWatchdogTellsStuckFromStarved: the watchdog distinguishes a stuck event loop from one that gets no processor
// time.
func TestTheWatchdogTellsStuckFromStarved(t *testing.T) {
	const long = time.Minute
	for _, c := range []struct {
		name    string
		threads map[int]threadTime
		share   float64
		stuck   bool
	}{
		{"waits in the kernel", map[int]threadTime{1: {state: 'D'}, 2: {state: 'S'}}, 0, true},
		{"blocked by a write", map[int]threadTime{1: {state: 'S'}, 2: {state: 'S'}}, 0, true},
		{"stopped", map[int]threadTime{1: {state: 'T'}, 2: {state: 'T'}}, 0, true},
		{"runs in circles", map[int]threadTime{1: {state: 'R'}, 2: {state: 'S'}}, 1, true},
		{"runs in circles on a busy machine", map[int]threadTime{1: {state: 'R'}, 2: {state: 'S'}}, 0.3, true},
		{"blocked while others work", map[int]threadTime{1: {state: 'S'}, 2: {state: 'R'}}, 0.9, true},
		{"gets no processor", map[int]threadTime{1: {state: 'R'}, 2: {state: 'S'}}, 0, false},
		{"waits for one that gets no processor", map[int]threadTime{1: {state: 'S'}, 2: {state: 'R'}}, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newWatched()
			k.threads = c.threads
			after := k.run(long, c.share)
			if (after != 0) != c.stuck {
				t.Errorf("called stuck after %v; should it: %v", after, c.stuck)
			}
			if c.stuck && after < k.limit {
				t.Errorf("called stuck after %v already, the limit is %v", after, k.limit)
			}
		})
	}
}

// TestWatchdogIsQuiet: the watchdog reports no thread that turns, has not begun or has ended, and
// none after a time in which the supervisor itself did not run.
func TestWatchdogIsQuiet(t *testing.T) {
	k := newWatched()
	for range 100 {
		if k.run(2*k.every(), 0) != 0 {
			t.Fatal("barked at an idle thread")
		}
		k.pulses[3].Turn()
	}
	if k.looks > 100 {
		t.Errorf("looked %d times at the threads of an idle worker", k.looks)
	}
	k.now = k.now.Add(time.Hour)
	if k.findStuck(k.now) {
		t.Error("barked at once after an hour in which nobody looked")
	}
	k.pulses[3].End()
	if k.run(time.Minute, 0) != 0 {
		t.Error("barked at a thread that has ended")
	}
}

// TestAThreadThatOversleptIsWokenNotReported: a thread that overslept turns when it is woken, and is not reported. One that
// is stuck is woken once.
func TestAThreadThatOversleptIsWokenNotReported(t *testing.T) {
	k := newWatched()
	k.sleeps = true
	if after := k.run(time.Minute, 0); after != 0 || k.woken < 40 || k.woken > 80 {
		t.Errorf("called stuck after %v at a thread that oversleeps, woken %d times", after, k.woken)
	}
	k.sleeps, k.woken = false, 0
	k.pulses[3].Turn()
	if after := k.run(time.Minute, 0); after == 0 || k.woken != 1 {
		t.Errorf("called stuck after %v, woken %d times", after, k.woken)
	}
}

// TestWakeInterruptsAThreadThatWaits: wake interrupts a thread that waits in poll for ever, and the
// program goes on.
func TestWakeInterruptsAThreadThatWaits(t *testing.T) {
	thread, ended := make(chan int), make(chan error)
	go func() {
		runtime.LockOSThread()
		thread <- unix.Gettid()
		_, err := unix.Ppoll(nil, nil, nil)
		ended <- err
	}()
	id := <-thread
	for again := time.NewTicker(10 * time.Millisecond); ; { // it may not wait yet
		wake(os.Getpid(), id)
		select {
		case err := <-ended:
			if !errors.Is(err, unix.EINTR) {
				t.Error(err)
			}
			return
		case <-again.C:
		}
	}
}

// TestTheStateOfEachThreadIsRead: the state of this process's threads is read correctly.
func TestTheStateOfEachThreadIsRead(t *testing.T) {
	threads, err := threadsOf(os.Getpid())
	if err != nil || len(threads) < 2 {
		t.Fatalf("%v, %v", threads, err)
	}
	ran := time.Duration(0)
	for id, th := range threads {
		if !strings.ContainsRune("RSD", rune(th.state)) {
			t.Errorf("thread %d in state %q", id, th.state)
		}
		ran += th.ran
	}
	if ran == 0 {
		t.Error("no thread ever ran")
	}
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// TestAStuckWorkerIsReplaced: a worker whose thread stops turning is replaced, and the next worker learns of
// it.
func TestAStuckWorkerIsReplaced(t *testing.T) {
	var log safeBuffer
	s := supervise(t, "turning", func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
		c.Watchdog = func() time.Duration { return time.Second }
	})
	_, pid := s.last(t, 1)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if _, next := s.last(t, 2); next == pid {
		t.Error("the same worker")
	}
	if line := log.String(); !strings.Contains(line, "event loop is stuck") || !strings.Contains(line, "state T") {
		t.Error(line)
	}
}
