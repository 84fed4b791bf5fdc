package perf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// line is what slots of messages are aligned to, in bytes.
const line = 64

// session is one side of a test that both agreed on.
type session struct {
	*Config
	client   bool
	dev      *guestlib.Device
	pd       *guestlib.PD
	ctl      *control
	mr       *guestlib.MR
	remote   region
	scq      *guestlib.CQ // of sends
	rcq      *guestlib.CQ // of receives
	qps      []*guestlib.QP
	ah       *guestlib.AH // Datagrams: to the peer
	peers    []uint32     // and its queue pairs
	slot     int          // bytes of a message, rounded up to whole lines
	epoch    time.Time
	done     int // sends of this row completed
	received int // messages of this row
	wcs      [32]guestlib.WC
}

// Run is one side of a test. It returns the rows; those of a server are the client's.
func Run(ctx context.Context, cfg Config) (rows []Row, err error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	dev, err := guestlib.Open(ctx, cfg.URL, guestlib.Options{Driver: "vnic " + cfg.Test.String()})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	if cfg.Datagrams {
		cfg.Size = min(cfg.Size, dev.Info().MTU)
	}
	s := &session{Config: &cfg, client: cfg.client(), dev: dev, epoch: time.Now()}
	if s.pd, err = dev.AllocPD(ctx); err != nil {
		return nil, err
	}
	if s.ctl, err = newControl(ctx, dev, s.pd); err != nil {
		return nil, err
	}
	if s.client {
		err = s.call(ctx)
	} else {
		err = s.answer(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.Test, err)
	}
	if cfg.Header != nil {
		cfg.Header(s.header())
	}
	for _, size := range cfg.sizes() {
		r, err := s.row(ctx, size)
		if err != nil {
			return rows, fmt.Errorf("%s of %d bytes: %w", cfg.Test, size, err)
		}
		if cfg.Row != nil {
			cfg.Row(r)
		}
		rows = append(rows, *r)
	}
	_, err = s.ctl.meet(ctx, nil) // so that neither closes while the other still waits
	return rows, err
}

func (s *session) header() Header {
	path, _ := s.dev.Path()
	mtu := s.MTU
	if mtu == 0 {
		mtu = s.dev.Info().MTU
	}
	return Header{
		Test: s.Test, Device: s.dev.Info().Function.String(), Path: path, Local: s.dev.GID(), Remote: s.Peer, QPs: s.QPs, TxDepth: s.TxDepth, CQMod: s.CQMod,
		MTU: mtu, Inline: s.Inline, Outs: s.Outs, Events: s.Events, Bidirectional: s.Bidirectional,
		Datagrams: s.Datagrams, Server: !s.client,
	}
}

// receives reports whether messages come to this side that need receives.
func (s *session) receives() bool { return s.Op == Send && (!s.client || s.Bidirectional || s.Latency) }

// pingpong: the server answers each message with one.
func (s *session) pingpong() bool { return s.Latency && (s.Op == Write || s.Op == Send) }

const access = guestlib.LocalWrite | guestlib.RemoteWrite | guestlib.RemoteRead | guestlib.RemoteAtomic

// prepare makes what the test needs of this side.
func (s *session) prepare(ctx context.Context) error {
	s.slot = (s.Size + line - 1) / line * line
	if s.Inline = min(s.Inline, int(s.dev.Limits().MaxInline)); s.Op == Read || s.Op == Atomic {
		s.Inline = 0
	}
	buf, err := s.dev.Alloc((2*s.slot + line) * s.QPs)
	if err != nil {
		return fmt.Errorf("%d queue pairs with two messages of %d bytes: %w", s.QPs, s.Size, err)
	}
	if s.mr, err = s.pd.RegMR(ctx, buf, access); err != nil {
		return err
	}
	if s.scq, err = s.dev.CreateCQ(ctx, s.QPs*s.TxDepth); err != nil {
		return fmt.Errorf("%d queue pairs with %d sends: %w", s.QPs, s.TxDepth, err)
	}
	depth := 1
	if s.receives() {
		depth = s.RxDepth
	}
	if s.rcq, err = s.dev.CreateCQ(ctx, s.QPs*depth); err != nil {
		return fmt.Errorf("%d queue pairs with %d receives: %w", s.QPs, depth, err)
	}
	for range s.QPs {
		cfg := guestlib.QPConfig{
			SendCQ: s.scq, RecvCQ: s.rcq, SendEntries: s.TxDepth, RecvEntries: depth, MaxInline: s.Inline, Access: access,
			PathMTU: s.MTU, Timeout: uint8(s.Timeout), ReadAtomic: uint8(s.Outs),
		}
		if s.Datagrams {
			cfg = guestlib.QPConfig{
				Type: guestlib.UD, QKey: qkey, SendCQ: s.scq, RecvCQ: s.rcq, SendEntries: s.TxDepth, RecvEntries: depth, MaxRecvSGE: 2, MaxInline: s.Inline,
			}
		}
		qp, err := s.pd.CreateQP(ctx, cfg)
		if err != nil {
			return err
		}
		if !s.Datagrams && s.Path != (guestlib.Path{}) {
			if err := qp.SetPath(ctx, s.Path); err != nil {
				return err
			}
		}
		s.qps = append(s.qps, qp)
		for i := 0; s.receives() && i < depth; i++ {
			if err := s.postRecv(len(s.qps) - 1); err != nil {
				return err
			}
		}
	}
	return nil
}

