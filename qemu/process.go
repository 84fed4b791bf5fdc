package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a running QEMU. The kernel kills it when this process ends, however that happens.
type Process struct {
	name   string
	cmd    *exec.Cmd
	stderr tail
	output net.Conn
	qmp    *QMP
	done   chan struct{}
	err    error // of QEMU's exit; set before done is closed
}

// stopStep is the time limit of each attempt of Stop.
const stopStep = 2 * time.Second

// Start starts the machine and returns when QEMU accepts commands. If QEMU refuses the machine, the
// error contains QEMU's message. Start replaces Output and Monitor of m by connections to this
// process. A VhostUser named by m.Vsock must be listening already.
func Start(ctx context.Context, m Machine) (*Process, error) {
	ours, theirs, err := socketPairs(2)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.name(), err)
	}
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
	}()
	closeOurs := func() {
		for _, c := range ours {
			c.Close()
		}
	}
	m.Monitor, m.Output = fdChardev(3), fdChardev(4) // places of ExtraFiles
	args, err := m.Args()
	if err != nil {
		closeOurs()
		return nil, fmt.Errorf("%s: %w", m.name(), err)
	}
	p := &Process{name: m.name(), cmd: exec.Command(m.binary(), args...), output: ours[1], done: make(chan struct{})}
	p.cmd.ExtraFiles = slices.Clone(theirs)
	for _, n := range m.NICs {
		if n.TAP != nil {
			p.cmd.ExtraFiles = append(p.cmd.ExtraFiles, n.TAP)
		}
	}
	p.cmd.Stderr = &p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.run(); err != nil {
		closeOurs()
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	for _, f := range theirs { // QEMU has copies; ours would hide its exit from readers
		f.Close()
	}
	p.qmp, err = NewQMP(ctx, ours[0])
	if err != nil {
		p.kill()
		<-p.done
		p.output.Close()
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s: start: %w", p.name, ctx.Err())
		}
		return nil, fmt.Errorf("%s did not start: %w", p.name, p.err)
	}
	return p, nil
}

// run starts the command and waits for it on a locked thread: the kernel sends the parent-death
// signal when the thread that started the command ends, not when the process ends.
func (p *Process) run() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := p.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = p.cmd.Wait()
		if words := p.stderr.String(); p.err != nil && words != "" {
			p.err = fmt.Errorf("%w: %s", p.err, words)
		}
		close(p.done)
	}()
	return <-started
}

// PID returns QEMU's process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// QMP returns the connection to QEMU's monitor.
func (p *Process) QMP() *QMP { return p.qmp }

// Output is what the guest writes to ttyS1. It must be read: the guest waits
// otherwise. It ends when QEMU ends.
func (p *Process) Output() io.Reader { return p.output }

// Done returns a channel that is closed when QEMU has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits until QEMU ends. It returns nil if the guest has powered off.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		if p.err != nil {
			return fmt.Errorf("%s: %w", p.name, p.err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", p.name, ctx.Err())
	}
}

// Stop ends QEMU and releases its resources. It tries the monitor, then SIGTERM, then SIGKILL; the
// first two have stopStep each. Stopping a process that has ended is no error.
func (p *Process) Stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopStep)
	defer cancel()
	_ = p.qmp.Execute(ctx, "quit", nil, nil) // its answer may be cut off by the exit
	if !p.ended(stopStep) {
		_ = unix.Kill(-p.PID(), unix.SIGTERM)
		if !p.ended(stopStep) {
			p.kill()
		}
	}
	<-p.done
	_ = p.qmp.Close()
	_ = p.output.Close()
	return nil
}

// Kill ends QEMU with SIGKILL and waits for its end.
func (p *Process) Kill() error {
	p.kill()
	<-p.done
	return errors.Join(p.qmp.Close(), p.output.Close())
}

func (p *Process) kill() { _ = unix.Kill(-p.PID(), unix.SIGKILL) }

func (p *Process) ended(within time.Duration) bool {
	select {
	case <-p.done:
		return true
	case <-time.After(within):
		return false
	}
}

// socketPairs returns n connected socket pairs: our ends as connections, QEMU's as files.
func socketPairs(n int) (ours []net.Conn, theirs []*os.File, err error) {
	defer func() {
		if err != nil {
			for i := range ours {
				ours[i].Close()
			}
			for i := range theirs {
				theirs[i].Close()
			}
		}
	}()
	for range n {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return ours, theirs, fmt.Errorf("socket pair: %w", err)
		}
		theirs = append(theirs, os.NewFile(uintptr(fds[1]), "qemu"))
		f := os.NewFile(uintptr(fds[0]), "qemu")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			return ours, theirs, fmt.Errorf("socket pair: %w", err)
		}
		ours = append(ours, c)
	}
	return ours, theirs, nil
}

// tail is a writer that keeps the last tailSize bytes.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const tailSize = 4096

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	t.b = t.b[max(0, len(t.b)-tailSize):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.b))
}
