package labkit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Process is a child process. It dies with this process, even if this process is killed: the kernel
// sends it SIGKILL when the thread that started it ends. That must be a locked thread, which lives
// as long as the process.
type Process struct {
	Name string
	Cmd  *exec.Cmd
	Done chan struct{} // closed when it has ended
	Err  error         // of its exit; set before done is closed
}

// Start starts a program with both outputs appended to a log file.
func Start(name, logPath string, argv ...string) (*Process, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	return StartCommand(name, cmd)
}

func StartCommand(name string, cmd *exec.Cmd) (*Process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Pdeathsig = true, syscall.SIGKILL
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	p := &Process{Name: name, Cmd: cmd, Done: make(chan struct{})}
	go func() {
		p.Err = cmd.Wait()
		close(p.Done)
	}()
	return p, nil
}

// Stop sends SIGTERM, and SIGKILL if the process has not ended after grace.
func (p *Process) Stop(grace time.Duration) {
	_ = p.Cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.Done:
	case <-time.After(grace):
		_ = syscall.Kill(-p.Cmd.Process.Pid, syscall.SIGKILL)
		<-p.Done
	}
}

// Until calls ready until it succeeds. It returns an error if the process ends before that.
func (p *Process) Until(ctx context.Context, ready func(context.Context) error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if err := ready(ctx); err == nil {
			return nil
		}
		select {
		case <-p.Done:
			return fmt.Errorf("%s ended before it was ready: %w", p.Name, errors.Join(p.Err))
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// Self returns the path of this program, to start it again as a child.
func Self() string {
	exe, err := os.Executable()
	if err != nil {
		return "/proc/self/exe"
	}
	return exe
}
