package perf

import (
	"context"
	"errors"
	"fmt"
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

// doorbellPaths are the ways to ring that a client measures in order: first a doorbell over the
// stream for every post, then the best path there is.
var doorbellPaths = []guestlib.Options{
	{Driver: "vnic doorbell", NoWindow: true, RingAlways: true},
	{Driver: "vnic doorbell"},
}

const (
	doorbellWrite = 64 // bytes of a WRITE
	// writesTake is the time of the WRITEs for each wanted sample. A device that had to give its
	// processor to others sleeps after each WRITE, for up to half a second, and time is needed for the
	// other measurements too.
	writesTake = 2 * time.Millisecond
)

// Doorbells measures what it costs to reach the device and to be reached by it. The client
// measures, cfg.Iterations samples of each; the server only provides the memory.
func Doorbells(ctx context.Context, cfg Config) (costs []Cost, err error) {
	cfg.Test, cfg.Size, cfg.Inline = Test{Doorbell, true}, doorbellWrite, 0
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if !cfg.client() {
		return nil, serveDoorbells(ctx, cfg)
	}
	for _, path := range doorbellPaths {
		c, err := doorbells(ctx, cfg, path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", cfg.Test, err)
		}
		costs = append(costs, c)
	}
	return costs, nil
}

// doorbells measures one path.
func doorbells(ctx context.Context, cfg Config, path guestlib.Options) (c Cost, err error) {
	dev, err := guestlib.Open(ctx, cfg.URL, path)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	c.Path, _ = dev.Path()
	if c.Latency, err = dev.MeasureLatency(ctx, cfg.Iterations); err != nil {
		return c, err
	}
	s, err := newSession(ctx, dev, &cfg)
	if err != nil {
		return c, err
	}
	if _, err = s.connect(ctx); err != nil {
		return c, err
	}
	if err = s.timeWrites(ctx, &c); err != nil {
		return c, err
	}
	_, err = s.ctl.exchange(ctx, nil) // so that neither closes while the other still waits
	return c, err
}

// serveDoorbells provides the memory for each path of a client.
func serveDoorbells(ctx context.Context, cfg Config) (err error) {
	dev, err := guestlib.Open(ctx, cfg.URL, guestlib.Options{Driver: "vnic doorbell"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	for range doorbellPaths {
		one := cfg
		s, err := newSession(ctx, dev, &one)
		if err == nil {
			_, err = s.listen(ctx)
		}
		if err == nil {
			err = s.ctl.peek(ctx)
		}
		if err == nil {
			_, err = s.ctl.exchange(ctx, nil)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", cfg.Test, err)
		}
	}
	return nil
}

// timeWrites posts WRITEs one at a time. It polls memory until the device has read each one and
// until it has completed.
func (s *session) timeWrites(ctx context.Context, c *Cost) error {
	wr := guestlib.SendWR{
		Opcode: guestlib.Write, Flags: guestlib.Signaled, SGL: []guestlib.SGE{s.mr.SGE(s.local(0), doorbellWrite)},
		RemoteAddr: s.remote[0].addr, RKey: s.remote[0].rkey,
	}
	var taken, done []time.Duration
	until := time.Now().Add(time.Duration(s.Iterations) * writesTake)
	for ; c.Posts < s.Iterations || time.Now().Before(until); c.Posts++ {
		wr.ID = uint64(c.Posts)
		start := time.Now()
		took, rung, err := s.qps[0].TimeSend(&wr)
		if err != nil {
			return err
		}
		if !rung {
			taken = append(taken, took)
		}
		if err := s.drain(ctx, c.Posts+1); err != nil {
			return err
		}
		done = append(done, time.Since(start))
	}
	c.Shadowed, c.Write64US = len(taken), median(done)
	if c.Shadowed >= c.Posts/10 {
		c.ShadowUS = median(taken)
	}
	return nil
}

// median is in microseconds.
func median(times []time.Duration) float64 {
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return float64(times[len(times)/2].Nanoseconds()) / 1000
}
