package run_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/cmd/vnic/run"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

// TestWaitSaysWhy: vnic wait prints at once why the NIC does not answer, and again when it gives
// up.
func TestWaitSaysWhy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none.sock")
	out, err := vnictest.Here(t, run.WaitCommand(), "-s", path, "--timeout", "100ms")
	if !strings.HasPrefix(out, "waiting up to 100ms: control socket "+path+" does not exist") || strings.Count(out, "\n") != 1 {
		t.Errorf("%q", out)
	}
	if err == nil || !strings.Contains(err.Error(), "does not exist") || strings.Contains(err.Error(), "deadline") {
		t.Error(err)
	}
}

// TestWaitForPeers: with --peers, vnic wait waits for the links to all peers and names a peer that
// is down.
func TestWaitForPeers(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		l.Start(0)
		socket := l.Hosts[0].Control
		if _, stderr, code := vnictest.Run(t, "wait", "-s", socket); code != 0 {
			t.Fatalf("without --peers: %s", stderr)
		}
		for timeout := 100 * time.Millisecond; ; timeout *= 2 { // until the NIC of a busy machine has time to say it
			_, stderr, code := vnictest.Run(t, "wait", "--peers", "-s", socket, "--timeout", timeout.String())
			if code == cli.ExitFailed && strings.Contains(stderr, "no answer in time") && timeout < time.Minute {
				continue
			}
			if code != cli.ExitFailed || !strings.Contains(stderr, "peer 2 is down") {
				t.Errorf("alone: exit status %d, %q", code, stderr)
			}
			break
		}
		l.Start(1)
		if _, stderr, code := vnictest.Run(t, "wait", "--peers", "-s", socket); code != 0 {
			t.Errorf("with both: exit status %d, %q", code, stderr)
		}
	})
}
