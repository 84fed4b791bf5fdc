package inbox

import (
	"errors"
	"testing"

	"github.com/falcon-vnic/vnic/device/effect"
	"github.com/falcon-vnic/vnic/internal/leak"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

func TestMain(m *testing.M) { leak.Main(m) }

type owner struct {
	box     Box[*owner]
	effects effect.List
	seen    []int
}

func (o *owner) Answer(e effect.Effect) { o.effects.Add(e) }

func (o *owner) turn(now vtime.Time) {
	for _, src := range o.box.Take() {
		src.Drain(o, now)
	}
	o.effects.Do()
}

type news int

func (n news) Drain(o *owner, _ vtime.Time) { o.seen = append(o.seen, int(n)) }

func TestPostWakesWhoParked(t *testing.T) {
	o, woken := &owner{}, 0
	o.box.WakeBy(func() { woken++ })
	o.box.Post(news(1))
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
	o.box.Post(news(2))
	o.box.Post(news(3))
	if woken != 1 {
		t.Errorf("woken %d times, want once", woken)
	}
	o.turn(2)
	if len(o.seen) != 3 {
		t.Error(o.seen)
	}
}

// TestDoAnswersAfterEffects: who called sees what the call had done.
func TestDoAnswersAfterEffects(t *testing.T) {
	o, posted := &owner{}, make(chan struct{}, 1)
	o.box.WakeBy(func() { posted <- struct{}{} })
	o.box.Park()
	done, result := false, make(chan error)
	go func() {
		result <- Do(&o.box, func(o *owner, now vtime.Time) {
			o.effects.Add(effect.Func(func() { done = now == 7 }))
		})
	}()
	<-posted
	o.turn(7)
	if err := <-result; err != nil || !done {
		t.Error(err, done)
	}
}

func TestStopRefuses(t *testing.T) {
	o, posted := &owner{}, make(chan struct{}, 1)
	o.box.WakeBy(func() { posted <- struct{}{} })
	o.box.Park()
	result := make(chan error)
	go func() { result <- Do(&o.box, func(*owner, vtime.Time) { t.Error("ran") }) }()
	<-posted
	o.box.Stop()
	if err := <-result; !errors.Is(err, ErrStopped) {
		t.Error(err)
	}
	if err := Do(&o.box, func(*owner, vtime.Time) {}); !errors.Is(err, ErrStopped) {
		t.Error(err)
	}
}
