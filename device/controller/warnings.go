package controller

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
)

// Warnings are what the NIC goes on without: things that were asked for and cannot be had. What
// one is about names it; a later one about the same takes its place. Any goroutine may use them.
type Warnings struct {
	log   *slog.Logger
	mu    sync.Mutex
	about map[string]string
}

// NewWarnings returns none yet. Each is logged, too.
func NewWarnings(log *slog.Logger) *Warnings {
	return &Warnings{log: log, about: map[string]string{}}
}

// Warn notes and logs a warning.
func (w *Warnings) Warn(about string, err error, remedy string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := about + ": " + err.Error()
	if w.about[about] == text {
		return
	}
	w.about[about] = text
	w.log.Error("the NIC goes on without "+about, "err", err, "remedy", remedy)
}

// Clear takes a warning back.
func (w *Warnings) Clear(about string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.about, about)
}

// List is all of them.
func (w *Warnings) List() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Values(w.about))
}
