package run_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
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
				if n.Peers[0].Note == "seals in another psp.mode" && strings.Contains(string(log), "a peer seals in another psp.mode") {
					return err
				}
			}
			return fmt.Errorf("neither says anything")
		})
	})
}

// TestSilentClients: a peer can connect at once while hundreds of clients hold silent connections
// to cm.listen.
func TestSilentClients(t *testing.T) {
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
