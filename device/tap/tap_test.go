package tap_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/internal/allocs"
)

// each runs a test for every backend, each in its own network namespace.
func each(t *testing.T, f func(t *testing.T, backend string)) {
	t.Helper()
	requireTUN(t)
	for _, backend := range []string{tap.BackendNative, superframes, queued, tap.BackendWater} {
		t.Run(backend, func(t *testing.T) {
			netns.Run(t, func() {
				before := tunDescriptors(t)
				f(t, backend)
				if after := tunDescriptors(t); after != before {
					t.Errorf("%d TAP descriptors open, %d before the test", after, before)
				}
			})
		})
	}
}

// requireTUN skips the test if the driver is missing, or fails it if VNIC_TEST_REQUIRE=1.
func requireTUN(t *testing.T) {
	t.Helper()
	_, err := os.Stat("/dev/net/tun")
	switch {
	case err != nil && os.Getenv("VNIC_TEST_REQUIRE") == "1":
		t.Fatal(err)
	case err != nil:
		t.Skip(err)
	}
}

// tunDescriptors counts this process's open descriptors of the TAP driver.
func tunDescriptors(t testing.TB) (n int) {
	t.Helper()
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && to == "/dev/net/tun" {
			n++
		}
	}
	return n
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The native backend with superframes, and with four queues too.
const (
	superframes = "native, superframes"
	queued      = "native, superframes, queues"
)

func resolve(cfg tap.Config) tap.Config {
	switch cfg.Backend {
	case queued:
		cfg.Queues = 4
		fallthrough
	case superframes:
		cfg.Backend, cfg.Superframes = tap.BackendNative, true
	}
	return cfg
}

func open(t testing.TB, cfg tap.Config) tap.Uplink {
	t.Helper()
	p, err := tap.Open(resolve(cfg))
	must(t, err)
	return p
}

// pair returns two TAPs on one bridge.
func pair(t testing.TB, backend string, mtu int) (a, b tap.Uplink, done func()) {
	t.Helper()
	must(t, tap.NewBridge("br0", mtu))
	a = open(t, tap.Config{Name: "up1", MTU: mtu, Bridge: "br0", Backend: backend})
	b = open(t, tap.Config{Name: "up2", MTU: mtu, Bridge: "br0", Backend: backend})
	return a, b, func() {
		must(t, a.Close())
		must(t, b.Close())
		br, err := netlink.LinkByName("br0")
		must(t, err)
		must(t, netlink.LinkDel(br))
	}
}

const etherTypeExperimental = 0x88B5

func frame(n int, seq uint16) []byte {
	f := make([]byte, n)
	copy(f, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1})
	binary.BigEndian.PutUint16(f[12:], etherTypeExperimental)
	for i := 14; i < n; i++ {
		f[i] = byte(i) ^ byte(seq)
	}
	return f
}

// wait blocks until a frame waits, at most ten seconds.
func wait(t testing.TB, p tap.Uplink) {
	t.Helper()
	fds := []unix.PollFd{{Fd: int32(p.FD()), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 10000)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			t.Fatalf("%s: no frame came (%v)", p.Name(), err)
		}
		return
	}
}

func readOne(t testing.TB, p tap.Uplink) []byte {
	t.Helper()
	bufs, lens := [][]byte{make([]byte, tap.BufferSize(p))}, make([]tap.Received, 1)
	wait(t, p)
	n, err := p.Read(bufs, lens)
	if n != 1 || err != nil {
		t.Fatalf("read %d frames: %v", n, err)
	}
	return bufs[0][:lens[0].Len]
}

// Frames of every kind of length cross the bridge unchanged, and nothing else does.
func TestConformanceFramesCross(t *testing.T) {
	each(t, func(t *testing.T, backend string) {
		a, b, done := pair(t, backend, 4500)
		defer done()
		if a.MTU() != 4500 || a.Name() != "up1" {
			t.Fatalf("%s has MTU %d", a.Name(), a.MTU())
		}
		if n, err := b.Read([][]byte{make([]byte, 5000)}, make([]tap.Received, 1)); n != 0 || err != nil {
			t.Fatalf("a silent port: %d, %v", n, err)
		}
		for seq, size := range []int{60, 61, 1514, 1515, 4513, 4514} {
			want := frame(size, uint16(seq))
			if n, err := a.Write([][]byte{want}, false); n != 1 || err != nil {
				t.Fatalf("write of %d bytes: %d, %v", size, n, err)
			}
			if got := readOne(t, b); !bytes.Equal(got, want) {
				t.Fatalf("%d bytes sent, %d came: %x…", size, len(got), got[:min(len(got), 40)])
			}
		}
		var batch [][]byte
		for seq := range 20 {
			batch = append(batch, frame(100+seq, uint16(seq)))
		}
		if n, err := a.Write(batch, true); n != len(batch) || err != nil {
			t.Fatalf("batch: %d, %v", n, err)
		}
		for got := 0; got < len(batch); {
			bufs, lens := make([][]byte, 8), make([]tap.Received, 8)
			for i := range bufs {
				bufs[i] = make([]byte, tap.BufferSize(b))
			}
			wait(t, b)
			n, err := b.Read(bufs, lens)
			must(t, err)
			for i := range n {
				if !bytes.Equal(bufs[i][:lens[i].Len], batch[got]) {
					t.Fatalf("frame %d differs", got)
				}
				got++
			}
		}
		if st := b.Stats(); st.RxFrames != 26 || st.RxDropped != 0 {
			t.Errorf("%+v", st)
		}
		if n, err := b.Read([][]byte{make([]byte, 5000)}, make([]tap.Received, 1)); n != 0 || err != nil {
			t.Errorf("the kernel sent frames of its own: %d, %v", n, err)
		}
	})
}

