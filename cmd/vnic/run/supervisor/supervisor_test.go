package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/internal/leak"
)

// workerMode is the environment variable that makes the test binary a worker.
const workerMode = "VNIC_SUPERVISOR_TEST"

func TestMain(m *testing.M) {
	if mode := os.Getenv(workerMode); mode != "" {
		if err := testWorker(mode); err != nil {
			fmt.Fprintln(os.Stderr, "worker:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	leak.Main(m)
}

// testWorker keeps the descriptors that it was given, counts in the kept memory, reports on every
// stream what it sees, and ends in the way of its mode.
func testWorker(mode string) error {
	w, err := Join(os.NewFile(ChannelFD, "supervisor"))
	if err != nil {
		return err
	}
	switch second := w.Generation == 2; {
	case mode == "broken", mode == "once" && w.Generation > 1, mode == "second" && second:
		err := errors.New("broken on purpose")
		w.Failed(err)
		return err
	case mode == "killed":
		return syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case mode == "hangs" && second:
		select {}
	}
	counter := w.Take("counter")
	if len(counter) == 0 {
		fd, err := unix.MemfdCreate("counter", unix.MFD_CLOEXEC)
		if err != nil {
			return err
		}
		counter = []int{fd}
	}
	if _, err := unix.Pwrite(counter[0], []byte{byte(w.Generation)}, int64(w.Generation)); err != nil {
		return err
	}
	if err := w.Keep("counter", counter...); err != nil {
		return err
	}
	if n := append(w.Names("refused"), w.Names("dropped")...); len(n) > 0 {
		return fmt.Errorf("%q were kept", n)
	}
	passing := len(w.Names("pass"))
	if err := w.Keep("refused", counter...); err != nil {
		return err
	}
	if err := w.Keep("dropped", counter...); err != nil {
		return err
	}
	if err := w.Drop("dropped"); err != nil {
		return err
	}
	if w.Generation == 1 {
		if err := w.Keep("passing", counter...); err != nil {
			return err
		}
	}
	given := w.Take("given")
	w.Discard()
	if mode == "crash" || mode == "soon" && w.Generation == 2 {
		_ = w.Ready()
		return errors.New("crashed on purpose")
	}
	streams := w.Acceptor("relay")
	go func() {
		for {
			c, err := streams.AcceptUnix()
			if err != nil {
				return
			}
			st := unix.Stat_t{}
			_ = unix.Fstat(counter[0], &st)
			if u := w.Upgraded(); u.Refused != "" {
				fmt.Fprintf(c, "upgrade %d: %s; ", u.Asked, u.Refused)
			}
			fmt.Fprintf(c, "generation %d, counter of %d, given %d, passing %d, process %d\n", w.Generation, st.Size, len(given), passing, os.Getpid())
			c.Close()
		}
	}()
	ctx, cancel := w.Context()
	defer cancel()
	select {
	case <-w.Joined("relay"): // not before it is served: the supervisor says it after that
	case <-ctx.Done():
		return nil
	}
	if mode == "turning" {
		turn(ctx, &w.Pulses[1].Pulse) // before it is ready: then it may be stopped at any time
	}
	if err := w.Ready(); err != nil {
		return err
	}
	<-ctx.Done()
	if mode == "stubborn" {
		select {}
	}
	return nil
}

// testRelay connects to each worker and keeps what the worker reports.
type testRelay struct {
	mu       sync.Mutex
	said     []string
	attached bool
}

func (r *testRelay) Attach(connect func() (*net.UnixConn, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.attached = true
	c, err := connect()
	if err != nil {
		return
	}
	go func() {
		b, _ := io.ReadAll(c)
		c.Close() // before what it said is known: then descriptors are counted
		r.mu.Lock()
		defer r.mu.Unlock()
		r.said = append(r.said, string(b))
	}()
}

func (r *testRelay) Detach() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.attached = false
}

// last waits for the n-th worker that spoke.
func (r *testRelay) last(t *testing.T, n int) (line string, pid int) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		r.mu.Lock()
		said := r.said
		r.mu.Unlock()
		if len(said) >= n && said[n-1] != "" {
			line = strings.TrimSpace(said[n-1])
			_, _ = fmt.Sscanf(line[strings.LastIndex(line, " ")+1:], "%d", &pid)
			return line, pid
		}
	}
	t.Fatalf("worker %d did not come: %q", n, r.said)
	return "", 0
}

// notes lists what was called, in order.
type notes struct {
	mu   sync.Mutex
	list []string
}

func (n *notes) note(what string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(n.list, what)
}

func (n *notes) noted() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Join(n.list, " ")
}

