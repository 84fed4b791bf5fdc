package shard

import (
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
)

// Bridged returns a shard in virtual time whose guests are behind bridges at MTU 1500, and its
// clock.
func Bridged(t *testing.T) (*Shard, func() int64) {
	v := newPortWorldWith(t, 31, func(_ int, c *config.Config) {
		c.Uplink.MTU, c.RDMA.MTU = 1500, 1024
		for _, vf := range []int{0, 3} {
			c.Functions[0].VFs[vf].Port.Mode, c.Functions[0].VFs[vf].Port.MTU = config.PortBridged, 1432
		}
	})
	return v.shards[0], func() int64 { return v.now }
}
