package netns_test

import (
	"os"
	"runtime"
	"strings"
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

// netfilter returns whether bridges of the calling thread's namespace call netfilter, "" without
// br_netfilter.
func netfilter() string {
	b, _ := os.ReadFile("/proc/sys/net/bridge/bridge-nf-call-iptables")
	return strings.TrimSpace(string(b))
}

func TestRunIsPrivate(t *testing.T) {
	before, asked := inode(t), netfilter()
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
		if asked != "" && netfilter() != "0" {
			t.Error("bridges ask netfilter")
		}
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "nsprobe0"}}); err != nil {
			t.Fatal(err)
		}
	})
	if inode(t) != before {
		t.Error("the caller's thread was moved")
	}
	if now := netfilter(); now != asked {
		t.Errorf("the caller's bridges ask netfilter: %q, before %q", now, asked)
	}
	if _, err := netlink.LinkByName("nsprobe0"); err == nil {
		t.Error("a link made inside is visible outside")
	}
}

// skipper is a test that can be skipped without affecting the outer test.
type skipper struct {
	testing.TB
	skipped, passedOn bool
}

func (s *skipper) Skip(...any)   { s.skipped = true; runtime.Goexit() }
func (s *skipper) SkipNow()      { s.passedOn = true; runtime.Goexit() }
func (s *skipper) Skipped() bool { return s.skipped }

func TestSkipInsideIsPassedOn(t *testing.T) {
	s := &skipper{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		netns.Run(s, func() { s.Skip("asked to") })
		t.Error("went on after Skip")
	}()
	<-done
	if !s.passedOn {
		t.Error("not skipped")
	}
}

// Two spaces are separate; a link can be moved from one to the other.
func TestALinkMovesBetweenSeparateSpaces(t *testing.T) {
	netns.Run(t, func() {
		a, err := netns.NewSpace()
		if err != nil {
			t.Fatal(err)
		}
		b, err := netns.NewSpace()
		if err != nil {
			t.Fatal(err)
		}
		err = a.Do(func() error {
			veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "nsv0"}, PeerName: "nsv1"}
			if err := netlink.LinkAdd(veth); err != nil {
				return err
			}
			if err := netns.Up("nsv0", "10.9.9.1/24"); err != nil {
				return err
			}
			return b.Take("nsv1", "10.9.9.2/24")
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Do(func() error { _, err := netlink.LinkByName("nsv1"); return err }); err != nil {
			t.Error(err)
		}
		if a.Do(func() error { _, err := netlink.LinkByName("nsv1"); return err }) == nil {
			t.Error("the link is still where it was")
		}
		for _, s := range []*netns.Space{a, b} {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if s.Do(func() error { return nil }) == nil {
				t.Error("a closed space works")
			}
		}
	})
}
