package inbox

import (
	"errors"
	"slices"
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

// TestDoAnswersAfterEffects checks that Do returns after the effects of its function.
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

// TestMail checks that messages come in order and once, however often they are sent and taken, also
// those sent while others are taken.
func TestMail(t *testing.T) {
	o := &owner{}
	var m *Mail[*owner, int]
	m = NewMail(&o.box, func(o *owner, _ vtime.Time, n int) {
		if o.seen = append(o.seen, n); n == 3 {
			m.Send([]int{6})
		}
	})
	list := []int{1, 2}
	m.Send(list)
	list[0] = 99 // the sender may reuse the list
	m.Send([]int{3, 4, 5})
	if n := len(o.box.ready); n != 1 {
		t.Errorf("it stands in the box %d times", n)
	}
	for range 3 {
		o.turn(1)
	}
	if !slices.Equal(o.seen, []int{1, 2, 3, 4, 5, 6}) || !o.box.Empty() {
		t.Error(o.seen)
	}
	o.box.Stop()
	m.Send([]int{7})
	if m.Send(nil); len(o.seen) != 6 {
		t.Error(o.seen)
	}
	big := make([]int, 2*maxKept)
	n := NewMail(&(&owner{}).box, func(*owner, vtime.Time, int) {})
	n.Send(big)
	if n.Drain(nil, 1); cap(n.spare) > maxKept {
		t.Errorf("room for %d is kept", cap(n.spare))
	}
}
