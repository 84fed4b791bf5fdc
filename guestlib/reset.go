package guestlib

import (
	"context"
	"errors"
	"fmt"

	"github.com/falcon-vnic/vnic/queues/abi"
)

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
		d.pool.Hold() // the device may still use the memory of objects that are destroyed now
	}
	old.end(errReset)
	d.objects.silence(d.s.Load(), errReset) // objects that commands have created since
	if err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	// The device accesses no earlier memory any more (DEV-303).
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
