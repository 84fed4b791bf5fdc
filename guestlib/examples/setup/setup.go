package setup

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Access allows a peer everything in the registered memory.
const Access = guestlib.LocalWrite | guestlib.RemoteWrite | guestlib.RemoteRead | guestlib.RemoteAtomic

// Side is one end: what there is before there are connections.
type Side struct {
	Dev *guestlib.Device
	PD  *guestlib.PD
	MR  *guestlib.MR
	CQ  *guestlib.CQ
}

// Open attaches to the function at url and registers size bytes.
func Open(ctx context.Context, url string, size int) (*Side, error) {
	dev, err := guestlib.Open(ctx, url, guestlib.Options{Driver: "example"})
	if err != nil {
		return nil, err
	}
	s := &Side{Dev: dev}
	if err := s.register(ctx, size); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return s, nil
}

func (s *Side) register(ctx context.Context, size int) (err error) {
	buf, err := s.Dev.Alloc(size) // pages that stay where they are, not Go's memory
	if err != nil {
		return err
	}
	if s.PD, err = s.Dev.AllocPD(ctx); err != nil {
		return err
	}
	if s.MR, err = s.PD.RegMR(ctx, buf, Access); err != nil {
		return err
	}
	s.CQ, err = s.Dev.CreateCQ(ctx, 256)
	return err
}

// QP makes a queue pair that completes to the side's completion queue.
func (s *Side) QP(ctx context.Context) (*guestlib.QP, error) {
	return s.PD.CreateQP(ctx, guestlib.QPConfig{SendCQ: s.CQ, Access: Access, MaxInline: 64})
}

// Next sleeps until there is a completion and returns it; failed work is an error.
func (s *Side) Next(ctx context.Context) (guestlib.WC, error) {
	var wc [1]guestlib.WC
	for {
		if n, err := s.CQ.Poll(wc[:]); n > 0 || err != nil {
			return wc[0], errors.Join(err, wc[0].Err())
		}
		if err := s.CQ.Wait(ctx); err != nil {
			return wc[0], err
		}
	}
}

// Do posts one request and waits for its completion.
func (s *Side) Do(ctx context.Context, qp *guestlib.QP, wr *guestlib.SendWR) error {
	wr.Flags |= guestlib.Signaled
	if err := qp.PostSend(wr); err != nil {
		return err
	}
	_, err := s.Next(ctx)
	return err
}

// Remote names memory of a peer. It travels as private data of the connection.
type Remote struct {
	Addr uint64
	RKey uint32
}

// Connect connects a queue pair to a server, which may not be there yet, and returns the memory it
// offers.
func (s *Side) Connect(ctx context.Context, qp *guestlib.QP, peer guestlib.GID, service uint64) (r Remote, err error) {
	for {
		answer, err := s.Dev.Connect(ctx, qp, peer, service, nil)
		switch {
		case err == nil:
			_, err = fmt.Sscanf(string(answer), "%x %x", &r.Addr, &r.RKey)
			return r, err
		case !errors.Is(err, guestlib.ErrRefused) && !errors.Is(err, guestlib.ErrUnreachable):
			return r, err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return r, err
		}
	}
}

// Accept connects a queue pair to the next client and offers it the side's memory.
func (s *Side) Accept(ctx context.Context, l *guestlib.Listener, qp *guestlib.QP) error {
	request, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	return request.Accept(ctx, qp, fmt.Appendf(nil, "%x %x", s.MR.Addr(), s.MR.RKey()))
}

// Main runs a program's server, or its client if a peer is named on the command line.
func Main(server func(ctx context.Context, url string) error, client func(ctx context.Context, url string, peer guestlib.GID) error) {
	url := flag.String("d", fmt.Sprintf("vsock://2:%d", abi.Port), "the function: vsock://2:PORT in a guest, unix:///PATH without a VM")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := error(nil)
	if flag.NArg() == 0 {
		err = server(ctx, *url)
	} else {
		var peer guestlib.GID
		if peer, err = guestlib.ParseGID(flag.Arg(0)); err == nil {
			err = client(ctx, *url, peer)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
