package supervisor

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// program is a worker's program. It is held open so that it can be run again after another file has
// taken its name.
type program struct {
	path string
	fd   int
}

func openProgram(path string) (*program, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	// A high number, so that the worker's own descriptors, which have low numbers, do not replace
	// it.
	high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 64)
	if err != nil {
		return nil, fmt.Errorf("program %s: %w", path, err)
	}
	return &program{path, high}, nil
}

// file returns a path of the program that is valid in the child process which executes it.
func (p *program) file() string { return fmt.Sprintf("/proc/self/fd/%d", p.fd) }

func (p *program) close() {
	if p != nil && p.fd >= 0 {
		_ = unix.Close(p.fd)
		p.fd = -1
	}
}

// process is one worker.
type process struct {
	program    *program
	upgrade    bool // it replaced the previous worker in an upgrade, and has not settled yet
	cmd        *exec.Cmd
	ch         *channel
	generation int
	started    time.Time
	ready      chan struct{} // closed when it has reported that it serves
	ended      chan struct{} // closed when it is gone and all its messages are read
	err        error         // of its exit; set before ended is closed
	pulses     *Pulses       // of its threads; valid also after ended is closed
	pulseFD    int
	attaching  sync.WaitGroup // relays that are being attached to it
	reload     chan struct{}  // it asked for a reload; capacity 1
	requests   atomic.Int64   // highest number of its requests for a reload
	reloaded   chan message   // its kindReloaded; capacity 1
	reloads    atomic.Bool    // it knows reloads
	replace    chan struct{}  // it asked to be replaced; capacity 1

	mu   sync.Mutex
	said string // the worker's own message about why it ends
}

// start starts a worker and sends it everything that it needs. The caller's thread must live as
// long as the worker.
func (s *Supervisor) start() (_ *process, err error) {
	program := s.program
	if program == nil || s.trying {
		if program, err = openProgram(s.cfg.Program); err != nil {
			return nil, err
		}
		defer func() {
			if err != nil {
				program.close()
			}
		}()
	}
	s.generation++
	ours, theirs, err := pair()
	if err != nil {
		return nil, err
	}
	pulses, pulseFD, err := newPulses()
	if err != nil {
		return nil, errors.Join(err, ours.Close(), theirs.Close())
	}
	cmd := exec.Command(program.file(), s.cfg.Args...)
	cmd.Args[0] = s.cfg.Program
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{theirs} // ChannelFD
	// Its own process group: signals from a terminal or a shell are for the supervisor only.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	err = cmd.Start()
	if err = errors.Join(err, theirs.Close()); err != nil {
		pulses.unmap()
		return nil, errors.Join(err, ours.Close(), unix.Close(pulseFD))
	}
	p := &process{program: program, upgrade: s.trying, cmd: cmd, ch: &channel{conn: ours}, pulses: pulses, pulseFD: pulseFD, generation: s.generation, started: time.Now(), ready: make(chan struct{}), ended: make(chan struct{}), reload: make(chan struct{}, 1), reloaded: make(chan message, 1), replace: make(chan struct{}, 1)}
	s.trying = false
	handled := make(chan struct{})
	go func() {
		defer close(handled)
		s.handle(p)
	}()
	go func() {
		err := cmd.Wait()
		<-handled
		_ = ours.Close()
		p.err = err
		close(p.ended)
	}()
	err = s.tell(p)
	_ = unix.Close(pulseFD)
	if err != nil {
		s.cfg.Log.Warn("worker did not get all the messages it needs", "err", err)
		_ = cmd.Process.Kill() // it has got only part of the messages
		return p, nil
	}
	s.attach(p)
	return p, nil
}

// attach connects all relays to a worker. It does so in the background and for all at once, so that
// a slow guest does not delay the others and the worker is watched meanwhile. The worker gets a
// message for each relay that is done, and one when all are.
func (s *Supervisor) attach(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all sync.WaitGroup
	for name, r := range s.relays {
		all.Add(1)
		p.attaching.Go(func() {
			defer all.Done()
			s.attachOne(p, name, r)
		})
	}
	p.attaching.Go(func() {
		all.Wait()
		_ = p.ch.send(message{Kind: kindJoined}) // fails only when the worker is gone
	})
}

