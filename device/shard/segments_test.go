package shard

import (
	"fmt"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/rof/wire"
)

// segmented returns NICs whose rdma.mtu is given, on uplinks that carry the largest.
func segmented(t *testing.T, seed uint64, imp sim.Impairment, mtu [2]int) *virtual {
	t.Helper()
	return newVirtualWith(t, seed, imp, func(i int, c *config.Config) { c.Uplink.MTU, c.RDMA.MTU = 33000, mtu[i] })
}

// TestTheSmallerSegmentHolds: a connection's packets carry what the NIC takes that takes less, 1 to 32
// KiB, whichever side asked for it. Messages of all lengths around that come as they were sent, over
// a wire that loses, doubles, reorders and corrupts packets.
func TestTheSmallerSegmentHolds(t *testing.T) {
	if overRoCE {
		t.Skip("segments beyond a path MTU are Falcon's")
	}
	bad := sim.Impairment{Delay: 30_000, Jitter: 20_000, Loss: 0.02, Duplicate: 0.02, Reorder: 0.05, ReorderDelay: 100_000, Corrupt: 0.02}
	for i, mtu := range [][2]int{{1024, 1024}, {1024, 32768}, {4096, 8192}, {8192, 4096}, {8192, 8192}, {16384, 32768}, {32768, 16384}, {32768, 32768}} {
		t.Run(fmt.Sprint(mtu), func(t *testing.T) {
			v := segmented(t, uint64(i+1), bad, mtu)
			longest := 0
			v.tap = func(_ int, frame []byte) []byte {
				longest = max(longest, len(frame))
				return frame
			}
			a, b := pair(v)
			segment := min(mtu[0], mtu[1])
			for _, n := range []int{1, segment - 1, segment, segment + 1, 2*segment - 1, 2 * segment, 2*segment + 1, 3*segment + 5} {
				exchange(t, a, b, n)
				exchange(t, b, a, n)
			}
			if around := longest - segment; around < 100 || around > 200 {
				t.Errorf("the longest frame has %d bytes, want %d of data and headers around them", longest, segment)
			}
		})
	}
}

// TestDriversKnowPathMTUsOnly: whatever a NIC's packets may carry, drivers are told of at most 4096
// bytes. A driver that asks for that leaves the segment to the NIC; one that asks for less gets that.
func TestDriversKnowPathMTUsOnly(t *testing.T) {
	if overRoCE {
		t.Skip("segments beyond a path MTU are Falcon's")
	}
	for rdmaMTU, told := range map[int]abi.PathMTU{512: abi.MTU512, 4096: abi.MTU4096, 8192: abi.MTU4096, 32768: abi.MTU4096} {
		for _, asked := range []abi.PathMTU{0, abi.MTU256, abi.MTU1024, abi.MTU4096} {
			v := segmented(t, 1, wire100us, [2]int{rdmaMTU, rdmaMTU})
			a, b := newDriver(v, 0, 1), other(v)
			for _, d := range []*driver{a, b} {
				d.setUp()
				var is abi.QueryDeviceResult
				is.Unmarshal(d.must(abi.AdminOpQueryDevice, nil))
				if is.PathMTU != told || d.fn.Registers().Value(abi.RegMTU) != uint64(told.Bytes()) {
					t.Errorf("rdma.mtu %d: the driver is told of %v", rdmaMTU, is.PathMTU)
				}
			}
			if asked != 0 {
				a.must(abi.AdminOpModifyQP, &abi.ModifyQP{QPN: a.qpn, Mask: abi.QPAttrPathMTU, PathMTU: asked})
			}
			a.connectTo(b, 99)
			want := rdmaMTU
			if n := asked.Bytes(); n != 0 && n < told.Bytes() {
				want = n
			}
			for nic, c := range v.cores {
				if got := c.Connections(v.now)[0].MTU - wire.MaxDataHeaderLen; got != want {
					t.Errorf("rdma.mtu %d, path MTU %d asked for: NIC %d has a segment of %d, want %d", rdmaMTU, asked.Bytes(), nic+1, got, want)
				}
			}
			exchange(t, a, b, 20_000)
		}
	}
}
