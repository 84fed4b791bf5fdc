package device

import (
	"context"
	"log/slog"
	"sync"

	"github.com/falcon-vnic/vnic/device/effect"
)

// Lines that guests and peers can cause: a burst, then one a second.
const (
	logBurst  = 20
	logRefill = 1_000_000_000 // ns per line
)

// logLimit keeps guests and peers from flooding the log. Any goroutine may
// use one without effects; one with effects belongs to its shard's thread.
type logLimit struct {
	log     *slog.Logger
	effects *effect.List // where lines wait for the end of the Step; nil: they are written at once

	mu    sync.Mutex
	left  int64
	since int64 // left was counted at this time
	lost  uint64
}

// line logs a line unless there were too many. now is in ns of any one clock.
func (l *logLimit) line(now int64, level slog.Level, msg string, args ...any) {
	l.mu.Lock()
	if gained := (now - l.since) / logRefill; l.since == 0 || gained > 0 {
		l.left = min(logBurst, l.left+gained)
		if l.since == 0 {
			l.left = logBurst
		}
		l.since = now
	}
	if l.left <= 0 {
		l.lost++
		l.mu.Unlock()
		return
	}
	l.left--
	lost := l.lost
	l.lost = 0
	l.mu.Unlock()
	if lost > 0 {
		args = append(args, "lines_left_out_before", lost)
	}
	write := func() { l.log.Log(context.Background(), level, msg, args...) }
	if l.effects == nil {
		write()
		return
	}
	l.effects.Add(effect.Func(write))
}
