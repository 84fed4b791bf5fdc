package guestlib

import (
	"context"
	"errors"
	"fmt"

	"github.com/falcon-vnic/vnic/queues/abi"
)

var errReset = fmt.Errorf("function reset: %w", ErrClosed)

// Reset is the function-level reset, also out of a fault, on the same stream: it ends every object
// made from the device, waits until the device has let go of them, and enables the function again.
// Objects of before fail with ErrClosed (or the fault) from then on; destroying them gives their
// memory back. Buffers stay: they can be registered anew. After an error Reset may be tried again.
//
// Where the stream is lost Reset dials again first; see Await for who does that by itself.
func (d *Device) Reset(ctx context.Context) error {
	d.resetting.Lock()
	defer d.resetting.Unlock()
	if err := d.s.Load().failure(); err != nil {
		if d.survivor.ended() || errors.Is(err, ErrClosed) {
			return fmt.Errorf("reset: %w", errClosedDevice)
		}
		return d.redial(ctx)
	}
	old := d.admin.Load()
	d.objects.silence(d.s.Load(), errReset)
	ctx, cancel := context.WithTimeout(ctx, old.timeout)
	defer cancel()
	err := registers{d.s.Load()}.control(ctx, abi.ControlReset, abi.StateReset)
	if err != nil {
		d.pool.Hold() // what is destroyed now may still be the device's
	}
	old.end(errReset)
	d.objects.silence(d.s.Load(), errReset) // what commands still made meanwhile
	if err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	// The device touches nothing of before any more (DEV-303).
	d.pool.Release()
	old.close()
	old.free()
	d.cm.clear()
	a, err := newAdmin(d.s.Load(), d.pool, old.timeout)
	if err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	d.admin.Store(a)
	d.s.Load().wg.Go(a.watch)
	if err := d.enable(ctx); err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	d.survivor.alive()
	return nil
}
