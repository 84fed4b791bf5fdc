package run_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/qemu/vhosttest"
)

// onGuestPorts gives both hosts of a lab ports in guests' memory, and returns a guest on each.
func onGuestPorts(l *vnictest.Lab, o [2]vhosttest.NetOptions) (s [2]*vnictest.PortGuest) {
	l.T.Helper()
	for i, h := range l.Hosts {
		h.Ethernet, h.PortSocket = true, filepath.Join(filepath.Dir(h.Socket), fmt.Sprintf("port%d.1", i+1))
		l.Must(h.WriteConfig())
		l.Start(i)
	}
	l.Joined()
	for i, h := range l.Hosts {
		s[i] = vnictest.NewPortGuest(l.T, filepath.Dir(h.Socket), i+1, 1, o[i])
		s[i].IP = netip.MustParseAddr(h.TenantIP)
	}
	return s
}

// TestTunnelGoesOnWhenWorkersAreKilled kills and upgrades the workers of both NICs in turn while
// guests send datagrams through the tunnel. Traffic goes on each time, and each buffer comes back
// exactly once.
func TestTunnelGoesOnWhenWorkersAreKilled(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		s := onGuestPorts(l, [2]vhosttest.NetOptions{{Merge: true, EventIdx: true}, {Merge: true, Packed: true, Indirect: true}})
		for i := range s {
			s[i].Ask(s[1-i].IP)
		}
		sent, got := uint32(0), 0
		more := func() { // until some arrive each way
			t.Helper()
			for i := range s {
				began := time.Now()
				for arrived := 0; arrived < 200; {
					for range 8 {
						sent++
						s[i].Guest.Transmit(0, vhosttest.Header{}, s[i].UDP(s[1-i].IP, binary.BigEndian.AppendUint32(nil, sent)))
					}
					for {
						_, f := s[1-i].Receive(time.Millisecond)
						if f == nil {
							break
						}
						arrived++
					}
					if time.Since(began) > vnictest.Limit {
						t.Fatalf("of %d datagrams %d arrive", sent, arrived)
					}
					got += arrived
				}
			}
		}
		more()
		for i := range 6 {
			host := i % 2
			n := l.NIC(host, 0)
			if i >= 4 {
				if out, errs, code := vnictest.Run(t, "upgrade", "-s", l.Hosts[host].Control); code != 0 {
					t.Fatalf("exit status %d: %s%s", code, out, errs)
				}
			} else {
				for range 40 { // frames on their way in the rings
					s[host].Guest.Post(0, vhosttest.Header{}, s[host].UDP(s[1-host].IP, make([]byte, 900)))
				}
				s[host].Guest.Notify(0)
				l.Must(syscall.Kill(n.Worker, syscall.SIGKILL))
			}
			if next := l.NIC(host, n.Worker); next.PID != n.PID {
				t.Fatalf("%+v after %+v", next, n)
			}
			began := time.Now()
			more()
			t.Logf("host %d, loss %d: traffic both ways %v after the next worker serves", host+1, i, time.Since(began).Round(time.Millisecond))
		}
		for i := range s {
			vnictest.Eventually(t, "all buffers back", func() error {
				if !s[i].Guest.Idle(0) {
					return fmt.Errorf("guest %d misses some", i+1)
				}
				return nil
			})
			if !s[i].Guest.Whole() {
				t.Errorf("guest %d: receive buffers are missing", i+1)
			}
		}
	})
}
