package inbox

import (
	"errors"
	"testing"

	"github.com/falcon-vnic/vnic/device/effect"
	"github.com/falcon-vnic/vnic/internal/leak"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

func TestMain(m *testing.M) { leak.Main(m) }

// owner takes what is in its box, and runs its effects after that.
type owner struct {
	box     Box
	effects effect.List
}

func newOwner() *owner {
	o := &owner{}
	o.box.AnswerBy(o.effects.Add)
	return o
}

func (o *owner) turn(now vtime.Time) {
	for _, src := range o.box.Take() {
		src.Drain(now)
	}
	o.effects.Do()
}

// source counts how often it was drained.
type source int

func (s *source) Drain(vtime.Time) { *s++ }

// TestInputWakesAParkedOwner checks that an owner that sleeps is woken once, by the first input,
// that one that is awake is not, and that no owner goes to sleep beside input.
func TestInputWakesAParkedOwner(t *testing.T) {
	o, woken := newOwner(), 0
	o.box.WakeBy(func() { woken++ })
	var a, b source
	o.box.Post(&a)
	if woken != 0 {
		t.Error("woken while awake")
	}
	if o.box.Park() {
		t.Error("went to sleep beside input")
	}
	o.turn(1)
	if !o.box.Park() {
		t.Error("stays awake for nothing")
	}
	o.box.Post(&a)
	o.box.Post(&b)
	if woken != 1 {
		t.Errorf("woken %d times, want once", woken)
	}
	if o.turn(2); a != 2 || b != 1 {
		t.Errorf("drained %d and %d times", a, b)
	}
}

// TestAnOwnerIsWokenForInputElsewhere checks that Wake wakes a parked owner, once, and neither one
// that is awake nor one without a thread.
func TestAnOwnerIsWokenForInputElsewhere(t *testing.T) {
	o, woken := newOwner(), 0
	o.box.Wake()
	o.box.WakeBy(func() { woken++ })
	if o.box.Wake(); woken != 0 {
		t.Error("woken while awake")
	}
	o.box.Park()
	o.box.Wake()
	if o.box.Wake(); woken != 1 {
		t.Errorf("woken %d times", woken)
	}
	o.box.Park()
	o.box.Unpark()
	if o.box.Post(new(source)); woken != 1 {
		t.Error("woken after it had woken by itself")
	}
}

// TestDoAnswersAfterEffects checks that Do returns after the effects of its function.
func TestDoAnswersAfterEffects(t *testing.T) {
	o, posted := newOwner(), make(chan struct{}, 1)
	o.box.WakeBy(func() { posted <- struct{}{} })
	o.box.Park()
	done, result := false, make(chan error)
	go func() {
		result <- o.box.Do(func(now vtime.Time) {
			o.effects.Add(effect.Func(func() { done = now == 7 }))
		})
	}()
	<-posted
	o.turn(7)
	if err := <-result; err != nil || !done {
		t.Error(err, done)
	}
}

// TestAStoppedOwnerRefusesCalls checks that a call that waits when its owner stops, and every later
// one, gets ErrStopped and does not run.
func TestAStoppedOwnerRefusesCalls(t *testing.T) {
	o, posted := newOwner(), make(chan struct{}, 1)
	o.box.WakeBy(func() { posted <- struct{}{} })
	o.box.Park()
	result := make(chan error)
	go func() { result <- o.box.Do(func(vtime.Time) { t.Error("ran") }) }()
	<-posted
	o.box.Stop()
	if err := <-result; !errors.Is(err, ErrStopped) {
		t.Error(err)
	}
	if err := o.box.Do(func(vtime.Time) {}); !errors.Is(err, ErrStopped) {
		t.Error(err)
	}
}
