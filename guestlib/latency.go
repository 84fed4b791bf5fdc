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

// Latency holds the latencies to the device and back, as medians in microseconds.
type Latency struct {
	Samples int
	// DoorbellUS is the time to reach a device that sleeps because it was idle. With a window, it
	// is the time from the store of the record and the write to the device's register until the
	// device has taken the record. With messages, it is the time from posting an admin command that
	// does almost nothing until its answer is in memory.
	DoorbellUS float64
	// ShadowUS is the time from putting a doorbell record into the window of a device that polls
	// it, as a busy device does, until the device has taken the record. The record in shared memory
	// is the whole doorbell. It is 0 without a window.
	ShadowUS float64
	// WakeUS is the time from the moment when the device has taken a record, or has written that
	// answer, until a goroutine wakes that waits for a completion queue. The device sends the
	// queue's event at once.
	WakeUS float64
}

// idlePause is how long the device is left idle before it is rung. It is longer than the device ever
// polls for work.
const idlePause = time.Millisecond

// MeasureLatency takes n samples of each latency. Meanwhile it keeps the caller's processor busy
// polling memory.
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
		time.Sleep(idlePause)
		bell, wake, err := d.reach(ctx, cq)
		if err != nil {
			return l, err
		}
		bells, wakes = append(bells, bell), append(wakes, wake)
	}
	l = Latency{Samples: n, DoorbellUS: median(bells), WakeUS: median(wakes)}
	l.ShadowUS, err = d.stream.Load().shadow(cq, n)
	return l, err
}

// reach takes one sample of a doorbell to a sleeping device, and of waking up by an event of cq,
// which is empty.
func (d *Device) reach(ctx context.Context, cq *CQ) (bell, wake time.Duration, err error) {
	cq.wakeMu.Lock()
	news := cq.wake
	cq.wakeMu.Unlock()
	bell, _, err = d.stream.Load().timeRecord(cq.newsBell())
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

// newsBell returns a doorbell that makes the device send an event of an empty CQ at once: it arms
// the CQ for an entry that is in the past (DEV-708).
func (c *CQ) newsBell() *bell {
	return &bell{record: abi.Doorbell{Kind: abi.DoorbellCQArm, Queue: c.cqn, Index: c.polled.Load() - 1}}
}

// probe executes a command while no other is outstanding, and makes the device send an event of cq
// after its completion. It polls memory for the completion and then waits for the event.
func (a *admin) probe(ctx context.Context, cq *CQ) (bell, wake time.Duration, err error) {
	a.probing.Lock() // two probes that each hold half of the slots would deadlock
	defer a.probing.Unlock()
	held := 0
	defer func() {
		for range held {
			a.slots <- struct{}{}
		}
	}()
	for held < cap(a.slots) { // take all slots, so that the next completion is this command's
		select {
		case <-a.slots:
			held++
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		case <-a.ended:
			return 0, 0, a.failure()
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
	held-- // the completion frees that slot
	if bell, err = a.watchAnswer(index, start, news); err != nil {
		return 0, 0, err
	}
	timer := time.NewTimer(a.timeout)
	defer timer.Stop()
	for range 2 { // the event first, so that its time is not measured too late
		select {
		case <-news:
			wake, news = max(time.Since(start)-bell, 0), c.done
			continue
		case <-timer.C:
			a.stream.fail(lost(fmt.Errorf("%s: %w: no completion and event within %v", c.op, ErrTimeout, a.timeout)), false)
		case <-a.stream.done:
		}
		return 0, 0, a.stream.failure()
	}
	return bell, wake, nil
}

// watchAnswer polls until the completion with index i is in memory and returns the time since
// start. It stops polling when the event has come or the device does not answer in time; the caller
// then waits for the command.
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
		case <-a.stream.done:
			return took, a.stream.failure()
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
	tail, err := ring.Mem(a.cq.block.Bytes()).Load64(abi.QueueHeaderSize + uint64(i%abi.MaxAdminEntries)*abi.AdminCQESize + abi.AdminCQETailOffset)
	want := uint64(0)
	if i/abi.MaxAdminEntries%2 == 0 {
		want = abi.Phase
	}
	return err == nil && tail&abi.Phase == want, err
}

// shadow returns the median time in which the device takes records that it finds by polling, of up
// to n samples. It returns 0 without a window, or if the device never polls. The records arm a CQ
// that stays empty.
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

// recordTimeout is how long a device may take for a record. It finds one after half a second even
// if it missed the ring; but on a busy host it, or this whole machine, may stand still for longer.
const recordTimeout = 10 * time.Second

// timeRecord rings by the window and waits until the record is taken. rung is true if the device's
// register had to be written. Without a window timeRecord returns zeros.
func (s *stream) timeRecord(b *bell) (took time.Duration, rung bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock() // no other goroutine can ring meanwhile
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
		if took > recordTimeout {
			return 0, false, lost(fmt.Errorf("%w: a doorbell record is not taken", ErrTimeout))
		}
	}
}

// TimeSend posts wr like PostSend and polls memory until the device has read it. It returns the
// time that took, from the store of the request and the producer index on, and whether the device
// had to be rung. If not, the index in memory was the whole doorbell. It is for measuring:
// meanwhile the caller's processor does nothing else.
func (q *QP) TimeSend(wr *SendWR) (took time.Duration, rung bool, err error) {
	if s := q.State(); s != abi.QPStateRTS {
		return 0, false, stateError("QP %d is in %s; TimeSend needs RTS", q.qpn, s)
	}
	w := q.sq
	w.mu.Lock()
	before := w.rung
	n, err := w.encode(wr)
	start := time.Now()
	if err == nil {
		err = w.push(q.dev.stream.Load(), n, q.posted(wr))
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
