package shard

import (
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/internal/tape"
)

// A fault in a recording of an hour and a hundred drivers may need only one second and one driver.
// Reduce leaves out drivers, Steps and single requests, one half, quarter, eighth after the other, as
// long as the shard still shows what is looked for (delta debugging). What is left is a recording of a
// run in which these things did not happen: a read of memory at another time gets the recorded value that
// is nearest in time (tape.Script).

// maxTries bounds how often the shard is run.
const maxTries = 2000

// reduction is a recording that gets smaller.
type reduction struct {
	index  int
	cfg    *config.Config
	script *tape.Script
	shows  func(*Player) bool
	keep   []bool // by event
	best   [][]byte
	tries  int
}

// Reduced is a recording that was reduced.
type Reduced struct {
	Chunks              [][]byte // of its tape
	Events, Steps       int      // that are left
	WasEvents, WasSteps int      // up to where it shows what is looked for
}

// Reduce reduces the recording of a shard to one that ends where shows is true for the first time.
func Reduce(index int, cfg *config.Config, t *tape.Tape, shows func(*Player) bool) (*Reduced, error) {
	r := &reduction{index: index, cfg: cfg, script: t.Script(), shows: shows}
	if err := r.play(t); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("the recording does not show it")
		}
		return nil, err
	}
	for range r.script.Events {
		r.keep = append(r.keep, true)
	}
	if !r.try(r.keep) {
		return nil, errors.New("it is not shown again when the recording is taken apart")
	}
	was := r.count()
	r.drop(r.drivers())
	r.drop(r.steps())
	r.drop(r.inside())
	r.drop(r.steps())
	is := r.count()
	return &Reduced{r.best, is.Events, is.Steps, was.Events, was.Steps}, nil
}

// Unused returns the recording of a shard up to its first Step: what stands for a shard whose Steps do
// not matter.
func Unused(index int, cfg *config.Config, t *tape.Tape) (chunks [][]byte, err error) {
	script := t.Script()
	if err = newAndClose(index, cfg, t); err != nil {
		return nil, err
	}
	t = script.Play(nil)
	err = newAndClose(index, cfg, t)
	return t.Played(), err
}

func newAndClose(index int, cfg *config.Config, t *tape.Tape) error {
	p, err := NewPlayer(index, cfg, t, slog.New(slog.DiscardHandler))
	if err == nil {
		p.Shard.Close()
	}
	return err
}

// play plays a tape until it shows what is looked for.
func (r *reduction) play(t *tape.Tape) error {
	p, err := NewPlayer(r.index, r.cfg, t, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer p.Shard.Close()
	for {
		if _, err := p.Next(); err != nil {
			return err
		}
		if r.shows(p) {
			return nil
		}
	}
}

// try plays the events to be kept. If they show what is looked for, they are what is kept.
func (r *reduction) try(keep []bool) bool {
	if r.tries == maxTries {
		return false
	}
	r.tries++
	t := r.script.Play(keep)
	if r.play(t) != nil {
		return false
	}
	chunks := t.Played()
	if r.play(tape.Play(t.Keeps(), tape.Chunks(chunks))) != nil { // the tape written by that run has to show it too
		return false
	}
	r.keep, r.best = keep, chunks
	return true
}

// drop leaves out groups of events, as many at a time as possible.
func (r *reduction) drop(groups [][]int) {
	for size := (len(groups) + 1) / 2; size > 0; size /= 2 {
		for at := 0; at < len(groups); {
			end := min(at+size, len(groups))
			keep := append([]bool(nil), r.keep...)
			for _, g := range groups[at:end] {
				for _, i := range g {
					keep[i] = false
				}
			}
			if r.try(keep) {
				groups = append(groups[:at:at], groups[end:]...)
			} else {
				at = end
			}
		}
	}
}

// count counts what is kept.
func (r *reduction) count() (n Reduced) {
	for i := range r.script.Events {
		if r.keep[i] {
			n.Events++
			if r.script.Events[i].Kind == tape.Step {
				n.Steps++
			}
		}
	}
	return n
}

// drivers returns the events of each driver.
func (r *reduction) drivers() (groups [][]int) {
	of := map[uint64]int{}
	for i := range r.script.Events {
		switch e := &r.script.Events[i]; e.Kind {
		case tape.Attach, tape.Leave, tape.Listen, tape.Window, tape.Request:
			n, known := of[e.Number()]
			if !known {
				n = len(groups)
				of[e.Number()], groups = n, append(groups, nil)
			}
			groups[n] = append(groups[n], i)
		}
	}
	return groups
}

// steps returns the Steps, each with what was in its inbox, and what was between them.
func (r *reduction) steps() (groups [][]int) {
	r.each(func(i int, inside bool) {
		if !inside {
			groups = append(groups, nil)
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], i)
	})
	return groups
}

// inside returns what was in the inboxes of Steps, one by one.
func (r *reduction) inside() (groups [][]int) {
	r.each(func(i int, inside bool) {
		if inside && r.script.Events[i].Kind != tape.InboxEnd {
			groups = append(groups, []int{i})
		}
	})
	return groups
}

// each calls f for each event that is kept and may be left out, and says whether it was in the inbox of a Step.
// The event that makes keys and numbers random always stays: without it they are not those that the drivers use.
func (r *reduction) each(f func(i int, inside bool)) {
	inside := false
	for i := range r.script.Events {
		k := r.script.Events[i].Kind
		if r.keep[i] && k != tape.Secret {
			f(i, inside)
		}
		inside = k == tape.Step || inside && k != tape.InboxEnd
	}
}

// String says how much is left.
func (r *Reduced) String() string {
	return fmt.Sprintf("%d of %d events, %d of %d Steps", r.Events, r.WasEvents, r.Steps, r.WasSteps)
}
