package shard

import (
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/pathmtu"
	"github.com/falcon-vnic/vnic/falcon/sim"
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

// TestAFloodOfProbesIsAnsweredInPart checks that a peer's probes cost the NIC 64 answers a second.
func TestAFloodOfProbesIsAnsweredInPart(t *testing.T) {
	v, _ := newProbing(t)
	v.idle(45e9)
	s := v.nics[0][0]
	for i := range 1000 {
		s.probes.request(v.now, v.peer(0), 7, pathmtu.Probe{Kind: pathmtu.Request, Size: 600, Round: uint32(i)})
		v.idle(10_000)
	}
	if n := v.dropped(1, dropProbe); n < 1000-2*maxProbes || n >= 1000 {
		t.Errorf("%d of 1000 probes in ten milliseconds were dropped", n)
	}
	if got := v.pathMTUs(); got != [2]int{1500, 1500} {
		t.Errorf("the flood changed the MTU of the path to %d", got)
	}
}
