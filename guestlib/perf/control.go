package perf

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/perf/perftest"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// hello is the private data of the control connection's request.
type hello struct {
	test                        Test
	all, bidirectional, cmpSwap bool
	datagrams                   bool
	qps                         uint16
	size, iterations            uint32
	duration                    time.Duration
	region
}

// region describes a side's memory to the other side.
type region struct {
	addr uint64
	rkey uint32
}

const (
	magic     = "vnicperf"
	helloSize = 8 + 4 + 2 + 4 + 4 + 8 + regionSize
	// regionSize is the size of the answer.
	regionSize = 12
)

func bit(b bool, n int) uint8 {
	if b {
		return 1 << n
	}
	return 0
}

func (h *hello) marshal() []byte {
	b := append(make([]byte, 0, helloSize), magic...)
	b = append(b, 1, byte(h.test.Op), bit(h.test.Latency, 0)|bit(h.all, 1)|bit(h.bidirectional, 2)|bit(h.cmpSwap, 3)|bit(h.datagrams, 4), 0)
	b = binary.LittleEndian.AppendUint16(b, h.qps)
	b = binary.LittleEndian.AppendUint32(b, h.size)
	b = binary.LittleEndian.AppendUint32(b, h.iterations)
	b = binary.LittleEndian.AppendUint64(b, uint64(h.duration))
	return h.region.append(b)
}

func (h *hello) unmarshal(b []byte) error {
	if len(b) != helloSize || string(b[:8]) != magic || b[8] != 1 || b[9] > byte(Doorbell) {
		return errors.New("the peer is not this program, or another version of it")
	}
	h.test = Test{Op(b[9]), b[10]&1 != 0}
	h.all, h.bidirectional, h.cmpSwap = b[10]&2 != 0, b[10]&4 != 0, b[10]&8 != 0
	h.datagrams = b[10]&16 != 0
	h.qps = binary.LittleEndian.Uint16(b[12:])
	h.size, h.iterations = binary.LittleEndian.Uint32(b[14:]), binary.LittleEndian.Uint32(b[18:])
	h.duration = time.Duration(binary.LittleEndian.Uint64(b[22:]))
	return h.region.unmarshal(b[30:])
}

func (r region) append(b []byte) []byte {
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(b, r.addr), r.rkey)
}

func (r *region) unmarshal(b []byte) error {
	if len(b) != regionSize {
		return fmt.Errorf("the peer named its memory in %d bytes, want %d", len(b), regionSize)
	}
	r.addr, r.rkey = binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:])
	return nil
}

// control is the connection beside the measured ones. Over it each side says that it is ready, and
// what it measured.
type control struct {
	cq    *guestlib.CQ
	mr    *guestlib.MR
	qp    *guestlib.QP
	sent  int  // messages whose acknowledgement has not come yet
	ahead *Row // received early: the next receive returns it
}

const (
	messageSize  = 96 // a Row
	messageSlots = 8
	// stall is how long a side may be silent while the other waits for it, beyond the time that the test is
	// to take.
	stall = 2 * time.Minute
)

