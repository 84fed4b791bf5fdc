package qemu

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/internal/sockettest"
	"github.com/falcon-vnic/vnic/qemu/ivshmem"
	"github.com/falcon-vnic/vnic/qemu/pci"
	"github.com/falcon-vnic/vnic/qemu/vfiouser"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/control"
)

const (
	vfioTestFunction = 0x010001
	vfioTestMemory   = 8 << 20
	vfioTestBase     = 0x40000000 // DMA address of the memory
)

var vfioTestLook = VfioPCI{IDs: pci.IDs{Vendor: 0x1af4, Device: 0x10f0, SubVendor: 0x1af4, SubDevice: 0x10f0}}

// vfioQEMU plays a QEMU and the driver in its guest.
type vfioQEMU struct {
	*vfiouser.Client
	ram    []byte
	file   int
	window []byte
	irqs   [ivshmem.Vectors]int
	irq    chan struct{} // vector 0
}

// oneVfioFunction is a device with one function, which a driver has set up.
func oneVfioFunction(t *testing.T) (*VfioUser, *vfioQEMU) {
	t.Helper()
	return oneVfioFunctionOf(t, VhostOptions{})
}

func oneVfioFunctionOf(t *testing.T, opt VhostOptions) (*VfioUser, *vfioQEMU) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f")
	v := NewVfioUser("test", testCID, opt)
	t.Cleanup(func() { _ = v.Close() })
	if err := v.AddFunction(vfioTestFunction, abi.FunctionVF, path, vfioTestLook); err != nil {
		t.Fatal(err)
	}
	q := startVfioQEMU(t, path)
	q.dial(t)
	return v, q
}

// startVfioQEMU does what QEMU and a driver do: memory, the window, an eventfd for each vector.
func startVfioQEMU(t *testing.T, path string) *vfioQEMU {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	q := &vfioQEMU{irq: make(chan struct{}, 1)}
	if q.Client, err = vfiouser.NewClient(conn, time.Minute); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { q.Close() })
	if q.file, err = unix.MemfdCreate("guest", unix.MFD_CLOEXEC); err == nil {
		err = unix.Ftruncate(q.file, vfioTestMemory)
	}
	if err == nil {
		q.ram, err = unix.Mmap(q.file, 0, vfioTestMemory, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		t.Fatal(err)
	}
	r, fd, err := q.Region(vfioWindow)
	if err != nil || r.Size != abi.WindowSize || fd < 0 {
		t.Fatalf("window: %+v, descriptor %d, %v", r, fd, err)
	}
	if q.window, err = unix.Mmap(fd, int64(r.Offset), int(r.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fd)
	for i := range q.irqs {
		q.irqs[i] = newEventFD(t)
		if err := unix.SetNonblock(q.irqs[i], true); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		_ = unix.Munmap(q.ram)
		_ = unix.Munmap(q.window)
		_ = unix.Close(q.file)
	})
	if err := q.SetIRQs(vfiouser.IRQMSIX, 0, ivshmem.Vectors, q.irqs[:]...); err != nil {
		t.Fatal(err)
	}
	q.mapAll(t)
	return q
}

func (q *vfioQEMU) mapAll(t *testing.T) {
	t.Helper()
	m := vfiouser.Map{Flags: vfiouser.MapRead | vfiouser.MapWrite, Range: vfiouser.Range{Addr: vfioTestBase, Size: vfioTestMemory}}
	if err := q.Map(m, q.file); err != nil {
		t.Fatal(err)
	}
}

// control returns the control block, which it finds as a driver does.
func (q *vfioQEMU) control(t *testing.T) []byte {
	t.Helper()
	var h abi.WindowHeader
	h.Unmarshal(q.window)
	if h.Magic != abi.Magic || h.Function != vfioTestFunction {
		t.Fatalf("window of %+v", h)
	}
	for at := h.FirstCap; at != 0; {
		var c abi.Capability
		c.Unmarshal(q.window[at:])
		if c.Type == abi.CapControl {
			return q.window[c.Offset:][:c.Length]
		}
		at = c.Next
	}
	t.Fatal("no control block")
	return nil
}

