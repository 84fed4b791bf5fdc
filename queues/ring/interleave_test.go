package ring

import (
	"iter"
	"testing"
)

// stepped is memory whose index words are accessed one at a time: each access
// ends a step of the side that makes it.
type stepped struct {
	Bytes
	step func() // returns when the side may go on
}

func (s stepped) Load32(off uint64) (uint32, error) {
	s.step()
	return s.Bytes.Load32(off)
}

func (s stepped) Store32(off uint64, v uint32) error {
	s.step()
	return s.Bytes.Store32(off, v)
}

// TestEveryInterleaving runs a driver that posts three entries against a
// device that takes, arms and sleeps, in every order of their first accesses
// to the indices: at the end nothing lies in the queue of a sleeping device
// without a doorbell on its way (DRV-604, DEV-607).
func TestEveryInterleaving(t *testing.T) {
	const (
		total = 3
		steps = 15 // choices between the sides; what is left runs driver first
	)
	bells := 0
	for schedule := range uint32(1) << steps {
		l := QueueLayout(2, 6)
		mem := newMem(l)
		bell, taken := false, 0
		driver, stopDriver := iter.Pull(func(yield func(struct{}) bool) {
			p := NewProducer(stepped{mem, func() { yield(struct{}{}) }}, l)
			for range total {
				if err := p.Push(make([]byte, 64)); err != nil {
					t.Error(err)
				}
				_, need, err := p.Publish()
				if err != nil {
					t.Error(err)
				}
				if need {
					bell = true
					bells++
				}
			}
		})
		device, stopDevice := iter.Pull(func(yield func(struct{}) bool) {
			alive := true
			c := NewConsumer(stepped{mem, func() { alive = alive && yield(struct{}{}) }}, l)
			look := c.Poll
			for alive {
				n, err := look()
				if err != nil {
					t.Error(err)
					return
				}
				for ; n > 0; n-- {
					c.Take()
					taken++
				}
				if err := c.Commit(); err != nil {
					t.Error(err)
				}
				if n, _ = c.Arm(); n > 0 {
					look = func() (uint32, error) { return c.Ready(), nil }
					continue
				}
				for !bell && alive { // asleep
					alive = yield(struct{}{})
				}
				bell, look = false, c.Poll
			}
		})
		for i := range steps {
			if schedule>>i&1 == 0 {
				driver()
			} else {
				device()
			}
		}
		for more := true; more; {
			_, more = driver()
		}
		for range 40 {
			device()
		}
		if taken != total {
			t.Fatalf("schedule %015b: the device sleeps on %d of %d entries", schedule, total-taken, total)
		}
		stopDriver()
		stopDevice()
	}
	if most := total << steps; bells == 0 || bells > most*9/10 {
		t.Errorf("%d doorbells for %d entries: the event index saves nothing", bells, most)
	}
}