type scene struct {
	*testRelay
	cancel context.CancelFunc
	ended  chan error
	mu     sync.Mutex
	states []string
	calls  notes // of Prepare, Commit and Revert
}

// last waits for the n-th worker that spoke. Before the first is told to serve, its end would be
// that of the supervisor.
func (s *scene) last(t *testing.T, n int) (line string, pid int) {
	t.Helper()
	line, pid = s.testRelay.last(t, n)
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		s.mu.Lock()
		serves := len(s.states) > 0
		s.mu.Unlock()
		if serves {
			return line, pid
		}
	}
	t.Fatalf("worker %d speaks and does not serve", n)
	return "", 0
}

// supervise runs a supervisor whose workers have a mode.
func supervise(t *testing.T, mode string, change func(*Config)) *scene {
	t.Helper()
	t.Setenv(workerMode, mode)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	fds := [2]int{}
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeAll(fds[:]) })
	s := &scene{testRelay: &testRelay{}, ended: make(chan error, 1)}
	cfg := Config{
		Program: self,
		Given:   func() []Given { return []Given{{"given", fds[:]}} },
		Relays:  map[string]Relay{"relay": s.testRelay},
		Prepare: func(context.Context) error { s.calls.note("prepare"); return nil },
		Commit:  func() { s.calls.note("commit") },
		Revert:  func() { s.calls.note("revert") },
		Kept: func(name string, fds []int) (Relay, error) {
			if name == "refused" {
				return nil, errors.New("refused on purpose")
			}
			return nil, nil
		},
		Notify: func(state string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.states = append(s.states, state)
		},
		Log:   slog.New(slog.DiscardHandler),
		Pause: time.Millisecond, Bound: 5 * time.Millisecond,
	}
	if change != nil {
		change(&cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	go func() { s.ended <- Run(ctx, cfg) }()
	t.Cleanup(func() {
		cancel()
		select {
		case <-s.ended:
		case <-time.After(2 * time.Minute):
			t.Error("the supervisor does not end")
		}
	})
	return s
}

func (s *scene) end(t *testing.T) error {
	t.Helper()
	s.cancel()
	return s.wait(t)
}

func (s *scene) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-s.ended:
		s.ended <- err
		return err
	case <-time.After(2 * time.Minute):
		t.Fatal("the supervisor does not end")
		return nil
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// TestTheNextWorkerGetsTheSameDescriptors kills one worker after the other. Each gets the same descriptors, and those
// that an earlier one kept; what a worker does not take is dropped.
func TestTheNextWorkerGetsTheSameDescriptors(t *testing.T) {
	s := supervise(t, "serve", nil)
	before := 0
	for n := 1; n <= 8; n++ {
		line, pid := s.last(t, n)
		passing := 0
		if n == 2 {
			passing = 1
		}
		if want := fmt.Sprintf("generation %d, counter of %d, given 2, passing %d, process %d", n, n+1, passing, pid); line != want {
			t.Fatalf("%q, want %q", line, want)
		}
		if n == 4 {
			before = descriptors(t)
		}
		if n == 8 {
			if now := descriptors(t); now > before {
				t.Errorf("%d descriptors, %d four workers before", now, before)
			}
			break
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	_, pid := s.last(t, 8)
	if err := s.end(t); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the last worker is still there: %v", err)
	}
	if s.attached {
		t.Error("the relay was not told of the end")
	}
	if s.states[0] != fmt.Sprintf("READY=1\nSTATUS=worker 1 serves (process %d)", pidIn(s.said[0])) || s.states[len(s.states)-1] != "STOPPING=1" {
		t.Errorf("%q", s.states)
	}
}

func pidIn(line string) (pid int) {
	line = strings.TrimSpace(line)
	_, _ = fmt.Sscanf(line[strings.LastIndex(line, " ")+1:], "%d", &pid)
	return pid
}

// TestSIGUSR2ReplacesTheWorker: SIGUSR2 replaces the worker, unless the new program fails its check.
func TestSIGUSR2ReplacesTheWorker(t *testing.T) {
	fit := errors.New("not fit")
	var mu sync.Mutex
	asked := make(chan struct{}, 10)
	s := supervise(t, "serve", func(c *Config) {
		c.Prepare = func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			asked <- struct{}{}
			return fit
		}
	})
	hangUp := func() {
		if err := syscall.Kill(os.Getpid(), syscall.SIGUSR2); err != nil {
			t.Fatal(err)
		}
		<-asked
	}
	_, first := s.last(t, 1)
	hangUp()
	mu.Lock()
	fit = nil
	mu.Unlock()
	if err := syscall.Kill(first, 0); err != nil {
		t.Fatalf("a program that is not fit ended the worker: %v", err)
	}
	hangUp()
	if line, _ := s.last(t, 2); !strings.HasPrefix(line, "generation 2, counter of 3") {
		t.Error(line)
	}
	if err := s.end(t); err != nil {
		t.Fatal(err)
	}
	if got := s.calls.noted(); got != "commit" {
		t.Errorf("called: %s", got)
	}
	if all := strings.Join(s.states, "|"); strings.Count(all, "RELOADING=1\nMONOTONIC_USEC=") != 2 || !strings.Contains(all, "STATUS=not upgraded") {
		t.Errorf("%q", s.states)
	}
}

func TestAFirstWorkerThatFailsIsNotTriedAgain(t *testing.T) {
	if err := supervise(t, "broken", nil).wait(t); !errors.Is(err, ErrFirst) {
		t.Errorf("%v", err)
	}
	// This program prints nothing itself.
	if err := supervise(t, "killed", nil).wait(t); err == nil || errors.Is(err, ErrFirst) || !strings.Contains(err.Error(), "signal: killed") {
		t.Errorf("%v", err)
	}
	if err := supervise(t, "serve", func(c *Config) { c.Program = "/nowhere" }).wait(t); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// TestNeverGivesUp: once a worker has served, the supervisor starts others for ever, because guests
// cannot reconnect to another supervisor.
func TestNeverGivesUp(t *testing.T) {
	s := supervise(t, "once", nil)
	_, pid := s.last(t, 1)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.ends(t, 15)
	if err := s.end(t); err != nil {
		t.Error(err)
	}
}

// ends waits until the given number of workers have ended.
func (s *scene) ends(t *testing.T, want int) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		n := strings.Count(strings.Join(s.states, "|"), "starting another")
		s.mu.Unlock()
		if n > want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d workers ended", n)
		}
	}
}