// ring is a store to the doorbell register.
func (q *vfioQEMU) ring(value uint32) {
	_ = q.Write(vfioRegisters, abi.WindowDoorbell, binary.LittleEndian.AppendUint32(nil, value), true)
}

// dial opens a session as the driver in the guest does.
func (q *vfioQEMU) dial(t *testing.T) net.Conn {
	t.Helper()
	c, err := control.Driver{Block: q.control(t), Number: rand.Uint32(), Call: func() { q.ring(abi.WindowDoorbellControl) }, After: time.After}.Dial(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	t.Cleanup(func() { c.Close() })
	return c
}

// accepted returns the device's end of the next session.
func accepted(t *testing.T, a queues.Attachment) queues.Session {
	t.Helper()
	s, err := a.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = s.SetDeadline(time.Now().Add(time.Minute))
	t.Cleanup(func() { s.Close() })
	return s
}

// raised returns how often a vector was signalled since the last call.
func (q *vfioQEMU) raised(t *testing.T, by queues.Attachment, vector int) uint64 {
	t.Helper()
	v, ok := by.(*VfioUser)
	if !ok {
		t.Fatalf("%T raises no vectors", by)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, g := range v.functions {
		for end := time.Now().Add(time.Minute); !g.win.Idle(); time.Sleep(100 * time.Microsecond) {
			if time.Now().After(end) {
				t.Fatal("the vectors are not signalled")
			}
		}
	}
	var b [8]byte
	if n, err := unix.Read(q.irqs[vector], b[:]); n != 8 || err != nil {
		return 0
	}
	return binary.LittleEndian.Uint64(b[:])
}

// checkVfioSession has a driver and the device's side meet, by messages, bells, interrupts and
// memory.
func checkVfioSession(t *testing.T, q *vfioQEMU, a queues.Attachment) queues.Session {
	t.Helper()
	driver := q.dial(t)
	s := accepted(t, a)
	if p := s.Identity(); p.Transport != "vfio-user" || p.CID != testCID || s.(queues.Bound).Function() != vfioTestFunction {
		t.Errorf("peer %+v", p)
	}
	sent := abi.AppendMessage(nil, abi.MsgHeartbeat, 9, make([]byte, 8))
	for _, way := range [][2]net.Conn{{driver, s}, {s, driver}} {
		got := make([]byte, len(sent))
		if _, err := way[0].Write(sent); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(way[1], got); err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("%x, %v", got, err)
		}
	}
	if q.raised(t, a, 0) == 0 {
		t.Error("vector 0 was not raised")
	}
	copy(q.ram[4096:], "memory of the guest")
	var seen [19]byte
	stop := s.Watch(func(rs queues.Regions) {
		if err := memoryOf(rs).Read(vfioTestBase+4096, seen[:]); err != nil {
			t.Error(err)
		}
	})
	stop()
	if string(seen[:]) != "memory of the guest" {
		t.Errorf("the device sees %q", seen)
	}
	if _, err := s.(queues.Ringer).Bell(vfioTestFunction + 1); err == nil {
		t.Error("it has the bell of another function")
	}
	bell, err := s.(queues.Ringer).Bell(vfioTestFunction)
	if err != nil {
		t.Fatal(err)
	}
	defer bell.Close()
	for i := range q.irqs {
		q.raised(t, a, i)
	}
	irq := bell.(queues.Interrupter)
	for i := range irq.EventQueues() {
		irq.Interrupt(i)
		if n := q.raised(t, a, 1+i); n != 1 {
			t.Errorf("vector %d was raised %d times", 1+i, n)
		}
	}
	q.ring(0)
	fds := []unix.PollFd{{Fd: int32(bell.FD()), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 60_000)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n != 1 || err != nil {
			t.Errorf("the device does not get the doorbell: %v", err)
		}
		return s
	}
}

func ended(t *testing.T, s net.Conn) {
	t.Helper()
	if n, err := s.Read(make([]byte, 16)); !errors.Is(err, io.EOF) {
		t.Errorf("the session goes on: %d bytes, %v", n, err)
	}
}

// TestDriverUsesAPCIFunction: a function served by one process works for a driver, after resets of
// each kind, and for the next QEMU (DEV-1101, DEV-1102, DEV-1104).
func TestDriverUsesAPCIFunction(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	v := NewVfioUser("test", testCID, VhostOptions{})
	defer v.Close()
	if err := v.AddFunction(vfioTestFunction, abi.FunctionVF, path, vfioTestLook); err != nil {
		t.Fatal(err)
	}
	if err := v.AddFunction(vfioTestFunction, abi.FunctionVF, path+"2", vfioTestLook); err == nil || !v.HasFunction(vfioTestFunction) {
		t.Errorf("the same function again: %v", err)
	}
	for range 2 {
		q := startVfioQEMU(t, path)
		if ids, err := q.Read32(vfiouser.RegionConfig, 0); err != nil || ids != 0x10f01af4 {
			t.Errorf("ids %#x, %v", ids, err)
		}
		s := checkVfioSession(t, q, v)
		if err := q.Write(vfiouser.RegionConfig, 0x48+1, []byte{0x80}, false); err != nil { // device control, bit 15
			t.Fatal(err)
		}
		ended(t, s)
		_ = s.Close()
		s = checkVfioSession(t, q, v)
		if err := q.Reset(); err != nil {
			t.Fatal(err)
		}
		ended(t, s)
		_ = s.Close()
		s = checkVfioSession(t, q, v)
		_ = q.Close()
		ended(t, s)
		_ = s.Close()
	}
	if err := v.Close(); err != nil {
		t.Error(err)
	}
	if _, err := v.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// TestFunctionAccessesMappedMemoryOnly: the device can access exactly the mapped memory, and cannot
// write memory that was mapped for reading (DEV-1103). A mapping of something that is no memory is
// refused and harms nobody.
func TestFunctionAccessesMappedMemoryOnly(t *testing.T) {
	v, q := oneVfioFunction(t)
	s := accepted(t, v)
	var mu sync.Mutex
	var list []queues.Region
	stop := s.Watch(func(rs queues.Regions) {
		mu.Lock()
		defer mu.Unlock()
		list = regionsOf(rs)
	})
	defer stop()
	regions := func() []queues.Region {
		mu.Lock()
		defer mu.Unlock()
		return list
	}
	if err := q.Unmap(vfiouser.Range{Addr: 0, Size: 1 << 60}); err != nil { // as with an IOMMU
		t.Fatal(err)
	}
	if now := regions(); len(now) != 0 {
		t.Errorf("%d regions are left", len(now))
	}
	const page = 4096
	mapped := func(addr, offset uint64, flags uint32) {
		t.Helper()
		if err := q.Map(vfiouser.Map{Flags: flags, Offset: offset, Range: vfiouser.Range{Addr: addr, Size: page}}, q.file); err != nil {
			t.Fatal(err)
		}
	}
	const both = vfiouser.MapRead | vfiouser.MapWrite
	for i := range uint64(8) { // backwards: one region in the end
		mapped(vfioTestBase+(7-i)*page, (7-i)*page, both)
	}
	mapped(vfioTestBase+8*page, 20*page, both)             // elsewhere in the file
	mapped(vfioTestBase+9*page, 21*page, vfiouser.MapRead) // follows it, and is not to be written
	now := regions()
	if len(now) != 3 || len(now[0].Mem) != 8*page || len(now[1].Mem) != page || now[2].Addr != vfioTestBase+9*page {
		t.Fatalf("%d regions: %+v", len(now), sizes(now))
	}
	mem := queues.NewMemory(now)
	if err := mem.Store32(vfioTestBase+8*page, 0x01020304); err != nil || binary.LittleEndian.Uint32(q.ram[20*page:]) != 0x01020304 {
		t.Errorf("%v, % x", err, q.ram[20*page:20*page+4])
	}
	var b [4]byte
	if err := mem.Read(vfioTestBase+9*page, b[:]); err != nil {
		t.Error(err)
	}
	if err := mem.Write(vfioTestBase+9*page, b[:]); err == nil {
		t.Error("the device writes what it may read only")
	}
	bad, err := unix.MemfdCreate("short", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(bad)
	if err := q.Map(vfiouser.Map{Flags: both, Range: vfiouser.Range{Addr: 1 << 40, Size: page}}, bad); !errors.Is(err, unix.EINVAL) {
		t.Errorf("memory past the file: %v", err)
	}
	if err := q.Map(vfiouser.Map{Flags: both, Range: vfiouser.Range{Addr: 1 << 40, Size: page}}, newEventFD(t)); !errors.Is(err, unix.EINVAL) {
		t.Errorf("memory of an eventfd: %v", err)
	}
	if err := q.SetIRQs(vfiouser.IRQMSIX, 0, 1, q.file); !errors.Is(err, unix.EINVAL) {
		t.Errorf("interrupts by a memory file: %v", err)
	}
	_, window, err := q.Region(vfioWindow)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(window)
	before := len(now)
	if err := q.Map(vfiouser.Map{Flags: both, Range: vfiouser.Range{Addr: 1 << 41, Size: page}}, window); err != nil || len(regions()) != before {
		t.Errorf("the window as memory: %v, %d regions, before %d", err, len(regions()), before)
	}
	if err := q.Map(vfiouser.Map{Flags: both, Range: vfiouser.Range{Addr: 1 << 42, Size: page}}, -1); err != nil || len(regions()) != before {
		t.Errorf("memory without a file: %v, %d regions, before %d", err, len(regions()), before)
	}
}

func sizes(rs []queues.Region) (all []int) {
	for _, r := range rs {
		all = append(all, len(r.Mem))
	}
	return all
}

// TestFunctionsOfAGuestAreServedApart: a reset of one function does not affect another one of the
// same guest (DEV-1105), and BAR0 accepts only doorbells (DEV-1101).
func TestFunctionsOfAGuestAreServedApart(t *testing.T) {
	dir := t.TempDir()
	v := NewVfioUser("test", testCID, VhostOptions{})
	defer v.Close()
	for i, name := range []string{"a", "b"} {
		if err := v.AddFunction(vfioTestFunction+uint32(i), abi.FunctionVF, filepath.Join(dir, name), vfioTestLook); err != nil {
			t.Fatal(err)
		}
	}
	a, b := startVfioQEMU(t, filepath.Join(dir, "a")), startVfioQEMU(t, filepath.Join(dir, "b"))
	s := checkVfioSession(t, a, v)
	if err := b.Reset(); err != nil {
		t.Fatal(err)
	}
	for _, store := range []struct {
		off uint64
		b   []byte
	}{{abi.WindowDoorbell, []byte{1}}, {abi.WindowDoorbell, []byte{2, 0, 0, 0}}, {abi.WindowDoorbell + 4, []byte{1, 0, 0, 0}}, {8188, make([]byte, 4)}} {
		if err := b.Write(vfioRegisters, store.off, store.b, false); err != nil {
			t.Errorf("%x at %#x: %v", store.b, store.off, err)
		}
		if got, err := b.Read32(vfioRegisters, store.off&^3); err != nil || got != 0 {
			t.Errorf("%#x reads as %#x, %v", store.off, got, err)
		}
	}
	_ = s.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if _, err := s.Read(make([]byte, 16)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the first function's session: %v", err)
	}
}

// serveVfioRelay serves a function to QEMU, without a worker.
func serveVfioRelay(t *testing.T, path string) *VfioRelay {
	t.Helper()
	win, err := ivshmem.NewWindow(vfioTestFunction, abi.FunctionVF)
	if err != nil {
		t.Fatal(err)
	}
	r, err := ServeVfioRelay(vfioTestFunction, win, path, vfioTestLook, VhostOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// vfioWorker is a worker of a relay.
func vfioWorker(t *testing.T, r *VfioRelay) *VfioUser {
	t.Helper()
	v, in := vfioWorkerWaiting(t, r, nil)
	r.Attach(in.dial)
	return v
}

// vfioWorkerWaiting returns a worker that has got nothing from the relay yet.
func vfioWorkerWaiting(t *testing.T, r *VfioRelay, known <-chan struct{}) (*VfioUser, *handed) {
	t.Helper()
	fds := make([]int, 0, ivshmem.Files)
	for _, fd := range r.Window.FDs() {
		d, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, d)
	}
	win, err := ivshmem.Adopt(fds)
	if err != nil {
		t.Fatal(err)
	}
	v := NewVfioUser("worker", testCID, VhostOptions{})
	a := newHanded()
	if err := v.UseFunction(vfioTestFunction, win, a, known); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return v, a
}

// TestRelayedFunctionSurvivesItsWorker: QEMU and its guest stay while workers come and go. The next
// worker gets everything that QEMU sent before, and QEMU gets answers while there is no worker.
func TestRelayedFunctionSurvivesItsWorker(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	r := serveVfioRelay(t, path)
	q := startVfioQEMU(t, path) // nobody is there
	q.ring(abi.WindowDoorbellControl)
	if err := q.Reset(); err != nil {
		t.Error(err)
	}
	for range 3 {
		v := vfioWorker(t, r)
		s := checkVfioSession(t, q, v)
		if err := q.Write(vfiouser.RegionConfig, 0x48+1, []byte{0x80}, false); err != nil {
			t.Fatal(err)
		}
		ended(t, s)
		_ = s.Close()
		driver := q.dial(t)
		s = accepted(t, v)
		if err := q.Unmap(vfiouser.Range{Addr: vfioTestBase, Size: vfioTestMemory}); err != nil {
			t.Fatal(err)
		}
		stop := s.Watch(func(rs queues.Regions) {
			if rs.Len() != 0 {
				t.Errorf("the worker still has %d regions", rs.Len())
			}
		})
		stop()
		q.mapAll(t)
		r.Detach()
		_ = s.Close() // a worker that dies does not even do that
		_ = v.Close()
		ended(t, driver)
		if v, err := q.Read32(vfiouser.RegionConfig, 0); err != nil || v != 0x10f01af4 {
			t.Errorf("ids %#x, %v", v, err)
		}
	}
}

// TestStalledWorkerDoesNotStallTheGuest: a worker that does not answer blocks QEMU only for a short
// time, and is disconnected.
func TestStalledWorkerDoesNotStallTheGuest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	r := serveVfioRelay(t, path)
	q := startVfioQEMU(t, path)
	a := newHanded()
	stalled := make(chan struct{})
	go func() {
		defer close(stalled)
		for {
			c, err := a.AcceptUnix()
			if err != nil {
				return
			}
			defer c.Close()
		}
	}()
	r.Attach(a.dial) // waits for the greeting, which does not come
	defer func() { a.Close(); <-stalled }()
	at := time.Now()
	if err := q.Reset(); err != nil {
		t.Error(err)
	}
	q.ring(0)
	if _, err := q.Read32(vfiouser.RegionConfig, 0); err != nil {
		t.Error(err)
	}
	if d := time.Since(at); d > 4*time.Second { // QEMU waits 5 s
		t.Errorf("QEMU waited %v", d)
	}
	v := vfioWorker(t, r) // the next works
	checkVfioSession(t, q, v)
}

// attachSlow attaches a worker that does not answer the relay's first connection.
func attachSlow(t *testing.T, r *VfioRelay, in *handed) {
	busy := true
	r.Attach(func() (*net.UnixConn, error) {
		if !busy {
			return in.dial()
		}
		busy = false
		ours, theirs, err := sockettest.New()
		if err == nil {
			t.Cleanup(func() { theirs.Close() })
		}
		return ours, err
	})
}

// TestRelayTriesASlowWorkerAgain: a worker that does not answer the first connection in time gets
// everything on a later one.
func TestRelayTriesASlowWorkerAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	r := serveVfioRelay(t, path)
	q := startVfioQEMU(t, path)
	v, in := vfioWorkerWaiting(t, r, nil)
	attachSlow(t, r, in)
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		r.mu.Lock()
		all := r.back != nil && r.pause == 0
		r.mu.Unlock()
		if all {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the worker was not tried again")
		}
	}
	checkVfioSession(t, q, v)
}

// TestADriverWaitsUntilASlowWorkerHasAllMemory: a driver that comes before a slow worker has been
// connected to again gets its session when the worker has all of the guest's memory, however many
// ranges that are.
func TestADriverWaitsUntilASlowWorkerHasAllMemory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	r := serveVfioRelay(t, path)
	q := startVfioQEMU(t, path)
	const beside, pages = vfioTestBase + 1<<32, 2000
	for i := range uint64(pages) {
		m := vfiouser.Map{Flags: vfiouser.MapRead | vfiouser.MapWrite, Range: vfiouser.Range{Addr: beside + 8192*i, Size: 4096}}
		if err := q.Map(m, q.file); err != nil {
			t.Fatal(err)
		}
	}
	v, in := vfioWorkerWaiting(t, r, nil)
	q.dial(t)
	attachSlow(t, r, in)
	hasMemory(t, v, beside+8192*(pages-1))
}

