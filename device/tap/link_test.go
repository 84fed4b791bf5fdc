package tap

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestMissingKernelFileIsNoError: if a link disappears meanwhile, so that the kernel has no file
// for it, that is no error; other failures are.
func TestMissingKernelFileIsNoError(t *testing.T) {
	withTAPs(t, func() {
		if _, err := os.Stat("/proc/sys/net/ipv6/conf"); err != nil {
			t.Skip("a kernel without IPv6")
		}
		dummy := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
		if err := netlink.LinkAdd(dummy); err != nil {
			t.Fatal(err)
		}
		for name, tc := range map[string]struct {
			a  netlink.LinkAttrs
			ok bool
		}{
			"there":         {netlink.LinkAttrs{Name: "br0", Index: dummy.Index}, true},
			"renamed":       {netlink.LinkAttrs{Name: "br1", Index: dummy.Index}, true},
			"nowhere":       {netlink.LinkAttrs{Name: "br0", Index: 99_999}, false},
			"a file's name": {netlink.LinkAttrs{Name: "br0/mtu", Index: dummy.Index}, false},
		} {
			if err := quiet(&netlink.Bridge{LinkAttrs: tc.a}); (err == nil) != tc.ok {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// TestAnInterruptedRequestIsRepeated: a request whose answer was interrupted is repeated, a limited number of times. Any
// other result is returned.
func TestAnInterruptedRequestIsRepeated(t *testing.T) {
	other := errors.New("other")
	for _, tc := range []struct {
		interrupted int
		then        error
		calls       int
		want        error
	}{
		{0, nil, 1, nil},
		{0, other, 1, other},
		{3, nil, 4, nil},
		{3, other, 4, other},
		{1000, nil, 20, netlink.ErrDumpInterrupted},
	} {
		calls := 0
		err := retry(func() error {
			if calls++; calls <= tc.interrupted {
				return netlink.ErrDumpInterrupted
			}
			return tc.then
		})
		if calls != tc.calls || !errors.Is(err, tc.want) {
			t.Errorf("%+v: %d calls, %v", tc, calls, err)
		}
	}
}

// TestFileThatIsNoNamespaceIsRefused: a file that is not a network namespace is refused.
func TestFileThatIsNoNamespaceIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := CheckNetns(file); err == nil || !strings.Contains(err.Error(), "is none") {
		t.Error(err)
	}
	if err := CheckNetns("/proc/self/ns/net"); err != nil {
		t.Error(err)
	}
}

// TestABridgeNamesItsMembers: with their MTU, and whether they are up; nothing else is a bridge, and a TAP that is there is
// not taken.
func TestABridgeNamesItsMembers(t *testing.T) {
	withTAPs(t, func() {
		for _, name := range []string{"br0", "br1"} {
			if err := NewBridge(name, 1500); err != nil {
				t.Fatal(err)
			}
		}
		for name, bridge := range map[string]string{"guest0": "br0", "guest1": "br0", "guest2": "br1", "guest3": ""} {
			f, err := OpenGuest(name, bridge, 1400)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
		}
		down, err := netlink.LinkByName("guest1")
		if err == nil {
			err = netlink.LinkSetDown(down)
		}
		if err != nil {
			t.Fatal(err)
		}
		list, err := Members("br0")
		slices.SortFunc(list, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
		if want := []Member{{"guest0", 1400, true}, {"guest1", 1400, false}}; err != nil || !slices.Equal(list, want) {
			t.Errorf("%+v, %v; want %+v", list, err, want)
		}
		for _, name := range []string{"nobridge", "guest0"} {
			if _, err := Members(name); err == nil || CheckBridge(name, 1400) == nil {
				t.Errorf("%s is a bridge", name)
			}
		}
		if f, err := OpenGuest("guest0", "br0", 1400); err == nil || !strings.Contains(err.Error(), `tap "guest0"`) {
			f.Close()
			t.Errorf("a TAP that another has: %v", err)
		}
		if _, err := HasUSO(); err != nil {
			t.Error(err)
		}
	})
}

// TestGuestWithoutBridge: if the bridge of a guest's TAP does not exist, no TAP is left behind.
func TestGuestWithoutBridge(t *testing.T) {
	withTAPs(t, func() {
		f, err := OpenGuest("guest0", "nobridge", 1500)
		if err == nil {
			f.Close()
		}
		if err == nil || !strings.Contains(err.Error(), `tap "guest0"`) || !strings.Contains(err.Error(), "nobridge") {
			t.Errorf("says %v", err)
		}
		if _, err := netlink.LinkByName("guest0"); err == nil {
			t.Error("the device is still there")
		}
		if f, err = OpenGuest("guest0", "", 1500); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
}
