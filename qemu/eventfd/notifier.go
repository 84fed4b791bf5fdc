package eventfd

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Notifier is the thread that signals the events of one guest.
//
//	Signal (any thread): due ──┐             ┌─▶ eventfd of the guest's QEMU
//	Set: retired ──────────────┴▶ Notifier: run ─┘
//	                              └ nothing is due: asleep
type Notifier struct {
	events []Event
	asleep atomic.Uint32 // 1: the thread sleeps, is about to, or was not started yet
	begun  atomic.Bool
	gone   chan struct{} // closed when the thread has ended

	mu      sync.Mutex
	ended   bool
	retired []retired
}

// retired is a descriptor that was replaced.
type retired struct {
	event *Event
	to    *target
	due   bool // a signal is due
}

// NewNotifier returns a notifier with a number of events. Its thread starts with the first signal.
func NewNotifier(events int) *Notifier {
	n := &Notifier{events: make([]Event, events), gone: make(chan struct{})}
	for i := range n.events {
		n.events[i].notifier = n
	}
	n.asleep.Store(1)
	return n
}

// Event returns the i-th event.
func (n *Notifier) Event(i int) *Event { return &n.events[i] }

// Idle reports whether no signal is due.
func (n *Notifier) Idle() bool { return n.asleep.Load() == 1 }

// Close makes the thread signal what is due and end. It does not wait for that, because the guest's
// QEMU may make the last signal slow.
func (n *Notifier) Close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ended {
		return
	}
	n.ended = true
	n.wake()
}

// replace gives an event another descriptor. The thread closes the earlier one.
func (n *Notifier) replace(e *Event, to *target) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ended {
		to.close()
		return
	}
	due := e.due.Swap(false)
	if was := e.to.Swap(to); was != nil {
		n.retired = append(n.retired, retired{e, was, due})
		n.wake()
	}
}

// wake wakes the thread, or starts it.
func (n *Notifier) wake() {
	if n.asleep.Load() == 0 || !n.asleep.CompareAndSwap(1, 0) {
		return
	}
	futexWake(&n.asleep)
	if !n.begun.Swap(true) {
		go n.run()
	}
}

// run is the thread's loop.
func (n *Notifier) run() {
	for {
		if n.work() {
			continue
		}
		if n.end() {
			close(n.gone)
			return
		}
		n.asleep.Store(1)
		if n.waiting() && n.asleep.CompareAndSwap(1, 0) {
			continue
		}
		for n.asleep.Load() == 1 {
			futexWait(&n.asleep, 1)
		}
	}
}

// work signals what is due. It reports whether there was anything to do.
func (n *Notifier) work() (some bool) {
	n.mu.Lock()
	old := n.retired
	n.retired = nil
	n.mu.Unlock()
	for _, r := range old {
		if r.due {
			r.event.signal(r.to)
		}
		r.to.close()
		some = true
	}
	for i := range n.events {
		if e := &n.events[i]; e.due.Load() && e.due.Swap(false) {
			e.signal(e.to.Load())
			some = true
		}
	}
	return some
}

// waiting reports whether there is anything to do.
func (n *Notifier) waiting() bool {
	for i := range n.events {
		if n.events[i].due.Load() {
			return true
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ended || len(n.retired) > 0
}

// end closes all descriptors if the notifier was closed.
func (n *Notifier) end() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.ended {
		return false
	}
	for i := range n.events {
		n.events[i].to.Swap(nil).close()
	}
	return true
}

func (t *target) close() {
	if t != nil {
		_ = unix.Close(t.fd)
	}
}
