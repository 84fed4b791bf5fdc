package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Upgrade reports the results of requested upgrades.
type Upgrade struct {
	Asked   int    `json:"asked,omitempty"`   // number of requests so far
	Refused string `json:"refused,omitempty"` // why the last upgrade failed; "": it succeeded
}

// Relay is something in the supervisor that needs connections to the worker.
type Relay interface {
	// Attach passes the function that connects to the running worker.
	Attach(connect func() (*net.UnixConn, error))
	// Detach reports that the worker is gone.
	Detach()
}

// Given names descriptors of which every worker gets copies. The supervisor keeps ownership of
// them.
type Given struct {
	Name string
	FDs  []int // at most 64
}

// Config is the configuration of a supervisor.
type Config struct {
	Program string   // path of the workers' program
	Args    []string // their arguments
	Given   func() []Given
	Relays  map[string]Relay // by the name of the worker's acceptor
	// Prepare is called before a running worker is replaced by the program on disk. If it fails the
	// worker stays. Otherwise Given returns the descriptors for the next worker, and a call of
	// either Commit or Revert follows. Commit means that the next worker works. Revert means that
	// it has failed, and Given must return the descriptors of the previous worker again.
	Prepare        func(ctx context.Context) error
	Commit, Revert func()
	// Reload reads the configuration again, without the program, and returns a descriptor of it. If
	// the worker takes it, Reloaded is called, and Given returns it for later workers.
	Reload   func() (text int, err error)
	Reloaded func(text int)
	// Kept is called before descriptors of a worker are kept. If it fails they are not kept. It may
	// return a relay, which from then on gets connections to workers under that name.
	Kept   func(name string, fds []int) (Relay, error)
	Failed func(generation int) // is called when a worker has ended by itself, or was stuck; nil: nobody asks
	Notify func(state string)   // tells the service manager
	Log    *slog.Logger

	Grace  time.Duration // time for a worker to shut down; 0: 10 s
	Settle time.Duration // if a worker ends after at least this, the next starts at once; an upgraded worker that lives this long has succeeded; 0: 5 s
	Try    time.Duration // time for an upgraded worker to become ready; 0: 60 s
	Pause  time.Duration // before the second of several starts in a row, doubled each time; 0: 50 ms
	Bound  time.Duration // upper bound of that pause; 0: 5 s
	// Watchdog returns how long a thread of a worker may make no progress before the worker is
	// replaced. It is called for each worker. nil or 0: no limit.
	Watchdog func() time.Duration
}

func (c *Config) defaults() {
	for _, d := range []struct {
		at    *time.Duration
		value time.Duration
	}{{&c.Grace, 10 * time.Second}, {&c.Settle, 5 * time.Second}, {&c.Pause, 50 * time.Millisecond}, {&c.Bound, 5 * time.Second}, {&c.Try, time.Minute}} {
		if *d.at == 0 {
			*d.at = d.value
		}
	}
}

// Supervisor keeps a worker running.
type Supervisor struct {
	cfg        Config
	store      store
	since      time.Time
	generation int
	served     bool // a worker has been ready
	hasty      int  // number of workers in a row that ended before Settle

	program   *program // of the last worker that settled; nil: none yet
	trying    bool     // the next worker is an upgrade
	upgrade   Upgrade
	reloading reloading
	stuck     int // number of workers replaced because their event loop was stuck

	mu     sync.Mutex
	relays map[string]Relay // Config.Relays, and those that Kept returned
}

// ErrFirst means that the first worker ended by itself before it was ready. The worker has written
// the reason to standard error.
var ErrFirst = errors.New("the worker ended before it was ready")

