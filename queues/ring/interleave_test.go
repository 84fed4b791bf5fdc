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

// TestNoInterleavingLosesADoorbell runs a driver that posts three entries against a
// device that takes, arms and sleeps, in every order of their first accesses
// to the indices: at the end nothing lies in the queue of a sleeping device
// without a doorbell on its way (DRV-604, DEV-607).
func TestNoInterleavingLosesADoorbell(t *testing.T) {
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

// wordStepped is memory whose 64-bit words are accessed one at a time.
type wordStepped struct {
	Bytes
	step func()
}

func (s wordStepped) Load64(off uint64) (uint64, error) {
	s.step()
	return s.Bytes.Load64(off)
}

func (s wordStepped) Store64Release(off, v uint64) error {
	s.step()
	return s.Bytes.Store64Release(off, v)
}

// TestNoInterleavingLosesAnEvent runs a device that writes entries against a driver that polls,
// arms by the word, looks again and sleeps, in every order of their first accesses
// to tails and word: at the end no driver sleeps over an entry it waits for
// without an event on its way (DRV-709, DEV-709).
func TestNoInterleavingLosesAnEvent(t *testing.T) {
	for _, solicitedOnly := range []bool{false, true} {
		testEveryArming(t, solicitedOnly, true)
		if !solicitedOnly {
			testEveryArming(t, solicitedOnly, false)
		}
	}
}

func testEveryArming(t *testing.T, solicitedOnly, recheck bool) {
	const (
		total = 4
		steps = 13
	)
	events, lost := 0, 0
	for schedule := range uint32(1) << steps {
		l := CQLayout(1) // wraps
		mem := newMem(l)
		event, polled := false, 0
		device, stopDevice := iter.Pull(func(yield func(struct{}) bool) {
			alive := true
			w := NewCQWriter(wordStepped{mem, func() { alive = alive && yield(struct{}{}) }}, l)
			entry := make([]byte, CQEntrySize)
			for i := 0; i < total && alive; {
				solicited := i%2 == 1
				entry[statusOffset+2] = 0
				if solicited {
					entry[statusOffset+2] = solicitedFlag
				}
				switch err := w.Write(entry); err {
				case nil:
					i++
				case ErrFull:
					alive = alive && yield(struct{}{})
					continue
				default:
					t.Error(err)
				}
				wanted, err := w.Wanted(solicited)
				if err != nil {
					t.Error(err)
				}
				if wanted && alive {
					event = true
					events++
				}
			}
		})
		driver, stopDriver := iter.Pull(func(yield func(struct{}) bool) {
			alive := true
			r := NewCQReader(wordStepped{mem, func() { alive = alive && yield(struct{}{}) }}, l)
			entry := make([]byte, CQEntrySize)
			for alive {
				for {
					ok, err := r.Poll(entry)
					if err != nil {
						t.Error(err)
					}
					if !ok || !alive {
						break
					}
					polled++
				}
				if err := r.Commit(); err != nil {
					t.Error(err)
				}
				if err := r.Arm(solicitedOnly); err != nil {
					t.Error(err)
				}
				if ready, _ := r.Ready(solicitedOnly); ready && recheck {
					continue
				}
				for !event && alive { // asleep
					alive = yield(struct{}{})
				}
				event = false
			}
		})
		for i := range steps {
			if schedule>>i&1 == 0 {
				driver()
			} else {
				device()
			}
		}
		for i := 0; i < 100 && polled < total; i++ {
			device()
			driver()
		}
		if polled != total { // the last entry is solicited
			lost++
		}
		stopDriver()
		stopDevice()
	}
	switch {
	case recheck && lost != 0:
		t.Errorf("solicited only %t: the driver sleeps over entries in %d schedules", solicitedOnly, lost)
	case !recheck && lost == 0:
		t.Error("the model does not notice a driver that does not look again")
	case events == 0:
		t.Error("no event")
	}
}
