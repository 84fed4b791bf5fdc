package eventfd

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/internal/allocs"
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

// event returns an event of a notifier that ends with the test.
func event(t testing.TB) *Event {
	l := NewNotifier(1)
	t.Cleanup(func() { l.Close(); <-l.gone })
	return l.Event(0)
}

func set(t testing.TB, e *Event, fd int) {
	t.Helper()
	if err := e.Set(fd); err != nil {
		t.Fatal(err)
	}
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
	case <-time.After(2 * time.Minute):
		t.Fatalf("%s blocks", what)
	}
}

// withoutAIO runs the rest of a test as on a kernel without AIO.
func withoutAIO(t *testing.T) {
	was := kernel
	kernel = func() *context { return nil }
	t.Cleanup(func() { kernel = was })
}

// TestFullCounterDoesNotBlock: a signal does not block even if QEMU has made the eventfd blocking
// and filled its counter.
func TestFullCounterDoesNotBlock(t *testing.T) {
	if kernel() == nil {
		t.Error("this kernel has no AIO that signals: only the slow way was tested")
	}
	for _, c := range []struct {
		name string
		aio  bool
	}{{"by the kernel", true}, {"by writes", false}} {
		t.Run(c.name, func(t *testing.T) {
			if !c.aio {
				withoutAIO(t)
			}
			fd := newEventFD(t, 0)
			fill(t, fd)
			e := event(t)
			set(t, e, fd)
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
		})
	}
}

// TestReplacedDescriptorIsNotWritten: a writer that waits for one descriptor does not write to
// another that gets its number.
func TestReplacedDescriptorIsNotWritten(t *testing.T) {
	withoutAIO(t)
	e := event(t)
	e.Signal() // nothing to signal
	first, second := newEventFD(t, 0), newEventFD(t, unix.EFD_NONBLOCK)
	fill(t, first)
	set(t, e, first)
	e.Signal()
	set(t, e, second)
	e.Signal()
	soon(t, "the signal of the new descriptor", func() {
		count(t, first) // lets the writer go on
		p := []unix.PollFd{{Fd: int32(second), Events: unix.POLLIN}}
		for n := 0; n == 0; {
			n, _ = unix.Poll(p, -1)
		}
	})
	set(t, e, None)
	e.Signal()
}

