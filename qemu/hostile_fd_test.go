package qemu

import (
	"encoding/binary"
	"math"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/ivshmem"
	"github.com/falcon-vnic/vnic/qemu/vhosttest"
	"github.com/falcon-vnic/vnic/qemu/vhostuser"
	"github.com/falcon-vnic/vnic/qemu/vsock"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

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
	case <-time.After(20 * time.Second):
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

// TestFullCall: QEMU makes the call eventfds of its rings block. The flows
// are locked while the driver is notified, and a shard that ends a session wants that
// lock.
func TestFullCall(t *testing.T) {
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

// TestFullVector: QEMU makes the eventfd of an interrupt vector block. It is
// the shard that raises it.
func TestFullVector(t *testing.T) {
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

// TestBlockingKick: QEMU makes its kick eventfd blocking. When it has left, its
// socket must be free for the next.
func TestBlockingKick(t *testing.T) {
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

// TestMemoryOnFUSE: QEMU passes a file of its own FUSE program, which never
// answers, as guest memory. Neither asking what it is nor closing it may hold up
// anything but this conversation.
func TestMemoryOnFUSE(t *testing.T) {
	file := deadFile(t)
	for name, open := range map[string]func(path string) (close func() error, err error){
		"device": func(path string) (func() error, error) {
			v, err := ListenVhostUser(path, testCID, quiet())
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
