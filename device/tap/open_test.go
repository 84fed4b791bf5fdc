package tap

import (
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/netns"
)

// TestTheLeastAndLargestSettingsAreAccepted: the least and the largest valid settings are accepted, others are not.
func TestTheLeastAndLargestSettingsAreAccepted(t *testing.T) {
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

// TestDeviceOfOthersIsNotTakenOver: a device that was created meanwhile is not taken over, and the
// name and kind that the kernel reports are checked.
func TestDeviceOfOthersIsNotTakenOver(t *testing.T) {
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

// PutBack implements Keeper.
func (s *shelf) PutBack(name string, fds ...int) { s.kept[name] = fds }

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

// TestTheNextPortTakesAKeptDeviceOver: a kept device outlives its port, and the next port of the same kind takes it
// over; a port of another kind does not.
func TestTheNextPortTakesAKeptDeviceOver(t *testing.T) {
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

// attic is a Keeper that holds descriptors.
type attic struct {
	Keeper
	fds []int
}

func (a attic) Take(string) []int { return a.fds }

// TestKeptIsVerified: kept descriptors are used if they are queues of the device, and as many as
// requested; otherwise all of them are closed.
func TestKeptIsVerified(t *testing.T) {
	if fds := takeKept(nil, "vp0", unix.IFF_TAP, 1); fds != nil {
		t.Errorf("%d of nobody", fds)
	}
	for _, n := range []int{0, 1, 2, 3} {
		for _, queues := range []int{1, 2, 3} {
			var fds []int
			for range n {
				f, err := os.Open(os.DevNull) // no TAP
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 1000)
				if err != nil {
					t.Fatal(err)
				}
				fds = append(fds, fd)
			}
			if got := takeKept(attic{fds: fds}, "vp0", unix.IFF_TAP, queues); got != nil {
				t.Errorf("%d descriptors of something else are taken as %d queues", n, queues)
			}
			for _, fd := range fds {
				if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
					t.Errorf("%d descriptors for %d queues: one is left open", n, queues)
				}
			}
		}
	}
}

// If the kernel refuses USO, the port works without superframes.
func TestPortWorksWithoutRefusedOffloads(t *testing.T) {
	if _, err := os.Stat(tunDevice); err != nil && os.Getenv("VNIC_TEST_REQUIRE") != "1" {
		t.Skip(err)
	}
	all := offloads
	defer func() { offloads = all }()
	const unknown = 1 << 15 // no kernel has this offload
	for refused := range len(offloads) {
		offloads = slices.Clone(all)
		for i := range refused {
			offloads[i].bits |= unknown
		}
		netns.Run(t, func() {
			p, err := Open(Config{Name: "up1", Superframes: true})
			if err != nil {
				t.Fatal(err)
			}
			if c := p.Capabilities(); refused > 0 && (c.USO || c.MaxSegments != 1) || c.USO != (c.MaxSegments > 1) {
				t.Errorf("%d kinds refused: %+v", refused, c)
			}
			if got, want := BufferSize(p), p.MTU()+FrameOverhead; refused > 0 && got != want {
				t.Errorf("buffers of %d bytes, want %d", got, want)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestFlowsOverSeveralQueuesStayInOrder: the kernel spreads flows over the queues, Read takes from all of them, and each flow
// arrives in order.
func TestFlowsOverSeveralQueuesStayInOrder(t *testing.T) {
	if _, err := os.Stat(tunDevice); err != nil {
		if os.Getenv("VNIC_TEST_REQUIRE") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	const queues, flows, each = 4, 32, 8
	netns.Run(t, func() {
		if err := NewBridge("br0", 1500); err != nil {
			t.Fatal(err)
		}
		from, err := Open(Config{Name: "up1", MTU: 1500, Bridge: "br0"})
		if err != nil {
			t.Fatal(err)
		}
		defer from.Close()
		to, err := open(Config{Name: "up2", MTU: 1500, Bridge: "br0", Queues: queues})
		if err != nil {
			t.Fatal(err)
		}
		defer to.Close()
		if c := to.Capabilities(); c.Queues != queues || len(to.dev.fds) != queues {
			t.Errorf("%+v", c)
		}
		_, template := super(4, 4)
		copy(template, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1})
		at := len(template) - 4
		var out [][]byte
		for n := range each {
			for flow := range flows {
				f := append(append([]byte(nil), template[:at]...), byte(flow), byte(n), 0, 0)
				binary.BigEndian.PutUint16(f[at-8:], uint16(0xC000+flow))
				for len(f) < 60 {
					f = append(f, 0)
				}
				out = append(out, f)
			}
		}
		if n, err := from.Write(out, false); n != len(out) || err != nil {
			t.Fatal(n, err)
		}
		used := 0
		for _, fd := range to.dev.fds {
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			if n, err := unix.Poll(p, 0); err == nil && n == 1 {
				used++
			}
		}
		if used < 2 {
			t.Errorf("%d flows in %d of %d queues", flows, used, queues)
		}
		var next [flows]byte
		bufs, got := [][]byte{make([]byte, BufferSize(to))}, make([]Received, 1)
		for read := 0; read < len(out); read++ {
			ready, err := 0, error(unix.EINTR) // the runtime preempts threads by signals
			for err == unix.EINTR {
				ready, err = unix.Poll([]unix.PollFd{{Fd: int32(to.FD()), Events: unix.POLLIN}}, 60_000)
			}
			if err != nil || ready == 0 {
				t.Fatalf("%d of %d frames: %v", read, len(out), err)
			}
			if n, err := to.Read(bufs, got); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			flow, n := bufs[0][at], bufs[0][at+1]
			if next[flow] != n {
				t.Fatalf("flow %d: frame %d, want %d", flow, n, next[flow])
			}
			next[flow]++
		}
		if n, err := to.Read(bufs, got); n != 0 || err != nil {
			t.Errorf("%d more, %v", n, err)
		}
		if s := to.Stats(); s.RxFrames != uint64(len(out)) || s.RxDropped != 0 {
			t.Errorf("%+v", s)
		}
	})
}
