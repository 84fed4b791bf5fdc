package tap

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

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

// TestOpenLimits: the least and the largest valid settings are accepted, others are not.
func TestOpenLimits(t *testing.T) {
	withTAPs(t, func() {
		for name, tc := range map[string]struct {
			cfg Config
			why string // "": it is opened
		}{
			"least MTU":            {Config{MTU: 68}, ""},
			"largest MTU":          {Config{MTU: 65521}, ""},
			"a name of 15":         {Config{Name: "abcdefghijklmno"}, ""},
			"one queue":            {Config{Queues: 1}, ""},
			"two queues":           {Config{Queues: 2}, ""},
			"most queues":          {Config{Queues: MaxQueues}, ""},
			"more queues":          {Config{Queues: MaxQueues + 1}, "use 1 to 16"},
			"less than none":       {Config{Queues: -1}, "use 1 to 16"},
			"one queue of water's": {Config{Queues: 1, Backend: BackendWater}, ""},
			"two of them":          {Config{Queues: 2, Backend: BackendWater}, "has one queue"},
			"this folder":          {Config{Name: "."}, "choose another"},
			"the folder above":     {Config{Name: ".."}, "choose another"},
		} {
			if tc.cfg.Name == "" {
				tc.cfg.Name = "up1"
			}
			p, err := Open(tc.cfg)
			if (err == nil) != (tc.why == "") || err != nil && !strings.Contains(err.Error(), tc.why) {
				t.Errorf("%s: %v", name, err)
			}
			if err != nil {
				continue
			}
			several := tuntap(t, tc.cfg.Name).Flags&netlink.TUNTAP_MULTI_QUEUE != 0
			if p.Capabilities().Queues != max(tc.cfg.Queues, 1) || several != (tc.cfg.Queues > 1) {
				t.Errorf("%s: %+v, several %t", name, p.Capabilities(), several)
			}
			if tc.cfg.MTU != 0 && p.MTU() != tc.cfg.MTU {
				t.Errorf("%s: MTU %d", name, p.MTU())
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestOthersDevice: a device that was created meanwhile is not taken over, and the name and kind
// that the kernel reports are checked.
func TestOthersDevice(t *testing.T) {
	withTAPs(t, func() {
		fd, err := attach("up1", nativeKind, false)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1); err != nil {
			t.Fatal(err)
		}
		for _, tc := range []struct {
			name string
			kind uint16
			ok   bool
		}{
			{"up1", nativeKind, true},
			{"up2", nativeKind, false},
			{"up1", unix.IFF_TAP | unix.IFF_NO_PI, false},
			{"up2", unix.IFF_TAP, false},
		} {
			if err := verify(fd, tc.name, tc.kind); (err == nil) != tc.ok {
				t.Errorf("%s of kind %#x: %v", tc.name, tc.kind, err)
			}
		}
		if err := unix.Close(fd); err != nil {
			t.Fatal(err)
		}
		if d, err := openNative(Config{Name: "up1"}); err == nil {
			t.Error("another's device is taken")
			_ = d.close()
		}
		d, err := openNative(Config{Name: "up1", Adopt: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := d.close(); err != nil {
			t.Error(err)
		}
		if tuntap(t, "up1").Queues != 0 {
			t.Error("a queue is left open")
		}
	})
}

// TestSplitByQueues: a TAP with a queue for each owner is split by queues, and disappears with its
// last part. A TAP with fewer queues is read by the first owner only.
func TestSplitByQueues(t *testing.T) {
	for _, tc := range []struct {
		queues, owners int
		of             []int // queues of each part; nil: it is not split
	}{
		{4, 4, []int{1, 1, 1, 1}},
		{4, 3, []int{2, 1, 1}},
		{5, 2, []int{3, 2}},
		{3, 4, nil},
		{1, 2, nil},
	} {
		withTAPs(t, func() {
			whole, err := Open(Config{Name: "up1", Queues: tc.queues})
			if err != nil {
				t.Fatal(err)
			}
			parts, err := Split(whole, tc.owners)
			if err != nil || len(parts) != tc.owners {
				t.Fatal(len(parts), err)
			}
			var of []int
			for i, p := range parts {
				if Reads(p) != (tc.of != nil || i == 0) {
					t.Errorf("%+v: part %d reads %t", tc, i, Reads(p))
				}
				if own, ok := p.(*port); ok && len(parts) > 1 {
					of = append(of, len(own.dev.fds))
				}
			}
			if !slices.Equal(of, tc.of) {
				t.Errorf("%+v: queues %v", tc, of)
			}
			for i, p := range parts {
				if _, err := netlink.LinkByName("up1"); err != nil {
					t.Errorf("%+v: the device is gone before part %d: %v", tc, i, err)
				}
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			}
			if _, err := netlink.LinkByName("up1"); err == nil {
				t.Errorf("%+v: the device is still there", tc)
			}
		})
	}
}

// shelf keeps devices, like a supervisor of the process.
type shelf struct {
	kept   map[string][]int
	forgot []string
}

// Take implements Keeper.
func (s *shelf) Take(name string) []int {
	fds := s.kept[name]
	delete(s.kept, name)
	return fds
}

// Keep implements Keeper.
func (s *shelf) Keep(name string, fds ...int) error {
	var copies []int
	for _, fd := range fds {
		c, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return err
		}
		copies = append(copies, c)
	}
	s.kept[name] = copies
	return nil
}

// Forget implements Keeper.
func (s *shelf) Forget(name string) (err error) {
	s.forgot = append(s.forgot, name)
	for _, fd := range s.Take(name) {
		err = errors.Join(err, unix.Close(fd))
	}
	return err
}

// TestKeptDevice: a kept device outlives its port, and the next port of the same kind takes it
// over; a port of another kind does not.
func TestKeptDevice(t *testing.T) {
	for _, queues := range []int{1, 3} {
		withTAPs(t, func() {
			s := &shelf{kept: map[string][]int{}}
			cfg, index := Config{Name: "up1", Queues: queues, Keeper: s}, 0
			for turn := range 3 {
				p, err := Open(cfg)
				if err != nil {
					t.Fatalf("turn %d: %v", turn, err)
				}
				d := tuntap(t, "up1")
				if turn > 0 && d.Attrs().Index != index || p.Capabilities().Queues != queues || len(s.kept["up1"]) != queues {
					t.Errorf("turn %d: another device, %+v", turn, p.Capabilities())
				}
				index = d.Attrs().Index
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			}
			cfg.Queues++
			p, err := Open(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if tuntap(t, "up1").Attrs().Index == index {
				t.Error("a device with other queues is taken over")
			}
			if err := errors.Join(p.Close(), s.Forget("up1")); err != nil {
				t.Error(err)
			}
			if cfg = (Config{Name: "up2", Backend: BackendWater, Keeper: s}); queues == 1 {
				p, err := Open(cfg)
				if err != nil || len(s.kept) != 0 {
					t.Fatalf("%d are kept of water's, %v", len(s.kept), err)
				}
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestRemovedFunction: a function's kept device stays when it is closed, and disappears when it is
// removed.
func TestRemovedFunction(t *testing.T) {
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

// TestFunctionLadder: if the kernel refuses USO, a function's port works without it; if it refuses
// all offloads, without any.
func TestFunctionLadder(t *testing.T) {
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

// TestQuiet: if a link disappears meanwhile, so that the kernel has no file for it, that is no
// error; other failures are.
func TestQuiet(t *testing.T) {
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

// TestRetry: a request whose answer was interrupted is repeated, a limited number of times. Any
// other result is returned.
func TestRetry(t *testing.T) {
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

// TestNoNamespace: a file that is not a network namespace is refused.
func TestNoNamespace(t *testing.T) {
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