// TestAFailedUpgradeReturnsToTheProgramBefore: if the worker of an upgrade fails, hangs, or ends soon after it was ready, it
// is not tried again. The program that served before is started again, and the reason is reported.
func TestAFailedUpgradeReturnsToTheProgramBefore(t *testing.T) {
	for _, tt := range []struct{ mode, program, why string }{
		{"second", "", "broken on purpose"},
		{"hangs", "", "not ready after"},
		{"soon", "", "exit status 1"},
		{"serve", "#!/bin/false\n", "exit status 1"},
		{"serve", "no program\n", "exec format error"},
	} {
		t.Run(tt.mode+tt.why, func(t *testing.T) {
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			image, err := os.ReadFile(self)
			if err != nil {
				t.Fatal(err)
			}
			program := t.TempDir() + "/worker"
			if err := os.WriteFile(program, image, 0o755); err != nil {
				t.Fatal(err)
			}
			s := supervise(t, tt.mode, func(c *Config) {
				c.Program = program
				if tt.mode == "hangs" {
					c.Try = 100 * time.Millisecond
				}
			})
			s.last(t, 1)
			if tt.program != "" {
				if err := os.WriteFile(program+".new", []byte(tt.program), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.Rename(program+".new", program); err != nil {
					t.Fatal(err)
				}
			}
			if err := syscall.Kill(os.Getpid(), syscall.SIGUSR2); err != nil {
				t.Fatal(err)
			}
			line := s.spoke(t, "upgrade 1: ")
			if !strings.Contains(line, tt.why) {
				t.Errorf("%q", line)
			}
			if got := s.calls.noted(); got != "prepare revert" {
				t.Errorf("called: %s", got)
			}
			if err := s.end(t); err != nil {
				t.Error(err)
			}
		})
	}
}

// spoke waits for a worker's line that contains a text.
func (r *testRelay) spoke(t *testing.T, with string) string {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		r.mu.Lock()
		for _, line := range r.said {
			if strings.Contains(line, with) {
				r.mu.Unlock()
				return line
			}
		}
		r.mu.Unlock()
	}
	t.Fatalf("nobody said %q", with)
	return ""
}

