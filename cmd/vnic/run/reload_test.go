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
	"github.com/falcon-vnic/vnic/device/netns"
)

// TestAReloadAppliesTheWholeConfigurationOrNothing: vnic reload and SIGHUP apply the configuration as it is now, without another worker; a
// key that needs one is named, and refuses all. The next worker has what was reloaded.
func TestAReloadAppliesTheWholeConfigurationOrNothing(t *testing.T) {
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

// TestAPortComesAndGoesByAReload: on a TAP, which the next worker takes over. One in a network namespace
// needs a worker that may enter it: an upgrade gives one, if the worker began without.
func TestAPortComesAndGoesByAReload(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		l.Start(0)
		before := l.NIC(0, 0)
		const vf2, port = "vfs:", "vfs:\n      - {vf: 2, tenant: 101, address: 192.168.101.1, port: {name: late}}"
		// reload fails if a reason is given.
		reload := func(refused string) {
			t.Helper()
			out, errs, code := vnictest.Run(t, "reload", "-s", l.Hosts[0].Control)
			if (code == 0) != (refused == "") || !strings.Contains(errs, refused) || refused == "" && !strings.Contains(out, "h1.pf0.vf2") {
				t.Fatalf("exit status %d: %s%s, want %q", code, out, errs, refused)
			}
			if n := l.NIC(0, 0); n.Worker != before.Worker {
				t.Errorf("it is worker %d, before %d", n.Worker, before.Worker)
			}
		}
		index := func() int {
			if is, err := net.InterfaceByName("late"); err == nil {
				return is.Index
			}
			return 0
		}
		configure(l, 0, vf2, port)
		reload("")
		was := index()
		if was == 0 {
			t.Fatal("there is no port")
		}
		l.Must(syscall.Kill(before.Worker, syscall.SIGKILL))
		before = l.NIC(0, before.Worker)
		if is := index(); is != was {
			t.Errorf("the next worker has interface %d, the one before had %d", is, was)
		}
		configure(l, 0)
		reload("")
		if index() != 0 {
			t.Error("the port is still there")
		}

		space, err := netns.NewSpace()
		l.Must(err)
		defer space.Close()
		configure(l, 0, vf2, strings.Replace(port, "name: late", "name: late, netns: "+space.Path(), 1))
		reload("a port has netns, and the worker gave up the right to enter namespaces, since it began without such a port: this takes effect with vnic upgrade")
		if out, errs, code := vnictest.Run(t, "upgrade", "-s", l.Hosts[0].Control); code != 0 {
			t.Fatalf("%s%s", out, errs)
		}
		before = l.NIC(0, before.Worker)
		there := func() bool {
			return space.Do(func() error { _, err := net.InterfaceByName("late"); return err }) == nil
		}
		if !there() {
			t.Error("after an upgrade there is no port in the namespace")
		}
		configure(l, 0)
		reload("")
		if there() {
			t.Error("the port in the namespace is still there")
		}
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
