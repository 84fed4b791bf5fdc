package main

import (
	"context"
	"fmt"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/examples/setup"
)

const (
	service = 5002
	size    = 64 << 10
	writes  = 1024
	depth   = 32 // outstanding
	each    = 8  // writes for each completion
)

func main() { setup.Main(server, client) }

// server offers its memory and does nothing more.
func server(ctx context.Context, url string) error {
	s, err := setup.Open(ctx, url, size)
	if err != nil {
		return err
	}
	defer s.Dev.Close()
	qp, err := s.QP(ctx)
	if err != nil {
		return err
	}
	l, err := s.Dev.Listen(ctx, service)
	if err != nil {
		return err
	}
	if err := s.Accept(ctx, l, qp); err != nil {
		return err
	}
	<-qp.Down()
	return nil
}

func client(ctx context.Context, url string, peer guestlib.GID) error {
	s, err := setup.Open(ctx, url, size)
	if err != nil {
		return err
	}
	defer s.Dev.Close()
	qp, err := s.QP(ctx)
	if err != nil {
		return err
	}
	remote, err := s.Connect(ctx, qp, peer, service)
	if err != nil {
		return err
	}
	start := time.Now()
	posted, completed := 0, 0
	for completed < writes {
		for posted < writes && posted-completed < depth {
			wr := guestlib.SendWR{
				ID: uint64(posted), Opcode: guestlib.Write, SGL: []guestlib.SGE{s.MR.SGE(0, size)},
				RemoteAddr: remote.Addr, RKey: remote.RKey,
			}
			if posted++; posted%each == 0 {
				wr.Flags = guestlib.Signaled // it stands for those before it too: they complete in order
			}
			if err := qp.PostSend(&wr); err != nil {
				return err
			}
		}
		if _, err := s.Next(ctx); err != nil {
			return err
		}
		completed += each
	}
	seconds := time.Since(start).Seconds()
	fmt.Printf("%d WRITEs of %d KiB: %.0f MB/s\n", writes, size>>10, float64(writes*size)/1e6/seconds)
	return nil
}
