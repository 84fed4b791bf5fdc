package tap

import (
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/falcon-vnic/vnic/device/netns"
)

// withTAPs runs f if TAPs can be made.
func withTAPs(t *testing.T, f func()) {
	t.Helper()
	if _, err := os.Stat(tunDevice); err != nil {
		if os.Getenv("VNIC_TEST_REQUIRE") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	netns.Run(t, f)
}

// tuntap returns the kernel's description of a TAP.
func tuntap(t *testing.T, name string) *netlink.Tuntap {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	d, ok := link.(*netlink.Tuntap)
	if !ok {
		t.Fatalf("%s is a %s", name, link.Type())
	}
	return d
}

// TestAFunctionsKeptDeviceStaysUntilRemoved: a function's kept device stays when it is closed, and disappears when it is
// removed.
func TestAFunctionsKeptDeviceStaysUntilRemoved(t *testing.T) {
	withTAPs(t, func() {
		s := &shelf{kept: map[string][]int{}}
		cfg := FunctionConfig{Name: "fn0", MAC: [6]byte{2, 0, 0, 0, 0, 7}, MTU: 1500, Keeper: s}
		for turn, remove := range []bool{false, false, true} {
			f, err := OpenFunction(cfg)
			if err != nil {
				t.Fatalf("turn %d: %v", turn, err)
			}
			if a := tuntap(t, "fn0").Attrs(); a.GSOMaxSegs == 0 || a.TxQLen != functionQueue {
				t.Errorf("segments %d, queue of %d", a.GSOMaxSegs, a.TxQLen)
			}
			end := f.Close
			if remove {
				end = f.Remove
			}
			if err := end(); err != nil {
				t.Error(err)
			}
			if _, err := netlink.LinkByName("fn0"); (err == nil) == remove {
				t.Errorf("turn %d: removed %t, %v", turn, remove, err)
			}
		}
		if !slices.Equal(s.forgot, []string{"fn0"}) {
			t.Errorf("forgot %v", s.forgot)
		}
	})
}

// TestAKeptDeviceThatCannotBeUsedIsPutBack: the keeper has a function's kept device again when the
// function cannot be set up with it, as without its bridge. What the keeper forgets then is in nobody's
// way.
func TestAKeptDeviceThatCannotBeUsedIsPutBack(t *testing.T) {
	withTAPs(t, func() {
		bridge := func() *netlink.Bridge {
			br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br9"}}
			if err := netlink.LinkAdd(br); err != nil {
				t.Skip("no bridge here:", err)
			}
			return br
		}
		s := &shelf{kept: map[string][]int{}}
		cfg := FunctionConfig{Name: "fn0", MAC: [6]byte{2, 0, 0, 0, 0, 7}, MTU: 1500, Bridge: "br9", Keeper: s}
		br := bridge()
		f, err := OpenFunction(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Close(), netlink.LinkDel(br)); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenFunction(cfg); err == nil || len(s.kept["fn0"]) != 1 {
			t.Errorf("without its bridge: %v, %d are kept", err, len(s.kept["fn0"]))
		}
		if err := s.Forget("fn0"); err != nil {
			t.Error(err)
		}
		bridge()
		if f, err = OpenFunction(cfg); err != nil {
			t.Fatal(err)
		}
		if err := f.Remove(); err != nil {
			t.Error(err)
		}
	})
}

// TestFunctionWorksWithoutRefusedOffloads: if the kernel refuses USO, a function's port works
// without it; if it refuses all offloads, without any.
func TestFunctionWorksWithoutRefusedOffloads(t *testing.T) {
	all := functionOffloads
	defer func() { functionOffloads = all }()
	const unknown = 1 << 15 // no kernel has this offload
	for refused := range len(all) {
		functionOffloads = slices.Clone(all)
		for i := range refused {
			functionOffloads[i].bits |= unknown
		}
		withTAPs(t, func() {
			f, err := OpenFunction(FunctionConfig{Name: "fn0", MAC: [6]byte{2, 0, 0, 0, 0, 7}, MTU: 1500})
			if err != nil {
				t.Fatal(err)
			}
			if refused > 0 && f.USO() {
				t.Errorf("%d kinds refused: USO", refused)
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
