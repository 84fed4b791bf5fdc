package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/qemu/vhosttest"
)

// onGuestPorts has both hosts of a lab serve ports in guests' memory, and returns a guest on each.
func onGuestPorts(l *lab, o [2]vhosttest.NetOptions) (s [2]*station) {
	l.t.Helper()
	for i, h := range l.hosts {
		h.Ethernet, h.PortSocket = true, filepath.Join(filepath.Dir(h.Socket), fmt.Sprintf("port%d.1", i+1))
		l.must(h.writeConfig())
		l.start(i)
	}
	l.joined()
	for i, h := range l.hosts {
		s[i] = newStation(l.t, filepath.Dir(h.Socket), i+1, 1, o[i])
		s[i].ip = netip.MustParseAddr(h.TenantIP)
	}
	return s
}

// TestTunnelGoesOnWhenWorkersAreKilled kills the workers of both NICs in turn, and upgrades them, while guests
// send each other datagrams through the tunnel. Traffic goes on each time, no buffer of a guest is
// lost, and none comes back twice.
func TestTunnelGoesOnWhenWorkersAreKilled(t *testing.T) {
	inLab(t, false, func(l *lab) {
		s := onGuestPorts(l, [2]vhosttest.NetOptions{{Merge: true, EventIdx: true}, {Merge: true, Packed: true, Indirect: true}})
		for i := range s {
			s[i].ask(s[1-i].ip)
		}
		sent, got := uint32(0), 0
		more := func() { // until some arrive each way
			t.Helper()
			for i := range s {
				began := time.Now()
				for arrived := 0; arrived < 200; {
					for range 8 {
						sent++
						s[i].guest.Transmit(0, vhosttest.Header{}, s[i].udp(s[1-i].ip, binary.BigEndian.AppendUint32(nil, sent)))
					}
					for {
						_, f := s[1-i].receive(time.Millisecond)
						if f == nil {
							break
						}
						arrived++
					}
					if time.Since(began) > testTime {
						t.Fatalf("of %d datagrams %d arrive", sent, arrived)
					}
					got += arrived
				}
			}
		}
		more()
		for i := range 6 {
			host := i % 2
			n := l.nic(host, 0)
			if i >= 4 {
				if out, errs, code := run(t, "upgrade", "-s", l.hosts[host].Control); code != 0 {
					t.Fatalf("exit status %d: %s%s", code, out, errs)
				}
			} else {
				for range 40 { // frames on their way in the rings
					s[host].guest.Post(0, vhosttest.Header{}, s[host].udp(s[1-host].ip, make([]byte, 900)))
				}
				s[host].guest.Notify(0)
				l.must(syscall.Kill(n.Worker, syscall.SIGKILL))
			}
			if next := l.nic(host, n.Worker); next.PID != n.PID {
				t.Fatalf("%+v after %+v", next, n)
			}
			began := time.Now()
			more()
			t.Logf("host %d, loss %d: traffic both ways %v after the next worker serves", host+1, i, time.Since(began).Round(time.Millisecond))
		}
		for i := range s {
			eventually(t, "all buffers back", func() error {
				if !s[i].guest.Idle(0) {
					return fmt.Errorf("guest %d misses some", i+1)
				}
				return nil
			})
			if !s[i].guest.Whole() {
				t.Errorf("guest %d: receive buffers are missing", i+1)
			}
		}
	})
}
