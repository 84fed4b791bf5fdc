package run_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/guestlib/workload"
)

// TestKilledNICWorksAgain kills a NIC under load. The sockets and the TAP that it leaves behind do
// not keep the same command from working again. The other NIC and its guest go on.
func TestKilledNICWorksAgain(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		l.Start(0)
		l.Start(1)
		l.Joined()
		a, b := l.Client(0, 100_000), l.Client(1, 100_000)
		a.Next(workload.KindProgress)
		l.Busy(0)
		if err := l.NICs[0].Cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		<-l.NICs[0].Done
		for _, path := range []string{l.Hosts[0].Control, l.Hosts[0].Socket} {
			if _, err := os.Stat(path); err != nil {
				t.Errorf("the kill left nothing to stumble over: %v", err)
			}
		}
		if line := a.Next(workload.KindError); line.Text == "" {
			t.Error("its guest got no reason")
		}
		l.Start(0)
		if line := b.Next(workload.KindError); line.Text == "" {
			t.Error("the peer's guest got no reason")
		}
		l.Joined()
		l.Free(0)
		l.Free(1)
		l.Works()
	})
}

// TestKilledClientFreesItsFunction kills a client at work. The peer's client gets an error, and the
// function can be used again.
func TestKilledClientFreesItsFunction(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		l.Start(0)
		l.Start(1)
		l.Joined()
		a, b := l.Client(0, 100_000), l.Client(1, 100_000)
		l.Busy(0)
		if err := a.P.Cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if line := b.Next(workload.KindError); line.Text == "" {
			t.Error("no reason")
		}
		l.Free(0)
		l.Free(1)
		l.Works()
	})
}

// TestPeerWithAnotherIdentityIsRefused: both sides refuse the link and count that.
func TestPeerWithAnotherIdentityIsRefused(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		path := l.Hosts[1].Config
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b = bytes.ReplaceAll(b, []byte("vnic://demo/host/1"), []byte("vnic://other/host/1"))
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		l.Start(0)
		l.Start(1)
		vnictest.Eventually(t, "refusal counted", func() error {
			out, _, code := vnictest.Run(t, "show", "counters", "-s", l.Hosts[1].Control)
			for line := range strings.Lines(out) {
				if f := strings.Fields(line); len(f) == 2 && f[0] == "cmlink.refused_identity" && f[1] != "0" {
					return nil
				}
			}
			return fmt.Errorf("exit status %d:\n%s", code, out)
		})
		for i := range l.Hosts {
			if n, err := l.Control(i).NIC(context.Background()); err != nil || n.Peers[0].Up || n.Peers[0].Functions != 0 {
				t.Errorf("host %d: %+v, %v", i+1, n.Peers, err)
			}
		}
		if b, err = os.ReadFile(filepath.Join(l.Dir, "host2.log")); err != nil || !bytes.Contains(b, []byte("vnic://demo/host/1")) {
			t.Errorf("the log does not say who was refused: %s, %v", b, err)
		}
	})
}
