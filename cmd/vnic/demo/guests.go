package demo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/guestlib/workload"
)

// WorkloadArgs returns the arguments of the vnic command that a guest runs, in a VM or without one.
func (h *Host) WorkloadArgs(device string, count int) []string {
	order := "--first"
	if h.Number == 2 {
		order = "--second"
	}
	args := []string{"guest", "workload", "--device", device, order, "--peer", h.PeerGI, "--service", strconv.Itoa(service)}
	if h.Ethernet {
		args = append(args, "--ip", h.TenantIP+"/24")
	}
	if h.Verbs {
		args = append(args, "--verbs", module)
	}
	if h.PCI {
		args = append(args, "--lspci")
	}
	if count > 0 {
		args = append(args, "--count", strconv.Itoa(count))
	}
	return args
}

// follow reads one guest's lines until the guest is done. It returns an error if the stream ends
// before that.
func (r *report) follow(who string, lines io.Reader) error {
	sc := bufio.NewScanner(lines)
	sc.Buffer(make([]byte, 0, 4096), 1<<20)
	for sc.Scan() {
		line, err := workload.DecodeOutput(sc.Bytes())
		if err != nil {
			continue // console output may be mixed in; only whole lines count
		}
		switch line.Kind {
		case workload.KindProgress:
			r.step("%s  %s", who, line.Text)
		case workload.KindResult:
			r.result(who, *line.Result)
		case workload.KindStream:
			r.stream(who, *line.Stream)
		case workload.KindProgram:
			r.program(who, *line.Program)
		case workload.KindDone:
			return nil
		case workload.KindError:
			return fmt.Errorf("%s: %s", who, line.Text)
		}
	}
	if err := sc.Err(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("%s: %w", who, err)
	}
	return fmt.Errorf("%s: ended before its work was done", who)
}

// followAll follows both guests and returns the first failure.
func (r *report) followAll(ctx context.Context, hosts [2]*Host, lines [2]io.Reader) error {
	errs := make(chan error, len(hosts))
	for i, h := range hosts {
		go func() { errs <- r.follow(h.Guest(), lines[i]) }()
	}
	for range hosts {
		select {
		case err := <-errs:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// bareGuests are clients without a VM: child processes that attach over a unix
// socket and share a memfd.
type bareGuests struct {
	s     *scene
	procs []*labkit.Process
	lines [2]io.Reader
}

func (g *bareGuests) start(context.Context) error { return nil }

func (g *bareGuests) work(ctx context.Context) error {
	for i, h := range g.s.hosts {
		cmd := exec.Command(labkit.Self(), h.WorkloadArgs("unix://"+h.Socket, g.s.o.count)...)
		out, in, err := os.Pipe() // not StdoutPipe: Wait would close it before the last line is read
		if err != nil {
			return err
		}
		g.lines[i], cmd.Stdout = out, in
		g.s.later(out.Close)
		log, err := os.Create(filepath.Join(g.s.out, fmt.Sprintf("guest%d.log", h.Number)))
		if err != nil {
			return err
		}
		cmd.Stderr = log
		p, err := labkit.StartCommand(h.Guest(), cmd)
		log.Close()
		in.Close()
		if err != nil {
			return err
		}
		g.procs = append(g.procs, p)
		g.s.r.step("%s: bare client, pid %d, shares a memfd over %s", h.Guest(), cmd.Process.Pid, filepath.Base(h.Socket))
	}
	return g.s.r.followAll(ctx, g.s.hosts, g.lines)
}

func (g *bareGuests) stop() error {
	for _, p := range g.procs {
		p.Stop(2 * time.Second)
	}
	return nil
}
