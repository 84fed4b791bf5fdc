package qemu

import (
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/qemu/vhosttest"
	"github.com/falcon-vnic/vnic/qemu/vhostuser"
	"github.com/falcon-vnic/vnic/qemu/vsock"
)

func packet(op vsock.Op, src uint32) vsock.Header {
	return vsock.Header{SrcCID: testCID, DstCID: vsock.HostCID, SrcPort: src, DstPort: testPort, Type: vsock.TypeStream, Op: op, BufAlloc: 1 << 18}
}

// TestSpoofingGuest sends under other guests' context IDs, then works on.
func TestSpoofingGuest(t *testing.T) {
	v, a := startBackend(t)
	g := startGuest(t, v, vhosttest.Options{})
	h := packet(vsock.OpRequest, 99)
	h.SrcCID = testCID + 1
	for !g.Inject(h, nil) {
	}
	c, s := dialGuest(t, g, a) // handled in order: the spoofed one came first
	if addr := s.RemoteAddr().(vsock.Addr); addr.CID != testCID || addr.Port == 99 {
		t.Errorf("accepted %v", addr)
	}
	if n := v.Stats().ForeignCID; n != 1 {
		t.Errorf("%d foreign packets", n)
	}
	c.Close()
	s.Close()
}

// TestBrokenRing has a guest write nonsense into its TX ring: the device stops
// using that ring, and works again after the guest's reset.
func TestBrokenRing(t *testing.T) {
	v, a := startBackend(t)
	g := startGuest(t, v, vhosttest.Options{})
	c, s := dialGuest(t, g, a)
	_ = c
	if err := g.BreakTX(); err != nil {
		t.Fatal(err)
	}
	if err := g.Reboot(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Read(make([]byte, 1)); err == nil {
		t.Error("session survived")
	}
	c, s = dialGuest(t, g, a)
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}

// TestSecondQEMU is turned away while the first is served.
func TestSecondQEMU(t *testing.T) {
	v, a := startBackend(t)
	g := startGuest(t, v, vhosttest.Options{})
	if _, err := vhosttest.Start(v.Path(), vhosttest.Options{}); err == nil {
		t.Error("two QEMUs on one socket")
	}
	_, s := dialGuest(t, g, a)
	s.Close()
}

func TestReservedCID(t *testing.T) {
	for _, cid := range []uint32{0, 1, 2, 0xffffffff} {
		if v, err := ListenVhostUser(t.TempDir()+"/s", cid, quiet()); err == nil || !strings.Contains(err.Error(), "reserved") {
			t.Errorf("%d: %v", cid, err)
			v.Close()
		}
	}
}

// TestHostDials connects to a port in the guest.
func TestHostDials(t *testing.T) {
	v, _ := startBackend(t)
	g := startGuest(t, v, vhosttest.Options{})
	l, err := g.Listen(22)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.Dial(23, time.Minute); err == nil {
		t.Error("dial without listener")
	}
	c, err := v.Dial(22, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	gc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer gc.Close()
	if _, err := c.Write([]byte("hi")); err != nil {
		t.Fatal(err)
	}
	var b [2]byte
	if _, err := io.ReadFull(gc, b[:]); err != nil || string(b[:]) != "hi" {
		t.Errorf("%q, %v", b, err)
	}
}

// TestNothingLeaks counts descriptors and goroutines over guests that come, load
// the device, reboot and die.
func TestNothingLeaks(t *testing.T) {
	life := func() {
		v, err := ListenVhostUser(t.TempDir()+"/s", testCID, quiet())
		if err != nil {
			t.Fatal(err)
		}
		a, err := v.Listen(testPort)
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan struct{})
		go func() {
			defer close(served)
			for {
				s, err := a.Accept()
				if err != nil {
					return
				}
				go func() { _, _ = io.Copy(s, s); s.Close() }()
			}
		}()
		for i := range 3 {
			g, err := vhosttest.Start(v.Path(), vhosttest.Options{Slots: i == 1})
			if err != nil {
				t.Fatal(err)
			}
			for j := range 2 {
				c, err := g.Dial(testPort, time.Minute)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := c.Write(make([]byte, 10_000)); err != nil {
					t.Fatal(err)
				}
				if j == 0 {
					if err := g.Reboot(); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := g.Kill(); err != nil { // with data under way
				t.Fatal(err)
			}
		}
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
		a.Close()
		<-served
	}
	count := func() (fds, goroutines int) {
		ds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(ds), runtime.NumGoroutine()
	}
	life()
	fds, gs := count()
	life()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		f, g := count()
		if f <= fds && g <= gs {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors and %d goroutines became %d and %d", fds, gs, f, g)
		}
	}
}

// TestCloseWhileServing ends everything from our side.
func TestCloseWhileServing(t *testing.T) {
	v, a := startBackend(t)
	g := startGuest(t, v, vhosttest.Options{})
	_, s := dialGuest(t, g, a)
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Read(make([]byte, 1)); err == nil {
		t.Error("session survived")
	}
	if _, err := a.Accept(); err != net.ErrClosed {
		t.Errorf("accept: %v", err)
	}
	if err := g.Ask(vhostuser.SetOwner, nil); err == nil {
		t.Error("the front end is still answered")
	}
}

// TestMisplacedRing has a guest put its used ring where Virtio does not allow it:
// the device stays there for the driver's next try.
func TestMisplacedRing(t *testing.T) {
	v, a := startBackend(t)
	g := startGuest(t, v, vhosttest.Options{})
	if err := g.Halt(); err != nil {
		t.Fatal(err)
	}
	r, err := vhosttest.NewRing(g.RAM(), vhosttest.FreeBase)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	r.Used += 2
	if err := g.StartRing(vsock.QueueTX, r); err != nil {
		t.Fatal(err)
	}
	if err := g.EnableRing(vsock.QueueTX, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := g.StopRing(vsock.QueueTX); err != nil {
		t.Fatal(err)
	}
	if err := g.Boot(); err != nil {
		t.Fatal(err)
	}
	c, s := dialGuest(t, g, a)
	c.Close()
	s.Close()
}
