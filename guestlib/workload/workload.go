package workload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/queues/abi"
)

const rts = abi.QPStateRTS

// Config configures a run. All fields but URL and PeerGID may be zero.
type Config struct {
	URL     string       // of the device, as for guestlib.Open
	PeerGID guestlib.GID // of the other guest's function
	First   bool         // drive first, then serve; the peer must do it the other way round
	Service uint64       // service number by which the two connect

	Count int               // iterations of each row; 0: by size
	Sizes []int             // bytes; nil: 1, 64, 1000, 4096, 4097, 65536, 1048576
	Ops   []guestlib.Opcode // nil: all, including those of services.go
	Seed  uint64            // of the data

	// Beside is other work that runs at the same time; nil: none. Its lines are printed. The run
	// waits for it, and an error of it is an error of the run.
	Beside func(ctx context.Context, say func(Output)) error

	// Then is work that runs after everything else was done without an error and the device was
	// closed; nil: none. The run waits for it.
	Then func(ctx context.Context, say func(Output)) error

	// Recover is how long a run may go on without progress after its device, its peer or their
	// connection was lost. The run creates everything again and continues with the interrupted row.
	// 0: a loss ends the run.
	Recover time.Duration
	Repeat  int // number of turns in which each side drives; 0: 1

	every       bool          // Ops was not given
	MeetTimeout time.Duration // how long to wait for the peer; 0: 2 min
	Out         io.Writer     // for lines; nil: none
}

// minData is the least memory for slots, in bytes.
const minData = 4 << 20

// maxSize is the largest size of an operation, in bytes.
const maxSize = 64 << 20

func (c *Config) defaults() error {
	if c.Sizes == nil {
		c.Sizes = []int{1, 64, 1000, 4096, 4097, 64 << 10, 1 << 20}
	}
	c.every = c.Ops == nil
	if c.every {
		c.Ops = []guestlib.Opcode{
			guestlib.Send, guestlib.SendImm, guestlib.Write, guestlib.WriteImm, guestlib.Read, guestlib.CmpSwap, guestlib.FetchAdd,
			guestlib.MaskedCmpSwap, guestlib.MaskedFetchAdd, Datagram, Shared, Extended, Wired, Window, Loopback,
		}
	}
	if c.MeetTimeout <= 0 {
		c.MeetTimeout = 2 * time.Minute
	}
	if c.Out == nil {
		c.Out = io.Discard
	}
	for _, op := range c.Ops {
		if !atomic(op) && !receives(op) && !special(op) && op != guestlib.Write && op != guestlib.Read {
			return fmt.Errorf("workload: operation %s is not one it knows", name(op))
		}
	}
	for _, size := range c.Sizes {
		if size < 1 || size > maxSize {
			return fmt.Errorf("workload: size %d; use 1 to %d bytes", size, maxSize)
		}
	}
	if c.Count < 0 || c.Count > 1<<20 {
		return fmt.Errorf("workload: count %d; use 1 to %d, or 0 for counts by size", c.Count, 1<<20)
	}
	return nil
}

// ops returns the operations to run on a device with these features. Unless Ops was given it leaves
// out the operations that the device does not support.
func (c *Config) ops(features uint64) []guestlib.Opcode {
	if !c.every || features&abi.FeatureDatagrams != 0 {
		return c.Ops
	}
	return slices.DeleteFunc(slices.Clone(c.Ops), special)
}

// count returns the number of iterations of an operation of that size.
func (c *Config) count(size int) int {
	switch {
	case c.Count > 0:
		return c.Count
	case size <= 8<<10:
		return 20
	case size <= 128<<10:
		return 8
	}
	return 3
}

func atomic(op guestlib.Opcode) bool {
	switch op {
	case guestlib.CmpSwap, guestlib.FetchAdd, guestlib.MaskedCmpSwap, guestlib.MaskedFetchAdd:
		return true
	}
	return false
}

// receives reports whether op uses a receive of the peer.
func receives(op guestlib.Opcode) bool {
	return op == guestlib.Send || op == guestlib.SendImm || op == guestlib.WriteImm || special(op) && op != Window && op != Loopback
}

// Run does the work of one guest: it drives and serves, in the order that cfg says. The two guests
// may have different Sizes, but each guest's largest size must fit into the other's memory. The
// last line on cfg.Out has KindDone or KindError; in the latter case Run returns the same error.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.defaults(); err != nil {
		return err
	}
	out := &printer{w: cfg.Out}
	start := time.Now()
	join := beside(ctx, &cfg, out)
	results, err := run(ctx, &cfg, out)
	err = errors.Join(err, join(err == nil))
	operations, bytes, bad := 0, 0, 0
	for _, r := range results {
		operations += r.Count
		bytes += r.Count * r.Size
		if !r.Verified {
			bad++
		}
	}
	if err == nil && bad > 0 {
		err = fmt.Errorf("%d of %d rows were not verified", bad, len(results))
	}
	if err == nil && cfg.Then != nil {
		err = cfg.Then(ctx, out.line)
	}
	if err != nil {
		out.line(Output{Kind: KindError, Text: err.Error()})
		return err
	}
	out.line(Output{Kind: KindDone, Text: fmt.Sprintf("%d rows, %d operations, %.1f MB, all verified, in %.1f s",
		len(results), operations, float64(bytes)/1e6, time.Since(start).Seconds())})
	return nil
}

// beside starts the other work and returns a function that waits for its end (wait), or ends it.
func beside(ctx context.Context, cfg *Config, out *printer) (join func(wait bool) error) {
	if cfg.Beside == nil {
		return func(bool) error { return nil }
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- cfg.Beside(ctx, out.line) }()
	return func(wait bool) error {
		defer cancel()
		if !wait {
			cancel()
			<-ended
			return nil
		}
		return <-ended
	}
}

func run(ctx context.Context, cfg *Config, out *printer) (results []Result, err error) {
	data := max(minData, 2*slotSize(slices.Max(append([]int{1}, cfg.Sizes...))))
	data = (data + tailSize - 1) / tailSize * tailSize
	e, err := open(ctx, cfg.URL, data)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.dev.Close()) }()
	info := e.dev.Info()
	path, _ := e.dev.Path()
	out.progress("attached to function %s (%s) over %s, address %s, tenant %d, path MTU %d, %d KiB registered",
		info.Function, info.Type, path, info.GID, info.Tenant, info.MTU, e.mr.Len()>>10)
	for turn := range 2 * max(1, cfg.Repeat) {
		d := &driver{endpoint: e, out: out, seed: cfg.Seed + uint64(turn), gid: cfg.PeerGID}
		do := func() error { return d.drive(ctx, cfg) }
		if cfg.First != (turn%2 == 0) {
			do = func() error { return (&server{endpoint: e, out: out}).serve(ctx, cfg) }
		}
		err := e.persist(ctx, cfg.Recover, out, do)
		results = append(results, d.results...)
		if err != nil {
			return results, err
		}
	}
	return results, nil
}
