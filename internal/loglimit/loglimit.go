package loglimit

import (
	"context"
	"encoding/hex"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"
)

// Lines that guests and peers can cause: a burst, then one a second.
const (
	burst  = 20
	refill = 1_000_000_000 // ns per line
)

// Log is a log with a limit. Any goroutine may use one that writes at once.
type Log struct {
	To    *slog.Logger
	Later func(write func()) // has a line written later, as at the end of a shard's Step; nil: lines are written at once

	mu    sync.Mutex
	used  int64 // lines of the burst
	since int64 // used was counted at this time, a full second of the clock
	lost  uint64
}

// Line logs a line unless there were too many. now is in ns of any one clock.
func (l *Log) Line(now int64, level slog.Level, msg string, args ...any) {
	l.mu.Lock()
	gained := (now - l.since) / refill
	l.used, l.since = max(0, l.used-gained), l.since+gained*refill
	if l.used >= burst {
		l.lost++
		l.mu.Unlock()
		return
	}
	l.used++
	lost := l.lost
	l.lost = 0
	l.mu.Unlock()
	if lost > 0 {
		args = append(args, "lines_left_out_before", lost)
	}
	write := func() { l.To.Log(context.Background(), level, msg, args...) }
	if l.Later == nil {
		write()
		return
	}
	l.Later(write)
}

// Warn logs a warning by the wall clock.
func (l *Log) Warn(msg string, args ...any) {
	l.Line(time.Now().UnixNano(), slog.LevelWarn, msg, args...)
}

// Panicked logs a panic, recovered as v, that a received frame caused.
func (l *Log) Panicked(now int64, what string, v any, frame []byte) {
	const shown = 256
	l.Line(now, slog.LevelError, "fault in the program: "+what+" was dropped; please report this line",
		"panic", v, "bytes", len(frame), "begin", hex.EncodeToString(frame[:min(len(frame), shown)]), "stack", string(debug.Stack()))
}
