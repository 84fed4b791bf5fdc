package control

import (
	"sync"
	"time"
)

// deadline is a time after which waiting ends.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	over  chan struct{} // closed when it has passed
}

func newDeadline() *deadline { return &deadline{over: make(chan struct{})} }

// set moves the deadline; the zero time means never.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() && !d.passed() {
		close(d.over) // the time has come, and pass waits for the lock
	}
	d.timer = nil
	if d.passed() {
		d.over = make(chan struct{})
	}
	if t.IsZero() {
		return
	}
	if wait := time.Until(t); wait > 0 {
		over := d.over
		d.timer = time.AfterFunc(wait, func() { d.pass(over) })
		return
	}
	close(d.over)
}

// pass closes over, unless the deadline was moved.
func (d *deadline) pass(over chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if over == d.over && !d.passed() {
		close(over)
	}
}

func (d *deadline) passed() bool {
	select {
	case <-d.over:
		return true
	default:
		return false
	}
}

// done returns a channel that is closed when the deadline has passed.
func (d *deadline) done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.over
}
