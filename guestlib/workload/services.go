package workload

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Operations that use their own queue pairs, besides the one for control messages: SENDs by
// datagrams, to a shared receive queue, to one of an XRC domain, and by a queue pair that is wired
// by number and GID; WRITEs by a memory window; SENDs inside the function itself. Their numbers are
// above those of guestlib.
const (
	Datagram guestlib.Opcode = 0xe0 + iota
	Shared
	Extended
	Wired
	Window
	Loopback
)

// special reports whether op needs its own queue pairs.
func special(op guestlib.Opcode) bool { return op >= Datagram && op <= Loopback }

// name returns the name of an operation in results.
func name(op guestlib.Opcode) string {
	switch op {
	case Datagram:
		return "UD SEND"
	case Shared:
		return "SRQ SEND"
	case Extended:
		return "XRC SEND"
	case Wired:
		return "WIRED SEND"
	case Window:
		return "WINDOW WRITE"
	case Loopback:
		return "LOOPBACK SEND"
	}
	return op.String()
}

// The two ends of a special operation exchange the numbers of their queue pairs in BEGIN and READY,
// and wire them:
//
//	driver                                        server
//	make QP ── BEGIN{own QPN} ──────────────────▶ make QP, wire it, post receives
//	wire it ◀────────────────── READY{QPN, SRQN, key of the window}

// queue is one end of a special operation.
type queue struct {
	qp    *guestlib.QP
	ah    *guestlib.AH // Datagram, driver
	loop  *guestlib.QP // Loopback: the other QP
	post  func(wr *guestlib.RecvWR) error
	srqn  uint32
	mw    *guestlib.MW // Window, server
	wired bool
	close []func(context.Context) error // called in reverse order
}

const datagramQKey = 0x76776f72

func (q *queue) owns(f func(context.Context) error) { q.close = append(q.close, f) }

// end destroys all objects of the queue.
func (q *queue) end(ctx context.Context) error {
	for i := len(q.close) - 1; i >= 0; i-- {
		if err := q.close[i](ctx); err != nil {
			return err
		}
	}
	q.close = nil
	return nil
}

// endQueues destroys all queues.
func (e *endpoint) endQueues(ctx context.Context) error {
	for op, q := range e.queues {
		if err := q.end(ctx); err != nil {
			return err
		}
		delete(e.queues, op)
	}
	return nil
}

// kept returns the queue of op that the next round uses too, nil if there is none. Rounds by a window
// have a queue each: the WRITE that is refused at their end ends both queue pairs. Queue pairs that
// complete in error would outlive it, but RoCEv2 has none.
func (e *endpoint) kept(ctx context.Context, op guestlib.Opcode) (*queue, error) {
	q := e.queues[op]
	if q == nil || op != Window {
		return q, nil
	}
	delete(e.queues, op)
	return nil, q.end(ctx)
}

// sending returns the driver's queue for op. It creates the queue if needed.
func (d *driver) sending(ctx context.Context, op guestlib.Opcode, peer guestlib.GID) (*queue, error) {
	if q, err := d.kept(ctx, op); q != nil || err != nil {
		return q, err
	}
	q := &queue{}
	cfg := guestlib.QPConfig{SendCQ: d.cq, SendEntries: queueEntries}
	switch op {
	case Datagram:
		ah, err := d.pd.CreateAH(ctx, guestlib.AHConfig{GID: peer})
		if err != nil {
			return nil, err
		}
		q.ah, cfg.Type = ah, guestlib.UD
		q.owns(ah.Destroy)
	case Extended:
		cfg.Type = guestlib.XRCSend
	}
	return q, d.add(ctx, op, q, func() (err error) {
		q.qp, err = d.pd.CreateQP(ctx, cfg)
		return err
	})
}

// receiving returns the server's queue for op. If needed it creates the queue and wires it to the
// driver's QP.
func (s *server) receiving(ctx context.Context, op guestlib.Opcode, peer guestlib.QPAddress) (*queue, error) {
	if q, err := s.kept(ctx, op); q != nil || err != nil {
		return q, err
	}
	q := &queue{}
	cfg := guestlib.QPConfig{SendCQ: s.cq, RecvEntries: queueEntries, MaxRecvSGE: 2}
	domain, srq := (*guestlib.XRCD)(nil), guestlib.SRQConfig{Entries: queueEntries}
	if op == Extended {
		var err error
		if domain, err = s.dev.OpenXRCD(ctx); err != nil {
			return nil, err
		}
		q.owns(domain.Close)
		srq.XRC, srq.CQ = domain, s.cq
	}
	switch op {
	case Datagram:
		cfg.Type, cfg.QKey = guestlib.UD, datagramQKey
	case Wired:
	case Window:
		cfg.Access = guestlib.RemoteWrite
		mw, err := s.pd.AllocMW(ctx)
		if err != nil {
			return nil, err
		}
		q.mw = mw
		q.owns(mw.Dealloc)
	default:
		shared, err := s.pd.CreateSRQ(ctx, srq)
		if err != nil {
			return nil, err
		}
		q.owns(shared.Destroy)
		q.post, q.srqn = shared.PostRecv, shared.Num()
		cfg.SRQ = shared
	}
	err := s.add(ctx, op, q, func() (err error) {
		if op == Extended {
			q.qp, err = domain.CreateQP(ctx, guestlib.QPConfig{})
			return err
		}
		q.qp, err = s.pd.CreateQP(ctx, cfg)
		return err
	})
	if err != nil {
		return nil, err
	}
	if q.post == nil {
		q.post = q.qp.PostRecv
	}
	if op == Datagram {
		return q, nil
	}
	return q, q.qp.Wire(ctx, peer)
}

