package qemu

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/fdpass"
	"github.com/falcon-vnic/vnic/qemu/ivshmem"
	"github.com/falcon-vnic/vnic/qemu/vhosttest"
	"github.com/falcon-vnic/vnic/qemu/vhostuser"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/control"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// clientWindow is what QEMU holds of one window.
type clientWindow struct {
	conn     *net.UnixConn
	fd, bell int
	control  int // bell
}

func dialWindow(t *testing.T, path string) clientWindow {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	var fds fdpass.FDs
	var b [(ivshmem.Files + 2) * 8]byte
	if err := fds.ReadFull(c, b[:], ivshmem.Files); err != nil {
		t.Fatal(err)
	}
	w := clientWindow{c, fds.Take(), fds.Take(), fds.Take()}
	for fds.Len() > 0 {
		_ = unix.Close(fds.Take()) // interrupts
	}
	t.Cleanup(w.close)
	return w
}

func (w clientWindow) close() {
	w.conn.Close()
	_ = unix.Close(w.fd)
	_ = unix.Close(w.bell)
	_ = unix.Close(w.control)
}

// TestWindowsAreNoGuestMemory gives a guest eight windows, which QEMU announces as memory of the
// guest: more regions than a memory table holds. The device must not take them
// for memory it may read or write, and the bells of each must reach its session.
// (DEV-1001, DEV-1002, DEV-1006)
func TestWindowsAreNoGuestMemory(t *testing.T) {
	const count = 8
	v, a := startBackend(t)
	path := func(i int) string { return fmt.Sprintf("%s.%d", v.Path(), i) }
	for i := range count {
		if err := v.AddWindow(uint32(i), abi.FunctionVF, path(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.AddWindow(3, abi.FunctionVF, path(count)); err == nil {
		t.Error("a function got two windows")
	}
	if _, err := os.Stat(path(count)); err == nil {
		t.Error("the refused window left its socket behind")
	}

	g := startGuest(t, v, vhosttest.Options{Slots: true})
	windows := make([]clientWindow, count)
	const at = 0xfe00000000
	for i := range windows {
		windows[i] = dialWindow(t, path(i))
		r := vhostuser.Region{GPA: at + uint64(i)*abi.WindowSize, Size: abi.WindowSize, User: 0x7e0000000000 + uint64(i)*abi.WindowSize}
		if err := g.Ask(vhostuser.AddMemReg, r.Append(make([]byte, 8)), windows[i].fd); err != nil {
			t.Fatal(err)
		}
	}
	_, s := dialGuest(t, g, a)
	stop := s.Watch(func(rs queues.Regions) {
		m := memoryOf(rs)
		if !m.Contains(vhosttest.FreeBase, 4096) {
			t.Error("guest memory is missing")
		}
		for i := range uint64(count) {
			if m.Contains(at+i*abi.WindowSize, 1) {
				t.Errorf("window %d is a target of DMA", i)
			}
		}
	})
	defer stop()

	r := s.(queues.Ringer)
	if b, err := r.Bell(99); b != nil || err != nil {
		t.Errorf("bell of a function without a window: %v, %v", b, err)
	}
	for i, w := range windows {
		b, err := r.Bell(uint32(i))
		if err != nil {
			t.Fatal(err)
		}
		ringWindow(t, w, uint32(100+i))
		var count [8]byte
		if n, err := unix.Read(b.FD(), count[:]); n != 8 || err != nil {
			t.Fatalf("the bell of window %d was not heard: %v", i, err)
		}
		var record [2 * abi.DoorbellSize]byte
		var d abi.Doorbell
		if n, err := b.Take(record[:]); n != abi.DoorbellSize || err != nil {
			t.Errorf("window %d: %d bytes, %v", i, n, err)
		} else if d.Unmarshal(record[:]); d.Index != uint32(100+i) {
			t.Errorf("window %d: record %d", i, d.Index)
		}
		b.Close()
	}
}

// ringWindow is what a driver does.
func ringWindow(t *testing.T, w clientWindow, index uint32) {
	t.Helper()
	m, err := unix.Mmap(w.fd, 0, abi.WindowSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(m) }()
	var h abi.WindowHeader
	h.Unmarshal(m)
	var c abi.Capability
	c.Unmarshal(m[h.FirstCap:])
	p := ring.NewProducer(ring.Mem(m[c.Offset:][:c.Length]), ring.QueueLayout(abi.WindowBellsLog2, 4))
	var b [abi.DoorbellSize]byte
	(&abi.Doorbell{Kind: abi.DoorbellAdmin, Index: index}).Marshal(b[:])
	if err := p.Push(b[:]); err != nil {
		t.Fatal(err)
	}
	if _, need, err := p.Publish(); err != nil || !need {
		t.Fatalf("needs a bell: %v, %v", need, err)
	}
	_, _ = unix.Write(w.bell, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

// TestNextQEMUFollowsOnAWindow: a QEMU that is killed is followed by the next, and the
// device's end is seen by QEMU.
func TestNextQEMUFollowsOnAWindow(t *testing.T) {
	v, _ := startBackend(t)
	path := v.Path() + ".pf0"
	if err := v.AddWindow(1, abi.FunctionPF, path); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		w := dialWindow(t, path)
		w.conn.Close()
	}
	w := dialWindow(t, path)
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.conn.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("after Close: %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the socket is left behind")
	}
	if err := v.AddWindow(2, abi.FunctionPF, path); err == nil {
		t.Error("a closed device took a window")
	}
}

func TestWindowsAreDevicesOfTheCommandLine(t *testing.T) {
	l := CommandLine{Memory: 1 << 30, Accel: TCG, Vsock: "s"}
	for i := range 9 {
		l.Windows = append(l.Windows, Window{fmt.Sprintf("vf%d", i), filepath.Join("/run", fmt.Sprintf("w,%d", i))})
	}
	text, err := l.Shell()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"  -chardev socket,id=window-vf0,path=/run/w,,0 \\\n  -device ivshmem-doorbell,id=vf0,chardev=window-vf0,vectors=5,addr=08.0,multifunction=on \\\n",
		"  -device ivshmem-doorbell,id=vf7,chardev=window-vf7,vectors=5,addr=08.7 \\\n",
		"  -device ivshmem-doorbell,id=vf8,chardev=window-vf8,vectors=5,addr=09.0,multifunction=on \\\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	// With an IOMMU each has a slot of its own, while there are some.
	l.IOMMU = true
	for i := range 15 {
		l.Windows = append(l.Windows, Window{fmt.Sprintf("vf%d", 9+i), "/w"})
	}
	if text, err = l.Shell(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"  -machine q35,memory-backend=m0,kernel-irqchip=split \\\n",
		"vectors=5,addr=08.0,multifunction=on \\\n", "vectors=5,addr=0b.0,multifunction=on \\\n", "vectors=5,addr=0c.0 \\\n", "vectors=5,addr=1b.0 \\\n", "vectors=5,addr=0b.1 \\\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if iommu, device := strings.Index(text, "-device intel-iommu,intremap=on"), strings.Index(text, "-device vhost"); iommu < 0 || device < iommu {
		t.Errorf("the IOMMU is not the first device in\n%s", text)
	}
	l.Windows = make([]Window, MaxWindows+1)
	if _, err := l.Shell(); err == nil || !strings.Contains(err.Error(), "room for 160") {
		t.Error(err)
	}
}

// TestControlBlockOpensSessions: a driver says by the control block of its window what others say
// to the vsock port. It has its guest's memory and its function's bell; and it goes when QEMU goes.
// (DEV-1012, DEV-1013)
func TestControlBlockOpensSessions(t *testing.T) {
	v, err := ListenVhostUser(filepath.Join(t.TempDir(), "g.sock"), testCID, VhostOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	a, err := v.Listen(abi.Port)
	if err != nil {
		t.Fatal(err)
	}
	const function = 0x010003
	if err := v.AddWindow(function, abi.FunctionVF, v.Path()+".w"); err != nil {
		t.Fatal(err)
	}
	v.Serve()
	for range 2 {
		g := startGuest(t, v, vhosttest.Options{})
		w := dialWindow(t, v.Path()+".w")
		mem, err := unix.Mmap(w.fd, 0, abi.WindowSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		driver := w.dial(t, mem)
		s, err := a.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if one, ok := s.(queues.Bound); !ok || one.Function() != function || s.Identity().CID != v.CID() {
			t.Errorf("%T of %v", s, s.Identity())
		}
		s.Watch(func(rs queues.Regions) {
			if !memoryOf(rs).Contains(vhosttest.FreeBase, 4096) {
				t.Error("guest memory is missing")
			}
		})()
		b, err := s.(queues.Ringer).Bell(function)
		if err != nil || b == nil {
			t.Fatal(b, err)
		}
		b.Close()
		hello := abi.AppendStruct(nil, 1, &abi.Hello{Major: abi.VersionMajor})
		if _, err := driver.Write(hello); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(hello))
		if _, err := io.ReadFull(s, got); err != nil || string(got) != string(hello) {
			t.Fatal(err)
		}
		g.Kill()
		if _, err := s.Read(got); err != io.EOF {
			t.Error(err)
		}
		s.Close()
		driver.Close()
		_ = unix.Munmap(mem)
		w.conn.Close()
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// dial opens a session as the driver in the guest does, whose window is mem.
func (w clientWindow) dial(t *testing.T, mem []byte) net.Conn {
	t.Helper()
	ring := func() { _, _ = unix.Write(w.control, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }
	c, err := control.Driver{Block: controlBlock(t, mem), Number: rand.Uint32(), Call: ring, After: time.After}.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// controlBlock finds the control block as a driver does.
func controlBlock(t *testing.T, window []byte) []byte {
	t.Helper()
	var h abi.WindowHeader
	h.Unmarshal(window)
	for at := h.FirstCap; at != 0; {
		var c abi.Capability
		if c.Unmarshal(window[at:]); c.Type == abi.CapControl {
			return window[c.Offset:][:control.Size]
		}
		at = c.Next
	}
	t.Fatal("no control block")
	return nil
}

// TestGuestHasSoManyWindows: a guest has as many windows as its bus has room for.
func TestGuestHasSoManyWindows(t *testing.T) {
	v, _ := startBackend(t)
	v.mu.Lock()
	v.windows = map[uint32]*guestWindow{}
	for i := range uint32(MaxWindows - 1) {
		v.windows[1000+i] = &guestWindow{} // without memory
	}
	v.mu.Unlock()
	defer func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		for i := range uint32(MaxWindows - 1) {
			delete(v.windows, 1000+i)
		}
	}()
	if err := v.AddWindow(1, abi.FunctionVF, v.Path()+".1"); err != nil || !v.HasWindow(1) {
		t.Errorf("the last one: %v", err)
	}
	if err := v.AddWindow(2, abi.FunctionVF, v.Path()+".2"); err == nil || !strings.Contains(err.Error(), "room for no more") || v.HasWindow(2) {
		t.Errorf("one more: %v", err)
	}
}
