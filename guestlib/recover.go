package guestlib

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// survivor brings a device back whose stream was lost.
//
//	works ──stream ends, or is silent too long──► needs reset ──dial, hello, reset, enable──► works
//	                                                   └── Close, broken protocol ──► lost
type survivor struct {
	ctx  context.Context // ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup

	lost  atomic.Pointer[error] // how the device was lost, until it works again
	mu    sync.Mutex
	again chan struct{} // closed and replaced when the device works again
}

func (v *survivor) init() {
	v.ctx, v.stop = context.WithCancel(context.Background())
	v.again = make(chan struct{})
}

func (v *survivor) ended() bool { return v.ctx.Err() != nil }

// alive wakes who waits for the device.
func (v *survivor) alive() {
	v.mu.Lock()
	defer v.mu.Unlock()
	close(v.again)
	v.again = make(chan struct{})
}

// Pauses between tries to bring a device back.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = time.Second
)

// survive brings the device back each time it is lost, until it is closed or broke the protocol.
func (d *Device) survive() {
	for {
		s := d.s.Load()
		select {
		case <-s.done:
		case <-d.survivor.ctx.Done():
			return
		}
		err := s.failure()
		if !errors.Is(err, ErrNeedsReset) {
			return
		}
		d.events.emit(Event{Type: abi.EventFunctionState, Status: uint32(abi.StateReset), Reason: err.Error()})
		for pause := firstPause; d.revive() != nil; pause = min(2*pause, lastPause) {
			if !errors.Is(d.s.Load().failure(), ErrNeedsReset) {
				return
			}
			select {
			case <-time.After(pause):
			case <-d.survivor.ctx.Done():
				return
			}
		}
	}
}

// Await returns when the device works: at once, or after it was lost (ErrNeedsReset) and has come
// back, for which it dials and resets the function again by itself unless Options.NoRecovery says
// not to. Objects of before the loss fail for ever, as after Reset; Buffers stay. A device that
// will not come back is an error: closed, or one that broke the protocol. One whose function is
// stopped, but which is not lost, needs a Reset of the program's.
func (d *Device) Await(ctx context.Context) error {
	for {
		d.survivor.mu.Lock()
		again := d.survivor.again // before looking
		d.survivor.mu.Unlock()
		err := d.Err()
		if err == nil || !errors.Is(err, ErrNeedsReset) || d.opts.NoRecovery {
			return err
		}
		select {
		case <-again:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-d.survivor.ctx.Done():
			return errClosedDevice
		}
	}
}

// revive brings a device back, unless somebody has.
func (d *Device) revive() error {
	d.resetting.Lock()
	defer d.resetting.Unlock()
	if d.s.Load().failure() == nil {
		return nil
	}
	return d.redial(d.survivor.ctx)
}

// redial makes a new life of a device whose stream was lost. The caller holds resetting.
func (d *Device) redial(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.opts.CommandTimeout)
	defer cancel()
	defer context.AfterFunc(d.survivor.ctx, cancel)()
	old, dead := d.s.Load(), d.admin.Load()
	lost := old.failure()
	d.survivor.lost.Store(&lost)
	old.wg.Wait()
	old.useWindow(nil)
	d.loud = d.loud || !old.quiet
	d.objects.silence(d.s.Load(), lost)
	dead.close()
	dead.free() // as far as the pool does not hold it
	d.cm.clear()
	conn, err := redial(ctx, d.target, d.src)
	if err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	s := newStream(conn)
	a, err := newAdmin(s, d.pool, d.opts.CommandTimeout)
	if err != nil {
		return errors.Join(fmt.Errorf("reset: %w", err), conn.Close())
	}
	if err := d.begin(ctx, s, a); err != nil {
		err = fmt.Errorf("reset: %w", err)
		s.fail(needsReset("%w", err), !a.told.Load())
		return err
	}
	d.loud = false // the device touches nothing of before any more (DEV-303)
	d.pool.Release()
	d.survivor.lost.Store(nil)
	d.survivor.alive()
	return nil
}