func TestConformanceBadFramesAreCounted(t *testing.T) {
	each(t, func(t *testing.T, backend string) {
		a, b, done := pair(t, backend, 1500)
		defer done()
		n, err := a.Write([][]byte{frame(60, 0)[:13], make([]byte, 1500+19), frame(60, 1)}, false)
		if n != 3 || err != nil || a.Stats().TxDropped != 2 || a.Stats().TxFrames != 1 {
			t.Fatalf("%d %v %+v", n, err, a.Stats())
		}
		wait(t, b)
		if n, err := b.Read([][]byte{make([]byte, 59)}, make([]tap.Received, 1)); n != 0 || err != nil || b.Stats().RxDropped != 1 {
			t.Fatalf("a cut frame was delivered: %d %v %+v", n, err, b.Stats())
		}
	})
}

func TestConformanceDownAndDeleted(t *testing.T) {
	each(t, func(t *testing.T, backend string) {
		p := open(t, tap.Config{Name: "up1", Backend: backend})
		link, err := netlink.LinkByName("up1")
		must(t, err)
		must(t, netlink.LinkSetDown(link))
		if n, err := p.Write([][]byte{frame(60, 0)}, false); n != 0 || !errors.Is(err, tap.ErrDown) {
			t.Errorf("write while down: %d, %v", n, err)
		}
		must(t, netlink.LinkSetUp(link))
		if n, err := p.Write([][]byte{frame(60, 0)}, false); n != 1 || err != nil {
			t.Errorf("write after up: %d, %v", n, err)
		}
		must(t, netlink.LinkDel(link))
		if _, err := p.Read([][]byte{make([]byte, 2000)}, make([]tap.Received, 1)); err == nil || !strings.Contains(err.Error(), "deleted") {
			t.Errorf("read after deletion: %v", err)
		}
		if _, err := p.Write([][]byte{frame(60, 0)}, false); err == nil || !strings.Contains(err.Error(), "deleted") {
			t.Errorf("write after deletion: %v", err)
		}
		must(t, p.Close())
	})
}

func TestConformanceCloseEndsThePortAndItsDevice(t *testing.T) {
	each(t, func(t *testing.T, backend string) {
		p := open(t, tap.Config{Name: "up1", Backend: backend})
		flags, err := unix.FcntlInt(uintptr(p.FD()), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("a child process would inherit the TAP: flags %#x, %v", flags, err)
		}
		must(t, p.Close())
		for _, f := range []func() error{
			p.Close,
			func() error { _, err := p.Read([][]byte{nil}, make([]tap.Received, 1)); return err },
			func() error { _, err := p.Write([][]byte{frame(60, 0)}, false); return err },
		} {
			if err := f(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("after Close: %v", err)
			}
		}
		if _, err := netlink.LinkByName("up1"); err == nil {
			t.Error("the device outlived its port")
		}
	})
}

// Links made by this package carry no traffic of the kernel's own.
func TestConformanceTheKernelSendsNothingOfItsOwn(t *testing.T) {
	each(t, func(t *testing.T, backend string) {
		_, _, done := pair(t, backend, 0)
		defer done()
		for path, want := range map[string]string{
			"/proc/sys/net/ipv6/conf/up1/disable_ipv6":  "1",
			"/proc/sys/net/ipv6/conf/up1/addr_gen_mode": "1",
			"/proc/sys/net/ipv6/conf/br0/disable_ipv6":  "1",
			"/proc/sys/net/ipv6/conf/br0/addr_gen_mode": "1",
		} {
			got, err := os.ReadFile(path)
			if errors.Is(err, os.ErrNotExist) {
				t.Skip("a kernel without IPv6")
			}
			if err != nil || strings.TrimSpace(string(got)) != want {
				t.Errorf("%s = %q (%v), want %s", path, got, err, want)
			}
		}
		br, err := netlink.LinkByName("br0")
		must(t, err)
		if b, ok := br.(*netlink.Bridge); !ok || b.MulticastSnooping == nil || *b.MulticastSnooping {
			t.Error("the bridge snoops multicast")
		}
	})
}

