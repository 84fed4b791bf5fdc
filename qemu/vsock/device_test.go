package vsock

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/internal/allocs"
	"github.com/falcon-vnic/vnic/qemu/virtqueue"
	"github.com/falcon-vnic/vnic/queues"
)

// TestRefusedQueueSignalsItsError: a queue that cannot be used says so by its error eventfd, once:
// that belongs to the front end, which may close it at any time.
func TestRefusedQueueSignalsItsError(t *testing.T) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	d := NewDevice(3, slog.New(slog.DiscardHandler))
	defer d.Close()
	d.Refuse(QueueTX, errors.New("nonsense"), fd)
	d.notify[QueueTX].err.Signal()
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if _, err := unix.Poll(p, 60_000); err != nil {
		t.Fatal(err)
	}
	var b [8]byte
	if _, err := unix.Read(fd, b[:]); err != nil || binary.NativeEndian.Uint64(b[:]) != 1 {
		t.Errorf("signalled %d times, %v", binary.NativeEndian.Uint64(b[:]), err)
	}
}

// TestFlowsEndWithBothQueues: a flow waits while one queue is away, as while a front end moves it,
// and goes on when that is back. Only without any is its driver gone.
func TestFlowsEndWithBothQueues(t *testing.T) {
	for _, first := range []int{QueueTX, QueueRX} {
		d := NewDevice(guestCID, slog.New(slog.DiscardHandler))
		defer d.Close()
		mem := make([]byte, 4096)
		start := func(i int) {
			t.Helper()
			at := uint64(i) * 1024
			q, err := virtqueue.New(memoryOf(mem), virtqueue.Config{Size: 16, Desc: at, Driver: at + 256, Device: at + 512})
			if err != nil {
				t.Fatal(err)
			}
			d.Start(i, q, -1, -1)
		}
		start(QueueRX)
		start(QueueTX)
		l, err := d.Flows.Listen(7)
		if err != nil {
			t.Fatal(err)
		}
		inject(d.Flows, fromGuest(OpRequest, 5, 7), nil)
		c, err := l.AcceptConn()
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		d.Stop(first)
		start(first)
		inject(d.Flows, fromGuest(OpReadWrite, 5, 7), []byte{42})
		b := make([]byte, 1)
		if n, err := c.Read(b); n != 1 || b[0] != 42 {
			t.Errorf("queue %d was away: read %d bytes, %v", first, n, err)
		}
		d.Stop(first)
		d.Stop(QueueRX + QueueTX - first)
		if _, err := c.Read(b); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("without queues: %v", err)
		}
	}
}

// Where the queues of a testDevice are, and its only buffer, which each descriptor names.
const (
	queueSize = 256
	queueRoom = 0x4000 // of each queue
	availAt   = 0x1000 // in it
	usedAt    = 0x2000
	bufferAt  = 0x8000
)

// testDevice is a device whose driver the test plays.
type testDevice struct {
	*Device
	t   *testing.T
	mem []byte
}

func newTestDevice(t *testing.T) *testDevice {
	d := &testDevice{NewDevice(guestCID, slog.New(slog.DiscardHandler)), t, make([]byte, 0x10000)}
	t.Cleanup(d.Close)
	return d
}

// run starts a queue whose chains are of one buffer of so many bytes.
func (d *testDevice) run(i int, size uint32, call, errfd int) {
	d.t.Helper()
	at := uint64(i) * queueRoom
	desc := d.mem[at:]
	binary.LittleEndian.PutUint64(desc, bufferAt)
	binary.LittleEndian.PutUint32(desc[8:], size)
	if i == QueueRX {
		desc[12] = 2 // to be written
	}
	q, err := virtqueue.New(memoryOf(d.mem), virtqueue.Config{Size: queueSize, Desc: at, Driver: at + availAt, Device: at + usedAt})
	if err != nil {
		d.t.Fatal(err)
	}
	d.Start(i, q, call, errfd)
}

// memoryOf returns the memory of one ring.
func memoryOf(mem []byte) *virtqueue.RAM {
	var m virtqueue.RAM
	m.Set([]queues.Region{{Mem: mem}})
	return &m
}

// offer makes n chains more available.
func (d *testDevice) offer(i, n int) {
	avail := d.mem[i*queueRoom+availAt:]
	binary.LittleEndian.PutUint16(avail[2:], binary.LittleEndian.Uint16(avail[2:])+uint16(n))
}

// used is how many chains came back.
func (d *testDevice) used(i int) int {
	return int(binary.LittleEndian.Uint16(d.mem[i*queueRoom+usedAt+2:]))
}

