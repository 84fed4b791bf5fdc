package run_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

// TestPeersThatDoNotFit: NICs that wait for each other, or that differ in psp.mode, say so in the
// log and in vnic show nic.
func TestPeersThatDoNotFit(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		says := func(i int, want string) {
			t.Helper()
			vnictest.Eventually(t, "a note", func() error {
				out, errs, _ := vnictest.Run(t, "show", "nic", "-s", l.Hosts[i].Control)
				if !strings.Contains(out, want) {
					return fmt.Errorf("host %d does not say %q: %s%s", i+1, want, out, errs)
				}
				return nil
			})
		}
		l.Start(1)
		says(1, "waits for it to dial "+l.Hosts[1].CM)
		configure(l, 0, "log:", "psp: {mode: transport}\nlog:")
		l.Start(0)
		l.Joined()
		for i := range l.Hosts {
			c := l.Client(i, 3)
			defer c.P.Stop(0)
		}
		vnictest.Eventually(t, "a note of the mode", func() error {
			for i := range l.Hosts {
				n, err := l.Control(i).NIC(context.Background())
				if err != nil {
					return err
				}
				log, err := os.ReadFile(l.Hosts[i].Log)
				if n.Peers[0].Note == "seals with another psp.mode" && strings.Contains(string(log), "a peer seals with another psp.mode") {
					return err
				}
			}
			return fmt.Errorf("neither says anything")
		})
	})
}

// TestSilentClientsKeepNoPeerAway: a peer can connect at once while hundreds of clients hold silent connections
// to cm.listen.
func TestSilentClientsKeepNoPeerAway(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		l.Start(1)
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}, Timeout: 10 * time.Second}
		for range 400 {
			c, err := d.Dial("tcp", l.Hosts[1].CM)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
		}
		l.Start(0)
		l.Joined()
		c, err := l.Control(1).Counters(context.Background())
		if err != nil || c["cmlink.ousted"] < 300 {
			t.Errorf("%d of 400 connections made room for others: %v", c["cmlink.ousted"], err)
		}
	})
}

// TestPeersAreChangedByCommand: vnic peer lists, changes, removes and adds peers of a running NIC.
// Nothing is left of a removed peer, however often it comes and goes, a restarted worker has the peers
// that were left, and one that comes back can be worked with.
func TestPeersAreChangedByCommand(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		l.Start(0)
		l.Start(1)
		l.Joined()
		l.Works()
		peer := func(args ...string) string {
			t.Helper()
			out, errs, code := vnictest.Run(t, append(append([]string{"peer"}, args...), "-s", l.Hosts[0].Control)...)
			if code != 0 {
				t.Fatalf("vnic peer %v: %s", args, errs)
			}
			return out
		}
		counters := func() map[string]uint64 {
			t.Helper()
			n, err := l.Control(0).Counters(context.Background())
			l.Must(err)
			return n
		}
		list, err := l.Control(0).Peers(context.Background())
		l.Must(err)
		is := list[0]
		add := []string{"add", "2", "--underlay", is.Underlay, "--cm", is.CM, "--identity", is.Identity, "--tenants", fmt.Sprint(is.Tenants[0])}
		for _, a := range is.Addresses {
			add = append(add, "--address", fmt.Sprintf("%d:%s", a.Tenant, a.Address))
		}
		if out := peer("list"); !strings.Contains(out, is.Underlay) || !strings.Contains(out, " up ") {
			t.Errorf("%s", out)
		}
		fds := 0
		for i := range 12 {
			peer("remove", "2")
			vnictest.Eventually(t, "nothing of the peer", func() error {
				if n := counters(); n["psp.rx_sas"]+n["psp.tx_sas"]+n["falcon.conns"]+n["shard.cids_in_use"] != 0 {
					return fmt.Errorf("%v", n)
				}
				return nil
			})
			n := l.NIC(0, 0)
			if i == 2 {
				fds = descriptorsOf(n.Worker)
			} else if i > 2 {
				vnictest.Eventually(t, "descriptors", func() error { // of a connection that just ends, too
					if now := descriptorsOf(n.Worker); now > fds+1 {
						return fmt.Errorf("%d of the worker after %d rounds, %d before", now, i, fds)
					}
					return nil
				})
			}
			peer(add...)
			l.Joined()
		}
		if _, errs, code := vnictest.Run(t, append(append([]string{"peer"}, add...), "-s", l.Hosts[0].Control)...); code == 0 || !strings.Contains(errs, "peer 2 exists already") {
			t.Errorf("exit status %d: %s", code, errs)
		}
		l.Works()
		peer("remove", "2")
		n := l.NIC(0, 0)
		l.Must(syscall.Kill(n.Worker, syscall.SIGKILL))
		l.NIC(0, n.Worker)
		if out := peer("list"); strings.Contains(out, is.Underlay) {
			t.Errorf("the next worker has the peer again: %s", out)
		}
		peer(add...)
		l.Joined()
	})
}
