package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestWaitSaysWhy: without a NIC it says so at once, and at last again.
func TestWaitSaysWhy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none.sock")
	out, err := runHere(t, waitCommand(), "-s", path, "--timeout", "100ms")
	if !strings.HasPrefix(out, "waiting up to 100ms: control socket "+path+" does not exist") || strings.Count(out, "\n") != 1 {
		t.Errorf("%q", out)
	}
	if err == nil || !strings.Contains(err.Error(), "does not exist") || strings.Contains(err.Error(), "deadline") {
		t.Error(err)
	}
}

// TestWaitForPeers: --peers waits for more than the NIC itself, and names who is missing.
func TestWaitForPeers(t *testing.T) {
	inLab(t, false, func(l *lab) {
		l.start(0)
		socket := l.hosts[0].Control
		if _, stderr, code := run(t, "wait", "-s", socket); code != 0 {
			t.Fatalf("without --peers: %s", stderr)
		}
		for timeout := 100 * time.Millisecond; ; timeout *= 2 { // until the NIC of a busy machine has time to say it
			_, stderr, code := run(t, "wait", "--peers", "-s", socket, "--timeout", timeout.String())
			if code == exitFailed && strings.Contains(stderr, "no answer in time") && timeout < time.Minute {
				continue
			}
			if code != exitFailed || !strings.Contains(stderr, "peer 2 is down") {
				t.Errorf("alone: exit status %d, %q", code, stderr)
			}
			break
		}
		l.start(1)
		if _, stderr, code := run(t, "wait", "--peers", "-s", socket); code != 0 {
			t.Errorf("with both: exit status %d, %q", code, stderr)
		}
	})
}
