package tap_test

import (
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/device/tap"
)

// A persistent device of a port keeps changes that others made to it; another device disappears.
func TestAPersistentDeviceKeepsOthersChanges(t *testing.T) {
	requireTUN(t)
	netns.Run(t, func() {
		box, err := netns.NewSpace()
		must(t, err)
		defer box.Close()
		cfg := tap.FunctionConfig{Name: "vp1", MAC: [6]byte{2, 0, 0, 0, 0, 7}, MTU: 1400, Netns: box.Path(), Persist: true}
		f, err := tap.OpenFunction(cfg)
		must(t, err)
		must(t, box.Do(func() error { return netns.Up("vp1", "10.9.9.9/24") }))
		if _, err := tap.OpenFunction(cfg); err == nil || !strings.Contains(err.Error(), "another process uses the interface") {
			t.Errorf("taken twice: %v", err)
		}
		must(t, f.Close())
		addresses := func() (n int, err error) {
			err = box.Do(func() error {
				l, err := netlink.LinkByName("vp1")
				if err != nil {
					return err
				}
				list, err := netlink.AddrList(l, netlink.FAMILY_V4)
				n = len(list)
				return err
			})
			return n, err
		}
		if n, err := addresses(); n != 1 || err != nil {
			t.Errorf("after closing: %d addresses, %v", n, err)
		}
		f, err = tap.OpenFunction(cfg)
		must(t, err)
		if n, err := addresses(); n != 1 || err != nil {
			t.Errorf("taken again: %d addresses, %v", n, err)
		}
		must(t, f.Close())
		cfg.Persist = false
		if _, err := tap.OpenFunction(cfg); err == nil || !strings.Contains(err.Error(), "exists already") {
			t.Errorf("taken without being asked to: %v", err)
		}
		cfg.Name = "vp2"
		f, err = tap.OpenFunction(cfg)
		must(t, err)
		must(t, f.Close())
		if box.Do(func() error { _, err := netlink.LinkByName("vp2"); return err }) == nil {
			t.Error("a device that does not persist stayed")
		}
		if _, err := tap.OpenFunction(tap.FunctionConfig{Name: "vp3", Netns: "/nowhere"}); err == nil || !strings.Contains(err.Error(), `network namespace "/nowhere"`) {
			t.Errorf("%v", err)
		}
	})
}
