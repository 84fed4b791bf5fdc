package qemu

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"math"
	"math/rand"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"github.com/falcon-vnic/vnic/qemu/vhosttest"
	"github.com/falcon-vnic/vnic/qemu/vhostuser"
	"github.com/falcon-vnic/vnic/queues"
)

const testCID, testPort = 42, 7000

func quiet() VhostOptions { return VhostOptions{Log: slog.New(slog.DiscardHandler)} }

func startBackend(t *testing.T) (*VhostUser, queues.Attachment) {
	t.Helper()
	v, err := ListenVhostUser(filepath.Join(t.TempDir(), "g.sock"), testCID, quiet())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	a, err := v.Listen(testPort)
	if err != nil {
		t.Fatal(err)
	}
	v.Serve()
	return v, a
}

func startGuest(t *testing.T, v *VhostUser, opt vhosttest.Options) *vhosttest.Guest {
	t.Helper()
	g, err := vhosttest.Start(v.Path(), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Kill() })
	return g
}

func dialGuest(t *testing.T, g *vhosttest.Guest, a queues.Attachment) (net.Conn, queues.Session) {
	t.Helper()
	c, err := g.Dial(testPort, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	s, err := a.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return c, s
}

func TestVsockSessionIsANetConn(t *testing.T) {
	for _, slots := range []bool{false, true} {
		v, a := startBackend(t)
		g := startGuest(t, v, vhosttest.Options{Slots: slots})
		nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
			c1, err = g.Dial(testPort, time.Minute)
			if err != nil {
				return nil, nil, nil, err
			}
			c2, err = a.Accept()
			return c1, c2, func() { c1.Close(); c2.Close() }, err
		})
	}
}

func TestManySessionsEcho(t *testing.T) {
	v, a := startBackend(t)
	g := startGuest(t, v, vhosttest.Options{})
	c, s := dialGuest(t, g, a)
	if p := s.Identity(); p.CID != testCID || p.Transport != "vhost-user" {
		t.Fatalf("peer %+v", p)
	}
	go func() {
		_, _ = io.Copy(s, s)
		s.Close()
	}()
	r := rand.New(rand.NewSource(1))
	for _, n := range []int{1, 43, 44, 3732, 3733, 65536, 1 << 20} {
		want := make([]byte, n)
		r.Read(want)
		go func() { _, _ = c.Write(want) }()
		got := make([]byte, n)
		if _, err := io.ReadFull(c, got); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("%d bytes differ", n)
		}
	}
}

func TestSessionsFollowRebootsAndMemory(t *testing.T) {
	for _, slots := range []bool{false, true} {
		v, a := startBackend(t)
		g := startGuest(t, v, vhosttest.Options{Slots: slots})
		for range 3 {
			_, s := dialGuest(t, g, a)
			at := uint64(vhosttest.FreeBase)
			g.Mem[at] = 0x5a
			var announced atomic.Int32
			stop := s.Watch(func(rs queues.Regions) {
				announced.Add(1)
				var b [1]byte
				if m := memoryOf(rs); rs.Len() == 2 {
					if err := m.Read(at, b[:]); err != nil || b[0] != 0x5a {
						t.Errorf("read %#x, %v", b, err)
					}
					if err := m.Read(0xb0000, b[:]); err == nil {
						t.Error("the hole at 0xa0000 is mapped")
					}
				}
			})
			var b [1]byte
			if err := g.Reboot(); err != nil {
				t.Fatal(err)
			}
			stop()
			if announced.Load() < 2 {
				t.Fatal("a reboot announced no memory")
			}
			if _, err := s.Read(b[:]); err == nil || errors.Is(err, io.EOF) {
				t.Fatalf("session of before the reboot reads %v", err)
			}
			s.Close()
		}
	}
}

func TestNextQEMUFollowsAKilledOne(t *testing.T) {
	v, a := startBackend(t)
	for range 3 {
		g, err := vhosttest.Start(v.Path(), vhosttest.Options{})
		if err != nil {
			t.Fatal(err)
		}
		_, s := dialGuest(t, g, a)
		gone := make(chan struct{})
		s.Watch(func(rs queues.Regions) {
			if rs.Len() == 0 {
				close(gone)
			}
		})
		if err := g.Kill(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Read(make([]byte, 1)); err == nil {
			t.Fatal("session outlived its guest")
		}
		<-gone
		s.Close()
	}
}

// TestMemoryMayChangeUnderTraffic announces the memory again and again while data
// flows, as a guest with memory hot-plug does.
func TestMemoryMayChangeUnderTraffic(t *testing.T) {
	v, a := startBackend(t)
	g := startGuest(t, v, vhosttest.Options{})
	c, s := dialGuest(t, g, a)
	go func() {
		_, _ = io.Copy(s, s)
		s.Close()
	}()
	data := make([]byte, 4<<20)
	rand.New(rand.NewSource(2)).Read(data)
	go func() { _, _ = c.Write(data) }()
	extra := vhostuser.Region{GPA: 1 << 32, Size: 1 << 20, User: vhosttest.UserBase + 1<<32}
	got := make([]byte, len(data))
	for n := 0; n < len(got); {
		k, err := c.Read(got[n:])
		if err != nil {
			t.Fatal(err)
		}
		n += k
		if err := g.ShareMemory(false); err != nil {
			t.Fatal(err)
		}
		if err := g.Ask(vhostuser.AddMemReg, extra.Append(make([]byte, 8)), g.File); err != nil {
			t.Fatal(err)
		}
		if err := g.Ask(vhostuser.RemMemReg, extra.Append(make([]byte, 8))); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(got, data) {
		t.Error("data differs")
	}
}

// TestContextIDsOfGuestsAreAccepted: a guest has a context ID that is not reserved (Virtio
// §5.10.4).
func TestContextIDsOfGuestsAreAccepted(t *testing.T) {
	for cid, ok := range map[uint32]bool{0: false, 1: false, 2: false, 3: true, math.MaxUint32 - 1: true, math.MaxUint32: false} {
		if err := checkCID("path", cid); (err == nil) != ok {
			t.Errorf("%d: %v", cid, err)
		}
	}
}

// TestConnectionToAClosedPortEnds: a connection that was accepted and that nobody has taken ends
// with its port.
func TestConnectionToAClosedPortEnds(t *testing.T) {
	v, a := startBackend(t)
	g := startGuest(t, v, vhosttest.Options{})
	c, err := g.Dial(testPort, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	if n, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes, %v", n, err)
	}
	if _, err := a.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}
