package main

import (
	"context"
	"io"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// TestNICRunsThoughNobodyReadsItsLog: a NIC whose standard error is a full pipe starts, serves its
// guests, gets another worker and ends as any other.
func TestNICRunsThoughNobodyReadsItsLog(t *testing.T) {
	inLab(t, false, func(l *lab) {
		l.start(1)
		r, w := fullPipe(t)
		cmd := exec.Command(vnic(t), "run", "-c", l.hosts[0].Config)
		cmd.Stderr = w
		var err error
		if l.nics[0], err = start("nic", cmd); err != nil {
			t.Fatal(err)
		}
		w.Close()
		n := l.nic(0, 0)
		l.joined()
		l.works()
		if err := syscall.Kill(n.Worker, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		l.nic(0, n.Worker)
		l.joined()
		l.works()
		ctx, cancel := context.WithTimeout(context.Background(), testTime)
		defer cancel()
		if err := l.nics[0].cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		select {
		case <-l.nics[0].done:
		case <-ctx.Done():
			t.Fatal("it does not end")
		}
		l.nics[0] = nil
		_ = r.SetReadDeadline(time.Now().Add(testTime))
		if b, err := io.ReadAll(r); err != nil || len(b) == 0 {
			t.Errorf("%d bytes, %v", len(b), err)
		}
	})
}
