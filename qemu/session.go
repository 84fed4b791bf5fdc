package qemu

import (
	"net"
	"slices"
	"sync"
	"syscall"

	"github.com/falcon-vnic/vnic/qemu/guestmem"
	"github.com/falcon-vnic/vnic/queues"
)

// ram holds a guest's memory regions and the watchers that are told of their changes.
type ram struct {
	mu       sync.Mutex
	regions  queues.Regions
	watchers []*watcher
}

type watcher struct {
	call    sync.Mutex // held while f runs: calls do not overlap
	mu      sync.Mutex
	stopped bool
	f       func(queues.Regions)
}

// watch implements queues.Session.Watch. stop may be called from any goroutine and from f. It does
// not wait for a running call of f.
func (r *ram) watch(f func(queues.Regions)) (stop func()) {
	w := &watcher{f: f}
	w.call.Lock()
	defer w.call.Unlock()
	r.mu.Lock()
	r.watchers = append(r.watchers, w)
	now := r.regions
	r.mu.Unlock()
	// A change from here on waits for w.call before mappings are removed.
	w.f(now)
	return func() {
		w.mu.Lock()
		w.stopped = true
		w.mu.Unlock()
		r.mu.Lock()
		defer r.mu.Unlock()
		if i := slices.Index(r.watchers, w); i >= 0 {
			r.watchers = slices.Delete(r.watchers, i, i+1)
		}
	}
}

// set announces new regions and returns when no watcher uses the old ones any more. Calls must not
// overlap.
func (r *ram) set(regions queues.Regions) {
	r.mu.Lock()
	r.regions = regions
	watchers := slices.Clone(r.watchers)
	r.mu.Unlock()
	for _, w := range watchers {
		w.call.Lock()
		w.mu.Lock()
		stopped := w.stopped
		w.mu.Unlock()
		if !stopped {
			w.f(regions)
		}
		w.call.Unlock()
	}
}

// presence records whether a QEMU is connected and, where a relay is in between, has been told of.
// Sessions that drivers open by windows wait for it: a window is shared memory, so a driver can open
// a session before QEMU has announced the guest's memory, above all when a worker takes over from one
// that died. Such a session would have no memory, and the device would reject the driver's valid
// addresses (DRV-401).
type presence struct {
	known <-chan struct{} // VhostOptions.Known

	mu    sync.Mutex
	begun bool
	here  chan struct{} // closed while a QEMU is there
}

func newPresence(known <-chan struct{}) presence {
	return presence{known: known, here: make(chan struct{})}
}

// begin records that a QEMU is there. It may be called again before end.
func (p *presence) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.begun {
		p.begun = true
		close(p.here)
	}
}

// end records that the QEMU has disconnected.
func (p *presence) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.begun {
		p.begun, p.here = false, make(chan struct{})
	}
}

// await waits until the earlier announcements are known (VhostOptions.Known) and a QEMU is there. It
// returns false if done is closed first.
func (p *presence) await(done <-chan struct{}) bool {
	p.mu.Lock()
	here := p.here
	p.mu.Unlock()
	for _, c := range []<-chan struct{}{p.known, here} {
		if c == nil {
			continue
		}
		select {
		case <-c:
		case <-done:
			return false
		}
	}
	return true
}

// windowSession is a session that a driver opened by the control block of a function's window.
type windowSession struct {
	net.Conn
	peer     queues.Identity
	ram      *ram
	function uint32
	bell     func(function uint32) (queues.Bell, error)
}

var (
	_ queues.Session = (*windowSession)(nil)
	_ queues.Bound   = (*windowSession)(nil)
	_ queues.Ringer  = (*windowSession)(nil)
)

// Function implements queues.Bound.
func (s *windowSession) Function() uint32 { return s.function }

// Identity implements queues.Session.
func (s *windowSession) Identity() queues.Identity { return s.peer }

// Watch implements queues.Session.
func (s *windowSession) Watch(f func(queues.Regions)) (stop func()) { return s.ram.watch(f) }

// Bell implements queues.Ringer.
func (s *windowSession) Bell(function uint32) (queues.Bell, error) { return s.bell(function) }

// socket is a stream to which the device can write without a goroutine: whoever waits for an event
// is told of it from the shard's thread.
type socket interface {
	net.Conn
	syscall.Conn
}

// mappedSession is a session whose memory is mapped for it alone, until Close.
type mappedSession struct {
	socket
	peer  queues.Identity
	ram   ram
	maps  []*guestmem.Mapping
	close sync.Once
}

var (
	_ queues.Session = (*mappedSession)(nil)
	_ syscall.Conn   = (*mappedSession)(nil)
)

// Identity implements queues.Session.
func (s *mappedSession) Identity() queues.Identity { return s.peer }

// Watch implements queues.Session.
func (s *mappedSession) Watch(f func(queues.Regions)) (stop func()) { return s.ram.watch(f) }

// Close closes the stream at once. The memory is unmapped after the watchers have released it.
// Close does not wait for that, since a watcher may be waiting for the caller of Close.
func (s *mappedSession) Close() error {
	err := s.socket.Close()
	s.close.Do(func() {
		go func() {
			s.ram.set(queues.Regions{})
			unmapAll(s.maps)
		}()
	})
	return err
}

func unmapAll(maps []*guestmem.Mapping) {
	for _, m := range maps {
		m.Unmap()
	}
}
