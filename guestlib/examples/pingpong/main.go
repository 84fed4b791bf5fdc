package main

import (
	"context"
	"fmt"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/examples/setup"
	"github.com/falcon-vnic/vnic/queues/abi"
)

const (
	service = 5001
	rounds  = 200
	size    = 64
)

func main() { setup.Main(server, client) }

// end makes one side: half of its memory is for sending, half for receiving.
func end(ctx context.Context, url string) (*setup.Side, *guestlib.QP, error) {
	s, err := setup.Open(ctx, url, 2*size)
	if err != nil {
		return nil, nil, err
	}
	qp, err := s.QP(ctx)
	if err == nil {
		err = receive(s, qp) // before the connection: the peer may send at once
	}
	return s, qp, err
}

func receive(s *setup.Side, qp *guestlib.QP) error {
	return qp.PostRecv(&guestlib.RecvWR{SGL: []guestlib.SGE{s.MR.SGE(size, size)}})
}

// send sends n bytes without asking for a completion: the answer tells as much. Every 32nd is asked
// for, so that the queue gets its room back.
func send(s *setup.Side, qp *guestlib.QP, i, n int) error {
	wr := guestlib.SendWR{Opcode: guestlib.Send, SGL: []guestlib.SGE{s.MR.SGE(0, n)}}
	if i%32 == 0 {
		wr.Flags = guestlib.Signaled
	}
	return qp.PostSend(&wr)
}

// message waits for the next one and gives its receive back. Completions of sends are passed over.
func message(ctx context.Context, s *setup.Side, qp *guestlib.QP) (string, error) {
	for {
		wc, err := s.Next(ctx)
		if err != nil {
			return "", err
		}
		if wc.Opcode == abi.WCOpRecv {
			text := string(s.MR.Bytes()[size:][:wc.ByteLen])
			return text, receive(s, qp)
		}
	}
}

// server answers every ping.
func server(ctx context.Context, url string) error {
	s, qp, err := end(ctx, url)
	if err != nil {
		return err
	}
	defer s.Dev.Close()
	l, err := s.Dev.Listen(ctx, service)
	if err != nil {
		return err
	}
	if err := s.Accept(ctx, l, qp); err != nil {
		return err
	}
	for i := range rounds {
		ping, err := message(ctx, s, qp)
		if err != nil {
			return err
		}
		n := copy(s.MR.Bytes()[:size], "pong to "+ping)
		if err := send(s, qp, i, n); err != nil {
			return err
		}
	}
	<-qp.Down() // the client has everything when it hangs up
	return nil
}

// client measures.
func client(ctx context.Context, url string, peer guestlib.GID) error {
	s, qp, err := end(ctx, url)
	if err != nil {
		return err
	}
	defer s.Dev.Close()
	if _, err := s.Connect(ctx, qp, peer, service); err != nil {
		return err
	}
	start := time.Now()
	for i := range rounds {
		n := copy(s.MR.Bytes()[:size], fmt.Sprintf("ping %d", i))
		if err := send(s, qp, i, n); err != nil {
			return err
		}
		pong, err := message(ctx, s, qp)
		if err != nil {
			return err
		}
		if want := fmt.Sprintf("pong to ping %d", i); pong != want {
			return fmt.Errorf("got %q, want %q", pong, want)
		}
	}
	fmt.Printf("%d round trips of %d bytes, %v each\n", rounds, size, time.Since(start)/rounds)
	return nil
}
