package inbox

import (
	"sync"

	"github.com/falcon-vnic/vnic/internal/vtime"
)

// Mail is messages from one owner to another, in order. One that sends costs the other's thread
// nothing until it takes its input. What is sent bounds itself: an answer to a question, news of
// which the newest counts, what a function's limits allow.
type Mail[O, M any] struct {
	to   *Box[O]
	take func(owner O, now vtime.Time, m M)

	mu      sync.Mutex
	waiting []M
	spare   []M
	posted  bool // stands in the box
}

// NewMail returns an empty one for the owner of a box, which takes each message.
func NewMail[O, M any](to *Box[O], take func(owner O, now vtime.Time, m M)) *Mail[O, M] {
	return &Mail[O, M]{to: to, take: take}
}

// Send sends messages, which are the caller's again when it returns. They are lost when the other
// has stopped.
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

// maxKept is how many messages' room a mail keeps when it is empty.
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
