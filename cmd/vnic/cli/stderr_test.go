package cli_test

import (
	"context"
	"io"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

// TestNICRunsThoughNobodyReadsItsLog: a NIC whose standard error is a full pipe starts, serves
// guests, replaces its worker and ends.
func TestNICRunsThoughNobodyReadsItsLog(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		l.Start(1)
		r, w := cli.FullPipe(t)
		cmd := exec.Command(vnictest.Program(t), "run", "-c", l.Hosts[0].Config)
		cmd.Stderr = w
		var err error
		if l.NICs[0], err = labkit.StartCommand("nic", cmd); err != nil {
			t.Fatal(err)
		}
		w.Close()
		n := l.NIC(0, 0)
		l.Joined()
		l.Works()
		if err := syscall.Kill(n.Worker, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		l.NIC(0, n.Worker)
		l.Joined()
		l.Works()
		ctx, cancel := context.WithTimeout(context.Background(), vnictest.Limit)
		defer cancel()
		if err := l.NICs[0].Cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		select {
		case <-l.NICs[0].Done:
		case <-ctx.Done():
			t.Fatal("it does not end")
		}
		l.NICs[0] = nil
		_ = r.SetReadDeadline(time.Now().Add(vnictest.Limit))
		if b, err := io.ReadAll(r); err != nil || len(b) == 0 {
			t.Errorf("%d bytes, %v", len(b), err)
		}
	})
}
