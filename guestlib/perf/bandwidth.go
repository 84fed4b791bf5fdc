package perf

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
)

// lane is a queue pair in a bandwidth test.
type lane struct {
	wr                guestlib.SendWR
	sge               [1]guestlib.SGE
	posted, completed int
	postedAt          []time.Duration // of each message; nil if the peak is not measured
	completedAt       []time.Duration
}

// bandwidth keeps all queue pairs busy until each has sent its messages or time is up. A side that
// only receives, or does nothing, waits for the other's report.
func (s *session) bandwidth(ctx context.Context, r *Row) error {
	if !s.client && !s.Bidirectional {
		return s.serve(ctx)
	}
	lanes := make([]lane, s.QPs)
	keep := !s.NoPeak && s.Duration == 0
	for i := range lanes {
		l := &lanes[i]
		s.request(&l.wr, l.sge[:], i, r.Bytes)
		if keep {
			l.postedAt, l.completedAt = make([]time.Duration, 0, s.Iterations), make([]time.Duration, 0, s.Iterations)
		}
	}
	limit := s.Iterations
	if s.Duration > 0 {
		limit = math.MaxInt
	}
	start := s.now()
	end, n := start, 0
	for n < limit*s.QPs || s.Duration > 0 {
		for i := range lanes {
			if err := s.fill(&lanes[i], i, limit); err != nil {
				return err
			}
		}
		got, err := s.reap(ctx, lanes, limit)
		if err != nil {
			return err
		}
		if got > 0 {
			n, end = n+got, s.now()
		}
		if s.Duration > 0 && s.now()-start >= s.Duration {
			break
		}
	}
	if err := r.rates(n, end-start); err != nil {
		return err
	}
	for i := range lanes {
		r.peak(lanes[i].postedAt, lanes[i].completedAt, 2*s.TxDepth)
	}
	r.PeakMBs = max(r.PeakMBs*float64(s.QPs), r.BWMBs)
	return nil
}

// fill posts as many requests as the lane's queue pair has room for.
func (s *session) fill(l *lane, qp, limit int) error {
	for l.posted < limit && l.posted-l.completed < s.TxDepth {
		l.wr.ID, l.wr.Flags = uint64(qp)<<32|uint64(uint32(l.posted)), 0
		if l.posted++; l.posted%s.CQMod == 0 || l.posted == limit {
			l.wr.Flags = guestlib.Signaled
		}
		if l.postedAt != nil {
			l.postedAt = append(l.postedAt, s.now())
		}
		if err := s.qps[qp].PostSend(&l.wr); err != nil {
			return err
		}
	}
	return nil
}

// reap polls completions and returns how many sends they complete: each completes the unsignaled
// sends before it, too.
func (s *session) reap(ctx context.Context, lanes []lane, limit int) (done int, err error) {
	n, err := s.scq.Poll(s.wcs[:])
	if err != nil {
		return 0, err
	}
	for i := range s.wcs[:n] {
		wc := &s.wcs[i]
		if err := wc.Err(); err != nil {
			return done, err
		}
		l := &lanes[wc.ID>>32]
		more := min(l.completed-l.completed%s.CQMod+s.CQMod, limit) - l.completed
		l.completed += more
		done += more
		for now := s.now(); l.postedAt != nil && len(l.completedAt) < l.completed; {
			l.completedAt = append(l.completedAt, now)
		}
	}
	if s.receives() {
		if err := s.refill(); err != nil {
			return done, err
		}
	}
	if n > 0 {
		return done, nil
	}
	return done, errors.Join(lost(s.qps[0]), s.idle(ctx, s.scq))
}

// serve receives until the client's report has come.
func (s *session) serve(ctx context.Context) error {
	if s.Op != Send {
		return nil // compare waits
	}
	polling, stop := context.WithCancel(ctx)
	reported := make(chan error, 1)
	go func() {
		reported <- s.ctl.peek(polling)
		stop()
	}()
	for polling.Err() == nil {
		err := s.refill()
		if err == nil {
			err = s.idle(polling, s.rcq)
		}
		if err != nil && polling.Err() == nil {
			stop()
			return errors.Join(err, <-reported)
		}
	}
	return <-reported
}
