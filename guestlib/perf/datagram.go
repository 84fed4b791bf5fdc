package perf

import (
	"context"
	"fmt"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
)

// Datagrams (perftest's -c UD): the same tests of SEND, on queue pairs that need no connection.
// Each side tells the other its queue pairs' numbers over the control connection; what is lost is
// counted where it should have arrived.
//
//	client                                        server
//	◄─number of queue pair i, for each───────────►
//	══the test══════════════════════════════════►
//	◄─datagrams received─────────────────────────►

// silence is how long a ping-pong waits for a datagram before it counts as lost.
const silence = 5 * time.Second

// exchangeQPNumbers exchanges the numbers of queue pairs with the peer, and makes address handles.
func (s *session) exchangeQPNumbers(ctx context.Context) (err error) {
	if s.ah, err = s.pd.CreateAH(ctx, guestlib.AHConfig{GID: s.Peer, Path: s.Path}); err != nil {
		return err
	}
	for _, qp := range s.qps {
		n, err := s.exchangeNumber(ctx, int(qp.Num()))
		if err != nil {
			return err
		}
		s.peers = append(s.peers, uint32(n))
	}
	return nil
}

// exchangeNumber sends the peer a number and returns the peer's.
func (s *session) exchangeNumber(ctx context.Context, n int) (int, error) {
	r, err := s.ctl.exchange(ctx, &Row{Iterations: n})
	if err != nil {
		return 0, err
	}
	return r.Iterations, nil
}

// countLost finds out how many datagrams of the row were lost, in each direction.
func (s *session) countLost(ctx context.Context, r *Row) error {
	for before := -1; s.received != before; {
		before = s.received
		if err := s.refill(); err != nil {
			return err
		}
	}
	arrived, err := s.exchangeNumber(ctx, s.received)
	if err != nil {
		return err
	}
	r.Lost = r.Iterations - arrived - s.received
	return nil
}

// late returns an error if a wait for a datagram that began at start has taken too long.
func (s *session) late(start time.Duration) error {
	if !s.Datagrams || s.now()-start < silence {
		return nil
	}
	return fmt.Errorf("no datagram within %v: one was lost; run it again, or measure RC", silence)
}
