package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/guestlib/workload"
)

// TestKilledNICWorksAgain kills a NIC under load. What it leaves (sockets, the name of
// its TAP) does not keep the same command from working again, and the other
// NIC, its guest and then everybody go on.
func TestKilledNICWorksAgain(t *testing.T) {
	inLab(t, false, func(l *lab) {
		l.start(0)
		l.start(1)
		l.joined()
		a, b := l.client(0, 100_000), l.client(1, 100_000)
		a.next(workload.KindProgress)
		l.busy(0)
		if err := l.nics[0].cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		<-l.nics[0].done
		for _, path := range []string{l.hosts[0].Control, l.hosts[0].Socket} {
			if _, err := os.Stat(path); err != nil {
				t.Errorf("the kill left nothing to stumble over: %v", err)
			}
		}
		if line := a.next(workload.KindError); line.Text == "" {
			t.Error("its guest got no reason")
		}
		l.start(0)
		if line := b.next(workload.KindError); line.Text == "" {
			t.Error("the peer's guest got no reason")
		}
		l.joined()
		l.free(0)
		l.free(1)
		l.works()
	})
}

// TestKilledClientFreesItsFunction kills a guest in the middle of its work: the peer's guest
// hears of it, and the function is free for the next.
func TestKilledClientFreesItsFunction(t *testing.T) {
	inLab(t, false, func(l *lab) {
		l.start(0)
		l.start(1)
		l.joined()
		a, b := l.client(0, 100_000), l.client(1, 100_000)
		l.busy(0)
		if err := a.p.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if line := b.next(workload.KindError); line.Text == "" {
			t.Error("no reason")
		}
		l.free(0)
		l.free(1)
		l.works()
	})
}

// TestPeerWithAnotherIdentityIsRefused: a peer that proves to be somebody else is refused and
// counted, on both sides.
func TestPeerWithAnotherIdentityIsRefused(t *testing.T) {
	inLab(t, false, func(l *lab) {
		path := l.hosts[1].Config
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b = bytes.ReplaceAll(b, []byte("vnic://demo/host/1"), []byte("vnic://other/host/1"))
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		l.start(0)
		l.start(1)
		eventually(t, "refusal counted", func() error {
			out, _, code := run(t, "show", "counters", "-s", l.hosts[1].Control)
			for line := range strings.Lines(out) {
				if f := strings.Fields(line); len(f) == 2 && f[0] == "cmlink.refused_identity" && f[1] != "0" {
					return nil
				}
			}
			return fmt.Errorf("exit status %d:\n%s", code, out)
		})
		for i := range l.hosts {
			if n, err := l.control(i).NIC(context.Background()); err != nil || n.Peers[0].Up || n.Peers[0].Functions != 0 {
				t.Errorf("host %d: %+v, %v", i+1, n.Peers, err)
			}
		}
		if b, err = os.ReadFile(filepath.Join(l.dir, "host2.log")); err != nil || !bytes.Contains(b, []byte("vnic://demo/host/1")) {
			t.Errorf("the log does not say who was refused: %s, %v", b, err)
		}
	})
}
