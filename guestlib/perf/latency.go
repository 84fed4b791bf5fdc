package perf

import (
	"context"
	"errors"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
)

// pingPong sends a message, waits for the peer's, and so on. The other side does the same the other
// way round.
func (s *session) pingPong(ctx context.Context, r *Row) error {
	var wr guestlib.SendWR
	var sge [1]guestlib.SGE
	s.request(&wr, sge[:], 0, r.Bytes)
	wr.Flags = guestlib.Signaled
	out, in := s.mr.Bytes()[s.local(0):][:s.slot], s.mr.Bytes()[s.inbox(0):][:s.slot]
	times := make([]time.Duration, s.Iterations)
	last := r.Bytes - 1
	for i := range s.Iterations {
		mark := byte(i + 1)
		if !s.leads() {
			if err := s.await(ctx, in, last, mark); err != nil {
				return err
			}
		}
		out[last] = mark // the peer's message says that it has this one's predecessor: the slot is ours
		wr.ID = uint64(i)
		times[i] = s.now()
		if err := s.post(ctx, 0, &wr); err != nil {
			return err
		}
		if s.leads() {
			if err := s.await(ctx, in, last, mark); err != nil {
				return err
			}
		}
	}
	if err := s.drain(ctx, s.Iterations); err != nil {
		return err
	}
	r.Iterations = s.Iterations
	r.latencies(times, 2)
	return nil
}

// await waits for the peer's message.
func (s *session) await(ctx context.Context, in []byte, last int, mark byte) error {
	if s.Op == Send {
		return s.awaitReceive(ctx)
	}
	for n := 1; byteAt(in, last) != mark; n++ {
		if n&0xff != 0 {
			continue
		}
		if err := errors.Join(lost(s.qps[0]), s.idle(ctx, nil)); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) awaitReceive(ctx context.Context) error {
	var wc [1]guestlib.WC
	start := s.now()
	for {
		n, err := s.rcq.Poll(wc[:])
		switch {
		case err != nil:
			return err
		case n == 1 && wc[0].Err() != nil:
			return wc[0].Err()
		case n == 1:
			return s.postRecv(0)
		}
		if err := errors.Join(lost(s.qps[0]), s.late(start), s.idle(ctx, s.rcq)); err != nil {
			return err
		}
	}
}

// oneByOne waits for each operation's completion before the next.
func (s *session) oneByOne(ctx context.Context, r *Row) error {
	var wr guestlib.SendWR
	var sge [1]guestlib.SGE
	s.request(&wr, sge[:], 0, r.Bytes)
	wr.Flags = guestlib.Signaled
	times := make([]time.Duration, s.Iterations+1)
	for i := range s.Iterations {
		wr.ID = uint64(i)
		times[i] = s.now()
		if err := s.post(ctx, 0, &wr); err != nil {
			return err
		}
		if err := s.drain(ctx, i+1); err != nil {
			return err
		}
	}
	times[s.Iterations] = s.now()
	r.Iterations = s.Iterations
	r.latencies(times, 1)
	return nil
}
