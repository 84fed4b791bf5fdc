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
// The supervisor goes on with its work meanwhile, but replaces no worker. A worker that ends before it
// has answered has not taken the configuration, and the next one gets that of before.
//
// The file may change during a reload. So another request then leads to another reload, if need be of
// the next worker, and is answered by that.

// Reload reports the results of requested reloads.
type Reload struct {
	Asked   int    `json:"asked,omitempty"`   // number of requests so far
	Refused string `json:"refused,omitempty"` // why the last one was refused; "": it was done
}

// reloading is the supervisor's side of a reload.
type reloading struct {
	result Reload
	wanted bool // a reload was requested and has not begun
	number int  // of the reload that is under way, or was last
	last   int  // number of the worker's last request before that reload
	text   int  // descriptor of the configuration that the worker is to take; -1: no reload is under way
	late   <-chan time.Time
}

// reloadLimit is how long a worker may take to apply a configuration.
const reloadLimit = 30 * time.Second

// reload begins a reload. None may be under way.
func (s *Supervisor) reload(p *process) {
	r := &s.reloading
	r.wanted, r.last = false, int(p.requests.Load())
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

// answered ends the reload that a worker has answered.
func (s *Supervisor) answered(p *process, m message) {
	if s.reloading.text >= 0 && m.Number == s.reloading.number {
		s.reloaded(p, m.Name)
	}
}

// endReload ends the reload of a worker that has ended. What the worker has answered before counts.
func (s *Supervisor) endReload(p *process) {
	select {
	case m := <-p.reloaded:
		s.answered(p, m)
	default:
	}
	if s.reloading.text >= 0 {
		s.reloaded(p, "the worker ended during the reload")
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
	_ = p.ch.send(message{Kind: kindReloaded, Number: r.last, Reload: &r.result}) // fails only when the worker is gone
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
	answer := make(chan error, 1)
	w.mu.Lock()
	w.requests++
	number := w.requests
	w.waiting[number] = answer
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.waiting, number)
	}()
	if err := w.ch.send(message{Kind: kindReload, Number: number}); err != nil {
		return fmt.Errorf("the supervisor is gone: %w", err)
	}
	select {
	case err := <-answer:
		return err
	case <-w.stop:
		return errors.New("the NIC is ending")
	case <-ctx.Done():
		return fmt.Errorf("the reload continues, but takes long (vnic show nic shows its result): %w", ctx.Err())
	}
}

// Reloaded returns the results of the reloads requested so far.
func (w *Worker) Reloaded() Reload {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Start.Reload
}

// noteReload records the result of a reload, and gives it to those whose requests it answers: all up to the last.
func (w *Worker) noteReload(is Reload, last int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.Start.Reload = is
	var err error
	if is.Refused != "" {
		err = errors.New(is.Refused)
	}
	for number, answer := range w.waiting {
		if number <= last || !w.Numbers {
			answer <- err
			delete(w.waiting, number)
		}
	}
}
