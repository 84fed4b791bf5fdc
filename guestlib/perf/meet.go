package perf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/perf/perftest"
)

// call is the client's side of the agreement. It returns the server if that is perftest's, with
// which nothing is agreed yet.
func (s *session) call(ctx context.Context) (*perftest.Conn, error) {
	if err := s.prepare(ctx); err != nil {
		return nil, err
	}
	h := hello{
		test: s.Test, all: s.All, bidirectional: s.Bidirectional, cmpSwap: s.CmpSwap, datagrams: s.Datagrams, qps: uint16(s.QPs),
		size: uint32(s.Size), iterations: uint32(s.Iterations), duration: s.Duration, region: s.region(),
	}
	answer, other, err := s.meetServer(ctx, h.marshal())
	if err != nil || other != nil {
		return other, err
	}
	var theirs region
	if err := theirs.unmarshal(answer); err != nil {
		return nil, err
	}
	s.reach(theirs)
	if s.Datagrams {
		return nil, s.meetDatagrams(ctx)
	}
	for i, qp := range s.qps {
		if _, err := s.dev.Connect(ctx, qp, s.Peer, s.Service, nil); err != nil {
			return nil, fmt.Errorf("queue pair %d of %d: %w", i+1, len(s.qps), err)
		}
	}
	return nil, nil
}

// meetServer connects the control connection to a server that may not be there yet, or finds one of
// perftest.
func (s *session) meetServer(ctx context.Context, hello []byte) ([]byte, *perftest.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Meet)
	defer cancel()
	var reason error // of the last attempt that ctx did not cut off
	stranger := false
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		answer, err := s.dev.Connect(ctx, s.ctl.qp, s.Peer, s.Service, hello)
		var no *guestlib.RejectedError
		switch {
		case err == nil:
			return answer, nil, nil
		case errors.As(err, &no) && len(no.Private) > 0:
			return nil, nil, fmt.Errorf("the server says: %s", no.Private)
		case ctx.Err() != nil:
			return nil, nil, s.noServer(cmp.Or(reason, err))
		case !errors.Is(err, guestlib.ErrRefused) && !errors.Is(err, guestlib.ErrUnreachable) && !errors.Is(err, guestlib.ErrTimeout):
			return nil, nil, err
		}
		if reason == nil && s.Waiting != nil {
			s.Waiting(err)
		}
		if !stranger {
			other, no := s.dialPerftest(ctx)
			var network net.Error
			switch {
			case no == nil:
				return nil, other, nil
			case errors.Is(no, perftest.ErrStranger):
				stranger = true
			case !errors.As(no, &network):
				return nil, nil, no
			}
		}
		reason = err
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, nil, s.noServer(reason)
		}
	}
}

func (s *session) noServer(reason error) error {
	return fmt.Errorf("no server at %v, service %d, within %v: start the same test there first, without a peer (vnic guest perf %s, or perftest's ib_%[4]s): %[5]w", s.Peer, s.Service, s.Meet, s.Test, reason)
}

// answer is the server's side. It returns the client if that is perftest's, as call does.
func (s *session) answer(ctx context.Context) (*perftest.Conn, error) {
	l, err := s.dev.Listen(ctx, s.Service)
	if err != nil {
		return nil, err
	}
	looking, stop := s.expectPerftest(ctx)
	r, err := l.Accept(looking)
	if other := stop(); other != nil {
		if err != nil {
			return other, l.Close(ctx)
		}
		_ = other.Close() // one of ours was first
	}
	if err != nil {
		return nil, err
	}
	return nil, s.accept(ctx, l, r)
}

// accept is the server's side with a client of ours.
func (s *session) accept(ctx context.Context, l *guestlib.Listener, r *guestlib.ConnectRequest) error {
	var h hello
	err := h.unmarshal(r.Private)
	if err == nil {
		err = s.adopt(&h)
	}
	if err != nil {
		why := err.Error()
		return errors.Join(err, r.Reject(ctx, 1, []byte(why[:min(len(why), guestlib.MaxPrivate)])))
	}
	s.Peer = r.GID
	if err := s.prepare(ctx); err != nil {
		return err
	}
	s.reach(h.region)
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
