package eventfd

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Notifier signals the events of one guest, and has a thread for those that are slow.
//
//	Signal (any thread) ───────────────────────────▶ eventfd of the guest's QEMU
//	  └ the guest owes: due ──┐                  ▲
//	Set: retired ─────────────┴▶ Notifier: run ──┘
//	                             └ nothing is due: asleep
type Notifier struct {
	events  []Event
	asleep  atomic.Uint32 // 1: the thread sleeps, is about to, or was not started yet
	begun   atomic.Bool
	suspect atomic.Int64  // until when some signals are measured by processor time (now); 0: none was slow
	closely atomic.Bool   // the next one is
	paid    atomic.Int64  // when the slow signals so far are paid for (now); 0: there was none
	gone    chan struct{} // closed when the thread has ended

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

// What slow signals of a guest may take of the threads that call Signal: 5 ms, and then a thousandth
// of the time. A signal that wakes one reader takes about 1 µs, so it is not counted at all.
const (
	quick     = 20 * time.Microsecond
	allowance = 5 * time.Millisecond
	factor    = 1000
	sampled   = 8
)

// owes reports whether the guest's slow signals have used up what they may take of its callers'
// threads. Until that is paid for by time, only the Notifier's thread signals.
func (n *Notifier) owes() bool {
	paid := n.paid.Load()
	return paid != 0 && paid-now() > int64(allowance*factor)
}

// measure makes a signal on the caller's thread, and charges the guest for it if it is slow.
//
// To read the clock costs little, but a signal that looks slow by the clock may have waited while
// another program ran. So that one is not charged. It makes the guest suspect for a thousand times as
// long. Of a suspect guest's signals, the next one and then one in sampled, chosen at random, are
// measured by the thread's processor time, and are charged if they are slow. To read that time takes
// longer than most signals do, so the one that was chosen stands for the others. What a signal costs
// shows only afterwards, so one may exceed the allowance.
func (n *Notifier) measure(signal func() bool) (done bool) {
	clock, standsFor := now, int64(0)
	if suspect := n.suspect.Load(); suspect != 0 && suspect > now() {
		switch {
		case n.closely.Swap(false):
			clock, standsFor = processorTime, 1
		case rand.Uint32N(sampled) == 0:
			clock, standsFor = processorTime, sampled
		}
	}
	began := clock()
	done = signal()
	switch took := clock() - began; {
	case took <= int64(quick):
	case standsFor > 0:
		n.charge(took * standsFor)
	default:
		n.suspect.Store(now() + took*factor)
		n.closely.Store(true)
	}
	return done
}

// charge charges the guest for so many nanoseconds of its signals.
func (n *Notifier) charge(took int64) {
	n.paid.Store(max(n.paid.Load(), now()) + took*factor)
}

var start = time.Now()

// now returns the time in nanoseconds since the program's start.
func now() int64 { return int64(time.Since(start)) }

// processorTime returns the nanoseconds for which the calling thread has run.
func processorTime() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return t.Nano()
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

// Idle reports whether no signal is due, and none is being made by the thread. It looks at what is
// due first, because the thread is not asleep while it makes what it has taken.
func (n *Notifier) Idle() bool { return !n.waiting() && n.asleep.Load() == 1 }

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

// run is the thread's loop. It asks whether the notifier is closed before it looks for work, and
// ends when it then finds none: what came before Close is done.
func (n *Notifier) run() {
	for {
		last := n.closed()
		if n.work() {
			continue
		}
		if last {
			n.release()
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
		r.event.close(r.to)
		some = true
	}
	for i := range n.events {
		if e := &n.events[i]; e.due.Load() {
			if to, due := n.take(e); due {
				e.signal(to)
				some = true
			}
		}
	}
	return some
}

// take takes a signal that is due, and the descriptor it is for, in one step: if replace came
// between the two, the signal would go to the later descriptor, or to none.
func (n *Notifier) take(e *Event) (to *target, due bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return e.to.Load(), e.due.Swap(false)
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

func (n *Notifier) closed() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ended
}

// release closes the descriptors of a notifier that is closed.
func (n *Notifier) release() {
	for i := range n.events {
		n.events[i].close(n.events[i].to.Swap(nil))
	}
}

// close closes a descriptor that was the event's, once nobody signals it any more.
func (e *Event) close(was *target) {
	e.using.Lock()
	defer e.using.Unlock()
	was.close()
}

func (t *target) close() {
	if t != nil {
		_ = unix.Close(t.fd)
	}
}
