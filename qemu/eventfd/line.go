package eventfd

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Line is the thread that signals the events of one guest.
//
//	Signal (any thread): due ──┐             ┌─▶ eventfd of the guest's QEMU
//	Set: retired ──────────────┴▶ Line: run ─┘
//	                              └ nothing is due: asleep
type Line struct {
	events []Event
	asleep atomic.Uint32 // 1: the thread sleeps, or is about to, or has not begun
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
	due   bool // it is to be signalled once more
}

// NewLine returns a line of so many events. Its thread begins with the first signal.
func NewLine(events int) *Line {
	l := &Line{events: make([]Event, events), gone: make(chan struct{})}
	for i := range l.events {
		l.events[i].line = l
	}
	l.asleep.Store(1)
	return l
}

// Event returns the i-th.
func (l *Line) Event(i int) *Event { return &l.events[i] }

// Idle tells whether all has been signalled.
func (l *Line) Idle() bool { return l.asleep.Load() == 1 }

// Close has the thread signal what is due, and end. It does not wait for that: the guest's QEMU may
// make the last signal slow.
func (l *Line) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	l.ended = true
	l.rouse()
}

// replace gives an event another descriptor, and leaves the one before to the thread.
func (l *Line) replace(e *Event, to *target) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		to.close()
		return
	}
	due := e.due.Swap(false)
	if was := e.to.Swap(to); was != nil {
		l.retired = append(l.retired, retired{e, was, due})
		l.rouse()
	}
}

// rouse has the thread look.
func (l *Line) rouse() {
	if l.asleep.Load() == 0 || !l.asleep.CompareAndSwap(1, 0) {
		return
	}
	futexWake(&l.asleep)
	if !l.begun.Swap(true) {
		go l.run()
	}
}

// run is the thread.
func (l *Line) run() {
	for {
		if l.work() {
			continue
		}
		if l.end() {
			close(l.gone)
			return
		}
		l.asleep.Store(1)
		if l.waiting() && l.asleep.CompareAndSwap(1, 0) {
			continue
		}
		for l.asleep.Load() == 1 {
			futexWait(&l.asleep, 1)
		}
	}
}

// work signals what is due, and reports whether there was anything to do.
func (l *Line) work() (some bool) {
	l.mu.Lock()
	old := l.retired
	l.retired = nil
	l.mu.Unlock()
	for _, r := range old {
		if r.due {
			r.event.signal(r.to)
		}
		r.to.close()
		some = true
	}
	for i := range l.events {
		if e := &l.events[i]; e.due.Load() && e.due.Swap(false) {
			e.signal(e.to.Load())
			some = true
		}
	}
	return some
}

// waiting tells whether there is anything to do.
func (l *Line) waiting() bool {
	for i := range l.events {
		if l.events[i].due.Load() {
			return true
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended || len(l.retired) > 0
}

// end gives up all descriptors if the line was closed.
func (l *Line) end() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		return false
	}
	for i := range l.events {
		l.events[i].to.Swap(nil).close()
	}
	return true
}

func (t *target) close() {
	if t != nil {
		_ = unix.Close(t.fd)
	}
}
