package eventfd

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func newEventFD(t *testing.T, flags int) int {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|flags)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// fill makes every further write to a blocking eventfd wait.
func fill(t *testing.T, fd int) {
	t.Helper()
	if _, err := unix.Write(fd, binary.LittleEndian.AppendUint64(nil, math.MaxUint64-1)); err != nil {
		t.Fatal(err)
	}
}

func count(t *testing.T, fd int) uint64 {
	t.Helper()
	var b [8]byte
	if _, err := unix.Read(fd, b[:]); err != nil {
		t.Fatal(err)
	}
	return binary.LittleEndian.Uint64(b[:])
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
	case <-time.After(20 * time.Second):
		t.Fatalf("%s blocks", what)
	}
}

// withoutAIO runs the rest of a test as on a kernel without AIO.
func withoutAIO(t *testing.T) {
	was := kernel
	kernel = func() *context { return nil }
	t.Cleanup(func() { kernel = was })
}

// TestFullCounter is S2: QEMU made the eventfd blocking and its counter full.
func TestFullCounter(t *testing.T) {
	if kernel() == nil {
		t.Error("this kernel has no AIO that signals: only the slow way was tested")
	}
	for _, c := range []struct {
		name string
		aio  bool
	}{{"by the kernel", true}, {"by a goroutine", false}} {
		t.Run(c.name, func(t *testing.T) {
			if !c.aio {
				withoutAIO(t)
			}
			fd := newEventFD(t, 0)
			fill(t, fd)
			var e Event
			e.Set(fd)
			soon(t, "Signal", func() {
				for range 3 * maxRequests {
					e.Signal()
				}
			})
			if n := count(t, fd); n < math.MaxUint64-1 {
				t.Errorf("the counter was %d", n)
			}
			soon(t, "a read after a signal", func() { // it is not lost
				e.Signal()
				if n := count(t, fd); n == 0 {
					t.Error("nothing signalled")
				}
			})
			e.mu.Lock()
			writing := e.writing
			e.mu.Unlock()
			if c.aio && writing {
				t.Error("a goroutine writes although the kernel has AIO")
			}
		})
	}
}

// TestDescriptorReplaced: a writer that waits for one descriptor does not write to
// another that gets its number.
func TestDescriptorReplaced(t *testing.T) {
	withoutAIO(t)
	var e Event
	e.Signal() // nothing to signal
	first, second := newEventFD(t, 0), newEventFD(t, unix.EFD_NONBLOCK)
	fill(t, first)
	e.Set(first)
	e.Signal()
	e.Set(second)
	e.Signal()
	soon(t, "the signal of the new descriptor", func() {
		count(t, first) // lets the writer go on
		p := []unix.PollFd{{Fd: int32(second), Events: unix.POLLIN}}
		for n := 0; n == 0; {
			n, _ = unix.Poll(p, -1)
		}
	})
	e.Set(-1)
	e.Signal()
}

func TestSignalAllocatesNothing(t *testing.T) {
	if kernel() == nil {
		t.Skip("the kernel has no AIO that signals")
	}
	var e Event
	e.Set(newEventFD(t, unix.EFD_NONBLOCK))
	if n := testing.AllocsPerRun(200, e.Signal); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestCheck: S2, a file that is called like an eventfd is none.
func TestCheck(t *testing.T) {
	if err := Check(newEventFD(t, 0)); err != nil {
		t.Error(err)
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "anon_inode:[eventfd]"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if Check(int(f.Fd())) == nil || Check(-1) == nil {
		t.Error("a file or nothing was taken for an eventfd")
	}
}

// TestSocket: S2, a socket takes the 8 bytes that an eventfd would, and one that nobody reads, or
// that nobody has any more, does not stop who signals it.
func TestSocket(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[1])
	if err := CheckCall(fds[1]); err != nil {
		t.Error(err)
	}
	var e Event
	e.Set(fds[1])
	e.Signal()
	if n := count(t, fds[0]); n != 1 {
		t.Errorf("the other side reads %d", n)
	}
	if n := testing.AllocsPerRun(100, e.Signal); n != 0 {
		t.Errorf("%v allocations", n)
	}
	soon(t, "Signal", func() {
		for e := unix.Send(fds[1], one[:], unix.MSG_DONTWAIT); e == nil; e = unix.Send(fds[1], one[:], unix.MSG_DONTWAIT) {
		}
		e.Signal()
	})
	_ = unix.Close(fds[0])
	e.Signal() // without SIGPIPE
	e.Set(newEventFD(t, 0))
	e.Signal()
	if n := count(t, e.fd-1); n != 1 {
		t.Errorf("an eventfd after a socket was signalled %d times", n)
	}
}

func TestCheckCall(t *testing.T) {
	if err := CheckCall(newEventFD(t, 0)); err != nil {
		t.Error(err)
	}
	for _, kind := range [][2]int{{unix.AF_INET, unix.SOCK_STREAM}, {unix.AF_INET, unix.SOCK_DGRAM}, {unix.AF_UNIX, unix.SOCK_DGRAM}} {
		fd, err := unix.Socket(kind[0], kind[1]|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if CheckCall(fd) == nil {
			t.Errorf("a socket of family %d and type %d was accepted", kind[0], kind[1])
		}
		_ = unix.Close(fd)
	}
	if CheckCall(-1) == nil {
		t.Error("nothing was accepted")
	}
}

// TestSignalsOnceWithoutAIO: without AIO, too, a signal is written once, and one that comes when there
// is no descriptor any more never is.
func TestSignalsOnceWithoutAIO(t *testing.T) {
	withoutAIO(t)
	fd := newEventFD(t, unix.EFD_NONBLOCK)
	var e Event
	e.Set(fd)
	written := func() {
		t.Helper()
		soon(t, "a goroutine that writes", func() {
			for writing := true; writing; time.Sleep(time.Millisecond) {
				e.mu.Lock()
				writing = e.writing
				e.mu.Unlock()
			}
		})
	}
	e.Signal()
	written()
	if n := count(t, fd); n != 1 {
		t.Errorf("a signal counts %d", n)
	}
	e.mu.Lock()
	e.fd, e.again, e.writing = 0, true, true // as Set does between a signal and its turn
	e.mu.Unlock()
	go e.write()
	written()
	if n, err := unix.Read(fd, make([]byte, 8)); err == nil {
		t.Errorf("%d bytes to read: signalled after the descriptor was taken back", n)
	}
}
