package run_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/qemu/vfiouser"
	"github.com/falcon-vnic/vnic/qemu/vhosttest"
	"github.com/falcon-vnic/vnic/qemu/vhostuser"
)

// slowEvent is an eventfd that takes many milliseconds to signal, because the kernel calls all its
// watchers: so many epoll instances times so many copies of the descriptor. Reading it would wait
// for the end of a signal, so the first and the last watcher called show how far a signal is.
type slowEvent struct {
	fd          int
	first, last int // epoll instances
	files       []int
}

// watchers is the number of epoll instances and of copies of a slowEvent.
const watchers = 400

func newSlowEvent(t *testing.T) *slowEvent {
	t.Helper()
	e := &slowEvent{}
	t.Cleanup(func() {
		for _, fd := range e.files {
			_ = unix.Close(fd)
		}
	})
	file := func(fd int, err error) int {
		if err != nil {
			t.Fatal(err)
		}
		e.files = append(e.files, fd)
		return fd
	}
	watch := func(epoll, fd int) {
		err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET})
		vnictest.Require(t, !errors.Is(err, unix.ENOSPC), "fs.epoll.max_user_watches is too small")
		if err != nil {
			t.Fatal(err)
		}
	}
	e.fd = file(unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK))
	e.first, e.last = file(unix.EpollCreate1(unix.EPOLL_CLOEXEC)), file(unix.EpollCreate1(unix.EPOLL_CLOEXEC))
	var copies [watchers]int
	for i := range copies {
		copies[i] = file(unix.FcntlInt(uintptr(e.fd), unix.F_DUPFD_CLOEXEC, 0))
	}
	watch(e.last, e.fd) // the last watcher is called first
	for range watchers {
		epoll := file(unix.EpollCreate1(unix.EPOLL_CLOEXEC))
		for _, fd := range copies {
			watch(epoll, fd)
		}
	}
	watch(e.first, e.fd)
	return e
}

// called reports whether an epoll instance was called since the last time.
func called(epoll int) bool {
	var events [1]unix.EpollEvent
	n, _ := unix.EpollWait(epoll, events[:], 0)
	return n > 0
}

// TestSlowInterruptsDoNotHoldUpOthers: a hypervisor passes an eventfd that takes many milliseconds
// to signal, for a ring whose guest is interrupted again and again. While a signal is under way,
// datagrams of other tenants go from guest to guest by the same shard.
func TestSlowInterruptsDoNotHoldUpOthers(t *testing.T) {
	attack(t, func(b *attacked) {
		e := newSlowEvent(t)
		g := vnictest.NewPortGuest(t, b.dir, 1, 3, vhosttest.NetOptions{})
		if err := g.Guest.Ask(vhostuser.SetVringCall, vhosttest.U64(1), e.fd); err != nil {
			t.Fatal(err)
		}
		const want = 20
		signals, passed, slow := 0, 0, time.Duration(0)
		for end := time.Now().Add(vnictest.Limit); passed < want && time.Now().Before(end); signals++ {
			for called(e.last) || called(e.first) {
			}
			if !g.Guest.Transmit(0, vhosttest.Header{}, g.UDP(b.others[0].IP, nil)) {
				t.Fatal("no room")
			}
			vnictest.Eventually(t, "an interrupt", func() error {
				for range 1000 {
					if called(e.first) {
						return nil
					}
					time.Sleep(20 * time.Microsecond)
				}
				return errors.New("none")
			})
			for !called(e.last) {
				began := time.Now()
				b.others[0].Exchange(b.others[1], 1)
				if called(e.last) {
					break
				}
				slow += time.Since(began)
				passed++
			}
		}
		if passed < want {
			t.Errorf("%d datagrams passed while %d signals were under way", passed, signals)
		}
		t.Logf("%d datagrams passed while %d signals were under way, for %v", passed, signals, slow)
		if err := g.Guest.Kill(); err != nil { // so that no signal comes while the watchers leave
			t.Error(err)
		}
	})
}

// manyMaps is the number of pieces of memory by which a hypervisor makes it slow to attach its
// guest to the next worker.
const manyMaps = 30_000

