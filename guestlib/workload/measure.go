package workload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
)

// Cost holds the latencies of a device on one path, as medians in microseconds.
type Cost struct {
	Path    string // as guestlib.Device.Path names it
	Latency guestlib.Latency

	// ShadowUS is the time from posting a send, while the device polls the queue, until the device
	// has read it: the producer index in memory is the only doorbell. It is 0 if there were too few
	// such posts.
	ShadowUS float64
	Shadowed int // number of such posts, out of Posts
	Posts    int
	// Write64US is the time from posting a WRITE of 64 bytes until its completion is polled, one
	// WRITE at a time.
	Write64US float64
}

// measuring lists the measurements of a guest in order: first with a doorbell over the stream for
// every post, then on the best available path.
var measuring = []guestlib.Options{
	{Driver: "vnic latency", NoWindow: true, RingAlways: true},
	{Driver: "vnic latency"},
}

// Measure measures the device's latencies if cfg.First is set, with the help of a peer that runs
// Measure too. It uses only the fields URL, PeerGID, First, Service, Count (number of samples),
// MeetTimeout and Out.
func Measure(ctx context.Context, cfg Config) (costs []Cost, err error) {
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	out := &printer{w: io.Discard}
	if !cfg.First {
		e, err := open(ctx, cfg.URL, minData)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, e.dev.Close()) }()
		for range measuring {
			if err := (&server{endpoint: e, out: out}).serve(ctx, &cfg); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
	for _, opts := range measuring {
		c, err := measure(ctx, &cfg, opts, out)
		if err != nil {
			return nil, err
		}
		costs = append(costs, c)
	}
	return costs, nil
}

func measure(ctx context.Context, cfg *Config, opts guestlib.Options, out *printer) (c Cost, err error) {
	e, err := openWith(ctx, cfg.URL, minData, opts)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, e.dev.Close()) }()
	c.Path, _ = e.dev.Path()
	if c.Latency, err = e.dev.MeasureLatency(ctx, cfg.Count); err != nil {
		return c, err
	}
	d := &driver{endpoint: e, out: out}
	if err := d.connect(ctx, cfg); err != nil {
		return c, err
	}
	c.Posts = cfg.Count
	if err := d.writes(ctx, &c); err != nil {
		return c, err
	}
	return c, d.bye(ctx)
}

// writesTake is the time limit of the WRITEs for each wanted sample. A device that had to give its
// processor to others sleeps after each WRITE, for up to half a second, and time is needed for the
// other measurements too.
const writesTake = 2 * time.Millisecond

// writes posts WRITEs of 64 bytes, one at a time. It polls memory until the device has read each
// WRITE and until it has completed.
func (d *driver) writes(ctx context.Context, c *Cost) error {
	wr := guestlib.SendWR{
		Opcode: guestlib.Write, Flags: guestlib.Signaled, SGL: []guestlib.SGE{d.mr.SGE(0, 64)}, RemoteAddr: d.peer.addr, RKey: d.peer.rkey,
	}
	var taken, done []time.Duration
	samples, until := c.Posts, time.Now().Add(time.Duration(c.Posts)*writesTake)
	for c.Posts = 0; c.Posts < samples || time.Now().Before(until); c.Posts++ {
		wr.ID = uint64(c.Posts)
		start := time.Now()
		took, rung, err := d.qp.TimeSend(&wr)
		if err != nil {
			return err
		}
		if !rung {
			taken = append(taken, took)
		}
		if err := d.finish(ctx, wr.ID, start); err != nil {
			return err
		}
		done = append(done, time.Since(start))
	}
	c.Shadowed, c.Write64US = len(taken), round(micros(middle(done)))
	if c.Shadowed >= c.Posts/10 {
		c.ShadowUS = round(micros(middle(taken)))
	}
	return nil
}

// finish polls for a completion.
func (d *driver) finish(ctx context.Context, id uint64, start time.Time) error {
	for {
		n, err := d.cq.Poll(d.wcs[:1])
		switch {
		case err != nil:
			return err
		case n == 1 && d.wcs[0].ID == id:
			return d.wcs[0].Err()
		case n == 1:
			return fmt.Errorf("completion of work request %d where %d was due", d.wcs[0].ID, id)
		case time.Since(start) > stall || ctx.Err() != nil:
			return errors.Join(fmt.Errorf("no completion of WRITE %d", id), ctx.Err())
		}
		runtime.Gosched()
	}
}

func middle(ds []time.Duration) time.Duration {
	if len(ds) == 0 {
		return 0
	}
	slices.Sort(ds)
	return ds[len(ds)/2]
}
