package guestlib_test

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/falcon-vnic/vnic/guestlib"
)

// ioInfo is what the two ends exchange over the admin connection: the address of the I/O queue
// pair, and the memory that the peer may access.
type ioInfo struct {
	qp   guestlib.QPAddress
	addr uint64
	rkey uint32
}

const ioInfoSize = guestlib.QPAddressSize + 12

func (x *ioInfo) marshal(b []byte) {
	b, _ = x.qp.AppendBinary(b[:0])
	b = binary.BigEndian.AppendUint64(b, x.addr)
	binary.BigEndian.AppendUint32(b, x.rkey)
}

func (x *ioInfo) unmarshal(b []byte) error {
	x.addr = binary.BigEndian.Uint64(b[guestlib.QPAddressSize:])
	x.rkey = binary.BigEndian.Uint32(b[guestlib.QPAddressSize+8:])
	return x.qp.UnmarshalBinary(b[:guestlib.QPAddressSize])
}

// swap sends mine over the connected admin queue pair and waits for the peer's. The receive was
// posted before the queue pair was connected, at offset 64 of the region.
func (s *side) swap(ctx context.Context, mine *ioInfo) (theirs ioInfo, err error) {
	mine.marshal(s.mr.Bytes()[:ioInfoSize])
	err = s.qp.PostSend(&guestlib.SendWR{Opcode: guestlib.Send, Flags: guestlib.Signaled, SGL: []guestlib.SGE{s.mr.SGE(0, ioInfoSize)}})
	if err != nil {
		return theirs, err
	}
	for range 2 { // the send and the receive, in any order
		wc, err := s.next(ctx)
		if err == nil {
			err = wc.Err()
		}
		if err != nil {
			return theirs, err
		}
	}
	return theirs, theirs.unmarshal(s.mr.Bytes()[64 : 64+ioInfoSize])
}

// openIO creates an I/O queue pair, sends its address and that of memory to the peer, and wires it
// to the peer's.
func (s *side) openIO(ctx context.Context) (io *guestlib.QP, peer ioInfo, err error) {
	buf, err := s.dev.Alloc(4096)
	if err != nil {
		return nil, peer, err
	}
	s.io, err = s.pd.RegMR(ctx, buf, guestlib.LocalWrite|guestlib.RemoteWrite|guestlib.RemoteRead)
	if err != nil {
		return nil, peer, err
	}
	io, err = s.pd.CreateQP(ctx, guestlib.QPConfig{SendCQ: s.cq, Access: guestlib.RemoteWrite | guestlib.RemoteRead})
	if err != nil {
		return nil, peer, err
	}
	peer, err = s.swap(ctx, &ioInfo{io.Address(), s.io.Addr(), s.io.RKey()})
	if err != nil {
		return nil, peer, err
	}
	return io, peer, io.Wire(ctx, peer.qp)
}

// The flow of the RDMA 101 slides: an admin queue pair, made by connection management, exchanges
// addresses and keys; an I/O queue pair, wired by them, moves the data with one-sided operations.
func ExampleQP_Wire() {
	url, stop := fakeNIC()
	defer stop()
	if err := adminAndIO(context.Background(), url); err != nil {
		fmt.Println(err)
	}
	// Output:
	// read back: 8k of orders
}

func adminAndIO(ctx context.Context, url string) error {
	client, err := newSide(ctx, url)
	if err != nil {
		return err
	}
	defer client.dev.Close()
	server, err := newSide(ctx, url)
	if err != nil {
		return err
	}
	defer server.dev.Close()
	for _, s := range []*side{client, server} {
		if err := s.qp.PostRecv(&guestlib.RecvWR{SGL: []guestlib.SGE{s.mr.SGE(64, ioInfoSize)}}); err != nil {
			return err
		}
	}
	l, err := server.dev.Listen(ctx, 4791)
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() {
		request, err := l.Accept(ctx)
		if err == nil {
			err = request.Accept(ctx, server.qp, nil)
		}
		if err == nil {
			_, _, err = server.openIO(ctx)
		}
		served <- err // from here on the server has nothing to do: the client writes and reads its memory
	}()
	if _, err := client.dev.Connect(ctx, client.qp, server.dev.GID(), 4791, nil); err != nil {
		return err
	}
	io, peer, err := client.openIO(ctx)
	if err != nil {
		return err
	}
	if err := <-served; err != nil {
		return err
	}
	text := client.io.Bytes()[:copy(client.io.Bytes(), "8k of orders")]
	for _, wr := range []guestlib.SendWR{
		{Opcode: guestlib.Write, SGL: []guestlib.SGE{client.io.SGE(0, len(text))}, RemoteAddr: peer.addr, RKey: peer.rkey},
		{Opcode: guestlib.Read, Flags: guestlib.Signaled, SGL: []guestlib.SGE{client.io.SGE(2048, len(text))}, RemoteAddr: peer.addr, RKey: peer.rkey},
	} {
		if err := io.PostSend(&wr); err != nil {
			return err
		}
	}
	wc, err := client.next(ctx)
	if err == nil {
		err = wc.Err()
	}
	if err != nil {
		return err
	}
	fmt.Printf("read back: %s\n", client.io.Bytes()[2048:2048+len(text)])
	return nil
}
