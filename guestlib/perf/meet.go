package perf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
)

// call is the client's side of the agreement.
func (s *session) call(ctx context.Context) error {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	h := hello{
		test: s.Test, all: s.All, bidirectional: s.Bidirectional, cmpSwap: s.CmpSwap, datagrams: s.Datagrams, qps: uint16(s.QPs),
		size: uint32(s.Size), iterations: uint32(s.Iterations), duration: s.Duration, region: s.region(),
	}
	answer, err := s.meetServer(ctx, h.marshal())
	if err != nil {
		return err
	}
	if err := s.remote.unmarshal(answer); err != nil {
		return err
	}
	if s.Datagrams {
		return s.meetDatagrams(ctx)
	}
	for i, qp := range s.qps {
		if _, err := s.dev.Connect(ctx, qp, s.Peer, s.Service, nil); err != nil {
			return fmt.Errorf("queue pair %d of %d: %w", i+1, len(s.qps), err)
		}
	}
	return nil
}

// meetServer connects the control connection to a server that may not be there yet.
func (s *session) meetServer(ctx context.Context, hello []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Meet)
	defer cancel()
	var reason error // of the last attempt that ctx did not cut off
	perftest := false
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		answer, err := s.dev.Connect(ctx, s.ctl.qp, s.Peer, s.Service, hello)
		var no *guestlib.RejectedError
		switch {
		case err == nil:
			return answer, nil
		case errors.As(err, &no) && len(no.Private) > 0:
			return nil, fmt.Errorf("the server says: %s", no.Private)
		case ctx.Err() != nil:
			return nil, s.noServer(cmp.Or(reason, err))
		case !errors.Is(err, guestlib.ErrRefused) && !errors.Is(err, guestlib.ErrUnreachable) && !errors.Is(err, guestlib.ErrTimeout):
			return nil, err
		case perftest: // a server of ours listens for us before it listens for perftest
			return nil, fmt.Errorf("at %v no server waits, but a program of perftest (TCP port %d): start vnic guest perf %s there, or ib_%[3]s here, if the Linux driver has this function", s.Peer, s.Service, s.Test)
		}
		if reason == nil {
			if s.Waiting != nil {
				s.Waiting(err)
			}
			perftest = s.perftestWaits(ctx)
		}
		reason = err
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, s.noServer(reason)
		}
	}
}

func (s *session) noServer(reason error) error {
	return fmt.Errorf("no server at %v, service %d, within %v: start the same test there first, without a peer (perftest's own programs are no such server): %w", s.Peer, s.Service, s.Meet, reason)
}

// answer is the server's side.
func (s *session) answer(ctx context.Context) error {
	l, err := s.dev.Listen(ctx, s.Service)
	if err != nil {
		return err
	}
	looking, stop := s.expectPerftest(ctx)
	r, err := l.Accept(looking)
	if err != nil {
		err = cmp.Or(context.Cause(looking), err)
	}
	stop()
	if err != nil {
		return err
	}
	var h hello
	if err = h.unmarshal(r.Private); err == nil {
		err = s.adopt(&h)
	}
	if err != nil {
		why := err.Error()
		return errors.Join(err, r.Reject(ctx, 1, []byte(why[:min(len(why), guestlib.MaxPrivate)])))
	}
	s.Peer, s.remote = r.GID, h.region
	if err := s.prepare(ctx); err != nil {
		return err
	}
	if err := r.Accept(ctx, s.ctl.qp, s.region().append(nil)); err != nil {
		return err
	}
	if s.Datagrams {
		return errors.Join(s.meetDatagrams(ctx), l.Close(ctx))
	}
	for _, qp := range s.qps {
		r, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		if err := r.Accept(ctx, qp, nil); err != nil {
			return err
		}
	}
	return l.Close(ctx)
}

// adopt takes what the client counts.
func (s *session) adopt(h *hello) error {
	if h.test != s.Test {
		return fmt.Errorf("client: %s, server: %s; start the same", h.test, s.Test)
	}
	s.All, s.Bidirectional, s.CmpSwap, s.Datagrams, s.QPs = h.all, h.bidirectional, h.cmpSwap, h.datagrams, int(h.qps)
	s.Size, s.Iterations, s.Duration = int(h.size), int(h.iterations), h.duration
	return s.check()
}