// TestUpgradeRefusedBeforeReady: an upgrade that is refused while the first worker does not serve
// yet takes nothing away. When that worker serves, its program is what later ones go back to.
func TestUpgradeRefusedBeforeReady(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	prog, err := openProgram(self)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs, err := pair()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	defer theirs.Close()
	s := &Supervisor{cfg: Config{
		Prepare: func(context.Context) error { return errors.New("refused on purpose") },
		Commit:  func() {}, Notify: func(string) {}, Log: slog.New(slog.DiscardHandler),
	}}
	p := &process{program: prog, ch: &channel{conn: ours}, ready: make(chan struct{})}
	if s.replace(t.Context(), p) || s.program != nil {
		t.Fatal("replaced, or kept what does not serve")
	}
	close(p.ready)
	if s.replace(t.Context(), p) {
		t.Fatal("replaced")
	}
	defer func() { s.program.close() }()
	if _, err := os.Stat(s.program.file()); err != nil {
		t.Errorf("the program that works cannot be run again: %v", err)
	}
	s.settle(p)
	if _, err := os.Stat(s.program.file()); err != nil {
		t.Errorf("gone with its worker: %v", err)
	}
}

// TestWorkersThatCrashAreStartedForEver: workers that serve for a moment only are started again for ever, after pauses.
func TestWorkersThatCrashAreStartedForEver(t *testing.T) {
	s := supervise(t, "crash", nil)
	s.ends(t, 15)
	if err := s.end(t); err != nil {
		t.Error(err)
	}
}

// TestAStubbornWorkerIsKilled: a worker that does not end when it is asked to is killed.
func TestAStubbornWorkerIsKilled(t *testing.T) {
	s := supervise(t, "stubborn", func(c *Config) { c.Grace = 50 * time.Millisecond })
	_, pid := s.last(t, 1)
	if err := s.end(t); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("it is still there: %v", err)
	}
}

// TestARemovedProgramIsStartedAgain: if the file of the program has been removed, workers run the program of the
// worker before.
func TestARemovedProgramIsStartedAgain(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := t.TempDir() + "/worker"
	if err := os.Link(self, program); err != nil {
		t.Skip("no hard link of the test: ", err)
	}
	s := supervise(t, "serve", func(c *Config) { c.Program = program })
	_, pid := s.last(t, 1)
	if err := os.Remove(program); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if line, _ := s.last(t, 2); line == "" {
		t.Error("no second worker")
	}
}

func TestMessagesCarryTheirDescriptors(t *testing.T) {
	a, f, err := pair()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := newChannel(f)
	if err != nil {
		t.Fatal(err)
	}
	defer b.conn.Close()
	ours := &channel{conn: a}
	for _, n := range []int{0, 1, 6, maxFDs} {
		var fds []int
		for range n {
			fds = append(fds, 1)
		}
		if err := ours.send(message{Kind: kindGive, Name: "x"}, fds...); err != nil {
			t.Fatal(err)
		}
		m, got, err := b.receive()
		if err != nil || m.Kind != kindGive || m.Name != "x" || len(got) != n {
			t.Errorf("%+v with %d descriptors, want %d: %v", m, len(got), n, err)
		}
		closeAll(got)
	}
	for _, bad := range []string{"\xff\xff\xff\x7f", "\x01\x00\x00\x00{", "\x05\x00"} {
		a, f, err := pair()
		if err != nil {
			t.Fatal(err)
		}
		b, err := newChannel(f)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = a.Write([]byte(bad))
		a.Close()
		if _, _, err := b.receive(); err == nil {
			t.Errorf("%q was taken", bad)
		}
		b.conn.Close()
	}
	if w, err := Join(os.NewFile(uintptr(^uint(0)>>1), "no descriptor")); err == nil {
		t.Errorf("%+v joined nothing", w)
	}
}

// slowRelay is a relay whose Attach takes as long as the worker lives.
type slowRelay struct{ told chan struct{} }

