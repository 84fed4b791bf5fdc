package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A reload gives the running worker another configuration:
//
//	operator ─ SIGHUP ───────▶ supervisor                      worker
//	operator ─ control API ──────────────────────────────────▶ │
//	                           │ ◀──────────────── kindReload ─ │ Worker.Reload
//	                           │ Config.Reload reads the file   │
//	                           │ ─ kindReload, descriptor ────▶ │ checks all of it, then applies it
//	                           │ ◀─────── kindReloaded: why not │
//	                           │ Config.Reloaded keeps it       │
//	                           │ ─ kindReloaded: Reload ──────▶ │ answers whoever waits
//
// The supervisor goes on with its work meanwhile. A worker that ends during a reload has not taken
// the configuration, and the next one gets that of before.

// Reload reports the results of requested reloads.
type Reload struct {
	Asked   int    `json:"asked,omitempty"`   // number of requests so far
	Refused string `json:"refused,omitempty"` // why the last one was refused; "": it was done
}

// reloading is the supervisor's side of a reload.
type reloading struct {
	result Reload
	number int // of the reload that is under way, or was last
	text   int // descriptor of the configuration that the worker is to take; -1: no reload is under way
	again  bool
	late   <-chan time.Time
}

// reloadLimit is how long a worker may take to apply a configuration.
const reloadLimit = 30 * time.Second

// reload begins a reload, or another one after that which is under way.
func (s *Supervisor) reload(p *process) {
	r := &s.reloading
	if r.text >= 0 {
		r.again = true
		return
	}
	text, err := s.cfg.Reload()
	if err == nil {
		r.number++
		r.text, r.late = text, time.After(reloadLimit)
		err = p.ch.send(message{Kind: kindReload, Number: r.number}, text)
	}
	if err != nil {
		s.reloaded(p, err.Error())
	}
}

// reloaded ends a reload. refused says why the configuration was not taken; "": it was.
func (s *Supervisor) reloaded(p *process, refused string) {
	r := &s.reloading
	r.result = Reload{r.result.Asked + 1, bounded(refused)}
	switch {
	case refused == "":
		s.cfg.Reloaded(r.text)
		s.cfg.Log.Info("configuration reloaded")
	case r.text >= 0:
		_ = unix.Close(r.text)
		fallthrough
	default:
		s.cfg.Log.Error("configuration not reloaded, the NIC continues as before", "err", refused)
	}
	r.text, r.late = -1, nil
	_ = p.ch.send(message{Kind: kindReloaded, Reload: &r.result}) // fails only when the worker is gone
	if r.again {
		r.again = false
		s.reload(p)
	}
}

// abandonReload forgets a reload whose worker has ended.
func (s *Supervisor) abandonReload() {
	r := &s.reloading
	if r.text >= 0 {
		_ = unix.Close(r.text)
		r.result = Reload{r.result.Asked + 1, "the worker ended during the reload"}
	}
	r.text, r.late, r.again = -1, nil, false
}

// OnReload sets the function that applies another configuration: all of it or, with an error, none.
func (w *Worker) OnReload(apply func(text *os.File) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.apply = apply
}

// takeReload applies a configuration that the supervisor gives.
func (w *Worker) takeReload(number, fd int) {
	text := os.NewFile(uintptr(fd), "configuration")
	w.mu.Lock()
	apply := w.apply
	w.mu.Unlock()
	err := errors.New("the NIC is not ready yet; try again")
	if apply != nil {
		err = apply(text)
	}
	_ = text.Close() // unless apply did
	why := ""
	if err != nil {
		why = bounded(err.Error())
	}
	_ = w.ch.send(message{Kind: kindReloaded, Name: why, Number: number}) // fails only when the supervisor is gone
}

// Reload has the supervisor read the configuration again, and returns when it has taken effect. The
// error says why it has not.
func (w *Worker) Reload(ctx context.Context) error {
	if !w.Reloads {
		return errors.New("this vnic run is older than its worker and cannot reload: use vnic upgrade, or stop and start it")
	}
	w.mu.Lock()
	asked, changed := w.Start.Reload.Asked, w.reloadEnds
	w.mu.Unlock()
	if err := w.ch.send(message{Kind: kindReload}); err != nil {
		return fmt.Errorf("the supervisor is gone: %w", err)
	}
	for {
		select {
		case <-changed:
		case <-w.stop:
			return errors.New("the NIC is ending")
		case <-ctx.Done():
			return fmt.Errorf("the reload continues, but takes long (vnic show nic shows its result): %w", ctx.Err())
		}
		w.mu.Lock()
		is := w.Start.Reload
		changed = w.reloadEnds
		w.mu.Unlock()
		switch {
		case is.Asked == asked:
		case is.Refused != "":
			return errors.New(is.Refused)
		default:
			return nil
		}
	}
}

// Reloaded returns the results of the reloads requested so far.
func (w *Worker) Reloaded() Reload {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Start.Reload
}

// noteReload records the result of a reload, and wakes those who wait for it.
func (w *Worker) noteReload(is Reload) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.Start.Reload = is
	close(w.reloadEnds)
	w.reloadEnds = make(chan struct{})
}
