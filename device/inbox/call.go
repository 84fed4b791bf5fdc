package inbox

import (
	"errors"

	"github.com/falcon-vnic/vnic/device/effect"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// ErrStopped is the error that callers get when the owner has stopped.
var ErrStopped = errors.New("device: the NIC has stopped")

// Owner runs the functions of Do's callers.
type Owner interface {
	// Answer runs e after all effects that the owner has asked for so far.
	Answer(e effect.Effect)
}

// Do runs f on the owner's thread, and returns when f has returned and its effects were run. If the
// owner has stopped, Do returns ErrStopped without calling f. It must not be called on the owner's
// thread.
func Do[O Owner](b *Box[O], f func(owner O, now vtime.Time)) error {
	c := &call[O]{f: f, done: make(chan struct{})}
	if !b.Post(c) {
		return ErrStopped
	}
	<-c.done
	if !c.ran {
		return ErrStopped
	}
	return nil
}

// call is a function that runs on the owner's thread while its caller waits.
type call[O Owner] struct {
	f    func(owner O, now vtime.Time)
	done chan struct{}
	ran  bool
}

func (c *call[O]) Drain(owner O, now vtime.Time) {
	c.f(owner, now)
	c.ran = true
	owner.Answer(c)
}

// Do implements effect.Effect: it releases the caller.
func (c *call[O]) Do() { close(c.done) }

func (c *call[O]) refuse() { close(c.done) }
