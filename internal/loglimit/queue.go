package loglimit

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// maxWaiting is how many lines wait for a log that is slow. Those beyond are lost, and counted.
const maxWaiting = 1024

// Queue writes lines in a goroutine of its own. So a disk, a terminal or a pipe that blocks does
// not hold up those that log, above all not the thread of a shard.
type Queue struct {
	mu      sync.Mutex
	waiting []line
	lost    int
	idle    chan struct{} // closed when nothing waits any more; nil: nothing does
}

// line is a line that waits to be written.
type line struct {
	to     slog.Handler
	record slog.Record
}

// Handler returns a handler whose lines the queue passes on to another.
func (q *Queue) Handler(to slog.Handler) slog.Handler { return queued{q, to} }

type queued struct {
	q  *Queue
	to slog.Handler
}

// Enabled implements slog.Handler.
func (h queued) Enabled(ctx context.Context, l slog.Level) bool { return h.to.Enabled(ctx, l) }

// Handle implements slog.Handler. It never waits.
func (h queued) Handle(_ context.Context, r slog.Record) error {
	h.q.add(line{h.to, r.Clone()})
	return nil
}

// WithAttrs implements slog.Handler.
func (h queued) WithAttrs(a []slog.Attr) slog.Handler { return queued{h.q, h.to.WithAttrs(a)} }

// WithGroup implements slog.Handler.
func (h queued) WithGroup(name string) slog.Handler { return queued{h.q, h.to.WithGroup(name)} }

func (q *Queue) add(l line) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == maxWaiting {
		q.lost++
		return
	}
	q.waiting = append(q.waiting, l)
	if q.idle == nil {
		q.idle = make(chan struct{})
		go q.write()
	}
}

// write writes lines until none waits.
func (q *Queue) write() {
	for {
		q.mu.Lock()
		lines, lost := q.waiting, q.lost
		q.waiting, q.lost = nil, 0
		if len(lines) == 0 {
			close(q.idle)
			q.idle = nil
			q.mu.Unlock()
			return
		}
		q.mu.Unlock()
		for i := range lines {
			l := &lines[i]
			if lost > 0 && i == len(lines)-1 { // they came after it
				l.record.AddAttrs(slog.Int("lines_lost_after", lost))
			}
			_ = l.to.Handle(context.Background(), l.record)
		}
	}
}

// Flush waits, for a limited time, until everything that was logged before is written.
func (q *Queue) Flush(most time.Duration) {
	q.mu.Lock()
	idle := q.idle
	q.mu.Unlock()
	if idle == nil {
		return
	}
	select {
	case <-idle:
	case <-time.After(most):
	}
}
