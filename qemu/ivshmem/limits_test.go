package ivshmem

import (
	"bytes"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/eventfd"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestOutsideTheWindow: what lies behind the window reads as zero, and is not written.
func TestOutsideTheWindow(t *testing.T) {
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

// TestDoorbells: each of the doorbells has an eventfd of its own; others are none.
func TestDoorbells(t *testing.T) {
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

// TestWindowLives: a window is there until it is closed and nobody uses it any more, whoever is the
// last.
func TestWindowLives(t *testing.T) {
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

// TestAdopt: another process has the same window by its descriptors: memory, doorbells, vectors.
func TestAdopt(t *testing.T) {
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

// TestAdoptRefuses: descriptors that are not those of a window are refused, and closed.
func TestAdoptRefuses(t *testing.T) {
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
