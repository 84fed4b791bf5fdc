package run_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/control"
)

// TestPeersComeAndGo: peers are removed and added while clients work, by either NIC in turn. At both
// ends nothing is left each time: no key and no connection.
func TestPeersComeAndGo(t *testing.T) { peersComeAndGo(t, 2, 4) }

// TestLongPeersComeAndGo does so 200 times. In the end there are no memory, goroutines or descriptors
// more than after the first rounds.
func TestLongPeersComeAndGo(t *testing.T) { peersComeAndGo(t, 40, 200) }

func peersComeAndGo(t *testing.T, first, rounds int) {
	t.Setenv("GOGC", "10") // of the NICs: memory is what is in use, and little more
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		for i := range l.Hosts {
			l.Start(i)
		}
		l.Joined()
		// Clients that lose their connection while they change roles may both wait for the other for
		// ever. So each group of rounds has clients of its own.
		var stops [2]func()
		begin := func() {
			t.Helper()
			var clients [2]*follower
			for i := range l.Hosts {
				stops[i], clients[i] = beginEndless(l, i)
			}
			vnictest.Eventually(t, "clients that work", func() error {
				if clients[0].verified() == 0 {
					return fmt.Errorf("%q, %q", clients[0].now().last, clients[1].now().last)
				}
				return nil
			})
		}
		end := func() {
			t.Helper()
			for i, stop := range stops {
				stop()
				l.Free(i)
			}
		}
		comeAndGo := func(rounds int) {
			t.Helper()
			for i := range rounds {
				if i%10 == 0 {
					begin()
				}
				by := i % 2
				nic := l.Control(by)
				list, err := nic.Peers(context.Background())
				l.Must(err)
				change := func(c control.PeerChange) {
					t.Helper()
					if _, err := nic.ChangePeer(context.Background(), c); err != nil {
						t.Fatal(err)
					}
				}
				is := list[0]
				change(control.PeerChange{Action: "remove", Name: is.Name})
				for k := range l.Hosts {
					vnictest.Eventually(t, "nothing of the peer", func() error {
						n, err := l.Control(k).Counters(context.Background())
						if err == nil && n["psp.rx_sas"]+n["psp.tx_sas"]+n["falcon.conns"] != 0 {
							err = fmt.Errorf("NIC %d, round %d: %d and %d keys, %d connections", k+1, i, n["psp.rx_sas"], n["psp.tx_sas"], n["falcon.conns"])
						}
						return err
					})
				}
				change(control.PeerChange{Action: "add", Name: is.Name, Underlay: &is.Underlay, CM: &is.CM, Identity: &is.Identity, Tenants: &is.Tenants, Addresses: &is.Addresses})
				if l.Joined(); i%10 == 9 || i == rounds-1 {
					end()
				}
			}
		}
		goroutines := func() (all [2]int) {
			t.Helper()
			for i, h := range l.Hosts {
				n := l.NIC(i, 0)
				logged, _ := os.ReadFile(h.Log)
				l.Must(syscall.Kill(n.Worker, syscall.SIGQUIT))
				l.NIC(i, n.Worker)
				more, _ := os.ReadFile(h.Log)
				all[i] = goroutinesIn(strings.TrimPrefix(string(more), string(logged)))
			}
			l.Joined()
			return all
		}
		comeAndGo(first)
		before := goroutines()
		comeAndGo(first)
		var held [2]held
		for i := range held {
			held[i] = heldBy(l, i)
		}
		comeAndGo(rounds)
		for i := range held {
			settled(l, i, held[i], true)
		}
		const spare = 4 // a connection to the peer on the way, and requests of the control API
		if after := goroutines(); after[0] > before[0]+spare || after[1] > before[1]+spare {
			t.Errorf("%v goroutines, %v before", after, before)
		}
	})
}
