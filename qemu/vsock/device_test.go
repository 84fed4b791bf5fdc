package vsock

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/vring"
	"github.com/falcon-vnic/vnic/queues"
)

// TestRefusedQueue: a queue that cannot be used says so by its error eventfd, once: that belongs to
// the front end, which may close it at any time.
func TestRefusedQueue(t *testing.T) {
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
		mem := queues.NewMemory([]queues.Region{{Mem: make([]byte, 4096)}})
		start := func(i int) {
			t.Helper()
			at := uint64(i) * 1024
			q, err := vring.New(mem, vring.Config{Size: 16, Desc: at, Avail: at + 256, Used: at + 512})
			if err != nil {
				t.Fatal(err)
			}
			d.Start(i, q, -1, -1)
		}
		start(QueueRX)
		start(QueueTX)
		l, err := d.Listen(7)
		if err != nil {
			t.Fatal(err)
		}
		inject(d.Transport, fromGuest(OpRequest, 5, 7), nil)
		c, err := l.AcceptConn()
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		d.Stop(first)
		start(first)
		inject(d.Transport, fromGuest(OpReadWrite, 5, 7), []byte{42})
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
