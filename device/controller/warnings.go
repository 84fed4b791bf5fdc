package controller

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
)

// Warnings lists what was asked for and could not be had, so that the NIC runs without it. A later
// warning about the same thing replaces the earlier one. Any goroutine may use Warnings.
type Warnings struct {
	log   *slog.Logger
	mu    sync.Mutex
	about map[string]string
}

// NewWarnings returns an empty list. New or changed warnings are also logged.
func NewWarnings(log *slog.Logger) *Warnings {
	return &Warnings{log: log, about: map[string]string{}}
}

// Warn records a warning, and logs it if it is new or has changed.
func (w *Warnings) Warn(about string, err error, remedy string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := about + ": " + err.Error()
	if w.about[about] == text {
		return
	}
	w.about[about] = text
	w.log.Error("the NIC runs without "+about, "err", err, "remedy", remedy)
}

// Clear removes the warning about one thing.
func (w *Warnings) Clear(about string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.about, about)
}

// List returns all warnings, sorted.
func (w *Warnings) List() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Values(w.about))
}
