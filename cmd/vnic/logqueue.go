package main

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"
)

// logQueueLimit bounds the text that waits for a standard error that is not read.
const logQueueLimit = 256 << 10

// logFlush is how long the end of the process waits for that text to be taken.
const logFlush = time.Second

// stderr is where the log goes.
var stderr = newLogQueue(os.Stderr)

// logQueue writes to out without ever making the caller wait: standard error may be a
// pipe that nobody reads, and guests cause log lines. What exceeds the limit is dropped
// and counted, and the count is written as soon as something can be written again.
type logQueue struct {
	out io.Writer

	mu      sync.Mutex
	handler func(io.Writer) slog.Handler
	json    bool // of the handler's lines
	waiting [][]byte
	size    int           // bytes waiting, and being written
	dropped int           // lines, since the last that was not
	idle    chan struct{} // closed when the writer ends; nil: there is none
}

func newLogQueue(out io.Writer) *logQueue {
	return &logQueue{out: out, handler: func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) }}
}

// use says how the lines are written, for those of the queue itself.
func (q *logQueue) use(handler func(io.Writer) slog.Handler, json bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.handler, q.json = handler, json
}

// say tells why the program ends: a reader of JSON gets JSON to the last line.
func (q *logQueue) say(err error) {
	q.mu.Lock()
	handler, json := q.handler, q.json
	q.mu.Unlock()
	if json {
		slog.New(handler(q)).Error("vnic ends", "err", err)
		return
	}
	fmt.Fprintln(q, "vnic:", err)
}

// Write implements io.Writer. It takes one line at a time, as slog's handlers write.
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

// drain writes until nothing waits.
func (q *logQueue) drain(idle chan struct{}) {
	defer close(idle)
	for {
		line, size := q.next()
		if line == nil {
			return
		}
		_, _ = q.out.Write(line) // where could an error be told?
		q.mu.Lock()
		q.size -= size
		q.mu.Unlock()
	}
}

// next takes a line, nil at the end, and the size that it had in the queue.
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

// flush waits until everything is written, but not for long.
func (q *logQueue) flush() {
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