func TestConformanceAFailedOpenSaysWhyAndLeavesNothing(t *testing.T) {
	each(t, func(t *testing.T, backend string) {
		must(t, tap.NewBridge("br0", 0))
		used := open(t, tap.Config{Name: "used", Backend: backend})
		persistent(t, "tun9", netlink.TUNTAP_MODE_TUN, netlink.TUNTAP_NO_PI)
		before := tunDescriptors(t)
		for range 3 {
			for name, tc := range map[string]struct {
				cfg  tap.Config
				want string
			}{
				"16 characters":      {tap.Config{Name: "abcdefghijklmnop"}, "the name has 16 characters, interfaces may have 15: choose a shorter one"},
				"no name":            {tap.Config{}, "1 to 15"},
				"slash":              {tap.Config{Name: "a/b"}, "choose another"},
				"pattern":            {tap.Config{Name: "tap%d"}, "choose another"},
				"exists":             {tap.Config{Name: "used"}, "stop the vnic run that owns it"},
				"adopt nothing":      {tap.Config{Name: "absent", Adopt: true}, "ip tuntap add absent"},
				"adopt a bridge":     {tap.Config{Name: "br0", Adopt: true}, "not a TAP"},
				"adopt a TUN":        {tap.Config{Name: "tun9", Adopt: true}, "not a TAP"},
				"adopt a used TAP":   {tap.Config{Name: "used", Adopt: true}, "another process"},
				"small MTU":          {tap.Config{Name: "x", MTU: 67}, "68.."},
				"large MTU":          {tap.Config{Name: "x", MTU: 65522}, "68.."},
				"no bridge":          {tap.Config{Name: "x", Bridge: "nobridge"}, "does not exist in this network namespace: make it with 'ip link add nobridge mtu 1500 type bridge && ip link set nobridge up'"},
				"bridge is a TAP":    {tap.Config{Name: "x", Bridge: "used"}, "not a bridge"},
				"unknown backend":    {tap.Config{Name: "x", Backend: "fire"}, "use \"native\""},
				"bridge name length": {tap.Config{Name: "x", Bridge: "abcdefghijklmnop"}, "does not exist"},
			} {
				if tc.cfg.Backend == "" {
					tc.cfg.Backend = backend
				}
				p, err := tap.Open(resolve(tc.cfg))
				if p != nil || err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		if after := tunDescriptors(t); after != before {
			t.Errorf("%d TAP descriptors after failures, %d before", after, before)
		}
		if _, err := netlink.LinkByName("x"); err == nil {
			t.Error("a failed open left its device")
		}
		must(t, used.Close())
	})
}

// persistent makes a device as 'ip tuntap add' does, without an open descriptor.
func persistent(t testing.TB, name string, mode netlink.TuntapMode, flags netlink.TuntapFlag) {
	t.Helper()
	link := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: name}, Mode: mode, Flags: flags, Queues: 1}
	must(t, netlink.LinkAdd(link))
	for _, f := range link.Fds {
		must(t, f.Close())
	}
}

// An adopted device outlives its port, however it was made.
func TestConformanceAnAdoptedDeviceOutlivesItsPort(t *testing.T) {
	each(t, func(t *testing.T, backend string) {
		for name, flags := range map[string]netlink.TuntapFlag{"plain0": netlink.TUNTAP_NO_PI, "vnet0": netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR} {
			if backend == queued {
				flags |= netlink.TUNTAP_MULTI_QUEUE
			}
			persistent(t, name, netlink.TUNTAP_MODE_TAP, flags)
			for range 2 {
				p := open(t, tap.Config{Name: name, Adopt: true, MTU: 2000, Backend: backend})
				if n, err := p.Write([][]byte{frame(60, 0)}, false); n != 1 || err != nil || p.MTU() != 2000 {
					t.Errorf("%s: %d %v, MTU %d", name, n, err, p.MTU())
				}
				must(t, p.Close())
			}
			link, err := netlink.LinkByName(name)
			if err != nil {
				t.Fatalf("%s vanished: %v", name, err)
			}
			must(t, netlink.LinkDel(link))
		}
	})
}

func TestABridgeIsMadeOnce(t *testing.T) {
	netns.Run(t, func() {
		must(t, tap.NewBridge("br0", 4000))
		if err := tap.NewBridge("br0", 0); err == nil || !strings.Contains(err.Error(), "ip link del br0") {
			t.Errorf("made twice: %v", err)
		}
		link, err := netlink.LinkByName("br0")
		must(t, err)
		if a := link.Attrs(); a.MTU != 4000 || a.RawFlags&unix.IFF_UP == 0 {
			t.Errorf("MTU %d flags %#x", a.MTU, a.RawFlags)
		}
		if err := tap.NewBridge("abcdefghijklmnop", 0); err == nil {
			t.Error("a name of 16 characters accepted")
		}
	})
}

func TestConformanceNoAllocations(t *testing.T) {
	each(t, func(t *testing.T, backend string) {
		a, b, done := pair(t, backend, 1500)
		defer done()
		out, bufs, lens := [][]byte{frame(1514, 1)}, [][]byte{make([]byte, tap.BufferSize(b))}, make([]tap.Received, 1)
		if n := allocs.PerRun(50, func() {
			if n, err := a.Write(out, false); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			for n := 0; n == 0; {
				var err error
				if n, err = b.Read(bufs, lens); err != nil {
					t.Fatal(err)
				}
			}
		}); n != 0 {
			t.Fatalf("%v allocations", n)
		}
	})
}
