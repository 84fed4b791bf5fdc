package run_test

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

// TestReload: vnic reload and SIGHUP apply the configuration as it is now, without another worker; a
// key that needs one is named, and refuses all. The next worker has what was reloaded.
func TestReload(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		l.Start(0)
		l.Start(1)
		l.Joined()
		h := l.Hosts[0]
		before := l.NIC(0, 0)
		refused := func(want string, change ...string) {
			t.Helper()
			configure(l, 0, change...)
			_, errs, code := vnictest.Run(t, "reload", "-s", h.Control)
			if code == 0 || !strings.Contains(errs, want) || !strings.Contains(errs, "nothing has changed") {
				t.Errorf("exit status %d: %s, want %q", code, errs, want)
			}
			if n := l.NIC(0, 0); n.Worker != before.Worker || !strings.Contains(n.ReloadRefused, want) {
				t.Errorf("%+v", n)
			}
		}
		refused("nonsense: unknown key", "log:", "nonsense: 1\nlog:")
		refused("these take effect with vnic upgrade: nic.strict", "nic: {host: 1}", "nic: {host: 1, strict: true}")
		refused("this takes effect when vnic run is stopped and started", h.Socket, h.Socket+"2")

		configure(l, 0, "tenants: [100]", "tenants: [100, 101]")
		out, errs, code := vnictest.Run(t, "reload", "-s", h.Control)
		if code != 0 || !strings.Contains(out, "peer 2 changed") {
			t.Fatalf("exit status %d: %s%s", code, out, errs)
		}
		tenants := func() int {
			p, err := l.Control(0).Peers(t.Context())
			l.Must(err)
			return len(p[0].Tenants)
		}
		if n := l.NIC(0, 0); n.Worker != before.Worker || n.ReloadRefused != "" || tenants() != 2 {
			t.Errorf("%+v", n)
		}
		if out, _, _ := vnictest.Run(t, "reload", "-s", h.Control); !strings.Contains(out, "nothing has changed") {
			t.Error(out)
		}
		l.Must(syscall.Kill(before.Worker, syscall.SIGKILL))
		if l.NIC(0, before.Worker); tenants() != 2 {
			t.Error("the next worker has the configuration of before")
		}
		configure(l, 0)
		l.Must(syscall.Kill(before.PID, syscall.SIGHUP))
		vnictest.Eventually(t, "the reload by a signal", func() error {
			if tenants() != 1 {
				return os.ErrDeadlineExceeded
			}
			return nil
		})
		l.Works()
	})
}
