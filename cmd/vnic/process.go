package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// process is a child process. It dies with this process, even if this process is killed: the kernel
// sends it SIGKILL when the thread that started it ends. That must be a locked thread, which lives
// as long as the process.
type process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // of its exit; set before done is closed
}

// startProcess starts a program with both outputs appended to a log file.
func startProcess(name, logPath string, argv ...string) (*process, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	return start(name, cmd)
}

func start(name string, cmd *exec.Cmd) (*process, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	p := &process{name: name, cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// stop sends SIGTERM, and SIGKILL if the process has not ended after grace.
func (p *process) stop(grace time.Duration) {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(grace):
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.done
	}
}

// until calls ready until it succeeds. It returns an error if the process ends before that.
func (p *process) until(ctx context.Context, ready func(context.Context) error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if err := ready(ctx); err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended before it was ready: %w", p.name, errors.Join(p.err))
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// self returns the path of this program, to start it again as a child.
func self() string {
	exe, err := os.Executable()
	if err != nil {
		return "/proc/self/exe"
	}
	return exe
}