func (r *slowRelay) Attach(connect func() (*net.UnixConn, error)) {
	c, err := connect()
	if err != nil {
		return
	}
	defer c.Close()
	r.told <- struct{}{}
	_, _ = io.ReadAll(c) // nobody takes it there: it ends with the worker
}

func (r *slowRelay) Detach() {}

// TestSlowRelayDelaysNobody: while the relay of one guest attaches slowly, the other relays have
// attached and the worker serves. It is watched, replaced when it ends, and stopped in order, like
// any other.
func TestSlowRelayDelaysNobody(t *testing.T) {
	slow := []*slowRelay{{make(chan struct{}, 16)}, {make(chan struct{}, 16)}}
	s := supervise(t, "serve", func(c *Config) {
		c.Relays["slow 1"], c.Relays["slow 2"] = slow[0], slow[1]
	})
	for n := 1; n <= 3; n++ {
		_, pid := s.last(t, n)
		for _, r := range slow {
			<-r.told
		}
		if n < 3 {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
	if err := s.end(t); err != nil {
		t.Error(err)
	}
}

// TestAWorkerDiscardsAnyNumberOfNames: worker and supervisor do not wait for each other, however many
// descriptors the worker has no use for.
func TestAWorkerDiscardsAnyNumberOfNames(t *testing.T) {
	r := newReloads(t)
	p, w := r.work(t)
	for i := range 2000 {
		name := fmt.Sprint("port ", i)
		if err := r.store.put(name, nil); err != nil {
			t.Fatal(err)
		}
		w.given[name] = nil
	}
	begun := time.Now()
	w.Discard()
	if err := w.Ready(); err != nil {
		t.Fatal(err)
	}
	<-p.ready
	if took := time.Since(begun); took >= sendLimit {
		t.Errorf("a message waited for as long as it may: all took %v", took)
	}
	if err := r.store.each(func(name string, _ []int) error { return errors.New(name) }); err != nil {
		t.Errorf("still kept: %v", err)
	}
}

// TestAClosedAcceptorKeepsNobodyWaiting: a connection for it, as of a front end at the socket of a port
// that was removed, ends at once. The next acceptor of that name asks for a connection, and gets it.
func TestAClosedAcceptorKeepsNobodyWaiting(t *testing.T) {
	r := newReloads(t)
	again := &testRelay{}
	r.cfg.Relays = map[string]Relay{"port": again}
	p, w := r.work(t)
	defer p.attaching.Wait()
	if err := w.Acceptor("port").Close(); err != nil {
		t.Fatal(err)
	}
	c, err := r.connect(p, "port")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the connection that nobody accepts: %v", err)
	}
	next := w.Acceptor("port")
	defer next.Close()
	conn, err := next.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, "served")
	conn.Close()
	if said, _ := again.last(t, 1); said != "served" {
		t.Errorf("the relay was told %q", said)
	}
}

// TestLongReasonsKeepNoWorkerFromJoining: a worker can be told of an upgrade and of a reload that were
// both refused with reasons of any length and any bytes.
func TestLongReasonsKeepNoWorkerFromJoining(t *testing.T) {
	r := newReloads(t)
	why := bounded(strings.Repeat("\x01", maxMessage))
	r.upgrade, r.reloading.result = Upgrade{Asked: 1, Refused: why}, Reload{Asked: 1, Refused: why}
	_, w := r.work(t)
	if w.Upgraded() != r.upgrade || w.Reloaded() != r.reloading.result {
		t.Error("the reasons are others")
	}
}

// TestWhatIsPutBackIsNotTaken: a worker can take it again, and else discards it.
func TestWhatIsPutBackIsNotTaken(t *testing.T) {
	r := newReloads(t)
	p, w := r.work(t)
	fd, err := unix.MemfdCreate("kept", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.store.put("kept", nil); err != nil {
		t.Fatal(err)
	}
	w.PutBack("kept", fd)
	fds := w.Take("kept")
	if len(fds) != 1 || fds[0] != fd {
		t.Fatalf("took %d", fds)
	}
	w.PutBack("kept", fds...)
	w.Discard()
	if err := w.Ready(); err != nil {
		t.Fatal(err)
	}
	<-p.ready
	if err := r.store.each(func(name string, _ []int) error { return errors.New(name) }); err != nil {
		t.Errorf("still kept: %v", err)
	}
}
