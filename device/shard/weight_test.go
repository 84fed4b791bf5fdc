package shard

import (
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestWeights checks that of two VFs that keep the NIC busy each gets its share by weight, from the
// start and after changes by the operator. When credits of the NIC are short the shares are less
// exact, but none is left without.
func TestWeights(t *testing.T) {
	t.Run("unlimited", func(t *testing.T) { testWeights(t, 65536, 0.15) })
	t.Run("limited", func(t *testing.T) { testWeights(t, 64, 0.3) })
}

func testWeights(t *testing.T, limit uint32, tolerance float64) {
	f := newBusyFlood(t, 2, func(c *config.Config) {
		together(0, c) // weights apply among the functions of a shard
		vfs := c.Functions[0].VFs
		vfs[len(vfs)-1].Weight = 3
		c.Credits.NIC.RequestPacketTx, c.Credits.Host.RequestPacketTx = limit, limit
	})
	const size, window = 64 << 10, 8
	var done [2]int
	post := func(i int) { f.flood[i][0].send(abi.OpWrite, 0, size, f.flood[i][1], 0) }
	step := func(side int, _ falcon.Time) {
		for i := range done {
			for side == 0 {
				if _, ok := f.flood[i][0].completion(); !ok {
					break
				}
				done[i]++
				post(i)
			}
		}
	}
	for i := range done {
		for range window {
			post(i)
		}
	}
	share := func(want float64) {
		t.Helper()
		f.run(f.now+10e6, step) // earlier requests are done
		done = [2]int{}
		f.run(f.now+60e6, step)
		if got := float64(done[1]) / float64(done[0]); got < (1-tolerance)*want || got > (1+tolerance)*want {
			t.Errorf("%v requests done: %.2f times, want %v", done, got, want)
		}
	}
	share(3)
	f.mustOperate(0, "pf0.vf10", "", "weight", "6")
	share(0.5)
	if err := f.operate(0, "pf0.vf10", "", "weight", "0"); err == nil {
		t.Error("a weight of 0 was taken")
	}
}
