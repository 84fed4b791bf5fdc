package supervisor

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// reloads is a supervisor that reads and keeps configurations, and records that.
type reloads struct {
	*Supervisor
	notes
	hup, usr chan os.Signal
}

// Write notes the errors of the log.
func (r *reloads) Write(line []byte) (int, error) {
	r.note("logged")
	return len(line), nil
}

func newReloads(t *testing.T) *reloads {
	t.Helper()
	r := &reloads{hup: make(chan os.Signal), usr: make(chan os.Signal, 1)}
	r.Supervisor = &Supervisor{
		cfg: Config{
			Given:    func() []Given { return nil },
			Prepare:  func(context.Context) error { r.note("prepare"); return errors.New("refused on purpose") },
			Commit:   func() {},
			Reload:   func() (int, error) { r.note("read"); return unix.MemfdCreate("configuration", unix.MFD_CLOEXEC) },
			Reloaded: func(fd int) { r.note("kept"); _ = unix.Close(fd) },
			Notify:   func(string) {},
			Log:      slog.New(slog.NewTextHandler(r, &slog.HandlerOptions{Level: slog.LevelError})),
			Grace:    time.Minute,
		},
		reloading: reloading{text: -1},
	}
	t.Cleanup(func() { r.program.close() })
	return r
}

// work returns a worker of this process that is not ready yet, and what the supervisor has of it. It ends when it is
// stopped, or by w.ch.conn.Close.
func (r *reloads) work(t *testing.T) (*process, *Worker) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	must(err)
	program, err := openProgram(self)
	must(err)
	ours, theirs, err := pair()
	must(err)
	pulses, fd, err := newPulses()
	must(err)
	const nobody = 1 << 23 // is no number of a process
	p := &process{
		program: program, cmd: &exec.Cmd{Process: &os.Process{Pid: nobody}}, ch: &channel{conn: ours}, pulses: pulses, pulseFD: fd,
		ready: make(chan struct{}), ended: make(chan struct{}), reload: make(chan struct{}, 1), reloaded: make(chan message, 1), replace: make(chan struct{}, 1),
	}
	must(r.tell(p))
	_ = unix.Close(fd)
	w, err := Join(theirs)
	must(err)
	go func() {
		r.handle(p)
		_ = ours.Close()
		close(p.ended)
	}()
	go func() {
		<-w.stop
		_ = w.ch.conn.Close()
	}()
	t.Cleanup(func() {
		_ = w.ch.conn.Close()
		<-p.ended
		if p.program != r.program {
			p.program.close()
		}
		w.Pulses.unmap()
	})
	return p, w
}

// watching runs watch until the test ends or the worker does; then the channel is closed.
func (r *reloads) watching(t *testing.T, p *process) <-chan struct{} {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.watch(ctx, p, r.hup, r.usr)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return ended
}

// TestARequestIsAnsweredByAReloadThatBeganAfterIt, not by one that was under way and had read the file before, whoever
// had asked for that.
func TestARequestIsAnsweredByAReloadThatBeganAfterIt(t *testing.T) {
	for _, first := range []string{"by the worker", "by SIGHUP"} {
		t.Run(first, func(t *testing.T) {
			r := newReloads(t)
			p, w := r.work(t)
			begun, goOn := make(chan struct{}), make(chan error)
			w.OnReload(func(*os.File) error {
				select {
				case begun <- struct{}{}:
					return <-goOn
				case <-w.stop: // a request came while its reload began, so another follows
					return nil
				}
			})
			r.watching(t, p)
			if err := w.Ready(); err != nil {
				t.Fatal(err)
			}
			ask := func() chan error {
				answer := make(chan error, 1)
				go func() { answer <- w.Reload(t.Context()) }()
				return answer
			}
			one := make(chan error, 1)
			if first == "by SIGHUP" {
				r.hup <- syscall.SIGHUP
				one <- nil
			} else {
				one = ask()
			}
			<-begun
			before := p.requests.Load()
			two, three := ask(), ask() // the file has been changed since it was read
			for p.requests.Load() < before+2 {
				time.Sleep(time.Millisecond)
			}
			goOn <- nil
			<-begun
			goOn <- errors.New("the second is wrong")
			if err := <-one; err != nil {
				t.Errorf("the first: %v", err)
			}
			for _, answer := range []chan error{two, three} {
				if err := <-answer; err == nil || err.Error() != "the second is wrong" {
					t.Errorf("the second: %v", err)
				}
			}
		})
	}
}

