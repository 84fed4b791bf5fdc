package loglimit

import (
	"log/slog"
	"sync"
	"time"
)

// Limiter passes one warning per second. The zero value is ready; its methods
// may be called from several goroutines.
type Limiter struct {
	mu      sync.Mutex
	next    time.Time
	dropped uint64
}

const interval = time.Second

// Warn logs a warning or counts it as left out.
func (l *Limiter) Warn(log *slog.Logger, msg string, args ...any) {
	now := time.Now()
	l.mu.Lock()
	if now.Before(l.next) {
		l.dropped++
		l.mu.Unlock()
		return
	}
	dropped := l.dropped
	l.next, l.dropped = now.Add(interval), 0
	l.mu.Unlock()
	if dropped > 0 {
		args = append(args, "similar_left_out", dropped)
	}
	log.Warn(msg, args...)
}
