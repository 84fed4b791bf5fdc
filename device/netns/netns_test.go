package netns_test

import (
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/netns"
)

func inode(t *testing.T) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

func TestRunIsPrivate(t *testing.T) {
	before := inode(t)
	netns.Run(t, func() {
		if inode(t) == before {
			t.Error("not a new namespace")
		}
		links, err := netlink.LinkList()
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range links {
			a := l.Attrs()
			if a.Name == "lo" && a.RawFlags&unix.IFF_UP == 0 {
				t.Error("loopback is down")
			}
		}
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "nsprobe0"}}); err != nil {
			t.Fatal(err)
		}
	})
	if inode(t) != before {
		t.Error("the caller's thread was moved")
	}
	if _, err := netlink.LinkByName("nsprobe0"); err == nil {
		t.Error("a link made inside is visible outside")
	}
}

func TestSkipInsideIsPassedOn(t *testing.T) {
	skipped := false
	t.Run("inner", func(t *testing.T) {
		defer func() { skipped = t.Skipped() }()
		netns.Run(t, func() { t.Skip("asked to") })
		t.Error("went on after Skip")
	})
	if !skipped {
		t.Error("not skipped")
	}
}
