package cli

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"
)

// logQueueLimit is the largest number of bytes that wait while nobody reads standard error.
const logQueueLimit = 256 << 10

// logFlush is how long the process waits at its end until that text is written.
const logFlush = time.Second

// Stderr receives the log.
var Stderr = newLogQueue(os.Stderr)

// logQueue writes to out without ever blocking the caller: standard error may be a pipe that nobody
// reads, and guests can cause log lines. Lines beyond the limit are dropped and counted, and the
// count is logged as soon as writing works again.
type logQueue struct {
	out io.Writer

	mu      sync.Mutex
	handler func(io.Writer) slog.Handler
	json    bool // the log is JSON
	waiting [][]byte
	size    int           // bytes waiting and being written
	dropped int           // lines dropped since the last line that was queued
	idle    chan struct{} // closed when the writer goroutine ends; nil: none runs
}

func newLogQueue(out io.Writer) *logQueue {
	return &logQueue{out: out, handler: func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) }}
}

// Use sets the log handler, which the queue needs for its own lines.
func (q *logQueue) Use(handler func(io.Writer) slog.Handler, json bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.handler, q.json = handler, json
}

// Say logs the error with which the program ends. In a JSON log this line is JSON too.
func (q *logQueue) Say(err error) {
	q.mu.Lock()
	handler, json := q.handler, q.json
	q.mu.Unlock()
	if json {
		slog.New(handler(q)).Error("vnic ends", "err", err)
		return
	}
	fmt.Fprintln(q, "vnic:", err)
}

// Write implements io.Writer. Each call must pass one line, as slog's handlers do.
func (q *logQueue) Write(line []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.size+len(line) > logQueueLimit {
		q.dropped++
		return len(line), nil
	}
	q.waiting = append(q.waiting, append([]byte(nil), line...))
	q.size += len(line)
	if q.idle == nil {
		q.idle = make(chan struct{})
		go q.drain(q.idle)
	}
	return len(line), nil
}

// drain writes lines until none waits. It is the writer goroutine.
func (q *logQueue) drain(idle chan struct{}) {
	defer close(idle)
	for {
		line, size := q.next()
		if line == nil {
			return
		}
		_, _ = q.out.Write(line) // there is nowhere to report an error
		q.mu.Lock()
		q.size -= size
		q.mu.Unlock()
	}
}

// next removes a line from the queue and returns it with its size in the queue; nil: the queue is
// empty.
func (q *logQueue) next() (line []byte, size int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		if q.dropped == 0 {
			q.idle = nil
			return nil, 0
		}
		var b bytes.Buffer
		slog.New(q.handler(&b)).Warn("log lines were dropped: standard error was not read", "lines", q.dropped)
		q.dropped = 0
		return b.Bytes(), 0
	}
	line = q.waiting[0]
	q.waiting[0], q.waiting = nil, q.waiting[1:]
	return line, len(line)
}

// Flush waits until everything is written, for logFlush at most.
func (q *logQueue) Flush() {
	q.mu.Lock()
	idle := q.idle
	q.mu.Unlock()
	if idle == nil {
		return
	}
	select {
	case <-idle:
	case <-time.After(logFlush):
	}
}
