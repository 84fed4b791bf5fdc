package qemu

import (
	"bytes"
	"encoding/binary"
	"io"
	"math"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/ivshmem"
	"github.com/falcon-vnic/vnic/qemu/vfiouser"
	"github.com/falcon-vnic/vnic/qemu/vhosttest"
	"github.com/falcon-vnic/vnic/qemu/vhostuser"
	"github.com/falcon-vnic/vnic/qemu/vsock"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

func packet(op vsock.Op, src uint32) vsock.Header {
	return vsock.Header{SrcCID: testCID, DstCID: vsock.HostCID, SrcPort: src, DstPort: testPort, Type: vsock.TypeStream, Op: op, BufAlloc: 1 << 18}
}

// TestSpoofedPacketsAreDropped: packets with other guests' context IDs are dropped, and the guest's
// own flows go on.
func TestSpoofedPacketsAreDropped(t *testing.T) {
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

// TestBrokenRingWorksAfterAReset has a guest write nonsense into its TX ring: the device stops
// using that ring, and works again after the guest's reset.
func TestBrokenRingWorksAfterAReset(t *testing.T) {
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

// TestSecondQEMUIsTurnedAway: a second QEMU is disconnected while the first is served.
func TestSecondQEMUIsTurnedAway(t *testing.T) {
	v, a := startBackend(t)
	g := startGuest(t, v, vhosttest.Options{})
	if _, err := vhosttest.Start(v.Path(), vhosttest.Options{}); err == nil {
		t.Error("two QEMUs on one socket")
	}
	_, s := dialGuest(t, g, a)
	s.Close()
}

func TestReservedContextIDsAreRefused(t *testing.T) {
	for _, cid := range []uint32{0, 1, 2, 0xffffffff} {
		if v, err := ListenVhostUser(t.TempDir()+"/s", cid, quiet()); err == nil || !strings.Contains(err.Error(), "reserved") {
			t.Errorf("%d: %v", cid, err)
			v.Close()
		}
	}
}

// TestHostConnectsToTheGuest: the host can connect to a port on which the guest listens.
func TestHostConnectsToTheGuest(t *testing.T) {
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

// TestGuestsThatComeAndGoLeakNothing: guests that come, load the device, reboot and die leave no descriptor and no
// goroutine.
func TestGuestsThatComeAndGoLeakNothing(t *testing.T) {
	life := func() {
		v, err := ListenVhostUser(t.TempDir()+"/s", testCID, quiet())
		if err != nil {
			t.Fatal(err)
		}
		a, err := v.Listen(testPort)
		if err != nil {
			t.Fatal(err)
		}
		v.Serve()
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

// TestCloseEndsEverySession: Close ends all sessions and connections from our side.
func TestCloseEndsEverySession(t *testing.T) {
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

// TestMisplacedRingLeavesTheDevice has a guest put its used ring where Virtio does not allow it:
// the device stays there for the driver's next try.
func TestMisplacedRingLeavesTheDevice(t *testing.T) {
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

// soon fails the test when f blocks.
func soon(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(2 * time.Minute):
		t.Fatalf("%s blocks", what)
	}
}

func newEventFD(t *testing.T) int {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// blockWrites makes writes to a shared eventfd block, as a hostile QEMU can.
func blockWrites(t *testing.T, fd int) {
	t.Helper()
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	_, _ = unix.Read(fd, make([]byte, 8)) // what was signalled before
	if _, err := unix.Write(fd, binary.LittleEndian.AppendUint64(nil, math.MaxUint64-1)); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
}

// TestFullCallHoldsUpNobody: nobody waits if QEMU makes the call eventfds of its rings block. The
// flows are locked while the driver is notified, and a shard that ends a session needs that lock.
func TestFullCallHoldsUpNobody(t *testing.T) {
	v, a := startBackend(t)
	g := startGuest(t, v, vhosttest.Options{})
	c, s := dialGuest(t, g, a)
	for i := range uint64(2) {
		fd := newEventFD(t)
		if err := g.Ask(vhostuser.SetVringCall, vhosttest.U64(i), fd); err != nil {
			t.Fatal(err)
		}
		blockWrites(t, fd)
	}
	soon(t, "the device", func() {
		if _, err := s.Write(make([]byte, 1000)); err != nil { // interrupts for the receive ring
			t.Error(err)
		}
		if _, err := c.Write(make([]byte, 1000)); err != nil { // and the transmit ring
			t.Error(err)
		}
		if _, err := s.Read(make([]byte, 1000)); err != nil {
			t.Error(err)
		}
		_ = s.SetReadDeadline(time.Unix(1, 0))
		_ = v.Stats()
		_ = g.Kill()
		_ = v.Close()
	})
}

// TestFullVectorHoldsUpNobody: the shard, which raises interrupts, does not wait if QEMU makes the
// eventfd of a vector block.
func TestFullVectorHoldsUpNobody(t *testing.T) {
	w, err := ivshmem.NewWindow(1, abi.FunctionVF)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	bell, err := w.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer bell.Close()
	for _, fd := range w.FDs()[ivshmem.Files-ivshmem.Vectors:] { // behind the memory and the bells
		blockWrites(t, fd)
	}
	soon(t, "an interrupt", func() {
		for i := range ivshmem.Vectors {
			w.Interrupt(i)
		}
		irq := bell.(queues.Interrupter)
		for i := range irq.EventQueues() {
			irq.Interrupt(i)
		}
	})
}

// TestBlockingKickLeavesTheSocketFree: after a QEMU that made its kick eventfd blocking has left,
// its socket is free for the next one.
func TestBlockingKickLeavesTheSocketFree(t *testing.T) {
	v, a := startBackend(t)
	g := startGuest(t, v, vhosttest.Options{})
	fd := newEventFD(t)
	if err := g.Ask(vhostuser.SetVringKick, vhosttest.U64(vsock.QueueTX), fd); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
	for range 3 { // whoever reads it waits in the kernel from the second time on
		h := packet(vsock.OpRequest, 99)
		h.SrcCID++
		before := v.Stats().ForeignCID
		if !g.Inject(h, nil) {
			t.Fatal("no room")
		}
		if _, err := unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
		soon(t, "a kick", func() {
			for v.Stats().ForeignCID == before {
				time.Sleep(time.Millisecond)
			}
		})
	}
	soon(t, "the end of the first QEMU", func() { _ = g.Kill() })
	next := startGuest(t, v, vhosttest.Options{})
	c, s := dialGuest(t, next, a)
	_ = c.Close()
	_ = s.Close()
}

// TestMemoryOnFUSEHoldsUpNobody: QEMU passes a file of its own FUSE program, which never
// answers, as guest memory. Neither asking what it is nor closing it may hold up
// anything but this conversation.
func TestMemoryOnFUSEHoldsUpNobody(t *testing.T) {
	file := deadFile(t)
	for name, open := range map[string]func(path string) (close func() error, err error){
		"device": func(path string) (func() error, error) {
			v, err := ListenVhostUser(path, testCID, quiet())
			if err == nil {
				v.Serve()
			}
			return v.Close, err
		},
		"relay": func(path string) (func() error, error) {
			r, err := ListenVhostRelay(path, testCID, quiet())
			return r.Close, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir() + "/s"
			closeIt, err := open(path)
			if err != nil {
				t.Fatal(err)
			}
			f, err := vhosttest.Connect(path, 8<<20)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			soon(t, "refusing the memory", func() {
				if err := f.Ask(vhostuser.AddMemReg, f.Regions[0].Append(make([]byte, 8)), file); err == nil || !strings.Contains(err.Error(), "refused") {
					t.Error(err)
				}
			})
			soon(t, "the end", func() { _ = closeIt() })
		})
	}
}

// TestAFunctionsFileOnFUSEHoldsUpNoWorker: QEMU passes a file of its own FUSE program, which never
// answers, as a function's memory or interrupt. The function can be taken from its worker all the
// same, so that the next worker can start.
func TestAFunctionsFileOnFUSEHoldsUpNoWorker(t *testing.T) {
	for name, pass := range map[string]func(q *vfioQEMU, file int) error{
		"memory": func(q *vfioQEMU, file int) error {
			return q.Map(vfiouser.Map{Flags: vfiouser.MapRead, Range: vfiouser.Range{Addr: 1 << 41, Size: pageSize}}, file)
		},
		"interrupt": func(q *vfioQEMU, file int) error { return q.SetIRQs(vfiouser.IRQMSIX, 0, 1, file) },
	} {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir() + "/f"
			r := serveVfioRelay(t, path)
			q := startVfioQEMU(t, path)
			file := deadFile(t) // last, so that its program ends before the others wait for it
			go func() { _ = pass(q, file) }()
			soon(t, "closing the file", func() {
				for stacks := make([]byte, 1<<20); !bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("unix.Close(")); {
					time.Sleep(time.Millisecond)
				}
			})
			soon(t, "the worker's end", r.Detach)
		})
	}
}
