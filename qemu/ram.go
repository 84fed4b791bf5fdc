package qemu

import (
	"slices"
	"sync"

	"github.com/falcon-vnic/vnic/queues"
)

// ram holds a guest's memory regions and the watchers that are told of their changes.
type ram struct {
	mu       sync.Mutex
	regions  queues.Regions
	watchers []*watcher
}

type watcher struct {
	call    sync.Mutex // held while f runs: calls do not overlap
	mu      sync.Mutex
	stopped bool
	f       func(queues.Regions)
}

// watch implements queues.Session.Watch. stop may be called from any goroutine and from f. It does
// not wait for a running call of f.
func (r *ram) watch(f func(queues.Regions)) (stop func()) {
	w := &watcher{f: f}
	w.call.Lock()
	defer w.call.Unlock()
	r.mu.Lock()
	r.watchers = append(r.watchers, w)
	now := r.regions
	r.mu.Unlock()
	// A change from here on waits for w.call before mappings are removed.
	w.f(now)
	return func() {
		w.mu.Lock()
		w.stopped = true
		w.mu.Unlock()
		r.mu.Lock()
		defer r.mu.Unlock()
		if i := slices.Index(r.watchers, w); i >= 0 {
			r.watchers = slices.Delete(r.watchers, i, i+1)
		}
	}
}

// set announces new regions and returns when no watcher uses the old ones any more. Calls must not
// overlap.
func (r *ram) set(regions queues.Regions) {
	r.mu.Lock()
	r.regions = regions
	watchers := slices.Clone(r.watchers)
	r.mu.Unlock()
	for _, w := range watchers {
		w.call.Lock()
		w.mu.Lock()
		stopped := w.stopped
		w.mu.Unlock()
		if !stopped {
			w.f(regions)
		}
		w.call.Unlock()
	}
}
