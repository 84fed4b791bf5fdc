package ivshmem

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/eventfd"
	"github.com/falcon-vnic/vnic/qemu/fdpass"
	"github.com/falcon-vnic/vnic/qemu/internal/sockettest"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/control"
	"github.com/falcon-vnic/vnic/queues/ring"
)

const testFunction = 0x010001

// guest is QEMU and the driver behind it: what it got from the window's socket.
type guest struct {
	mem         []byte
	fd, bell    int
	controlBell int
	irqs        []int // by vector
	ring        *ring.Producer
}

// meet introduces a window to a new guest and checks the protocol.
func meet(t *testing.T, w *Window) *guest {
	t.Helper()
	ours, theirs := sockettest.Pair(t)
	if err := w.Introduce(ours); err != nil {
		t.Fatal(err)
	}
	g := &guest{fd: -1, bell: -1}
	_ = theirs.SetReadDeadline(time.Now().Add(time.Minute))
	for i, want := range []int64{0, 1, -1, 0, 0, 1, 1, 1, 1, 1} {
		var list fdpass.FDs
		var b [8]byte
		if err := list.ReadFull(theirs, b[:], 1); err != nil {
			t.Fatal(err)
		}
		if got := int64(binary.LittleEndian.Uint64(b[:])); got != want {
			t.Fatalf("message %d is %d, want %d", i, got, want)
		}
		switch i {
		case 2:
			g.fd = list.Take()
		case 3:
			g.bell = list.Take()
		case 4:
			g.controlBell = list.Take()
		case 5, 6, 7, 8, 9:
			g.irqs = append(g.irqs, list.Take())
		}
		if list.Len() != 0 {
			t.Fatalf("message %d has a descriptor too many", i)
		}
	}
	if g.fd < 0 || g.bell < 0 {
		t.Fatal("a descriptor is missing")
	}
	mem, err := unix.Mmap(g.fd, 0, abi.WindowSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	g.mem = mem
	t.Cleanup(func() {
		_ = unix.Munmap(g.mem)
		_ = unix.Close(g.fd)
		for _, fd := range append(g.irqs, g.bell, g.controlBell) {
			_ = unix.Close(fd)
		}
	})
	g.ring = ring.NewProducer(ring.Mem(g.bells()), bellsLayout)
	return g
}

func (g *guest) bells() []byte { return g.mem[bellsOffset:][:bellsLayout.Size()] }

func (g *guest) kick() { _, _ = unix.Write(g.bell, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

// ringOne puts record n into the ring, waiting for room, and kicks if asked to.
func (g *guest) ringOne(t *testing.T, n uint32) {
	t.Helper()
	d := abi.Doorbell{Kind: abi.DoorbellSQ, Queue: 7, Index: n}
	var b [abi.DoorbellSize]byte
	d.Marshal(b[:])
	for {
		err := g.ring.Push(b[:])
		if err == nil {
			break
		}
		if !errors.Is(err, ring.ErrFull) {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Microsecond)
	}
	if _, need, err := g.ring.Publish(); err != nil {
		t.Fatal(err)
	} else if need {
		g.kick()
	}
}

func newWindow(t *testing.T) *Window {
	t.Helper()
	w, err := NewWindow(testFunction, abi.FunctionVF)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// TestDriverFindsTheCapabilities: the header and the capability chain lead a driver to each part of
// the window.
func TestDriverFindsTheCapabilities(t *testing.T) {
	g := meet(t, newWindow(t))
	var h abi.WindowHeader
	h.Unmarshal(g.mem)
	want := abi.WindowHeader{Magic: abi.Magic, Major: abi.VersionMajor, Minor: abi.VersionMinor, Length: abi.WindowSize, Function: testFunction, FunctionType: abi.FunctionVF, FirstCap: h.FirstCap}
	if h != want || abi.WindowSize&(abi.WindowSize-1) != 0 {
		t.Errorf("%+v", h)
	}
	types := map[abi.CapType]int{}
	end := uint32(0) // of the block before
	for at := h.FirstCap; at != 0; {
		var c abi.Capability
		c.Unmarshal(g.mem[at:])
		size := bellsLayout.Size()
		switch c.Type {
		case abi.CapEvents:
			size = eventsLayout.Size()
		case abi.CapControl:
			size = control.Size
		case abi.CapAdminSQ, abi.CapAdminCQ:
			size = adminLayout.Size()
		}
		if types[c.Type]++; c.Version != 1 || c.Offset%64 != 0 || c.Offset < end || uint64(c.Length) != size || c.Offset+c.Length > abi.WindowSize {
			t.Errorf("%+v", c)
		}
		if end = c.Offset + c.Length; c.Next != 0 && c.Next < at+abi.CapabilitySize {
			t.Fatalf("%+v at %d", c, at)
		}
		at = c.Next
	}
	if len(types) != 5 || types[abi.CapBells] != 1 || types[abi.CapEvents] != eventQueues || types[abi.CapControl] != 1 {
		t.Errorf("%v", types)
	}
}

// TestEachVectorHasAnEventfd: each vector raises an eventfd of its own at the guest, and its event
// queue is at the place that the capability chain gives.
func TestEachVectorHasAnEventfd(t *testing.T) {
	w := newWindow(t)
	g := meet(t, w)
	b, err := w.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	irq := b.(queues.Interrupter)
	if n := len(irq.EventQueues()); n != eventQueues || len(g.irqs) != Vectors {
		t.Fatalf("%d event queues, %d vectors", n, len(g.irqs))
	}
	for i, q := range irq.EventQueues() {
		if err := q.Store32(abi.QueueHeaderProducer, uint32(7+i)); err != nil {
			t.Fatal(err)
		}
		if got := binary.LittleEndian.Uint32(g.mem[eventsOffset+i*eventsStride:]); got != uint32(7+i) {
			t.Errorf("vector %d: producer %d in the guest", i, got)
		}
		irq.Interrupt(i)
		awaitRaised(t, g.irqs[1+i])
		for j, fd := range g.irqs {
			var count [8]byte
			if n, err := unix.Read(fd, count[:]); n == 8 {
				t.Errorf("vector %d raised: at %d %v, %v", i, j, count, err)
			}
		}
	}
}

// awaitRaised waits until an eventfd is signalled, which another thread does, and takes the signal.
func awaitRaised(t *testing.T, fd int) {
	t.Helper()
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if n, err := unix.Poll(fds, 1000); err != nil && !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		} else if n == 1 {
			var count [8]byte
			if n, err := unix.Read(fd, count[:]); n != 8 {
				t.Fatalf("%d bytes, %v", n, err)
			}
			return
		}
	}
	t.Fatal("not raised within a minute")
}

// TestAdminQueuesAreEmptyForEachUser: the admin queues in the window are empty for each user, and
// at the place that the capability chain gives.
func TestAdminQueuesAreEmptyForEachUser(t *testing.T) {
	w := newWindow(t)
	g := meet(t, w)
	for range 2 {
		b, err := w.Listen()
		if err != nil {
			t.Fatal(err)
		}
		sq, cq := b.(queues.AdminHolder).AdminQueues()
		for i, q := range []ring.Bytes{sq, cq} {
			at := [2]int{adminSQOffset, adminCQOffset}[i]
			if v, err := q.Load32(abi.QueueHeaderSize); v != 0 || err != nil {
				t.Errorf("queue %d: %#x, %v", i, v, err)
			}
			binary.LittleEndian.PutUint32(g.mem[at+abi.QueueHeaderSize:], 77)
			if v, err := q.Load32(abi.QueueHeaderSize); v != 77 || err != nil {
				t.Errorf("queue %d: %#x, %v", i, v, err)
			}
		}
		b.Close()
	}
}

// TestSizeOfTheWindowIsSealed: whoever gets the file can neither shrink it under the device's
// feet nor grow it.
func TestSizeOfTheWindowIsSealed(t *testing.T) {
	g := meet(t, newWindow(t))
	for _, size := range []int64{0, abi.WindowSize / 2, abi.WindowSize * 2} {
		if err := unix.Ftruncate(g.fd, size); !errors.Is(err, unix.EPERM) {
			t.Errorf("to %d bytes: %v", size, err)
		}
	}
}

// wait sleeps until the guest rings.
func wait(t *testing.T, b queues.Bell) {
	t.Helper()
	fds := []unix.PollFd{{Fd: int32(b.FD()), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 60_000)
	for errors.Is(err, unix.EINTR) { // the runtime preempts threads by signals
		n, err = unix.Poll(fds, 60_000)
	}
	if n != 1 || err != nil {
		t.Fatalf("nobody rang: %v", err)
	}
	var count [8]byte
	_, _ = unix.Read(b.FD(), count[:])
}

// next takes one batch of records, sleeping until there are some.
func next(t *testing.T, b queues.Bell, buf []byte) []byte {
	t.Helper()
	for {
		n, err := b.Take(buf)
		if err != nil || n%abi.DoorbellSize != 0 {
			t.Fatalf("%d bytes, %v", n, err)
		}
		if n > 0 {
			return buf[:n]
		}
		records, err := b.Arm()
		if err != nil {
			t.Fatal(err)
		}
		if !records {
			wait(t, b)
		}
	}
}

// TestRecordsArriveInOrder: many more records than the ring holds all arrive, in order.
func TestRecordsArriveInOrder(t *testing.T) {
	w := newWindow(t)
	g := meet(t, w)
	const n = 5000
	b, err := w.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, err := w.Listen(); err == nil {
		t.Error("two listen")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range uint32(n) {
			g.ringOne(t, i)
		}
	}()
	buf := make([]byte, 5*abi.DoorbellSize+7)
	for want := uint32(0); want < n; {
		for records := next(t, b, buf); len(records) > 0; records = records[abi.DoorbellSize:] {
			var d abi.Doorbell
			if d.Unmarshal(records); d.Index != want {
				t.Fatalf("record %d, want %d", d.Index, want)
			}
			want++
		}
	}
	<-done
}

// TestImpossibleIndicesAreRefused: a producer index that is impossible is an error.
func TestImpossibleIndicesAreRefused(t *testing.T) {
	for _, producer := range []uint32{257, 1 << 31, 0xffffffff} {
		w := newWindow(t)
		g := meet(t, w)
		b, err := w.Listen()
		if err != nil {
			t.Fatal(err)
		}
		binary.LittleEndian.PutUint32(g.bells(), producer)
		g.kick()
		wait(t, b)
		if n, err := b.Take(make([]byte, 64)); n != 0 || !errors.Is(err, ring.ErrIndex) {
			t.Errorf("producer %#x: %d bytes, %v", producer, n, err)
		}
		if _, err := b.Arm(); !errors.Is(err, ring.ErrIndex) {
			t.Errorf("producer %#x: %v", producer, err)
		}
		b.Close()
	}
}

// TestNextUserFindsAnEmptyRing: records that one user leaves in the ring do not reach the next, and
// the window stays as long as somebody listens.
func TestNextUserFindsAnEmptyRing(t *testing.T) {
	w := newWindow(t)
	g := meet(t, w)
	g.ringOne(t, 1)
	g.kick()
	buf := make([]byte, abi.DoorbellSize)
	for range 3 {
		b, err := w.Listen()
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(g.bells()[abi.QueueHeaderSize:], make([]byte, len(g.bells())-abi.QueueHeaderSize)) {
			t.Error("old records are still there")
		}
		g.ring = ring.NewProducer(ring.Mem(g.bells()), bellsLayout)
		if records, err := b.Arm(); records || err != nil {
			t.Errorf("records in an empty ring: %t, %v", records, err)
		}
		g.ringOne(t, 2)
		if records, err := b.Arm(); !records || err != nil {
			t.Errorf("no records in a ring with one: %t, %v", records, err)
		}
		var d abi.Doorbell
		if n, err := b.Take(buf); n != len(buf) || err != nil {
			t.Fatalf("%d bytes, %v", n, err)
		}
		if d.Unmarshal(buf); d.Index != 2 {
			t.Errorf("record %d", d.Index)
		}
		b.Close()
		b.Close() // harmless
	}
	b, err := w.Listen()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	g.kick()
	wait(t, b)
	b.Close()
	if _, err := w.Listen(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestWindowStaysWhileSessionsUseIt: a driver opens sessions by the window, one after the other,
// and the window stays as long as somebody has one.
func TestWindowStaysWhileSessionsUseIt(t *testing.T) {
	w := newWindow(t)
	g := meet(t, w)
	c, err := w.Control("test")
	if err != nil {
		t.Fatal(err)
	}
	ring := func() { _, _ = unix.Write(g.controlBell, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }
	block := g.mem[controlOffset:][:control.Size]
	var device net.Conn
	for range 2 {
		driver, err := control.Driver{Block: block, Number: rand.Uint32(), Call: ring, After: time.After}.Dial(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if device, err = c.Accept(); err != nil {
			t.Fatal(err)
		}
		_ = device.SetDeadline(time.Now().Add(time.Minute))
		want := abi.AppendMessage(nil, abi.MsgGoodbye, 3, nil)
		if _, err := driver.Write(want); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(want))
		if _, err := io.ReadFull(device, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%x, %v", got, err)
		}
		awaitRaised(t, g.irqs[0])
		_ = driver.Close()
		if _, err := device.Read(got); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
		if w.mem == nil {
			t.Fatal("the window is gone")
		}
		if err := device.Close(); err != nil {
			t.Error(err)
		}
	}
	c.Close()
	if _, err := c.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if w.held != 0 {
		t.Errorf("held %d times", w.held)
	}
}

// TestBytesOutsideTheWindowAreZero: bytes past the end of the window read as zero and are not
// written.
func TestBytesOutsideTheWindowAreZero(t *testing.T) {
	w := newWindow(t)
	g := meet(t, w)
	const end = abi.WindowSize
	for _, off := range []uint64{end - 8, end - 4, end - 1, end, end + 1, 1 << 40, 1<<64 - 1} {
		inside := int(end - min(off, end))
		sent := []byte{1, 2, 3, 4}
		w.WriteAt(sent, off)
		n := min(inside, 4)
		if inside > 0 && !bytes.Equal(g.mem[off:][:n], sent[:n]) {
			t.Errorf("%d bytes at %#x were not written", n, off)
		}
		got := []byte{9, 9, 9, 9}
		w.ReadAt(got, off)
		if !bytes.Equal(got[:n], sent[:n]) || !bytes.Equal(got[n:], make([]byte, 4-n)) {
			t.Errorf("at %#x: % x", off, got)
		}
	}
}

// TestEachDoorbellHasAnEventfd: each doorbell signals an eventfd of its own; other values signal
// none.
func TestEachDoorbellHasAnEventfd(t *testing.T) {
	w := newWindow(t)
	g := meet(t, w)
	for value, want := range [][2]int{{1, 0}, {0, 1}, {0, 0}, {0, 0}} {
		w.Ring(uint32(value))
		for i, fd := range []int{g.bell, g.controlBell} {
			var count [8]byte
			n, _ := unix.Read(fd, count[:])
			if rung := n == 8; rung != (want[i] == 1) {
				t.Errorf("doorbell %d: rings %d: %t", value, i, rung)
			}
		}
	}
	w.Ring(1<<32 - 1)
}

// TestWindowLivesUntilNobodyUsesIt: a window is released when it is closed and nobody uses it any
// more, whoever is the last.
func TestWindowLivesUntilNobodyUsesIt(t *testing.T) {
	closed := func(w *Window) error { return w.Close() }
	for name, tt := range map[string]struct {
		listens, holds int
		end            []func(w *Window) error
	}{
		"nobody":   {0, 0, []func(*Window) error{closed}},
		"listened": {1, 0, []func(*Window) error{closed, func(w *Window) error { w.unclaim(); return nil }}},
		"held":     {0, 1, []func(*Window) error{closed, func(w *Window) error { w.drop(); return nil }}},
		"held twice": {0, 2, []func(*Window) error{
			closed, func(w *Window) error { w.drop(); return nil }, func(w *Window) error { w.drop(); return nil },
		}},
		"both": {1, 1, []func(*Window) error{
			closed, func(w *Window) error { w.drop(); return nil }, func(w *Window) error { w.unclaim(); return nil },
		}},
		"both, the other way": {1, 1, []func(*Window) error{
			closed, func(w *Window) error { w.unclaim(); return nil }, func(w *Window) error { w.drop(); return nil },
		}},
		"used and left before": {1, 1, []func(*Window) error{
			func(w *Window) error { w.unclaim(); return nil }, func(w *Window) error { w.drop(); return nil }, closed,
		}},
	} {
		w, err := NewWindow(testFunction, abi.FunctionVF)
		if err != nil {
			t.Fatal(err)
		}
		if tt.listens > 0 {
			if err := w.claim(); err != nil {
				t.Fatal(err)
			}
			if err := w.claim(); err == nil {
				t.Errorf("%s: two listen", name)
			}
		}
		for range tt.holds {
			if err := w.hold(); err != nil {
				t.Fatal(err)
			}
		}
		fds := w.FDs()
		for i, end := range tt.end {
			if w.mem == nil {
				t.Errorf("%s: the window is gone before step %d", name, i)
			}
			if err := end(w); err != nil {
				t.Errorf("%s: step %d: %v", name, i, err)
			}
		}
		if w.mem != nil || w.file != nil || w.bell != noBells || w.vectors != noVectors {
			t.Errorf("%s: the window is there when nobody uses it", name)
		}
		for _, fd := range fds {
			if isEventFD := eventfd.Check(fd) == nil; isEventFD {
				t.Errorf("%s: descriptor %d is open", name, fd)
			}
		}
		if err := errors.Join(w.hold(), w.claim()); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: used when it is closed: %v", name, err)
		}
	}
}

// descriptors are copies of a window's.
func descriptors(t *testing.T, w *Window) []int {
	t.Helper()
	fds := slices.Clone(w.FDs())
	for i := range fds {
		var err error
		if fds[i], err = unix.FcntlInt(uintptr(fds[i]), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
	}
	return fds
}

// memfd is a file of a size with seals.
func memfd(t *testing.T, size int64, seals int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("window", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err == nil {
		err = unix.Ftruncate(fd, size)
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// TestAdoptedWindowIsTheSame: another process gets the same window from its descriptors: memory,
// doorbells, vectors.
func TestAdoptedWindowIsTheSame(t *testing.T) {
	w := newWindow(t)
	g := meet(t, w)
	other, err := Adopt(descriptors(t, w))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if other.dev != w.dev || other.ino != w.ino || !other.Is(w.dev, w.ino) || other.Is(w.dev, w.ino+1) || other.Is(w.dev+1, w.ino) {
		t.Error("it is another file")
	}
	other.WriteAt([]byte{42}, bellsOffset)
	if g.mem[bellsOffset] != 42 {
		t.Error("the memory is another")
	}
	for vector, fd := range g.irqs {
		other.Interrupt(vector)
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		for n, err := unix.Poll(p, 60_000); n != 1; n, err = unix.Poll(p, 60_000) {
			if !errors.Is(err, unix.EINTR) {
				t.Fatalf("vector %d is another", vector)
			}
		}
	}
	for i, fd := range []int{g.bell, g.controlBell} {
		other.Ring(uint32(i))
		var count [8]byte
		if n, _ := unix.Read(fd, count[:]); n != 8 {
			t.Errorf("doorbell %d is another", i)
		}
	}
}

// TestForeignDescriptorsAreNotAdopted: descriptors that are not those of a window are refused, and
// closed.
func TestForeignDescriptorsAreNotAdopted(t *testing.T) {
	w := newWindow(t)
	const shrink, grow = unix.F_SEAL_SHRINK, unix.F_SEAL_GROW
	with := func(i, fd int) []int {
		fds := descriptors(t, w)
		_ = unix.Close(fds[i])
		fds[i] = fd
		return fds
	}
	few := descriptors(t, w)
	_ = unix.Close(few[len(few)-1])
	for name, tt := range map[string]struct {
		fds  []int
		says string
	}{
		"one is missing":     {few[:len(few)-1], "descriptors, want"},
		"one too many":       {append(descriptors(t, w), memfd(t, 1, 0)), "descriptors, want"},
		"no seals":           {with(0, memfd(t, abi.WindowSize, 0)), "seals"},
		"can grow":           {with(0, memfd(t, abi.WindowSize, shrink)), "seals"},
		"can shrink":         {with(0, memfd(t, abi.WindowSize, grow)), "seals"},
		"too small":          {with(0, memfd(t, abi.WindowSize-1, shrink|grow)), "bytes"},
		"too large":          {with(0, memfd(t, abi.WindowSize+1, shrink|grow)), "bytes"},
		"doorbell of memory": {with(2, memfd(t, 1, 0)), "eventfd"},
		"vector of memory":   {with(Files-1, memfd(t, 1, 0)), "eventfd"},
	} {
		got, err := Adopt(tt.fds)
		if got != nil || err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", name, err)
		}
		for _, fd := range tt.fds {
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); !errors.Is(err, unix.EBADF) {
				t.Errorf("%s: descriptor %d is open: %v", name, fd, err)
			}
		}
	}
}
