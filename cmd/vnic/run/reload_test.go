package run_test

import (
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
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

// TestCertificatesAndPortsChangeByAReloadUnderTraffic: a NIC shows its renewed certificate to whoever
// calls, and a port gets another MTU, while clients work on their connections.
func TestCertificatesAndPortsChangeByAReloadUnderTraffic(t *testing.T) {
	vnictest.MakeLab(t, vnictest.Options{Bare: true}, true, func(l *vnictest.Lab) {
		l.Start(0)
		l.Start(1)
		l.Joined()
		h := l.Hosts[0]
		var clients [2]*follower
		for i := range clients {
			_, clients[i] = beginEndless(l, i)
		}
		works := func() {
			t.Helper()
			before := [2]account{clients[0].now(), clients[1].now()}
			vnictest.Eventually(t, "more operations verified", func() error {
				for i, c := range clients {
					if c.verified() <= before[i].operations {
						return fmt.Errorf("guest %d: %q", i+1, c.now().last)
					}
				}
				return nil
			})
		}
		reload := func(want string) {
			t.Helper()
			if out, errs, code := vnictest.Run(t, "reload", "-s", h.Control); code != 0 || !strings.Contains(out, want) {
				t.Fatalf("exit status %d: %s%s, want %q", code, out, errs, want)
			}
			works()
		}
		works()

		old := shownCertificate(t, h.CM)
		if _, errs, code := vnictest.Run(t, "keys", "renew", "--dir", h.Keys, "1"); code != 0 {
			t.Fatal(errs)
		}
		reload("the certificates in cm.identity")
		b, err := os.ReadFile(filepath.Join(h.Keys, "host-1.pem"))
		l.Must(err)
		block, _ := pem.Decode(b)
		if shown := shownCertificate(t, h.CM); shown == old || shown != string(block.Bytes) {
			t.Error("the NIC does not show its renewed certificate")
		}

		mtu := func() int {
			t.Helper()
			port, err := net.InterfaceByName(h.Port)
			l.Must(err)
			return port.MTU
		}
		was := mtu()
		configure(l, 0, fmt.Sprintf("mtu: %d}", h.PortMTU), "mtu: 1300}")
		reload("port")
		if n := mtu(); n != 1300 {
			t.Errorf("the port has MTU %d", n)
		}
		configure(l, 0)
		reload("port")
		if n := mtu(); n != was {
			t.Errorf("the port has MTU %d again, want %d", n, was)
		}
		for i, c := range clients {
			if n := c.now(); n.recovered != 0 || len(n.wrong) != 0 {
				t.Errorf("guest %d: %+v", i+1, n)
			}
		}
	})
}

// shownCertificate returns the certificate that a connection manager shows to whoever calls it.
func shownCertificate(t *testing.T, addr string) string {
	t.Helper()
	c, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // it is only looked at
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return string(c.ConnectionState().PeerCertificates[0].Raw)
}
