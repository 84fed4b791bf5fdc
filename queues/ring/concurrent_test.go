package ring

import (
	"encoding/binary"
	"errors"
	"runtime"
	"sync"
	"testing"
)

// TestAConcurrentQueueLosesNoEntryOrWakeUp runs driver and device in two goroutines over one
// queue, with doorbells only when the event index asks for them: every entry
// arrives whole and in order, and no wake-up is lost (DRV-603, DRV-604,
// DEV-607). Run it with -race.
func TestAConcurrentQueueLosesNoEntryOrWakeUp(t *testing.T) {
	const total = 20000
	l := QueueLayout(4, 6)
	mem := newMem(l)
	p, c := NewProducer(mem, l), NewConsumer(mem, l)
	startAt(t, 1<<32-total/2, p, c)
	bells := make(chan uint32, 1)
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		defer close(bells)
		b := make([]byte, 64)
		for v := uint64(1); v <= total; {
			binary.LittleEndian.PutUint64(b, v)
			b[63] = byte(v)
			switch err := p.Push(b); {
			case err == nil:
				v++
			case !errors.Is(err, ErrFull):
				t.Error(err)
				return
			default:
				runtime.Gosched()
			}
			free, err := p.Free()
			if err != nil {
				t.Error(err)
				return
			}
			if v%3 != 0 && v <= total && free != 0 {
				continue // publish in batches
			}
			index, need, err := p.Publish()
			if err != nil {
				t.Error(err)
				return
			}
			if need {
				bells <- index
			}
		}
	}()
	b := make([]byte, 64)
	for want := uint64(1); want <= total; {
		n, err := c.Arm()
		if err == nil && n == 0 {
			index, open := <-bells
			n, err = c.Doorbell(index)
			if !open {
				if n, err = c.Poll(); n == 0 {
					t.Fatalf("no doorbell for entry %d, %v", want, err)
				}
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		for ; n > 0; n-- {
			if err := c.Read(b); err != nil {
				t.Fatal(err)
			}
			if v := binary.LittleEndian.Uint64(b); v != want || b[63] != byte(want) {
				t.Fatalf("entry %d, want %d", v, want)
			}
			c.Take()
			want++
		}
		if err := c.Commit(); err != nil {
			t.Fatal(err)
		}
		select { // a doorbell for entries already seen
		case <-bells:
		default:
		}
	}
	wg.Wait()
}

// TestConcurrentCompletionsArriveWholeAndInOrder runs the device's and the driver's side of a completion
// queue in two goroutines. Run it with -race: the tail word alone orders the
// entry's bytes (DEV-702, DRV-703).
func TestConcurrentCompletionsArriveWholeAndInOrder(t *testing.T) {
	const total = 20000
	l := CQLayout(3)
	mem := newMem(l)
	w, r := NewCQWriter(mem, l), NewCQReader(mem, l)
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		b := make([]byte, 64)
		for v := uint64(1); v <= total; {
			binary.LittleEndian.PutUint64(b, v)
			b[55] = byte(v)
			switch err := w.Write(b); {
			case err == nil:
				v++
			case errors.Is(err, ErrFull):
				runtime.Gosched()
			default:
				t.Error(err)
				return
			}
		}
	}()
	b := make([]byte, 64)
	for want := uint64(1); want <= total; {
		ok, err := r.Poll(b)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			if t.Failed() {
				break
			}
			runtime.Gosched()
			continue
		}
		if v := binary.LittleEndian.Uint64(b); v != want || b[55] != byte(want) {
			t.Fatalf("entry %d, want %d", v, want)
		}
		want++
		if err := r.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
}

// TestASleepingDriverIsWokenByItsEvent runs a device that writes entries against a driver that
// sleeps whenever the queue is empty, woken by nothing but the events it armed for
// by the word. Run it with -race (DRV-709, DEV-709).
func TestASleepingDriverIsWokenByItsEvent(t *testing.T) {
	const total = 20000
	l := CQLayout(3)
	mem := newMem(l)
	w, r := NewCQWriter(mem, l), NewCQReader(mem, l)
	events := make(chan struct{}, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		b := make([]byte, CQEntrySize)
		for v := 1; v <= total; {
			solicited := v%3 == 0 || v == total
			b[statusOffset+2] = 0
			if solicited {
				b[statusOffset+2] = solicitedFlag
			}
			if err := w.Write(b); errors.Is(err, ErrFull) {
				runtime.Gosched()
				continue
			} else if err != nil {
				t.Error(err)
				return
			}
			v++
			wanted, err := w.Wanted(solicited)
			if err != nil {
				t.Error(err)
				return
			}
			if wanted {
				select {
				case events <- struct{}{}:
				default: // one is on its way
				}
			}
		}
	})
	b, slept := make([]byte, CQEntrySize), 0
	for got := 0; got < total; {
		ok, err := r.Poll(b)
		if err == nil && ok {
			got++
			err = r.Commit()
		}
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			continue
		}
		solicitedOnly := got%8 == 0 && got < total-8 // never over a full queue
		if err := r.Arm(solicitedOnly); err != nil {
			t.Fatal(err)
		}
		if ready, err := r.Ready(solicitedOnly); err != nil || ready {
			continue
		}
		slept++
		<-events
	}
	wg.Wait()
	if slept == 0 {
		t.Error("the driver never slept")
	}
}