// dial makes a connection and hands the other end over.
func (h *handed) dial() (*net.UnixConn, error) {
	ours, theirs, err := sockettest.New()
	if err != nil {
		return nil, err
	}
	select {
	case h.conns <- theirs:
		return ours, nil
	case <-h.done:
		return nil, errors.Join(net.ErrClosed, ours.Close(), theirs.Close())
	}
}

// TestTriggerInterruptsTheGuest: a vector that QEMU raises itself is raised by the worker, too.
func TestTriggerInterruptsTheGuest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	r := serveVfioRelay(t, path)
	q := startVfioQEMU(t, path)
	v := vfioWorker(t, r)
	for i := range q.irqs {
		q.raised(t, v, i)
	}
	set := vfiouser.IRQSet{Flags: vfiouser.IRQDataNone | vfiouser.IRQTrigger, Index: vfiouser.IRQMSIX, Start: 3, Count: 1}
	if _, err := q.Call(vfiouser.SetIRQs, set.Append(nil)); err != nil {
		t.Fatal(err)
	}
	for i := range q.irqs {
		if n := q.raised(t, v, i); (n != 0) != (i == 3) {
			t.Errorf("vector %d was raised %d times", i, n)
		}
	}
}

// TestRemovedVectorsAreNotRaised: a worker signals the eventfds that QEMU has set last, whether it
// ran then or came later, and no removed ones.
func TestRemovedVectorsAreNotRaised(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	r := serveVfioRelay(t, path)
	q := startVfioQEMU(t, path)
	before := vfioWorker(t, r)
	if err := errors.Join(q.SetIRQs(vfiouser.IRQMSIX, 2, 1), q.SetIRQs(vfiouser.IRQMSIX, 4, 1, q.irqs[2])); err != nil {
		t.Fatal(err)
	}
	check := func(what string, v *VfioUser) {
		t.Helper()
		for i := range q.irqs {
			q.raised(t, v, i)
		}
		for vector, at := range map[uint32]int{1: 1, 2: -1, 3: 3, 4: 2} {
			set := vfiouser.IRQSet{Flags: vfiouser.IRQDataNone | vfiouser.IRQTrigger, Index: vfiouser.IRQMSIX, Start: vector, Count: 1}
			if _, err := q.Call(vfiouser.SetIRQs, set.Append(nil)); err != nil {
				t.Fatal(err)
			}
			for i := range q.irqs {
				if n := q.raised(t, v, i); (n != 0) != (i == at) {
					t.Errorf("%s: with vector %d eventfd %d was raised %d times", what, vector, i, n)
				}
			}
		}
	}
	check("the worker that was there", before)
	r.Detach()
	_ = before.Close()
	check("the next", vfioWorker(t, r))
}

// TestEventfdsAreChecked: if one descriptor is not an eventfd, all are closed and refused.
func TestEventfdsAreChecked(t *testing.T) {
	open := func(fd int) bool {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		return err == nil
	}
	own := func(fd int) int {
		t.Helper()
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return own
	}
	good := []int{own(newEventFD(t)), -1, own(newEventFD(t))}
	if err := checkEventfds(good); err != nil || !open(good[0]) || !open(good[2]) {
		t.Errorf("eventfds: %v", err)
	}
	bad := append(good, own(memfd(t, 1, 0)))
	if err := checkEventfds(bad); err == nil || open(bad[0]) || open(bad[2]) || open(bad[3]) {
		t.Errorf("a file among them: %v", err)
	}
	if err := checkEventfds([]int{-1, -1}); err != nil {
		t.Errorf("none: %v", err)
	}
}
