package workload

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
)

// byeTime is how long a driver whose connection was lost with its last word tries to say it again:
// the server has heard it, and drives itself by now, or is back by then.
const byeTime = 10 * time.Second

const recoverPause = 50 * time.Millisecond

// persist takes a turn to its end, through losses of the device, the peer and their connection,
// unless nothing is achieved for too long.
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
		out.line(Line{Kind: KindProgress, Text: recovered})
		select { // what fails at once is not to be a busy loop
		case <-time.After(recoverPause):
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

// recovered is what is said when the device works again.
const recovered = "recovered: device attached again, everything made anew"

// interrupted reports whether another try may help.
func (e *endpoint) interrupted(ctx context.Context, err error) bool {
	return ctx.Err() == nil && !errors.Is(err, guestlib.ErrProtocol) && !errors.Is(err, guestlib.ErrInvalid) && !errors.Is(err, guestlib.ErrUnsupported)
}

// renew waits until the device works and makes everything anew. The memory stays the same.
func (e *endpoint) renew(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := e.dev.Await(ctx)
		if err != nil && !errors.Is(err, guestlib.ErrNeedsReset) && e.interrupted(ctx, err) {
			err = e.dev.Reset(ctx) // the function was stopped or reset, and the device is there
		}
		if err != nil {
			return err
		}
		e.drop(ctx)
		if err = e.setup(ctx); err == nil || !e.interrupted(ctx, err) {
			return err
		}
		select { // it was lost once more
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

// drop destroys whatever there is. What cannot be destroyed went with the device, or goes with it.
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

// byeAgain says the last word once more, to a server that may have heard it.
func (d *driver) byeAgain(ctx context.Context, cfg *Config) {
	again := *cfg
	again.MeetTimeout = byeTime
	if d.connect(ctx, &again) == nil {
		_ = d.bye(ctx)
	}
}
