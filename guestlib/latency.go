package guestlib

import (
	"context"
	"errors"
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
	// DoorbellUS is what it takes to reach a device that was left alone for a while, and so sleeps.
	// With a window: from the store of the record and the write to the device's register behind it
	// to the moment when the device has taken the record. With messages: from posting an admin
	// command that does next to nothing to the moment when its answer lies in memory.
	DoorbellUS float64
	// ShadowUS is from putting a doorbell record into the window of a device that looks there by
	// itself, as it does while it is busy, to the moment when it has taken it: the record in shared
	// memory is the whole doorbell. 0 without a window.
	ShadowUS float64
	// WakeUS is from the moment when the device has taken a record, or has written that answer, and
	// at once has news of a completion queue, to a goroutine that sleeps until that queue has news.
	WakeUS float64
}

// quiet is how long the device is left alone before it is rung: more than it looks around for work
// at most.
const quiet = time.Millisecond

// MeasureLatency takes n samples of each. The caller's processor is busy looking at memory
// meanwhile.
func (d *Device) MeasureLatency(ctx context.Context, n int) (l Latency, err error) {
	if n < 1 || n > 1<<20 {
		return l, invalid("latency of %d samples; 1 to %d", n, 1<<20)
	}
	defer func() {
		if err != nil {
			l, err = Latency{}, fmt.Errorf("latency: %w", err)
		}
	}()
	cq, err := d.CreateCQ(ctx, 1)
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, cq.Destroy(context.WithoutCancel(ctx))) }()
	bells, wakes := make([]time.Duration, 0, n), make([]time.Duration, 0, n)
	for range n {
		time.Sleep(quiet)
		bell, wake, err := d.reach(ctx, cq)
		if err != nil {
			return l, err
		}
		bells, wakes = append(bells, bell), append(wakes, wake)
	}
	l = Latency{Samples: n, DoorbellUS: median(bells), WakeUS: median(wakes)}
	l.ShadowUS, err = d.s.Load().shadow(cq, n)
	return l, err
}

// reach takes one sample of a doorbell of a sleeping device, and of waking up by news of cq, which
// is empty.
func (d *Device) reach(ctx context.Context, cq *CQ) (bell, wake time.Duration, err error) {
	cq.wakeMu.Lock()
	news := cq.wake
	cq.wakeMu.Unlock()
	bell, _, err = d.s.Load().timeRecord(cq.newsBell())
	if err != nil || bell == 0 {
		if err == nil {
			bell, wake, err = d.admin.Load().probe(ctx, cq)
		}
		return bell, wake, err
	}
	start, a := time.Now(), d.admin.Load()
	timer := time.NewTimer(a.timeout)
	defer timer.Stop()
	select {
	case <-news:
		return bell, time.Since(start), nil
	case <-timer.C:
		return 0, 0, fmt.Errorf("%w: no event within %v", ErrTimeout, a.timeout)
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	case <-a.ended:
		return 0, 0, a.failure()
	}
}

func median(ds []time.Duration) float64 {
	slices.Sort(ds)
	return float64(ds[len(ds)/2].Nanoseconds()) / 1000
}

// newsBell is a doorbell at which the device has news of an empty CQ at once: armed for an entry
// that is long gone (DEV-708).
func (c *CQ) newsBell() *bell {
	return &bell{record: abi.Doorbell{Kind: abi.DoorbellCQArm, Queue: c.cqn, Index: c.polled.Load() - 1}}
}

// probe executes a command while nothing else is outstanding, has the device send an event of cq
// behind its completion, looks for the completion in memory, and then waits for the event.
func (a *admin) probe(ctx context.Context, cq *CQ) (bell, wake time.Duration, err error) {
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
	cq.wakeMu.Lock()
	news := cq.wake
	cq.wakeMu.Unlock()
	start := time.Now()
	c, err := a.postWith(abi.AdminOpQueryDevice, nil, nil, cq.newsBell())
	if err != nil {
		return 0, 0, err
	}
	held-- // the completion gives it back
	if bell, err = a.watchAnswer(index, start, news); err != nil {
		return 0, 0, err
	}
	timer := time.NewTimer(a.timeout)
	defer timer.Stop()
	for range 2 { // the event first, so that its time is right
		select {
		case <-news:
			wake, news = max(time.Since(start)-bell, 0), c.done
			continue
		case <-timer.C:
			a.s.fail(lost(fmt.Errorf("%s: %w: no completion and event within %v", c.op, ErrTimeout, a.timeout)), false)
		case <-a.s.done:
		}
		return 0, 0, a.s.failure()
	}
	return bell, wake, nil
}