func TestSignalAllocatesNothing(t *testing.T) {
	if kernel() == nil {
		t.Skip("the kernel has no AIO that signals")
	}
	e := event(t)
	set(t, e, newEventFD(t, unix.EFD_NONBLOCK))
	if n := allocs.PerRun(200, e.Signal); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestOnlyEventfdsAreAccepted: other files are refused, even one whose name looks like an
// eventfd's.
func TestOnlyEventfdsAreAccepted(t *testing.T) {
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

// TestSocketIsSignalledWithoutWaiting: a socket is sent the 8 bytes that an eventfd would get. A
// socket that nobody reads, or whose other end is closed, does not hold up the signalling thread.
func TestSocketIsSignalledWithoutWaiting(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[1])
	if err := CheckCall(fds[1]); err != nil {
		t.Error(err)
	}
	e := event(t)
	set(t, e, fds[1])
	e.Signal()
	if n := count(t, fds[0]); n != 1 {
		t.Errorf("the other side reads %d", n)
	}
	if n := allocs.PerRun(100, e.Signal); n != 0 {
		t.Errorf("%v allocations", n)
	}
	soon(t, "Signal", func() {
		for e := unix.Send(fds[1], one[:], unix.MSG_DONTWAIT); e == nil; e = unix.Send(fds[1], one[:], unix.MSG_DONTWAIT) {
		}
		e.Signal()
	})
	_ = unix.Close(fds[0])
	e.Signal() // without SIGPIPE
	next := newEventFD(t, 0)
	set(t, e, next)
	e.Signal()
	if n := count(t, next); n != 1 {
		t.Errorf("an eventfd after a socket was signalled %d times", n)
	}
}

func TestCallMayBeASocket(t *testing.T) {
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

// TestSignalIsWrittenOnce: a signal is written once, with the kernel's AIO or without. A signal
// that was due before the descriptor was replaced goes to the old descriptor only.
func TestSignalIsWrittenOnce(t *testing.T) {
	for _, aio := range []bool{true, false} {
		t.Run(fmt.Sprint("AIO ", aio), func(t *testing.T) {
			if !aio {
				withoutAIO(t)
			}
			l := NewNotifier(2)
			first, second := newEventFD(t, 0), newEventFD(t, unix.EFD_NONBLOCK)
			for i, fd := range []int{first, second} {
				set(t, l.Event(i), fd)
			}
			for range 100 {
				l.Event(0).Signal()
				if n := count(t, first); n != 1 {
					t.Fatalf("a signal counts %d", n)
				}
			}
			l.Event(0).Signal()
			set(t, l.Event(0), second)
			if n := count(t, first); n != 1 {
				t.Errorf("a signal counts %d", n)
			}
			l.Event(1).Signal()
			set(t, l.Event(0), None)
			set(t, l.Event(1), None)
			l.Event(1).Signal() // to nobody
			l.Close()
			<-l.gone
			if n := count(t, second); n != 1 {
				t.Errorf("a signal before the end counts %d", n)
			}
			if err := l.Event(0).Set(first); err != nil {
				t.Error(err)
			}
			l.Event(0).Signal() // after the end nothing happens
		})
	}
}

// TestADueSignalGoesToTheEarlierDescriptor: a signal that is due when its descriptor is replaced, at
// any moment of the thread, goes to that descriptor. It neither goes to the later one nor is lost.
func TestADueSignalGoesToTheEarlierDescriptor(t *testing.T) {
	withoutAIO(t) // so that the thread signals
	fds := [2]int{newEventFD(t, unix.EFD_NONBLOCK), newEventFD(t, unix.EFD_NONBLOCK)}
	const signals = 100
	for range 500 {
		n := NewNotifier(1)
		set(t, n.Event(0), fds[0])
		for i := range 2 * signals {
			n.Event(0).Signal()
			set(t, n.Event(0), fds[(i+1)%2])
		}
		n.Close()
		<-n.gone
		for i, fd := range fds {
			if got := count(t, fd); got != signals {
				t.Fatalf("descriptor %d: %d signalled, the counter is %d", i, signals, got)
			}
		}
	}
}

// TestCloseLeavesNothing: what is signalled or replaced right before Close, at any moment of the
// thread, is signalled and closed when the thread ends.
func TestCloseLeavesNothing(t *testing.T) {
	withoutAIO(t) // so that the thread signals
	fd := newEventFD(t, unix.EFD_NONBLOCK)
	for range 500 {
		var all [20]*Notifier
		for i := range all {
			all[i] = NewNotifier(1)
			set(t, all[i].Event(0), fd)
			set(t, all[i].Event(0), fd) // starts the thread, which closes the first copy
		}
		for i, n := range all {
			n.Event(0).Signal()
			if i%2 == 0 {
				set(t, n.Event(0), None)
			}
			n.Close()
		}
		for _, n := range all {
			<-n.gone
		}
		if got := count(t, fd); got != uint64(len(all)) {
			t.Fatalf("%d signalled, the counter is %d", len(all), got)
		}
	}
	if n := copies(t, fd); n != 0 {
		t.Errorf("%d copies of the descriptor are open", n)
	}
}

// copies returns how many copies of an eventfd this process has besides fd. The kernel gives each
// eventfd a number, and shows it for all copies.
func copies(t *testing.T, fd int) int {
	t.Helper()
	number := func(path string) string {
		b, _ := os.ReadFile(path) // a descriptor that was just closed has none
		_, after, _ := strings.Cut(string(b), "eventfd-id:")
		line, _, _ := strings.Cut(after, "\n")
		return strings.TrimSpace(line)
	}
	own := number(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	all, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil || own == "" {
		t.Fatalf("the eventfd's number is %q: %v", own, err)
	}
	n := -1
	for _, path := range all {
		if number(path) == own {
			n++
		}
	}
	return n
}

// TestSlowSignalHoldsUpNobody: while QEMU makes a signal take for ever, calls that signal, replace
// descriptors or close the notifier do not wait, and other guests' signals arrive.
func TestSlowSignalHoldsUpNobody(t *testing.T) {
	withoutAIO(t) // so that a signal can wait at all
	slow, other := NewNotifier(3), event(t)
	full := newEventFD(t, 0)
	fill(t, full)
	soon(t, "a caller", func() {
		for range 1000 {
			for i := range 3 {
				set(t, slow.Event(i), full)
				slow.Event(i).Signal()
			}
		}
	})
	fd := newEventFD(t, 0)
	set(t, other, fd)
	other.Signal()
	soon(t, "another guest's signal", func() {
		if n := count(t, fd); n != 1 {
			t.Errorf("signalled %d times", n)
		}
	})
	soon(t, "Close", slow.Close)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // lets it go on
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				p := []unix.PollFd{{Fd: int32(full), Events: unix.POLLIN}}
				if n, _ := unix.Poll(p, 1); n > 0 {
					_, _ = unix.Read(full, make([]byte, 8))
				}
			}
		}
	}()
	<-slow.gone
	close(stop)
	<-stopped // it would read what the next test has by the same number
}

// TestQuickSignalsNeedNoThread: a signal that one reader waits for leaves on the caller's thread.
func TestQuickSignalsNeedNoThread(t *testing.T) {
	if kernel() == nil {
		t.Skip("the kernel has no AIO that signals")
	}
	e, fd := event(t), newEventFD(t, 0)
	set(t, e, fd)
	e.Signal()
	if e.notifier.begun.Load() {
		t.Error("a thread was started")
	}
	if n := count(t, fd); n != 1 {
		t.Errorf("signalled %d times", n)
	}
}

// TestSlowSignalsArePaidFor: a guest whose signals have taken more than their allowance gets the
// next ones from its thread, until a thousand times as long has passed. Whatever keeps that thread
// then does not keep a caller.
func TestSlowSignalsArePaidFor(t *testing.T) {
	e, fd := event(t), newEventFD(t, 0)
	set(t, e, fd)
	n := e.notifier
	work := func() bool { // that does not end before it took more than the allowance
		for end := processorTime() + 2*int64(allowance); processorTime() < end; {
		}
		return true
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for range 4 * sampled {
		n.measure(func() bool { time.Sleep(time.Millisecond); return true })
	}
	if n.owes() {
		t.Error("a guest is charged for time in which others ran")
	}
	n.closely.Store(true) // the last one looked slow
	n.measure(work)
	if !n.owes() {
		t.Fatal("slow signals are not charged")
	}
	n.paid.Store(now())
	for i := 0; !n.owes(); i++ { // one that hides slow signals behind quick ones
		if i == 100*sampled {
			t.Fatal("slow signals that follow quick ones are not charged")
		}
		n.measure(func() bool { return true })
		n.measure(work)
		n.measure(func() bool { return true })
	}
	e.using.Lock() // as while QEMU makes the thread's signal take for ever
	for range 3 {
		e.Signal()
	}
	e.using.Unlock()
	soon(t, "the thread's signal", func() { count(t, fd) })
	n.paid.Store(now() + int64(allowance*factor)) // as after some seconds
	if n.owes() {
		t.Error("a guest owes what it has paid for")
	}
}
