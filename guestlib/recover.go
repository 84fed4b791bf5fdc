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

// survivor recovers a device whose stream was lost.
//
//	works ──stream ends, or is silent too long──► needs reset ──dial, hello, reset, enable──► works
//	                                                   └── Close, broken protocol ──► lost
type survivor struct {
	ctx  context.Context // ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup

	lost  atomic.Pointer[error] // why the device was lost; nil while it works
	mu    sync.Mutex
	again chan struct{} // closed and replaced after each attempt to dial again
}

func (v *survivor) init() {
	v.ctx, v.stop = context.WithCancel(context.Background())
	v.again = make(chan struct{})
}

func (v *survivor) ended() bool { return v.ctx.Err() != nil }

// next returns a channel that is closed after the next attempt to dial again.
func (v *survivor) next() <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.again
}

// tried wakes those who wait for an attempt to dial again: the callers of Await, and survive.
func (v *survivor) tried() {
	v.mu.Lock()
	defer v.mu.Unlock()
	close(v.again)
	v.again = make(chan struct{})
}

// Pauses between attempts to recover a device.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = time.Second
)

// survive recovers the device each time it is lost, until it is closed. After a loss that is final
// it waits for a Reset.
func (d *Device) survive() {
	for {
		again := d.survivor.next() // before the stream, which an attempt replaces first
		s := d.stream.Load()
		select {
		case <-s.done:
		case <-d.survivor.ctx.Done():
			return
		}
		err := s.failure()
		if !errors.Is(err, ErrNeedsReset) {
			select {
			case <-again:
			case <-d.survivor.ctx.Done():
				return
			}
			continue
		}
		d.events.emit(Event{Type: abi.EventFunctionState, Status: uint32(abi.StateReset), Reason: err.Error()})
		for pause := firstPause; d.revive() != nil; pause = min(2*pause, lastPause) {
			select {
			case <-time.After(pause):
			case <-d.survivor.ctx.Done():
				return
			}
			if !errors.Is(d.stream.Load().failure(), ErrNeedsReset) {
				break // the loss is final, or Reset was faster
			}
		}
	}
}

// Await returns when the device works: at once, or after a lost device (ErrNeedsReset) has
// recovered. Unless Options.NoRecovery is set, the device dials again and resets the function by
// itself. Objects from before the loss fail for ever, as after Reset; Buffers stay. Await returns
// an error if the device cannot recover because it is closed or broke the protocol. If the function
// is stopped but the device is not lost, the program must call Reset.
func (d *Device) Await(ctx context.Context) error {
	for {
		again := d.survivor.next() // before the check of Err
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

// revive recovers a device, unless it works again already.
func (d *Device) revive() error {
	d.resetting.Lock()
	defer d.resetting.Unlock()
	if d.stream.Load().failure() == nil {
		return nil
	}
	return d.redial(d.survivor.ctx)
}

// redial dials again and begins a new life of a device whose stream was lost. The caller holds
// resetting.
func (d *Device) redial(ctx context.Context) error {
	defer d.survivor.tried()
	ctx, cancel := context.WithTimeout(ctx, d.opts.CommandTimeout)
	defer cancel()
	defer context.AfterFunc(d.survivor.ctx, cancel)()
	old, dead := d.stream.Load(), d.admin.Load()
	lost := old.failure()
	d.survivor.lost.Store(&lost)
	old.wg.Wait()
	old.useWindow(nil)
	d.memoryInUse = d.memoryInUse || !old.released
	d.objects.stopAll(d.stream.Load(), lost)
	dead.close()
	d.cm.clear()
	conn, err := redial(ctx, d.target, d.src, d.opts.Connect)
	if err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	s := newStream(conn)
	a := adminIn(s, dead.sq, dead.cq, dead.timeout)
	if err := d.begin(ctx, s, a); err != nil {
		err = fmt.Errorf("reset: %w", err)
		s.fail(needsReset("%w", err), !a.told.Load())
		return err
	}
	d.memoryInUse = false // after the reset the device accesses no earlier memory any more (DEV-303)
	d.pool.Release()
	d.survivor.lost.Store(nil)
	return nil
}

var errReset = fmt.Errorf("function reset: %w", ErrClosed)

// Reset does a function-level reset, also after a fault, on the same stream. It ends every object
// that was created from the device, waits until the device no longer uses them, and enables the
// function again. From then on the old objects fail with ErrClosed (or the fault); destroying them
// frees their memory. Buffers stay and can be registered again. After an error Reset may be called
// again.
//
// If the stream is lost Reset dials again first. The device also does that by itself; see Await.
func (d *Device) Reset(ctx context.Context) error {
	d.resetting.Lock()
	defer d.resetting.Unlock()
	if err := d.stream.Load().failure(); err != nil {
		if d.survivor.ended() || errors.Is(err, ErrClosed) {
			return fmt.Errorf("reset: %w", errClosedDevice)
		}
		return d.redial(ctx)
	}
	old := d.admin.Load()
	d.objects.stopAll(d.stream.Load(), errReset)
	ctx, cancel := context.WithTimeout(ctx, old.timeout)
	defer cancel()
	err := registers{d.stream.Load()}.control(ctx, abi.ControlReset, abi.StateReset)
	if err != nil {
		d.pool.Hold() // the device may still use the memory of objects that are destroyed now
	}
	old.end(errReset)
	d.objects.stopAll(d.stream.Load(), errReset) // objects that commands have created since
	if err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	// The device accesses no earlier memory any more (DEV-303).
	d.pool.Release()
	old.close()
	d.cm.clear()
	a := adminIn(d.stream.Load(), old.sq, old.cq, old.timeout)
	d.admin.Store(a)
	d.stream.Load().wg.Go(a.watch)
	if err := d.enable(ctx); err != nil {
		err = fmt.Errorf("reset: %w", err)
		a.end(lost(err)) // no command must wait for a function that is not enabled
		return err
	}
	return nil
}
