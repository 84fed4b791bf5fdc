package device

import (
	"maps"
	"slices"
	"sync"
)

// warnings are what the NIC goes on without: things that were asked for and cannot be had. What
// one is about names it; a later one about the same takes its place. Any goroutine may use them.
type warnings struct {
	mu    sync.Mutex
	about map[string]string
}

// warn notes and logs a warning.
func (n *NIC) warn(about string, err error, remedy string) {
	w := &n.warnings
	w.mu.Lock()
	defer w.mu.Unlock()
	text := about + ": " + err.Error()
	if w.about[about] == text {
		return
	}
	if w.about == nil {
		w.about = map[string]string{}
	}
	w.about[about] = text
	n.log.Error("the NIC goes on without "+about, "err", err, "remedy", remedy)
}

// clear takes a warning back.
func (w *warnings) clear(about string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.about, about)
}

func (w *warnings) list() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Values(w.about))
}

// What warnings are about.
const (
	aboutCapture = "capture"
	aboutKeyLog  = "psp.keylog"
	aboutMetrics = "metrics"
)
