package ports

import (
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/netns"
)

// TestSegmentsOfPorts checks that the kernel's TCP puts at most one superframe of the uplink into
// one frame for a direct port, and that frames from a bridge are not limited in this way.
func TestSegmentsOfPorts(t *testing.T) {
	netns.Run(t, func() {
		segs := func(c *config.Port) uint32 {
			d, err := openTAP(c, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			link, err := netlink.LinkByName(c.Name)
			if err != nil {
				t.Fatal(err)
			}
			return link.Attrs().GSOMaxSegs
		}
		direct := &config.Port{Name: "vp1", MAC: [6]byte{2, 0, 0, 0, 0, 1}, MTU: 1432, Mode: config.PortDirect}
		bridged := &config.Port{Name: "vp2", MAC: [6]byte{2, 0, 0, 0, 0, 2}, MTU: 1432, Mode: config.PortBridged}
		if got, want := segs(direct), uint32(segments(1432)); got != want {
			t.Errorf("direct: %d segments, want %d", got, want)
		}
		if got := segs(bridged); got <= uint32(segments(1432)) {
			t.Errorf("bridged: %d segments", got)
		}
	})
}