// Run runs workers until ctx is done or the first worker fails. Once a worker has served, Run never
// gives up, because guests cannot reconnect to another supervisor. No worker is left when Run
// returns.
func Run(ctx context.Context, cfg Config) error {
	cfg.defaults()
	s := &Supervisor{cfg: cfg, since: time.Now(), relays: map[string]Relay{}, reloading: reloading{text: -1}}
	maps.Copy(s.relays, cfg.Relays)
	defer s.store.close()
	// Workers die with the thread that starts them.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	hup, usr := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	signal.Notify(usr, syscall.SIGUSR2)
	defer signal.Stop(hup)
	defer signal.Stop(usr)
	defer func() { s.program.close() }()
	for {
		p, err := s.start()
		again, wait := false, time.Duration(0)
		if err == nil {
			again = s.watch(ctx, p, hup, usr)
			if ctx.Err() != nil {
				s.settle(p)
				return nil
			}
		} else {
			s.cfg.Log.Warn("worker not started", "err", err)
		}
		if !again {
			if wait, err = s.nextStart(p, err); err != nil {
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

// watch handles signals and the watchdog until a worker ends. It returns true if the worker was
// stopped so that another one takes its place at once.
func (s *Supervisor) watch(ctx context.Context, p *process, hup, usr <-chan os.Signal) (again bool) {
	defer func() {
		s.endReload(p)
		s.detach(p)
		p.pulses.unmap()
	}()
	ready, reload, asked, late := p.ready, (<-chan os.Signal)(nil), usr, (<-chan time.Time)(nil)
	if p.upgrade {
		asked = nil // no further upgrade until this one has settled
		late = time.After(s.cfg.Try)
	}
	w, ticks := s.watchdogOf(p)
	defer ticks.Stop()
	for {
		upgrade, replace := asked, p.replace
		switch {
		case s.reloading.text >= 0:
			upgrade, replace = nil, nil // not before the worker has said which configuration the next one gets
		case s.reloading.wanted && p.reloads.Load():
			s.reload(p)
			continue
		}
		select {
		case now := <-ticks.C:
			if w.findStuck(now) {
				s.replaceStuck(p, w)
				return false
			}
		case <-ready:
			ready, reload, asked, late = nil, hup, usr, nil
			s.nowReady(p)
		case <-late:
			late = nil
			p.say(fmt.Sprintf("not ready after %v", s.cfg.Try))
			_ = p.cmd.Process.Kill()
		case <-p.ended:
			return false
		case <-ctx.Done():
			s.cfg.Notify("STOPPING=1")
			s.stop(p)
			return false
		case <-upgrade:
			if s.replace(ctx, p) {
				return true
			}
		case <-reload:
			if p.reloads.Load() {
				s.reloading.wanted = true
			} else if s.replace(ctx, p) { // an older worker, which knows only upgrades
				return true
			}
		case <-replace:
			s.cfg.Log.Info("replacing the worker at its own request", "worker", p.cmd.Process.Pid)
			s.stop(p)
			s.settle(p)
			return true
		case <-p.reload:
			s.reloading.wanted = true
		case m := <-p.reloaded:
			s.answered(p, m)
		case <-s.reloading.late:
			s.reloaded(p, fmt.Sprintf("the worker has not answered for %v", reloadLimit))
		}
	}
}

// watchdogOf returns the watchdog of a worker and the ticker for its checks.
func (s *Supervisor) watchdogOf(p *process) (*watchdog, *time.Ticker) {
	limit := time.Duration(0)
	if s.cfg.Watchdog != nil {
		limit = s.cfg.Watchdog()
	}
	pid := p.cmd.Process.Pid
	w := &watchdog{
		limit: limit, pulses: p.pulses, seen: time.Now(),
		look: func() (map[int]threadTime, error) { return threadsOf(pid) },
		wake: func(thread int) { wake(pid, thread) },
	}
	if limit <= 0 {
		t := time.NewTicker(time.Hour)
		t.Stop()
		return w, t
	}
	return w, time.NewTicker(w.every())
}

// replaceStuck kills a worker whose event loop is stuck, since it cannot shut down by itself.
func (s *Supervisor) replaceStuck(p *process, w *watchdog) {
	s.stuck++
	pid := p.cmd.Process.Pid
	s.cfg.Log.Error("the NIC's event loop is stuck: replacing the worker", "pid", pid, "for", w.stuck.still.Round(time.Millisecond), "why", w.why(pid), "limit", w.limit)
	_ = p.cmd.Process.Kill()
	select {
	case <-p.ended:
	case <-time.After(s.cfg.Grace): // it is in an uninterruptible wait in the kernel
		s.cfg.Log.Error("the worker cannot be killed; waiting for its end", "pid", pid)
		<-p.ended
	}
}

func (s *Supervisor) nowReady(p *process) {
	if s.generation > 1 {
		s.cfg.Log.Info("worker serves", "pid", p.cmd.Process.Pid, "generation", p.generation, "after", time.Since(p.started).Round(time.Millisecond))
	}
	s.served = true
	s.cfg.Notify(fmt.Sprintf("READY=1\nSTATUS=worker %d serves (process %d)", p.generation, p.cmd.Process.Pid))
}

// replace ends a worker so that the program on disk takes its place.
func (s *Supervisor) replace(ctx context.Context, p *process) bool {
	s.cfg.Notify(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d\nSTATUS=upgrading", monotonicMicros()))
	s.adopt(p)
	if err := s.cfg.Prepare(ctx); err != nil {
		s.cfg.Log.Error("not upgraded, the worker keeps running", "err", err)
		s.upgrade = Upgrade{Asked: s.upgrade.Asked + 1, Refused: bounded(err.Error())}
		_ = p.ch.send(message{Kind: kindUpgrade, Upgrade: &s.upgrade})
		s.cfg.Notify("READY=1\nSTATUS=not upgraded: see the log")
		return false
	}
	s.cfg.Log.Info("upgrading", "worker", p.cmd.Process.Pid)
	s.stop(p)
	s.settle(p)
	s.upgrade = Upgrade{Asked: s.upgrade.Asked + 1}
	s.trying = true
	return true
}

// bounded cuts a reason to the length that fits into a message.
func bounded(reason string) string { return reason[:min(len(reason), maxReason)] }

// adopt makes the program of a worker the one for later workers, if the worker serves. If it does
// not serve yet, adopt does nothing.
func (s *Supervisor) adopt(p *process) {
	if !p.isReady() {
		return
	}
	if p.program != s.program {
		s.program.close()
		s.program = p.program
	}
	if p.upgrade {
		p.upgrade = false
		s.cfg.Commit()
	}
}

// settle is adopt for a worker that has ended. A program that was not adopted is closed.
func (s *Supervisor) settle(p *process) {
	s.adopt(p)
	if p.program != s.program {
		p.program.close()
	}
}

// nextStart decides, after a worker has ended or failed to start, when to start the next one.
func (s *Supervisor) nextStart(p *process, failure error) (wait time.Duration, err error) {
	how, lived := fmt.Sprint(failure), time.Duration(0)
	if p != nil {
		how, lived = p.how(), time.Since(p.started)
		if s.cfg.Failed != nil {
			s.cfg.Failed(p.generation)
		}
	}
	if s.trying || p != nil && p.upgrade && (!p.isReady() || lived < s.cfg.Settle) {
		s.revert(p, how)
		return 0, nil
	}
	if p != nil {
		s.served = s.served || p.isReady()
		s.settle(p)
	}
	if !s.served {
		if failure != nil {
			return 0, failure
		}
		if p.cmd.ProcessState.Exited() {
			return 0, ErrFirst
		}
		return 0, fmt.Errorf("the worker ended before it was ready: %s", how)
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

// revert goes back to the program and configuration before an upgrade.
func (s *Supervisor) revert(p *process, how string) {
	s.trying = false
	if p != nil {
		p.program.close()
	}
	s.cfg.Revert()
	s.upgrade.Refused = bounded(how)
	s.cfg.Log.Error("upgrade failed, the previous program and configuration stay in use", "how", how)
	s.cfg.Notify("STATUS=upgrade failed, continuing as before: see the log")
}

// monotonicMicros returns CLOCK_MONOTONIC in microseconds, which systemd requires with RELOADING=1.
func monotonicMicros() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return ts.Nano() / 1000
}
