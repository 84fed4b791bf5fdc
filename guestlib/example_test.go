package guestlib_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/internal/fakedev"
)

// side is what a program needs before it can be connected.
type side struct {
	dev *guestlib.Device
	pd  *guestlib.PD
	mr  *guestlib.MR
	io  *guestlib.MR // of the I/O queue pair, if there is one
	cq  *guestlib.CQ
	qp  *guestlib.QP
}

func newSide(ctx context.Context, url string) (*side, error) {
	dev, err := guestlib.Open(ctx, url, guestlib.Options{})
	if err != nil {
		return nil, err
	}
	pd, err := dev.AllocPD(ctx)
	if err != nil {
		return nil, err
	}
	buf, err := dev.Alloc(4096)
	if err != nil {
		return nil, err
	}
	mr, err := pd.RegMR(ctx, buf, guestlib.LocalWrite)
	if err != nil {
		return nil, err
	}
	cq, err := dev.CreateCQ(ctx, 128)
	if err != nil {
		return nil, err
	}
	qp, err := pd.CreateQP(ctx, guestlib.QPConfig{SendCQ: cq})
	if err != nil {
		return nil, err
	}
	return &side{dev: dev, pd: pd, mr: mr, cq: cq, qp: qp}, nil
}

// next returns the next completion.
func (s *side) next(ctx context.Context) (guestlib.WC, error) {
	var wc [1]guestlib.WC
	for {
		if n, err := s.cq.Poll(wc[:]); n > 0 || err != nil {
			return wc[0], err
		}
		if err := s.cq.Wait(ctx); err != nil {
			return wc[0], err
		}
	}
}

// receive waits for a connection and prints the first message on it.
func (s *side) receive(ctx context.Context, l *guestlib.Listener) error {
	if err := s.qp.PostRecv(&guestlib.RecvWR{ID: 7, SGL: []guestlib.SGE{s.mr.SGE(0, 4096)}}); err != nil {
		return err
	}
	request, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	if err := request.Accept(ctx, s.qp, []byte("welcome")); err != nil {
		return err
	}
	wc, err := s.next(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("%s from %s: %s\n", wc.Opcode, request.GID, s.mr.Bytes()[:wc.ByteLen])
	return wc.Err()
}

// send connects and sends one message.
func (s *side) send(ctx context.Context, peer guestlib.GID, text string) error {
	answer, err := s.dev.Connect(ctx, s.qp, peer, 4791, nil)
	if err != nil {
		return err
	}
	fmt.Printf("accepted with %q\n", answer)
	n := copy(s.mr.Bytes(), text)
	err = s.qp.PostSend(&guestlib.SendWR{ID: 1, Opcode: guestlib.Send, Flags: guestlib.Signaled, SGL: []guestlib.SGE{s.mr.SGE(0, n)}})
	if err != nil {
		return err
	}
	wc, err := s.next(ctx)
	if err != nil {
		return err
	}
	return wc.Err()
}

// One function sends a message to another. In a guest the URL is vsock://2:7000.
func Example() {
	url, stop := fakeNIC()
	defer stop()
	ctx := context.Background()
	if err := exchange(ctx, url); err != nil {
		fmt.Println(err)
	}
	// Output:
	// accepted with "welcome"
	// RECV from 10.0.0.1: hello
}

func exchange(ctx context.Context, url string) error {
	a, err := newSide(ctx, url)
	if err != nil {
		return err
	}
	defer a.dev.Close()
	b, err := newSide(ctx, url)
	if err != nil {
		return err
	}
	defer b.dev.Close()
	l, err := b.dev.Listen(ctx, 4791)
	if err != nil {
		return err
	}
	received := make(chan error, 1)
	go func() { received <- b.receive(ctx, l) }()
	if err := a.send(ctx, b.dev.GID(), "hello"); err != nil {
		return err
	}
	return <-received
}

// fakeNIC stands in for a NIC.
func fakeNIC() (url string, stop func()) {
	dir, err := os.MkdirTemp("", "vnic")
	if err != nil {
		panic(err)
	}
	path := filepath.Join(dir, "s")
	nic, err := fakedev.Listen(path, nil)
	if err != nil {
		panic(err)
	}
	return "unix://" + path, func() {
		nic.Close()
		os.RemoveAll(dir)
	}
}
