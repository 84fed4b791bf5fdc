package shard

import (
	"net/netip"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/pathmtu"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// newProbing returns two NICs that probe the path between them, and how many bytes of IP packet it
// carries.
func newProbing(t *testing.T) (v *virtual, carries *int) {
	t.Helper()
	carries = new(int)
	*carries = 1500
	v = newVirtualWith(t, 1, sim.Impairment{Delay: 50_000}, func(_ int, c *config.Config) { c.Uplink.ProbeMTU = config.ProbeMTUAuto })
	v.tap = func(_ int, frame []byte) []byte {
		if len(frame) > *carries+14 {
			return nil
		}
		return frame
	}
	return v, carries
}

// pathMTUs returns what each NIC knows of the path to the other.
func (v *virtual) pathMTUs() (mtus [2]int) {
	for i, c := range v.cores {
		mtus[i] = c.DescribePeers(nil)[0].PathMTU
	}
	return mtus
}

// TestThePathsMTUIsFoundAndKept checks that both NICs find what the path carries when that is less
// than uplink.mtu, that a new connection keeps to it, and that they find out when it changes.
func TestThePathsMTUIsFoundAndKept(t *testing.T) {
	eachShards(t, func(t *testing.T) {
		v, carries := newProbing(t)
		for _, mtu := range []int{1500, 2345, 1300, devicetest.MTU} {
			*carries = mtu
			v.idle(45e9)
			if got := v.pathMTUs(); got != [2]int{mtu, mtu} {
				t.Fatalf("the NICs take the MTU of the path for %d, it is %d", got, mtu)
			}
		}
		if p := v.cores[0].DescribePeers(nil)[0]; p.Note != "" {
			t.Errorf("the path carries everything, and the note says %q", p.Note)
		}
	})
}

// TestAFloodOfProbesIsAnsweredInPart checks that a peer's probes cost the NIC 256 answers a second.
func TestAFloodOfProbesIsAnsweredInPart(t *testing.T) {
	v, _ := newProbing(t)
	v.idle(45e9)
	s := v.nics[0][0]
	for i := range 1000 {
		s.probes.request(v.now, v.peer(0), netip.AddrPort{}, 7, pathmtu.Probe{Kind: pathmtu.Request, Size: 600, Round: uint32(i)})
		v.idle(10_000)
	}
	if n := v.dropped(1, dropProbe); n < 1000-2*maxProbes || n >= 1000 {
		t.Errorf("%d of 1000 probes in ten milliseconds were dropped", n)
	}
	if got := v.pathMTUs(); got != [2]int{1500, 1500} {
		t.Errorf("the flood changed the MTU of the path to %d", got)
	}
}

// TestConnectionsKeepToWhatThePathCarries: a connection that was made when the path carried longer
// packets goes on with shorter ones, and with longer ones when the path carries these again.
func TestConnectionsKeepToWhatThePathCarries(t *testing.T) {
	eachShards(t, func(t *testing.T) {
		v, carries := newProbing(t)
		*carries = devicetest.MTU
		longest, tap := 0, v.tap
		v.tap = func(nic int, frame []byte) []byte {
			longest = max(longest, len(frame))
			return tap(nic, frame)
		}
		v.idle(5e9)
		a, b := pair(v)
		for _, mtu := range []int{devicetest.MTU, 1500, 2600, 1300, devicetest.MTU} {
			*carries = mtu
			v.idle(45e9)
			longest = 0
			exchange(t, a, b, 20_000)
			exchange(t, b, a, 20_000)
			if longest > mtu+14 || longest < mtu/2 {
				t.Errorf("over a path that carries %d bytes the longest frame has %d", mtu, longest)
			}
		}
	})
}

// TestAConnectionEndsWithTheReasonThatItsPacketIsTooLong: a packet that was under way when the path's
// MTU shrank cannot be made shorter. The end of the connection that has to send it again says so; work
// fails, and both drivers see the connection end.
func TestAConnectionEndsWithTheReasonThatItsPacketIsTooLong(t *testing.T) {
	eachShards(t, func(t *testing.T) {
		for op, nic := range map[abi.Opcode]int{abi.OpWrite: 0, abi.OpRead: 1} {
			v, carries := newProbing(t)
			*carries = devicetest.MTU
			v.idle(5e9)
			a, b := pair(v)
			exchange(t, a, b, 5000)
			*carries = 1500
			begun := v.now
			a.send(op, 0, 4096, b, 0)
			if cqe := a.done(); cqe.Status == abi.WCSuccess {
				t.Errorf("%v: completed over a path that does not carry it", op)
			}
			a.event(abi.EventDisconnected)
			b.event(abi.EventDisconnected)
			if took := v.now - begun; took > 3e9 {
				t.Errorf("%v: ended after %d ms", op, took/1e6)
			}
			if n := v.sum(nic, func(s *Shard) uint64 { return s.falcon.engine.Stats().ConnsClosed[falcon.CloseMTU] }); n != 1 {
				t.Errorf("%v: %d connections ended for that reason at NIC %d", op, n, nic+1)
			}
			a.createQPAgain()
			b.createQPAgain()
			a.connectTo(b, 100)
			exchange(t, a, b, 5000)
		}
	})
}

// TestAnMTUThatShrinksCostsAPauseOfASecond checks that plain IP whose packets have become too long for the
// path goes on within two seconds.
func TestAnMTUThatShrinksCostsAPauseOfASecond(t *testing.T) {
	eachShards(t, func(t *testing.T) {
		carries := devicetest.MTU
		v := newPortWorldWith(t, 1, func(_ int, c *config.Config) { c.Uplink.ProbeMTU = config.ProbeMTUAuto })
		v.tap = func(_ int, frame []byte) []byte {
			if len(frame) > carries+14 {
				return nil
			}
			return frame
		}
		v.idle(5e9)
		carries = 1500
		begun := v.now
		for v.pathMTUs()[0] != 1500 {
			if v.now-begun > 2e9 {
				t.Fatalf("after two seconds the path's MTU is taken for %d", v.pathMTUs()[0])
			}
			v.say(0, 0, host1, host2, 4000)
			v.idle(20e6)
		}
		v.say(0, 0, host1, host2, 1400)
		if got := v.received(1); len(got) != 1 {
			t.Errorf("%d frames", len(got))
		}
	})
}
