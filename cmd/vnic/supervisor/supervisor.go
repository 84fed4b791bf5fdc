package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Relay is something in the supervisor that needs connections to the worker.
type Relay interface {
	// Attach says how to connect to the worker that runs now.
	Attach(connect func() (*net.UnixConn, error))
	// Detach says that it is gone.
	Detach()
}

// Given is what every worker is given: descriptors that stay the supervisor's.
type Given struct {
	Name string
	FDs  []int // at most 64
}

// Config says what to supervise.
type Config struct {
	Program string   // path of the workers' program
	Args    []string // their arguments
	Given   func() []Given
	Relays  map[string]Relay // by the name of the worker's acceptor
	// Prepare is called before a worker that runs is replaced by the program on
	// disk. After an error it stays.
	Prepare func(ctx context.Context) error
	// Kept is called with what a worker keeps, before it is. After an error it is
	// not.
	Kept   func(name string, fds []int) error
	Notify func(state string) // tells the service manager
	Log    *slog.Logger

	Grace  time.Duration // for a worker to end in order; 0: 10 s
	Settle time.Duration // a worker that lived so long is started again at once; 0: 5 s
	Pause  time.Duration // before the second of several starts in a row, doubled each time; 0: 50 ms
	Bound  time.Duration // of that pause; 0: 2 s
	GiveUp int           // workers in a row that did not get ready; 0: 10
}

func (c *Config) defaults() {
	for _, d := range []struct {
		at    *time.Duration
		value time.Duration
	}{{&c.Grace, 10 * time.Second}, {&c.Settle, 5 * time.Second}, {&c.Pause, 50 * time.Millisecond}, {&c.Bound, 2 * time.Second}} {
		if *d.at == 0 {
			*d.at = d.value
		}
	}
	if c.GiveUp == 0 {
		c.GiveUp = 10
	}
}

// Supervisor keeps a worker running.
type Supervisor struct {
	cfg        Config
	store      store
	since      time.Time
	generation int
	served     bool // a worker has been ready
	unready    int  // workers in a row that never were
	hasty      int  // that ended soon
}

// ErrFirst says that the first worker ended before it was ready: it has said why
// itself, on standard error.
var ErrFirst = errors.New("the worker ended before it was ready")

// ownImage is the program this process runs, also when its file is gone.
const ownImage = "/proc/self/exe"

// Run runs workers until ctx is done or there is no use in another. No worker is
// left when it returns.
func Run(ctx context.Context, cfg Config) error {
	cfg.defaults()
	s := &Supervisor{cfg: cfg, since: time.Now()}
	defer s.store.close()
	// Workers die with the thread that starts them.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	for {
		p, err := s.start(s.program())
		again, wait := false, time.Duration(0)
		if err == nil {
			again = s.watch(ctx, p, hup)
			if ctx.Err() != nil {
				return nil
			}
		} else {
			s.cfg.Log.Warn("worker not started", "err", err)
		}
		if !again {
			if wait, err = s.judge(p, err); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// program is what the next worker runs. A program on disk that does not get ready
// is not all there is.
func (s *Supervisor) program() string {
	if s.unready < 2 || s.unready%2 != 0 {
		return s.cfg.Program
	}
	s.cfg.Log.Warn("the program on disk does not get ready: trying the one this process runs", "program", s.cfg.Program)
	return ownImage
}

// watch follows a worker to its end. It reports true if that was for another to
// take its place at once.
func (s *Supervisor) watch(ctx context.Context, p *process, hup <-chan os.Signal) (again bool) {
	defer func() {
		for _, r := range s.cfg.Relays {
			r.Detach()
		}
	}()
	ready := p.ready
	for {
		select {
		case <-ready:
			ready = nil
			s.nowReady(p)
		case <-p.ended:
			return false
		case <-ctx.Done():
			s.cfg.Notify("STOPPING=1")
			s.stop(p)
			return false
		case <-hup:
			if s.upgrade(ctx, p) {
				return true
			}
		}
	}
}

func (s *Supervisor) nowReady(p *process) {
	if s.generation > 1 {
		s.cfg.Log.Info("worker serves", "pid", p.cmd.Process.Pid, "generation", p.generation, "after", time.Since(p.started).Round(time.Millisecond))
	}
	s.served = true
	s.cfg.Notify(fmt.Sprintf("READY=1\nSTATUS=worker %d serves (process %d)", p.generation, p.cmd.Process.Pid))
}

// upgrade ends a worker so that the program on disk takes its place.
func (s *Supervisor) upgrade(ctx context.Context, p *process) bool {
	s.cfg.Notify(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d\nSTATUS=upgrading", monotonicMicros()))
	if err := s.cfg.Prepare(ctx); err != nil {
		s.cfg.Log.Error("not upgraded, the worker goes on", "err", err)
		s.cfg.Notify("READY=1\nSTATUS=not upgraded: see the log")
		return false
	}
	s.cfg.Log.Info("upgrading", "worker", p.cmd.Process.Pid)
	s.stop(p)
	return true
}

// judge decides after the end of a worker, or a start that failed, when to start
// the next.
func (s *Supervisor) judge(p *process, failure error) (wait time.Duration, err error) {
	how, lived := fmt.Sprint(failure), time.Duration(0)
	if p != nil {
		how, lived = p.how(), time.Since(p.started)
	}
	if p != nil && p.isReady() {
		s.served, s.unready = true, 0
	} else {
		s.unready++
	}
	if !s.served {
		if failure != nil {
			return 0, failure
		}
		return 0, ErrFirst
	}
	if s.unready >= s.cfg.GiveUp {
		return 0, fmt.Errorf("%d workers in a row did not get ready, the last: %s", s.unready, how)
	}
	if lived >= s.cfg.Settle {
		s.hasty = 0
	} else {
		s.hasty++
	}
	if s.hasty > 1 {
		wait = min(s.cfg.Pause<<min(s.hasty-2, 10), s.cfg.Bound)
	}
	s.cfg.Log.Error("worker ended, starting another", "how", how, "lived", lived.Round(time.Millisecond), "in", wait)
	s.cfg.Notify(fmt.Sprintf("STATUS=worker ended (%s), starting another", how))
	return wait, nil
}

// monotonicMicros is CLOCK_MONOTONIC as systemd wants it with RELOADING=1.
func monotonicMicros() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return ts.Nano() / 1000
}