// watchAnswer returns how long after start the completion with index i was in memory. It looks no
// more when the event has come or the device does not answer: waiting then tells.
func (a *admin) watchAnswer(i uint32, start time.Time, news <-chan struct{}) (time.Duration, error) {
	for {
		filled, err := a.answered(i)
		took := time.Since(start)
		if err != nil || filled || took > a.timeout {
			return took, err
		}
		select {
		case <-news:
			return time.Since(start), nil
		case <-a.s.done:
			return took, a.s.failure()
		default:
			runtime.Gosched()
		}
	}
}

// answered reports whether the completion with free-running index i is in memory.
func (a *admin) answered(i uint32) (bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return false, errClosedDevice
	}
	tail, err := ring.Mem(a.cq.Bytes()).Load64(abi.QueueHeaderSize + uint64(i%abi.MaxAdminEntries)*abi.AdminCQESize + abi.AdminCQETailOffset)
	want := uint64(0)
	if i/abi.MaxAdminEntries%2 == 0 {
		want = abi.Phase
	}
	return err == nil && tail&abi.Phase == want, err
}

// shadow is the median time in which the device takes records that it finds by looking, of up to n;
// 0 without a window, or when it never looks. The records arm a CQ that stays empty.
func (s *stream) shadow(cq *CQ, n int) (float64, error) {
	b := &bell{record: abi.Doorbell{Kind: abi.DoorbellCQArm, Queue: cq.cqn, Index: cq.polled.Load()}}
	var times []time.Duration
	for range n {
		took, rung, err := s.timeRecord(b)
		if err != nil || took == 0 {
			return 0, err
		}
		if !rung {
			times = append(times, took)
		}
	}
	if len(times) == 0 {
		return 0, nil
	}
	return median(times), nil
}

// timeRecord rings by the window and waits until the record is taken. It reports whether the
// device's register was written. Without a window it takes no time.
func (s *stream) timeRecord(b *bell) (took time.Duration, rung bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock() // nobody else rings meanwhile
	switch {
	case s.win == nil:
		return 0, false, nil
	case s.err != nil:
		return 0, false, s.err
	}
	before, start := s.win.Rung(), time.Now()
	if err := s.win.Ring(&b.record); err != nil {
		return 0, false, err
	}
	for {
		taken, err := s.win.Taken()
		took := time.Since(start)
		if err != nil || taken {
			return took, s.win.Rung() != before, err
		}
		if took > time.Second {
			return 0, false, lost(fmt.Errorf("%w: a doorbell record is not taken", ErrTimeout))
		}
	}
}

// TimeSend posts wr as PostSend does and looks at memory until the device has read it. It returns
// how long that took, from the store of the request and the producer index on, and whether the
// device had to be rung: if not, the index in memory was the whole doorbell. It is for measuring:
// the caller's processor does nothing else meanwhile.
func (q *QP) TimeSend(wr *SendWR) (took time.Duration, rung bool, err error) {
	if q.State() != abi.QPStateRTS {
		return 0, false, errNotConnected
	}
	w := q.sq
	w.mu.Lock()
	before := w.rung
	n, err := w.encode(wr)
	start := time.Now()
	if err == nil {
		err = w.push(q.dev.s.Load(), n, q.signals(wr))
	}
	next := w.next
	rung = w.rung != before
	w.mu.Unlock()
	for err == nil {
		var taken uint32
		if taken, err = q.SendsTaken(); err != nil || taken == next {
			break
		}
		if rung {
			runtime.Gosched() // the doorbell may be a message that a goroutine sends
		}
		if time.Since(start) > q.dev.admin.Load().timeout {
			err = lost(fmt.Errorf("%w: a send is not read", ErrTimeout))
		}
	}
	return time.Since(start), rung, err
}