// add creates the queue pair of q and stores q.
func (e *endpoint) add(ctx context.Context, op guestlib.Opcode, q *queue, make func() error) error {
	if err := make(); err != nil {
		_ = q.end(context.WithoutCancel(ctx)) // err says more
		return err
	}
	q.owns(q.qp.Destroy)
	e.queues[op] = q
	return nil
}

// loopback runs a round of SENDs between two queue pairs of the driver's own function, which the NIC
// connects without a network. The server does not take part.
func (d *driver) loopback(ctx context.Context, begin control, times *[]time.Duration) (problem string, err error) {
	from, to, err := d.loop(ctx)
	if err != nil {
		return "", err
	}
	op, size, per := begin.op, int(begin.size), slotSize(int(begin.size))
	for i := range int(begin.count) {
		iteration := int(begin.first) + i
		k := key(begin.seed, op, size, iteration)
		source, sink := d.slot(2*i, per), d.slot(2*i+1, per)
		off, at := localOffset(iteration), remoteOffset(iteration)
		fill(source[off:off+size], k)
		fillCanary(sink)
		if err := to.PostRecv(&guestlib.RecvWR{ID: idLoopback + uint64(i), SGL: []guestlib.SGE{d.mr.SGE((2*i+1)*per+at, size+1)}}); err != nil {
			return "", err
		}
		start := time.Now()
		wr := guestlib.SendWR{ID: uint64(i), Opcode: guestlib.SendImm, Flags: guestlib.Signaled, SGL: []guestlib.SGE{d.mr.SGE(2*i*per+off, size)}, Imm: immediate(k)}
		if err := from.PostSend(&wr); err != nil {
			return "", err
		}
		for range 2 { // the receive and the SEND
			wc, err := d.next(ctx)
			switch {
			case err != nil:
				return "", fmt.Errorf("iteration %d: %w", iteration, err)
			case wc.ID == uint64(i):
				*times = append(*times, time.Since(start))
			case wc.ID != idLoopback+uint64(i):
				return "", fmt.Errorf("completion of work request %d where %d was due", wc.ID, i)
			case (int(wc.ByteLen) != size || wc.Imm != immediate(k)) && problem == "":
				problem = fmt.Sprintf("iteration %d: received %d bytes with immediate data %#x", iteration, wc.ByteLen, wc.Imm)
			}
		}
		if err := checkSlot(sink, at, size, k); err != nil && problem == "" {
			problem = fmt.Sprintf("iteration %d: %v", iteration, err)
		}
	}
	return problem, nil
}

// loop returns two queue pairs of this function that are wired to each other. It creates them if
// needed.
func (d *driver) loop(ctx context.Context) (from, to *guestlib.QP, err error) {
	if q := d.queues[Loopback]; q != nil {
		return q.qp, q.loop, nil
	}
	q := &queue{}
	cfg := guestlib.QPConfig{SendCQ: d.cq, SendEntries: queueEntries, RecvEntries: queueEntries}
	if q.loop, err = d.pd.CreateQP(ctx, cfg); err != nil {
		return nil, nil, err
	}
	q.owns(q.loop.Destroy)
	err = d.add(ctx, Loopback, q, func() (err error) {
		q.qp, err = d.pd.CreateQP(ctx, cfg)
		return err
	})
	if err == nil {
		err = q.qp.Wire(ctx, q.loop.Address())
	}
	if err == nil {
		err = q.loop.Wire(ctx, q.qp.Address())
	}
	return q.qp, q.loop, err
}

// A round of WRITEs by a memory window. The server gives the driver's queue pair access to the
// round's slots only, and revokes it before it compares them. The driver then checks that the key
// is invalid.
//
//	driver                                        server
//	                                              bind the window to the slots
//	WRITE by its key … ◀──────────────────────── READY{key}
//	CHECK ──────────────────────────────────────▶ make the key invalid, compare
//	WRITE once more, refused ◀────────────────── VERDICT

// bind binds the window of q to the first n bytes of the slots and returns the window's key.
func (s *server) bind(ctx context.Context, q *queue, n int) (key uint32, err error) {
	wr := q.mw.Bind(idWindow, s.mr.Bind(0, n, guestlib.RemoteWrite))
	if err := q.qp.PostSend(&wr); err != nil {
		return 0, err
	}
	return q.mw.RKey(), s.done(ctx, idWindow)
}

// unbind ends the binding that bind made for the round.
func (s *server) unbind(ctx context.Context, c control) error {
	q := s.queues[c.op]
	if q == nil || q.mw == nil {
		return nil
	}
	if err := q.qp.PostSend(&guestlib.SendWR{ID: idWindow, Opcode: guestlib.LocalInv, Flags: guestlib.Signaled, Imm: q.mw.RKey()}); err != nil {
		return err
	}
	return s.done(ctx, idWindow)
}

// refused checks that a WRITE with the key of an unbound window is refused.
func (d *driver) refused(ctx context.Context, by *queue, key uint32) (problem string, err error) {
	_, err = d.do(ctx, by.qp, &guestlib.SendWR{
		Opcode: guestlib.Write, Flags: guestlib.Signaled, SGL: []guestlib.SGE{d.mr.SGE(0, 1)}, RemoteAddr: d.peer.addr, RKey: key,
	})
	var wc *guestlib.WCError
	switch {
	case err == nil:
		return "a WRITE by a window that was taken back succeeded", nil
	case errors.As(err, &wc) && wc.Status == abi.WCRemAccessErr:
		return "", nil
	}
	return "", fmt.Errorf("WRITE by a window that was taken back: %w", err)
}
