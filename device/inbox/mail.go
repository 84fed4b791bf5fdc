package inbox

import (
	"sync"

	"github.com/falcon-vnic/vnic/internal/vtime"
)

// Mail passes messages from one owner to another, in order. Messages cost the receiver's thread
// nothing until it takes its input. Mail has no limit; the messages are bounded by their kind: an
// answer to a request, a notice that replaces the previous one, or limited by what a function may
// own.
type Mail[O, M any] struct {
	to   *Box[O]
	take func(owner O, now vtime.Time, m M)

	mu      sync.Mutex
	waiting []M
	spare   []M
	posted  bool // it is in the box
}

// NewMail returns an empty mail to the owner of a box. take is called with each message, on that
// owner's thread.
func NewMail[O, M any](to *Box[O], take func(owner O, now vtime.Time, m M)) *Mail[O, M] {
	return &Mail[O, M]{to: to, take: take}
}

// Send sends messages. The caller may reuse the list after it returns. They are lost if the
// receiver has stopped.
func (l *Mail[O, M]) Send(list []M) {
	if len(list) == 0 {
		return
	}
	l.mu.Lock()
	l.waiting = append(l.waiting, list...)
	post := !l.posted
	l.posted = true
	l.mu.Unlock()
	if post {
		l.to.Post(l)
	}
}

// maxKept is the largest buffer, in messages, that an empty mail keeps.
const maxKept = 1024

// Drain implements Source.
func (l *Mail[O, M]) Drain(owner O, now vtime.Time) {
	l.mu.Lock()
	batch := l.waiting
	l.waiting, l.spare, l.posted = l.spare[:0], nil, false
	l.mu.Unlock()
	for _, m := range batch {
		l.take(owner, now, m)
	}
	clear(batch)
	if cap(batch) > maxKept {
		return
	}
	l.mu.Lock()
	l.spare = batch[:0]
	l.mu.Unlock()
}
