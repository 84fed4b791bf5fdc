package netns

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Space is a network namespace that lives as long as its thread. Processes started in it end no
// later if they ask the kernel for a signal at their parent's death.
type Space struct {
	work  chan func()
	stop  chan struct{}
	ended chan struct{}
	once  sync.Once
	file  *os.File
}

// NewSpace returns a namespace whose loopback is up, with a thread in it.
func NewSpace() (*Space, error) {
	s := &Space{work: make(chan func()), stop: make(chan struct{}), ended: make(chan struct{})}
	ready := make(chan error, 1)
	go func() {
		defer close(s.ended) // the thread stays locked, so it ends with this goroutine
		runtime.LockOSThread()
		err := New()
		if err == nil {
			s.file, err = os.Open("/proc/thread-self/ns/net")
		}
		if ready <- err; err != nil {
			return
		}
		for {
			select {
			case f := <-s.work:
				f()
			case <-s.stop:
				return
			}
		}
	}()
	if err := <-ready; err != nil {
		return nil, err
	}
	return s, nil
}

// Do runs f on the namespace's thread: sockets and TAPs that it opens and processes that it starts
// are in the namespace. f must not end its goroutine (as t.Fatal does).
func (s *Space) Do(f func() error) error {
	done := make(chan error, 1)
	work := func() { done <- f() }
	select {
	case s.work <- work:
		return <-done
	case <-s.ended:
		return errors.New("the network namespace is closed")
	}
}

// Take moves a link of the calling thread's namespace into this one, gives it addresses and brings
// it up.
func (s *Space) Take(name string, addresses ...string) error {
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetNsFd(link, int(s.file.Fd()))
	}
	if err != nil {
		return fmt.Errorf("move %s: %w", name, err)
	}
	return s.Do(func() error { return Up(name, addresses...) })
}

// Path returns a path by which other processes can open the namespace until it is closed.
func (s *Space) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), s.file.Fd()) }

// Close ends the thread, and with it the namespace once nobody else uses it.
func (s *Space) Close() error {
	s.once.Do(func() { close(s.stop) })
	<-s.ended
	return s.file.Close()
}

// Up adds addresses such as 10.0.0.1/24 to a link in the calling thread's namespace, and brings the
// link up. They can be used at once: whether somebody else has an IPv6 address is not checked.
func Up(name string, addresses ...string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, a := range addresses {
		ip, network, err := net.ParseCIDR(a)
		if err != nil {
			return err
		}
		network.IP = ip
		if err := netlink.AddrReplace(link, &netlink.Addr{IPNet: network, Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("%s: address %s: %w", name, a, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("%s: up: %w", name, err)
	}
	return nil
}