func eventFD(t *testing.T) int {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// signalled waits until an eventfd was signalled, and tells how often.
func signalled(t *testing.T, fd int) uint64 {
	t.Helper()
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(p, 60_000); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	var b [8]byte
	if _, err := unix.Read(fd, b[:]); err != nil {
		t.Fatal(err)
	}
	return binary.NativeEndian.Uint64(b[:])
}

// TestOneKickIsEnoughForAllPackets: one kick is enough for all packets that are there, however
// many, and their buffers come back.
func TestOneKickIsEnoughForAllPackets(t *testing.T) {
	for _, n := range []int{0, 1, txQuantum - 1, txQuantum, txQuantum + 1, 2 * txQuantum, 200, queueSize} {
		d := newTestDevice(t)
		h := fromGuest(OpReset, 5, 7) // of no flow: it is counted, and that is all
		copy(d.mem[bufferAt:], h.Append(nil))
		d.run(QueueTX, HeaderSize, -1, -1)
		d.offer(QueueTX, n)
		d.Kick(QueueTX)
		if st := d.Flows.Stats(); st.PacketsIn != uint64(n) || d.used(QueueTX) != n {
			t.Errorf("%d packets: %d came, %d buffers came back", n, st.PacketsIn, d.used(QueueTX))
		}
	}
}

// TestDriverIsToldOnceOfUsedBuffers: a driver is told once of what was used, not when nothing was,
// and not when it does not want to be told.
func TestDriverIsToldOnceOfUsedBuffers(t *testing.T) {
	d := newTestDevice(t)
	h := fromGuest(OpReset, 5, 7)
	copy(d.mem[bufferAt:], h.Append(nil))
	call := eventFD(t)
	d.run(QueueTX, HeaderSize, call, -1)
	d.Kick(QueueTX)
	d.mem[QueueTX*queueRoom+availAt] = 1 // no interrupts
	d.offer(QueueTX, 3)
	d.Kick(QueueTX)
	d.mem[QueueTX*queueRoom+availAt] = 0
	d.offer(QueueTX, 3)
	d.Kick(QueueTX)
	if n := signalled(t, call); n != 1 || d.used(QueueTX) != 6 {
		t.Errorf("told %d times of %d buffers", n, d.used(QueueTX))
	}
}

// TestDriverIsToldOnceOfReceivedPackets: the same holds for packets that the driver receives.
func TestDriverIsToldOnceOfReceivedPackets(t *testing.T) {
	d := newTestDevice(t)
	call := eventFD(t)
	d.run(QueueRX, 100, call, -1)
	d.offer(QueueRX, 5)
	answer := func() { inject(d.Flows, fromGuest(OpShutdown, 5, 7), nil) } // of no flow
	d.mem[QueueRX*queueRoom+availAt] = 1                                   // no interrupts
	answer()
	answer()
	d.mem[QueueRX*queueRoom+availAt] = 0
	answer()
	d.Kick(QueueRX) // nothing waits
	if n := signalled(t, call); n != 1 || d.used(QueueRX) != 3 {
		t.Errorf("told %d times of %d buffers", n, d.used(QueueRX))
	}
}

// TestReceiveBuffersHoldMoreThanAHeader: a buffer has room for more than a packet's header, or the
// queue is not used any more, and its driver hears of that.
func TestReceiveBuffersHoldMoreThanAHeader(t *testing.T) {
	for size, ok := range map[uint32]bool{1: false, HeaderSize - 1: false, HeaderSize: false, HeaderSize + 1: true} {
		d := newTestDevice(t)
		call, errfd := eventFD(t), eventFD(t)
		d.run(QueueRX, size, call, errfd)
		d.offer(QueueRX, 1)
		inject(d.Flows, fromGuest(OpShutdown, 5, 7), nil) // of no flow: it is answered
		if !ok {
			if n := signalled(t, errfd); n != 1 || d.used(QueueRX) != 0 {
				t.Errorf("buffers of %d bytes: the fault is told %d times, %d are used", size, n, d.used(QueueRX))
			}
			continue
		}
		want := Header{SrcCID: HostCID, DstCID: guestCID, SrcPort: 7, DstPort: 5, Type: TypeStream, Op: OpReset}
		if n := signalled(t, call); n != 1 || d.used(QueueRX) != 1 || !bytes.Equal(d.mem[bufferAt:][:HeaderSize], want.Append(nil)) {
			t.Errorf("buffers of %d bytes: told %d times, %d are used", size, n, d.used(QueueRX))
		}
	}
}

// TestBrokenQueueIsLeftAlone: a queue whose driver wrote nonsense is not used until it is set up
// again; the other goes on.
func TestBrokenQueueIsLeftAlone(t *testing.T) {
	d := newTestDevice(t)
	h := fromGuest(OpReset, 5, 7)
	copy(d.mem[bufferAt:], h.Append(nil))
	errfd := eventFD(t)
	d.run(QueueTX, HeaderSize, -1, errfd)
	d.offer(QueueTX, queueSize+1)
	d.Kick(QueueTX)
	if n := signalled(t, errfd); n != 1 {
		t.Errorf("the fault is told %d times", n)
	}
	d.offer(QueueTX, -queueSize)
	d.Kick(QueueTX)
	if st := d.Flows.Stats(); st.PacketsIn != 0 {
		t.Errorf("%d packets of a broken queue", st.PacketsIn)
	}
	d.Stop(QueueTX)
	d.run(QueueTX, HeaderSize, -1, -1)
	if st := d.Flows.Stats(); st.PacketsIn != 1 {
		t.Errorf("%d packets of a queue that begins anew", st.PacketsIn)
	}
}

// TestEachRunningQueueMoves: each queue that runs moves, and the first error is the one that is
// told, with its queue; a queue that cannot move is not used any more.
func TestEachRunningQueueMoves(t *testing.T) {
	d := newTestDevice(t)
	moved := func() (list []int) {
		if err := d.Rebind(func(i int, _ virtqueue.Ring) error { list = append(list, i); return nil }); err != nil {
			t.Error(err)
		}
		return list
	}
	if got := moved(); len(got) != 0 {
		t.Errorf("queues %v, and none runs", got)
	}
	d.run(QueueTX, HeaderSize, -1, -1)
	if got := moved(); len(got) != 1 || got[0] != QueueTX {
		t.Errorf("queues %v, and that for what is sent runs", got)
	}
	d.run(QueueRX, 100, -1, -1)
	if got := moved(); len(got) != 2 || got[0] != QueueRX || got[1] != QueueTX {
		t.Errorf("queues %v of both", got)
	}
	err := d.Rebind(func(i int, _ virtqueue.Ring) error { return [2]error{errors.New("first"), errors.New("second")}[i] })
	if err == nil || err.Error() != "queue 0: first" {
		t.Errorf("%v", err)
	}
	d.offer(QueueTX, 1)
	d.Kick(QueueTX)
	if d.used(QueueTX) != 0 {
		t.Error("a queue that could not move is used")
	}
}

// TestConfigurationSpaceHasTheContextID: it has the guest's context ID in eight bytes, and nothing
// behind.
func TestConfigurationSpaceHasTheContextID(t *testing.T) {
	all := []byte{9, 0, 0, 0, 0, 0, 0, 0}
	d := NewDevice(guestCID, slog.New(slog.DiscardHandler))
	for off := range uint32(12) {
		for n := range 12 {
			b := bytes.Repeat([]byte{0xff}, n)
			want := int(off)+n <= len(all)
			if got := d.Config(off, b); got != want || got && !bytes.Equal(b, all[off:][:n]) {
				t.Errorf("%d bytes at %d: %t, % x", n, off, got, b)
			}
		}
	}
	if d.Config(1<<32-1, make([]byte, 2)) {
		t.Error("bytes behind all that can be named")
	}
}

// TestMemoryThatVanishesBreaksTheQueue: a queue in memory whose file became shorter is not used any
// more, and its driver is told; the process goes on.
func TestMemoryThatVanishesBreaksTheQueue(t *testing.T) {
	for _, i := range []int{QueueRX, QueueTX} {
		d := newTestDevice(t)
		fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC)
		if err == nil {
			err = unix.Ftruncate(fd, int64(len(d.mem)))
		}
		if err == nil {
			d.mem, err = unix.Mmap(fd, 0, len(d.mem), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = errors.Join(unix.Munmap(d.mem), unix.Close(fd)) })
		errfd := eventFD(t)
		d.run(i, 100, -1, errfd)
		d.offer(i, 1)
		if err := unix.Ftruncate(fd, bufferAt); err != nil { // the queues stay, their buffer goes
			t.Fatal(err)
		}
		d.Kick(i)
		if i == QueueRX {
			inject(d.Flows, fromGuest(OpShutdown, 5, 7), nil) // of no flow: it is answered
		}
		if n := signalled(t, errfd); n != 1 || d.used(i) != 0 {
			t.Errorf("queue %d: told %d times of the fault, %d buffers are used", i, n, d.used(i))
		}
	}
}

// TestNoAllocationsPerPacket: a packet from the guest and a packet to it cost no allocation.
func TestNoAllocationsPerPacket(t *testing.T) {
	d := newTestDevice(t)
	h := fromGuest(OpCreditRequest, 5, 7)
	packet := h.Append(nil)
	d.run(QueueRX, 100, -1, -1)
	d.run(QueueTX, HeaderSize, -1, -1)
	l, err := d.Flows.Listen(7)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d.offer(QueueRX, queueSize)
	inject(d.Flows, fromGuest(OpRequest, 5, 7), nil)
	if n := allocs.PerRun(100, func() { // the guest asks for credit and is told
		copy(d.mem[bufferAt:], packet)
		d.offer(QueueTX, 1)
		d.Kick(QueueTX)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if d.used(QueueTX) != 101 || d.used(QueueRX) != 102 {
		t.Errorf("%d packets came and %d left", d.used(QueueTX), d.used(QueueRX))
	}
}