// TestAnOlderSupervisorAnswersAllRequests: it does not know their numbers.
func TestAnOlderSupervisorAnswersAllRequests(t *testing.T) {
	ours, theirs, err := pair()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	ch := &channel{conn: ours}
	for _, m := range []message{{Kind: kindStart, Start: &Start{Protocol: Protocol, Reloads: true}}, {Kind: kindGo}} {
		if err := ch.send(m); err != nil {
			t.Fatal(err)
		}
	}
	w, err := Join(theirs)
	if err != nil {
		t.Fatal(err)
	}
	defer w.ch.conn.Close()
	answers := make(chan error)
	for range 2 {
		go func() { answers <- w.Reload(t.Context()) }()
		if m, _, err := ch.receive(); err != nil || m.Kind != kindReload {
			t.Fatalf("%+v, %v", m, err)
		}
	}
	if err := ch.send(message{Kind: kindReloaded, Reload: &Reload{Asked: 1}}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
}

// begun is a supervisor in which a reload is under way.
func begun(t *testing.T) *reloads {
	t.Helper()
	text, err := unix.MemfdCreate("configuration", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	r := newReloads(t)
	r.reloading.text, r.reloading.number = text, 2
	return r
}

// TestAConfigurationThatAWorkerHasTakenOutlivesIt, though the worker ends before the supervisor looks. One that it has
// not taken is dropped, and the log tells.
func TestAConfigurationThatAWorkerHasTakenOutlivesIt(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer *message
		want   string
		result Reload
	}{
		{"taken", &message{Number: 2}, "kept", Reload{1, ""}},
		{"refused", &message{Number: 2, Name: "wrong"}, "logged", Reload{1, "wrong"}},
		{"no answer", nil, "logged", Reload{1, "the worker ended during the reload"}},
		{"the answer to another", &message{Number: 1}, "logged", Reload{1, "the worker ended during the reload"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for range 30 { // watch chooses at random
				r := begun(t)
				p, w := r.work(t)
				if tt.answer != nil {
					p.reloaded <- *tt.answer
				}
				_ = w.ch.conn.Close()
				<-p.ended
				<-r.watching(t, p)
				if got := r.noted(); got != tt.want || r.reloading.result != tt.result || r.reloading.text >= 0 {
					t.Fatalf("%s, want %s; %+v", got, tt.want, r.reloading)
				}
			}
		})
	}
}

// TestAReloadThatWaitsIsDoneByTheNextWorker, if the one that is applying another configuration ends.
func TestAReloadThatWaitsIsDoneByTheNextWorker(t *testing.T) {
	r := newReloads(t)
	p, w := r.work(t)
	applying := make(chan struct{})
	w.OnReload(func(*os.File) error {
		close(applying)
		<-w.stop
		return errors.New("the worker ends")
	})
	watched := r.watching(t, p)
	if err := w.Ready(); err != nil {
		t.Fatal(err)
	}
	r.hup <- syscall.SIGHUP
	<-applying
	r.hup <- syscall.SIGHUP
	_ = w.ch.conn.Close()
	<-watched

	p, next := r.work(t)
	applied := make(chan struct{})
	next.OnReload(func(*os.File) error {
		close(applied)
		return nil
	})
	r.watching(t, p)
	if err := next.Ready(); err != nil {
		t.Fatal(err)
	}
	<-applied
}

// TestAnUpgradeWaitsForTheReload: it reads the configuration too, and the worker that it replaces must not take an
// earlier one after that.
func TestAnUpgradeWaitsForTheReload(t *testing.T) {
	for range 30 { // watch chooses at random
		r := begun(t)
		p, w := r.work(t)
		p.reloaded <- message{Number: 2}
		r.usr <- syscall.SIGUSR2
		watched := r.watching(t, p)
		for len(r.usr) > 0 {
			time.Sleep(time.Millisecond)
		}
		_ = w.ch.conn.Close()
		<-watched
		if got := r.noted(); got != "kept prepare logged" {
			t.Fatal(got)
		}
	}
}
