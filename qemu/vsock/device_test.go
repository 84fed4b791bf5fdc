package vsock

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRefusedQueue: a queue that cannot be used says so by its error eventfd, once: that belongs to the
// front end, which may close it at any time.
func TestRefusedQueue(t *testing.T) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	d := NewDevice(3, slog.New(slog.DiscardHandler))
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