// slowGuest is a front end of a vfio-user function with manyMaps pieces of memory.
func (b *attacked) slowGuest() *vfiouser.Client {
	b.t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(b.dir, "pci.pf0.vf3"), Net: "unix"})
	if err != nil {
		b.t.Fatal(err)
	}
	c, err := vfiouser.NewClient(conn, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { c.Close() })
	fd, err := unix.MemfdCreate("pieces", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		b.t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, manyMaps<<13); err != nil {
		b.t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		b.t.Fatal(err)
	}
	for i := range uint64(manyMaps) {
		m := vfiouser.Map{Range: vfiouser.Range{Addr: i << 13, Size: 1 << 12}, Offset: i << 13, Flags: vfiouser.MapRead | vfiouser.MapWrite}
		if err := c.Map(m, fd); err != nil {
			b.t.Fatal(err)
		}
	}
	return c
}

// next kills the worker and waits for the next one.
func (b *attacked) next() {
	b.t.Helper()
	if err := syscall.Kill(b.was.Worker, syscall.SIGKILL); err != nil {
		b.t.Fatal(err)
	}
	vnictest.Eventually(b.t, "the next worker", func() error {
		n, err := b.nic.NIC(b.t.Context())
		if err == nil && n.Worker == b.was.Worker {
			err = errors.New("not there")
		}
		if err == nil {
			b.was = n
		}
		return err
	})
}

// attached returns a channel that gets a value when the relay of the slow guest has done what it
// does for a new worker: it answers nothing before.
func attached(c *vfiouser.Client) <-chan error {
	done := make(chan error, 1)
	go func() {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err == nil {
			err = errors.Join(c.SetIRQs(vfiouser.IRQMSIX, 0, 1, fd), unix.Close(fd))
		}
		done <- err
	}()
	return done
}

// served waits until datagrams pass from each of the two guests to the other.
func (b *attacked) served() {
	b.t.Helper()
	for i, s := range b.others {
		to, n := b.others[1-i], 0
		vnictest.Eventually(b.t, "a datagram", func() error {
			n++
			text := fmt.Appendf(nil, "datagram %d", n)
			s.Guest.Transmit(0, vhosttest.Header{}, s.UDP(to.IP, text))
			for {
				_, f := to.Receive(100 * time.Millisecond)
				if f == nil {
					return fmt.Errorf("of %d none passed", n)
				}
				if bytes.HasSuffix(f, text) { // not one from before
					return nil
				}
			}
		})
	}
}

// TestSlowGuestDoesNotDelayRestart: a hypervisor has mapped so many pieces of memory that it takes
// seconds to attach its guest to a new worker. Each time that the worker is killed, the other
// guests are served by the next one before that, and vnic run ends when it is asked to. A busy
// machine may let a process wait for so long that once the order is another.
func TestSlowGuestDoesNotDelayRestart(t *testing.T) {
	beside(t, func(b *attacked) {
		c := b.slowGuest()
		b.goesOn()
		late := 0
		for kills, counted := 0, 0; counted < 5; kills++ { // several, as the order of guests is random
			if kills == 50 {
				t.Fatalf("after %d of %d kills the next worker got the slow guest's memory", counted, kills)
			}
			began := time.Now()
			b.next()
			done := attached(c)
			b.served()
			ready := time.Since(began)
			before := len(done) > 0
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if b.maps(b.was.Worker, "pieces") == 0 { // the relay gave up: the machine is busy
				continue
			}
			counted++
			if before {
				late++
			}
			t.Logf("others were served after %v, the slow guest was attached after %v", ready, time.Since(began))
		}
		if late > 1 {
			t.Errorf("%d of 5 times the slow guest was attached before the others were served", late)
		}
		b.goesOn()

		before, err := os.ReadFile(b.log)
		if err != nil {
			t.Fatal(err)
		}
		for done := (<-chan error)(nil); done == nil || len(done) > 0; time.Sleep(50 * time.Millisecond) {
			b.next()
			done = attached(c)
		}
		if err := syscall.Kill(b.was.PID, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		select {
		case <-b.run.Done:
		case <-time.After(vnictest.Limit):
			t.Fatal("vnic run does not end")
		}
		said, err := os.ReadFile(b.log)
		if err != nil {
			t.Fatal(err)
		}
		if b.run.Err != nil || !bytes.Contains(said[len(before):], []byte("the function is without a worker")) {
			t.Errorf("vnic run ended with %v, but not before it had attached the slow guest", b.run.Err)
		}
	})
}
