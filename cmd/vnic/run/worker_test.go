package run_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/guestlib/workload"
)

func ifindex(t *testing.T, name string) int {
	t.Helper()
	i, err := net.InterfaceByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return i.Index
}

// TestKilledWorkerIsReplaced kills and then upgrades the worker of a NIC under load. The
// supervisor's process and the TAP stay. The clients' work ends with an error on both sides, and
// they can begin again.
func TestKilledWorkerIsReplaced(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		l.Start(0)
		l.Start(1)
		l.Joined()
		tap := ifindex(t, l.Hosts[0].Uplink)
		n := l.NIC(0, 0)
		for round := range 3 {
			sent := func() uint64 {
				c, err := l.Control(0).Counters(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				return c["falcon.data_sent"]
			}
			before := sent()
			a, b := l.Client(0, 100_000), l.Client(1, 100_000)
			vnictest.Eventually(t, "load", func() error {
				if n := sent(); n < before+1000 {
					return fmt.Errorf("%d packets", n-before)
				}
				return nil
			})
			if round < 2 {
				if err := syscall.Kill(n.Worker, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			} else if out, errs, code := vnictest.Run(t, "upgrade", "-s", l.Hosts[0].Control); code != 0 || !strings.Contains(out, "took over from") {
				t.Fatalf("exit status %d: %s%s", code, out, errs)
			}
			for _, c := range []*vnictest.Client{a, b} {
				if line := c.Next(workload.KindError); line.Text == "" {
					t.Error("no reason")
				}
			}
			next := l.NIC(0, n.Worker)
			if next.PID != l.NICs[0].Cmd.Process.Pid || next.PID != n.PID || next.Starts != n.Starts+1 {
				t.Errorf("%+v after %+v", next, n)
			}
			if now := ifindex(t, l.Hosts[0].Uplink); now != tap {
				t.Errorf("the uplink's TAP is another: index %d, was %d", now, tap)
			}
			n = next
			l.Joined()
			l.Free(0)
			l.Free(1)
			l.Works()
		}
	})
}

// TestAStoppedWorkerIsReplaced: a worker that is stopped by SIGSTOP is stuck and replaced. The log, vnic show
// and a counter say so. SIGHUP to the process group of vnic run does not end the worker.
func TestAStoppedWorkerIsReplaced(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		l.Start(0)
		l.Start(1)
		l.Joined()
		n := l.NIC(0, 0)
		if group, err := syscall.Getpgid(n.Worker); err != nil || group != n.Worker {
			t.Errorf("the worker is in process group %d, %v", group, err)
		}
		if err := syscall.Kill(n.Worker, syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(n.Worker, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		next := l.NIC(0, n.Worker)
		if next.Stuck != 1 || next.Starts != 2 {
			t.Errorf("%+v", next)
		}
		logged, err := os.ReadFile(l.Hosts[0].Log)
		if err != nil || !strings.Contains(string(logged), "event loop is stuck") {
			t.Errorf("the log does not tell: %s", logged)
		}
		if out, _, _ := vnictest.Run(t, "show", "nic", "-s", l.Hosts[0].Control); !strings.Contains(out, "1 replaced because the event loop was stuck") {
			t.Error(out)
		}
		c, err := l.Control(0).Counters(context.Background())
		if err != nil || c["worker.stuck"] != 1 || c["worker.starts"] != 2 {
			t.Errorf("worker.stuck %d, worker.starts %d, %v", c["worker.stuck"], c["worker.starts"], err)
		}
		l.Joined()
		l.Works()
	})
}

// TestKilledSupervisorTakesItsWorkerAlong: the worker ends with the process that was started.
func TestKilledSupervisorTakesItsWorkerAlong(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGINT} {
			l.Start(0)
			n := l.NIC(0, 0)
			if err := l.NICs[0].Cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			<-l.NICs[0].Done
			if sig == syscall.SIGKILL {
				l.Start(0) // before anybody has looked what is left
				n = l.NIC(0, n.Worker)
				if err := l.NICs[0].Cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				<-l.NICs[0].Done
			}
			vnictest.Eventually(t, "worker gone", func() error {
				if err := syscall.Kill(n.Worker, 0); !errors.Is(err, syscall.ESRCH) {
					return fmt.Errorf("process %d after %v: %w", n.Worker, sig, err)
				}
				return nil
			})
			vnictest.Eventually(t, "TAP gone", func() error {
				if _, err := net.InterfaceByName(l.Hosts[0].Uplink); err == nil {
					return errors.New("it is still there")
				}
				return nil
			})
			for _, path := range []string{l.Hosts[0].Control, l.Hosts[0].Socket} {
				if _, err := os.Lstat(path); err == nil && sig != syscall.SIGKILL {
					t.Errorf("%v left %s", sig, path)
				}
			}
		}
	})
}
