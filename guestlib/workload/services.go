package workload

import (
	"context"

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
	Inside
)

// special reports whether op needs its own queue pairs.
func special(op guestlib.Opcode) bool { return op >= Datagram && op <= Inside }

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
	case Inside:
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
	loop  *guestlib.QP // Inside: the other QP
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

// sending returns the driver's queue for op. It creates the queue if needed.
func (d *driver) sending(ctx context.Context, op guestlib.Opcode, peer guestlib.GID) (*queue, error) {
	if q := d.queues[op]; q != nil {
		return q, nil
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
	case Window:
		cfg.ErrorMode = abi.ErrorModeCompleteInError // a refused WRITE must not end the connection
	}
	return q, d.add(ctx, op, q, func() (err error) {
		q.qp, err = d.pd.CreateQP(ctx, cfg)
		return err
	})
}

// receiving returns the server's queue for op. If needed it creates the queue and wires it to the
// driver's QP.
func (s *server) receiving(ctx context.Context, op guestlib.Opcode, peer guestlib.QPAddress) (*queue, error) {
	if q := s.queues[op]; q != nil {
		return q, nil
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
		cfg.Access, cfg.ErrorMode = guestlib.RemoteWrite, abi.ErrorModeCompleteInError
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
