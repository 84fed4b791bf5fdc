package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/examples/setup"
)

const (
	service = 5004
	rounds  = 200

	// In the server's memory.
	lockAt    = 0 // 0, or who holds it
	counterAt = 8
)

func main() {
	setup.Main(func(ctx context.Context, url string) error { return server(ctx, url, 2) }, client)
}

// server serves the given number of clients and prints the count.
func server(ctx context.Context, url string, clients int) error {
	s, err := setup.Open(ctx, url, 64)
	if err != nil {
		return err
	}
	defer s.Dev.Close()
	l, err := s.Dev.Listen(ctx, service)
	if err != nil {
		return err
	}
	var qps []*guestlib.QP
	for range clients {
		qp, err := s.QP(ctx)
		if err != nil {
			return err
		}
		if err := s.Accept(ctx, l, qp); err != nil {
			return err
		}
		qps = append(qps, qp)
	}
	for _, qp := range qps {
		<-qp.Down()
	}
	fmt.Printf("%d clients counted to %d\n", clients, binary.LittleEndian.Uint64(s.MR.Bytes()[counterAt:]))
	return nil
}

// session is a client's connection. The first 8 bytes of its memory are where results come, the
// next what it writes.
type session struct {
	*setup.Side
	qp     *guestlib.QP
	remote setup.Remote
	me     uint64
}

// swap stores new where old is and reports whether it was.
func (c *session) swap(ctx context.Context, old, new uint64) (bool, error) {
	err := c.Do(ctx, c.qp, &guestlib.SendWR{
		Opcode: guestlib.CmpSwap, CompareAdd: old, Swap: new, SGL: []guestlib.SGE{c.MR.SGE(0, 8)},
		RemoteAddr: c.remote.Addr + lockAt, RKey: c.remote.RKey,
	})
	return binary.LittleEndian.Uint64(c.MR.Bytes()) == old, err
}

// Lock waits until nobody holds the lock.
func (c *session) Lock(ctx context.Context) error {
	for wait := 10 * time.Microsecond; ; wait = min(2*wait, time.Millisecond) {
		if ok, err := c.swap(ctx, 0, c.me); ok || err != nil {
			return err
		}
		time.Sleep(wait)
	}
}

// Unlock gives it back.
func (c *session) Unlock(ctx context.Context) error {
	ok, err := c.swap(ctx, c.me, 0)
	if err == nil && !ok {
		err = fmt.Errorf("the lock of %#x was taken away", c.me)
	}
	return err
}

// count adds one to the counter, which would lose counts without the lock.
func (c *session) count(ctx context.Context) error {
	at := c.remote.Addr + counterAt
	if err := c.Do(ctx, c.qp, &guestlib.SendWR{Opcode: guestlib.Read, SGL: []guestlib.SGE{c.MR.SGE(0, 8)}, RemoteAddr: at, RKey: c.remote.RKey}); err != nil {
		return err
	}
	binary.LittleEndian.PutUint64(c.MR.Bytes()[8:], binary.LittleEndian.Uint64(c.MR.Bytes())+1)
	return c.Do(ctx, c.qp, &guestlib.SendWR{Opcode: guestlib.Write, SGL: []guestlib.SGE{c.MR.SGE(8, 8)}, RemoteAddr: at, RKey: c.remote.RKey})
}

func client(ctx context.Context, url string, peer guestlib.GID) error {
	s, err := setup.Open(ctx, url, 64)
	if err != nil {
		return err
	}
	defer s.Dev.Close()
	c := &session{Side: s, me: uint64(s.Dev.Info().Function) + 1}
	if c.qp, err = s.QP(ctx); err != nil {
		return err
	}
	if c.remote, err = s.Connect(ctx, c.qp, peer, service); err != nil {
		return err
	}
	for range rounds {
		if err := c.Lock(ctx); err != nil {
			return err
		}
		if err := c.count(ctx); err != nil {
			return err
		}
		if err := c.Unlock(ctx); err != nil {
			return err
		}
	}
	return nil
}