// Each queue pair has two slots: what is sent or read into, and what the peer writes, reads or
// sends to.
func (s *session) local(qp int) int { return 2 * qp * s.slot }
func (s *session) inbox(qp int) int { return (2*qp + 1) * s.slot }

// headers is where those of a datagram go.
func (s *session) headers(qp int) int { return 2*s.QPs*s.slot + qp*line }

func (s *session) postRecv(qp int) error {
	sgl := []guestlib.SGE{s.mr.SGE(s.headers(qp), guestlib.GRHSize), s.mr.SGE(s.inbox(qp), s.slot)}
	if !s.Datagrams {
		sgl = sgl[1:]
	}
	return s.qps[qp].PostRecv(&guestlib.RecvWR{ID: uint64(qp), SGL: sgl})
}

func (s *session) region() region { return region{s.mr.Addr(), s.mr.RKey()} }

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
		}
		if reason == nil && s.Waiting != nil {
			s.Waiting(err)
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
	return fmt.Errorf("no server at %v, service %d, within %v: start the same test there first, without a peer: %w", s.Peer, s.Service, s.Meet, reason)
}

// answer is the server's side.
func (s *session) answer(ctx context.Context) error {
	l, err := s.dev.Listen(ctx, s.Service)
	if err != nil {
		return err
	}
	r, err := l.Accept(ctx)
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

// row measures one size.
func (s *session) row(ctx context.Context, size int) (*Row, error) {
	if _, err := s.ctl.meet(ctx, nil); err != nil {
		return nil, err
	}
	r := &Row{Bytes: size}
	s.done, s.received = 0, 0
	var err error
	switch {
	case s.pingpong():
		err = s.pingPong(ctx, r)
	case s.Latency && s.client:
		err = s.oneByOne(ctx, r)
	case s.Latency:
	default:
		err = s.bandwidth(ctx, r)
	}
	if err != nil {
		return nil, err
	}
	return s.compare(ctx, r)
}

// compare makes both sides' rows one. A side that still receives goes on with it.
func (s *session) compare(ctx context.Context, mine *Row) (*Row, error) {
	if err := s.ctl.tell(mine); err != nil {
		return nil, err
	}
	if s.Bidirectional {
		if err := s.serve(ctx); err != nil {
			return nil, err
		}
	}
	other, err := s.ctl.agree(ctx)
	if err != nil {
		return nil, err
	}
	other.Bytes = mine.Bytes
	switch {
	case s.Bidirectional:
		mine.add(other)
	case !s.client:
		mine = other
	}
	if s.Datagrams && !s.Latency {
		err = s.countLost(ctx, mine)
	}
	return mine, err
}

func (s *session) now() time.Duration { return time.Since(s.epoch) }

// idle is what a poll that found nothing does. Yielding lets the goroutine write that sends
// doorbells where no window does.
func (s *session) idle(ctx context.Context, cq *guestlib.CQ) error {
	if s.Events {
		return cq.Wait(ctx)
	}
	runtime.Gosched()
	return ctx.Err()
}

// lost is nil while the queue pair is connected.
func lost(qp *guestlib.QP) error {
	if qp.State() == abi.QPStateRTS {
		return nil
	}
	return errors.New("the peer ended the connection")
}

// request is the work request of message seq on a queue pair.
func (s *session) request(wr *guestlib.SendWR, sge []guestlib.SGE, qp, size int) {
	sge[0] = s.mr.SGE(s.local(qp), size)
	*wr = guestlib.SendWR{SGL: sge, RemoteAddr: s.remote.addr + uint64(s.inbox(qp)), RKey: s.remote.rkey}
	switch s.Op {
	case Write:
		wr.Opcode = guestlib.Write
	case Read:
		wr.Opcode = guestlib.Read
	case Send:
		if wr.Opcode = guestlib.Send; s.Datagrams {
			wr.AH, wr.RemoteQPN, wr.RemoteQKey = s.ah, s.peers[qp], qkey
		}
	case Atomic:
		if wr.Opcode, wr.CompareAdd = guestlib.FetchAdd, 1; s.CmpSwap {
			wr.Opcode, wr.CompareAdd, wr.Swap = guestlib.CmpSwap, 0, 0
		}
	}
	if size <= s.Inline {
		wr.SGL, wr.Inline = nil, s.mr.Bytes()[s.local(qp):][:size]
	}
}

// byteAt looks at a byte that the device may write at any time.
func byteAt(m []byte, i int) byte {
	v, err := ring.Mem(m).Load32(uint64(i) &^ 3)
	if err != nil {
		return 0
	}
	return byte(v >> (8 * (i & 3)))
}