func (s *Supervisor) attachOne(p *process, name string, r Relay) {
	r.Attach(func() (*net.UnixConn, error) { return s.connect(p, name) })
	_ = p.ch.send(message{Kind: kindJoined, Name: name})
}

// relay adds a relay while a worker runs, and attaches it.
func (s *Supervisor) relay(p *process, name string, r Relay) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.relays[name] = r
	p.attaching.Go(func() { s.attachOne(p, name, r) })
}

// detach tells all relays that a worker is gone. It first waits for relays that are still
// attaching.
func (s *Supervisor) detach(p *process) {
	p.attaching.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.relays {
		r.Detach()
	}
}

// tell sends a new worker its Start and all descriptors.
func (s *Supervisor) tell(p *process) error {
	start := Start{Protocol: Protocol, Generation: p.generation, PID: os.Getpid(), Since: s.since, Upgrade: s.upgrade, Stuck: s.stuck, Joins: true, Reloads: s.cfg.Reload != nil, Reload: s.reloading.result, Numbers: true, Replaces: true}
	if err := p.ch.send(message{Kind: kindStart, Start: &start}); err != nil {
		return err
	}
	give := func(name string, fds []int) error { return p.ch.send(message{Kind: kindGive, Name: name}, fds...) }
	if err := give(givenPulse, []int{p.pulseFD}); err != nil {
		return err
	}
	for _, g := range s.cfg.Given() {
		if err := give(g.Name, g.FDs); err != nil {
			return err
		}
	}
	if err := s.store.each(give); err != nil {
		return err
	}
	return p.ch.send(message{Kind: kindGo})
}

// handle acts on the messages of a worker until the worker ends.
func (s *Supervisor) handle(p *process) {
	ready := false
	for {
		m, fds, err := p.ch.receive()
		if err != nil {
			return
		}
		switch {
		case m.Kind == kindKeep && m.Name != "" && len(fds) > 0:
			r, err := s.cfg.Kept(m.Name, fds)
			if err == nil {
				err = s.store.put(m.Name, fds)
				fds = nil
			}
			if r != nil {
				s.relay(p, m.Name, r)
			}
			if err != nil {
				s.cfg.Log.Warn("descriptors not kept for the worker", "name", m.Name, "err", err)
			}
		case m.Kind == kindDrop:
			s.store.drop(m.Name)
			_ = p.ch.send(message{Kind: kindGone, Name: m.Name})
		case m.Kind == kindAgain:
			if r := s.cfg.Relays[m.Name]; r != nil { // in the background: it may block on the worker, which may block on this goroutine
				p.attaching.Go(func() { s.attachOne(p, m.Name, r) })
			}
		case m.Kind == kindFailed:
			p.say(m.Name)
		case m.Kind == kindReload:
			p.requests.Store(max(p.requests.Load(), int64(m.Number)))
			select {
			case p.reload <- struct{}{}:
			default: // one is asked for already
			}
		case m.Kind == kindReplace:
			select {
			case p.replace <- struct{}{}:
			default: // it has asked already
			}
		case m.Kind == kindReloaded:
			select {
			case p.reloaded <- m:
			default: // nobody asked
			}
		case m.Kind == kindReady && !ready:
			ready = true
			p.reloads.Store(m.Name == readyReloads)
			close(p.ready)
		}
		closeAll(fds)
	}
}

// connect opens a connection to one of a worker's acceptors.
func (s *Supervisor) connect(p *process, name string) (*net.UnixConn, error) {
	ours, theirs, err := pair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	if err := p.ch.send(message{Kind: kindStream, Name: name}, int(theirs.Fd())); err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	return ours, nil
}

// stop asks a worker to shut down, and kills it if it has not ended in time.
func (s *Supervisor) stop(p *process) {
	_ = p.ch.send(message{Kind: kindStop})
	select {
	case <-p.ended:
		return
	case <-time.After(s.cfg.Grace):
	}
	s.cfg.Log.Warn("worker killed: it did not end", "pid", p.cmd.Process.Pid, "waited", s.cfg.Grace)
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// say records why the worker ends.
func (p *process) say(why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.said = why
}

// how describes how a worker ended.
func (p *process) how() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.said != "" {
		return p.said
	}
	if p.err == nil {
		return "exit status 0"
	}
	return fmt.Sprint(p.err)
}

func (p *process) isReady() bool {
	select {
	case <-p.ready:
		return true
	default:
		return false
	}
}
