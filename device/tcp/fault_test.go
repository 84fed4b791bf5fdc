package tcp_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/tcp"
)

// TestAFaultEndsConnectionsAndNothingElse: after a panic within gVisor, in a call or in a timer, the shard is
// told, connections are lost, those that were over are forgotten, and listeners and calls go on.
func TestAFaultEndsConnectionsAndNothingElse(t *testing.T) {
	for name, fall := range map[string]func(*tcp.Stack){"in a call": (*tcp.Stack).Break, "in a timer": (*tcp.Stack).BreakTimer} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1, false, tcp.Limits{Conns: 4})
			w.sides[1].Listen(7, 80)
			closed, _ := w.connected(80, false) // and lingers
			closed.Close()
			w.until("the end of a connection", func() bool { return closed.over })
			a, b := w.connected(80, false)
			fall(w.sides[1].Stack)
			w.until("the fault", func() bool { return b.over && len(w.sides[1].faults) == 1 })
			if why := w.sides[1].faults[0]; !strings.Contains(why, "broken by a test") {
				t.Errorf("%q", why)
			}
			a.left = bytesOf(1, 1000) // which nobody knows
			w.until("the peer's reset", func() bool { return a.over })
			c, d := w.connected(80, false)
			c.left = bytesOf(2, 100_000)
			w.until("data", func() bool { return len(d.got) == 100_000 })
			e := w.callFrom(1, 7, netip.AddrPortFrom(addresses[false][0], 81))
			w.until("a refusal", func() bool { return e.over })
			if n := w.sides[1].Stats().Conns; n != 1 {
				t.Errorf("%d connections count", n)
			}
		})
	}
}
