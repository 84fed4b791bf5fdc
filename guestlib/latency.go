package guestlib

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// Latency is what reaching the device and being reached by it costs, as medians in microseconds.
type Latency struct {
	Samples int
	// DoorbellUS is from ringing a doorbell to the moment when the answer lies in memory: the way there, and an admin command that does
	// next to nothing.
	DoorbellUS float64
	// WakeUS is from that moment to a goroutine that sleeps until the device tells it.
	WakeUS float64
}

// MeasureLatency executes n empty admin commands one after the other. The caller's processor is busy looking at memory meanwhile.
func (d *Device) MeasureLatency(ctx context.Context, n int) (Latency, error) {
	if n < 1 || n > 1<<20 {
		return Latency{}, invalid("latency of %d samples; 1 to %d", n, 1<<20)
	}
	bells, wakes := make([]time.Duration, 0, n), make([]time.Duration, 0, n)
	for range n {
		bell, wake, err := d.admin.Load().probe(ctx)
		if err != nil {
			return Latency{}, fmt.Errorf("latency: %w", err)
		}
		bells, wakes = append(bells, bell), append(wakes, wake)
	}
	return Latency{n, median(bells), median(wakes)}, nil
}

func median(ds []time.Duration) float64 {
	slices.Sort(ds)
	return float64(ds[len(ds)/2].Nanoseconds()) / 1000
}

// probe executes a command while nothing else is outstanding, looks for its completion in memory, and then waits for the event.
func (a *admin) probe(ctx context.Context) (bell, wake time.Duration, err error) {
	a.probing.Lock() // two that each hold half of the slots would wait for ever
	defer a.probing.Unlock()
	held := 0
	defer func() {
		for range held {
			a.slots <- struct{}{}
		}
	}()
	for held < cap(a.slots) { // all of them: the next completion is ours
		select {
		case <-a.slots:
			held++
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		case <-a.s.done:
			return 0, 0, a.s.failure()
		}
	}
	a.mu.Lock()
	index := a.answers.Next()
	a.mu.Unlock()
	var woken time.Duration
	start := time.Now()
	c, err := a.post(abi.AdminOpQueryDevice, nil, func(*abi.AdminCQE) { woken = time.Since(start) })
	if err != nil {
		return 0, 0, err
	}
	held-- // the completion gives it back
	for waiting := true; waiting; {
		filled, err := a.answered(index)
		switch {
		case err != nil:
			return 0, 0, err
		case filled || time.Since(start) > a.timeout:
			waiting = false // the wait below says why if it is not filled
			continue
		}
		select {
		case <-c.done: // woken first; the slot may be in use again by now
			waiting = false
		case <-a.s.done:
			waiting = false
		default:
			runtime.Gosched()
		}
	}
	bell = time.Since(start)
	timer := time.NewTimer(a.timeout)
	defer timer.Stop()
	select {
	case <-c.done:
	case <-timer.C:
		a.s.fail(lost(fmt.Errorf("%s: %w: no completion within %v", c.op, ErrTimeout, a.timeout)), false)
		return 0, 0, a.s.failure()
	case <-a.s.done:
		return 0, 0, a.s.failure()
	}
	bell = min(bell, woken)
	return bell, woken - bell, nil
}

// answered reports whether the completion with free-running index i is in memory.
func (a *admin) answered(i uint32) (bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return false, errClosedDevice
	}
	tail, err := ring.Mem(a.cq.Bytes()).Load64(uint64(i%abi.MaxAdminEntries)*abi.AdminCQESize + abi.CQETailOffset)
	want := uint64(0)
	if i/abi.MaxAdminEntries%2 == 0 {
		want = abi.Phase
	}
	return err == nil && tail&abi.Phase == want, err
}