func newControl(ctx context.Context, dev *guestlib.Device, pd *guestlib.PD) (*control, error) {
	buf, err := dev.Alloc(messageSize * messageSlots)
	if err != nil {
		return nil, err
	}
	c := &control{}
	if c.mr, err = pd.RegMR(ctx, buf, guestlib.LocalWrite); err != nil {
		return nil, err
	}
	if c.cq, err = dev.CreateCQ(ctx, 4*messageSlots); err != nil {
		return nil, err
	}
	if c.qp, err = pd.CreateQP(ctx, guestlib.QPConfig{
		SendCQ: c.cq, SendEntries: messageSlots, RecvEntries: messageSlots, MaxInline: messageSize,
	}); err != nil {
		return nil, err
	}
	for i := range messageSlots {
		if err := c.postRecv(i); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *control) postRecv(slot int) error {
	return c.qp.PostRecv(&guestlib.RecvWR{ID: uint64(slot), SGL: []guestlib.SGE{c.mr.SGE(slot*messageSize, messageSize)}})
}

const idSent = math.MaxUint64

// send sends a row; nil only says that this side is ready.
func (c *control) send(r *Row) error {
	b := make([]byte, 0, messageSize)
	if r != nil {
		b = r.append(b)
	}
	c.sent++
	return c.qp.PostSend(&guestlib.SendWR{ID: idSent, Opcode: guestlib.Send, Flags: guestlib.Signaled, Inline: b[:messageSize]})
}

// poll returns the peer's next message, if one has arrived.
func (c *control) poll() (r *Row, ok bool, err error) {
	var wc [1]guestlib.WC
	down := c.qp.State() == abi.QPStateErr // read before polling, so that what completed before the end is still taken
	n, err := c.cq.Poll(wc[:])
	switch {
	case err != nil:
		return nil, false, err
	case n == 0 && down:
		return nil, false, errors.New("the peer ended the connection")
	case n == 0:
		return nil, false, nil
	case wc[0].Err() != nil:
		return nil, false, fmt.Errorf("the peer is gone: %w", wc[0].Err())
	case wc[0].ID == idSent:
		c.sent--
		return nil, false, nil
	}
	slot := int(wc[0].ID)
	if wc[0].ByteLen != messageSize {
		return nil, false, fmt.Errorf("a message of %d bytes from the peer, want %d", wc[0].ByteLen, messageSize)
	}
	r = &Row{}
	r.unmarshal(c.mr.Bytes()[slot*messageSize:][:messageSize])
	return r, true, c.postRecv(slot)
}

// peek waits for the peer's next message, which the next receive returns.
func (c *control) peek(ctx context.Context) (err error) {
	c.ahead, err = c.receive(ctx)
	return err
}

// receive returns the peer's next message, and waits for it if necessary.
func (c *control) receive(ctx context.Context) (*Row, error) {
	if r := c.ahead; r != nil {
		c.ahead = nil
		return r, nil
	}
	for {
		if r, ok, err := c.poll(); ok || err != nil {
			return r, err
		}
		if err := c.cq.Wait(ctx); err != nil {
			return nil, err
		}
	}
}

// exchange sends mine and returns the peer's message.
func (c *control) exchange(ctx context.Context, mine *Row) (*Row, error) {
	if err := c.send(mine); err != nil {
		return nil, err
	}
	return c.finishExchange(ctx, stall)
}

// finishExchange returns the peer's next message once the peer has received all of ours, so this side may
// leave then. A peer that has left by then did receive them, or it would have stayed: only its
// acknowledgement may be missing. If the peer failed instead, the next call that needs it returns
// the error. It waits for at most patience; 0: until the connection ends.
func (c *control) finishExchange(ctx context.Context, patience time.Duration) (*Row, error) {
	if patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, patience, fmt.Errorf("the peer said nothing for %v", patience))
		defer cancel()
	}
	r, err := c.receive(ctx)
	for err == nil && c.sent > 0 {
		switch next, ok, gone := c.poll(); {
		case gone != nil:
			return r, nil
		case ok:
			c.ahead = next // the peer is in its next exchange already
		case c.sent > 0:
			err = c.cq.Wait(ctx)
		}
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return r, err
}

// connect connects the client to the server, which takes over the client's test. If the server is a program
// of perftest, it only returns the connection to that.
func (s *session) connect(ctx context.Context) (*perftest.Conn, error) {
	if err := s.prepare(ctx); err != nil {
		return nil, err
	}
	h := hello{
		test: s.Test, all: s.All, bidirectional: s.Bidirectional, cmpSwap: s.CmpSwap, datagrams: s.Datagrams, qps: uint16(s.QPs),
		size: uint32(s.Size), iterations: uint32(s.Iterations), duration: s.Duration, region: s.region(),
	}
	answer, other, err := s.connectControl(ctx, h.marshal())
	if err != nil || other != nil {
		return other, err
	}
	var theirs region
	if err := theirs.unmarshal(answer); err != nil {
		return nil, err
	}
	s.reach(theirs)
	if s.Datagrams {
		return nil, s.exchangeQPNumbers(ctx)
	}
	for i, qp := range s.qps {
		if _, err := s.dev.Connect(ctx, qp, s.Peer, s.Service, nil); err != nil {
			return nil, fmt.Errorf("queue pair %d of %d: %w", i+1, len(s.qps), err)
		}
	}
	return nil, nil
}

// connectControl connects the control connection, as soon as there is a server. If that is a program of
// perftest, it returns the connection to it instead.
func (s *session) connectControl(ctx context.Context, hello []byte) ([]byte, *perftest.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Meet)
	defer cancel()
	var reason error             // of the last attempt that ctx did not cut off
	stranger := s.Op == Doorbell // which perftest does not have
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
	start := fmt.Sprintf("vnic guest perf %s, or perftest's ib_%[1]s", s.Test)
	if s.Op == Doorbell {
		start = "vnic guest perf doorbell"
	}
	return fmt.Errorf("no server at %v, service %d, within %v: start the same test there first, without a peer (%s): %w", s.Peer, s.Service, s.Meet, start, reason)
}

// listen waits for a client. If that is a program of perftest, it only returns the connection to it.
func (s *session) listen(ctx context.Context) (*perftest.Conn, error) {
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

// accept takes over the test of a client that is vnic's own.
func (s *session) accept(ctx context.Context, l *guestlib.Listener, r *guestlib.ConnectRequest) error {
	var h hello
	err := h.unmarshal(r.Private)
	if err == nil {
		err = s.takeTest(&h)
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
		return errors.Join(s.exchangeQPNumbers(ctx), l.Close(ctx))
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

// takeTest takes over the sizes, iterations and queue pairs of the client.
func (s *session) takeTest(h *hello) error {
	if h.test != s.Test {
		return fmt.Errorf("client: %s, server: %s; start the same", h.test, s.Test)
	}
	s.All, s.Bidirectional, s.CmpSwap, s.Datagrams, s.QPs = h.all, h.bidirectional, h.cmpSwap, h.datagrams, int(h.qps)
	s.Size, s.Iterations, s.Duration = int(h.size), int(h.iterations), h.duration
	return s.check()
}
