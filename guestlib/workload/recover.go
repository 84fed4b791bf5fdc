package workload

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
)

// byeTime is how long a driver tries to send its BYE again after it lost the connection with it.
// Within that time a server that did not get the BYE is back; one that got it has become the
// driver.
const byeTime = 10 * time.Second

const recoverPause = 50 * time.Millisecond

// persist runs a turn to its end, also when the device, the peer or their connection is lost in
// between. It gives up if there is no progress for limit.
func (e *endpoint) persist(ctx context.Context, limit time.Duration, out *printer, turn func() error) error {
	for {
		err := turn()
		if err == nil || !e.interrupted(ctx, err) || time.Since(e.achieved) > limit {
			return err
		}
		out.progress("interrupted, trying again: %v", err)
		if err := e.renew(ctx, limit); err != nil {
			return fmt.Errorf("not recovered within %v: %w", limit, err)
		}
		out.line(Output{Kind: KindProgress, Text: recovered})
		select { // a pause, so that a turn which fails at once does not make a busy loop
		case <-time.After(recoverPause):
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

// recovered is the progress text when the device works again.
const recovered = "recovered: device attached again, everything made anew"

// interrupted reports whether another try may help.
func (e *endpoint) interrupted(ctx context.Context, err error) bool {
	return ctx.Err() == nil && !errors.Is(err, guestlib.ErrProtocol) && !errors.Is(err, guestlib.ErrInvalid) && !errors.Is(err, guestlib.ErrUnsupported)
}

// renew waits until the device works, and creates all objects again. The memory stays the same.
func (e *endpoint) renew(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := e.dev.Await(ctx)
		if err != nil && !errors.Is(err, guestlib.ErrNeedsReset) && e.interrupted(ctx, err) {
			err = e.dev.Reset(ctx) // the function was stopped or reset, but the device is not lost
		}
		if err != nil {
			return err
		}
		e.drop(ctx)
		if err = e.setup(ctx); err == nil || !e.interrupted(ctx, err) {
			return err
		}
		select { // the device was lost again
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

// drop destroys all objects. Those that cannot be destroyed have gone with the device, or will go
// with it.
func (e *endpoint) drop(ctx context.Context) {
	_ = e.endQueues(ctx)
	clear(e.queues)
	if e.qp != nil {
		_ = e.qp.Destroy(ctx)
	}
	if e.mr != nil {
		_ = e.mr.Dereg(ctx)
	}
	if e.cq != nil {
		_ = e.cq.Destroy(ctx)
	}
	if e.pd != nil {
		_ = e.pd.Dealloc(ctx)
	}
	e.qp, e.mr, e.cq, e.pd = nil, nil, nil, nil
}

// byeAgain sends the BYE again, to a server that may have got it already.
func (d *driver) byeAgain(ctx context.Context, cfg *Config) {
	again := *cfg
	again.MeetTimeout = byeTime
	if d.connect(ctx, &again) == nil {
		_ = d.bye(ctx)
	}
}
