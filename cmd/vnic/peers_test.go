package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestPeersThatDoNotFit: NICs that wait for each other, or have different values of psp.mode, say
// so in the log and in vnic show nic.
func TestPeersThatDoNotFit(t *testing.T) {
	inLab(t, false, func(l *lab) {
		says := func(i int, want string) {
			t.Helper()
			eventually(t, "a note", func() error {
				out, errs, _ := run(t, "show", "nic", "-s", l.hosts[i].Control)
				if !strings.Contains(out, want) {
					return fmt.Errorf("host %d does not say %q: %s%s", i+1, want, out, errs)
				}
				return nil
			})
		}
		l.start(1)
		says(1, "waits for it to dial "+l.hosts[1].CM)
		configure(l, 0, "log:", "psp: {mode: transport}\nlog:")
		l.start(0)
		l.joined()
		for i := range l.hosts {
			c := l.client(i, 3)
			defer c.p.stop(0)
		}
		eventually(t, "a note of the mode", func() error {
			for i := range l.hosts {
				n, err := l.control(i).NIC(context.Background())
				if err != nil {
					return err
				}
				log, err := os.ReadFile(l.hosts[i].Log)
				if n.Peers[0].Note == "seals in another psp.mode" && strings.Contains(string(log), "a peer seals in another psp.mode") {
					return err
				}
			}
			return fmt.Errorf("neither says anything")
		})
	})
}
