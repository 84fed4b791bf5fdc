package guestlib

import (
	"context"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// QPConfig says what kind of RC queue pair is wanted. Zero values are good ones.
type QPConfig struct {
	SendCQ *CQ // required
	RecvCQ *CQ // nil: SendCQ

	SendEntries int // work requests outstanding on the send queue; 0: 64. Rounded up to a power of two.
	RecvEntries int // work requests outstanding on the receive queue; 0: 64. Rounded up to a power of two.
	MaxSendSGE  int // 0: 1; at most 16, or what the device allows
	MaxRecvSGE  int // 0: 1
	MaxInline   int // bytes; at most 224, or what the device allows

	SigAll bool   // every send completes with a WC, as if it were Signaled
	Access uint32 // remote access the QP allows: RemoteWrite, RemoteRead, RemoteAtomic

	PathMTU     int   // bytes, 256 to 4096, a power of two; 0: the device's
	MinRNRTimer uint8 // as ibv_qp_attr.min_rnr_timer; 0: 12 (0.64 ms)
	RetryCount  uint8 // 1 to 7; 0: 7
	RNRRetry    uint8 // 1 to 7, 7 means for ever; 0: 7
	Timeout     uint8 // 4.096 µs × 2^n; 0: the device's own limit
	ReadAtomic  uint8 // READs and atomics in flight each way; 0: the device's limit
}

// QP is an RC queue pair. It is safe for concurrent use; work posted by several goroutines is done in the order their calls got in.
type QP struct {
	pd             *PD
	dev            *Device
	qpn            uint32
	sq, rq         *workQueue
	sendCQ, recvCQ *CQ
	sigAll         bool
	cfg            QPConfig      // with its defaults
	state          atomic.Uint32 // QPState as far as the driver knows
	ended          end

	mu   sync.Mutex
	conn *conn // the connection, or the attempt at one
}

func (c *QPConfig) defaults(d *Device, a *admin) error {
	if c.SendCQ == nil {
		return invalid("QP without SendCQ")
	}
	if c.RecvCQ == nil {
		c.RecvCQ = c.SendCQ
	}
	if c.SendCQ.dev != d || c.RecvCQ.dev != d {
		return invalid("QP with a CQ of another device")
	}
	if c.SendCQ.admin != a || c.RecvCQ.admin != a {
		return fmt.Errorf("QP with a CQ of before a reset: %w", ErrClosed)
	}
	orInt := func(v *int, def int) {
		if *v == 0 {
			*v = def
		}
	}
	orByte := func(v *uint8, def uint8) {
		if *v == 0 {
			*v = def
		}
	}
	orInt(&c.SendEntries, 64)
	orInt(&c.RecvEntries, 64)
	orInt(&c.MaxSendSGE, 1)
	orInt(&c.MaxRecvSGE, 1)
	orInt(&c.PathMTU, d.info.MTU)
	orByte(&c.MinRNRTimer, 12)
	orByte(&c.RetryCount, 7)
	orByte(&c.RNRRetry, 7)
	orByte(&c.ReadAtomic, d.limits.MaxReadAtomic)
	for _, v := range []struct {
		name     string
		v        int
		min, max int
	}{
		{"SendEntries", c.SendEntries, 1, int(d.limits.MaxQPEntries)},
		{"RecvEntries", c.RecvEntries, 1, int(d.limits.MaxQPEntries)},
		{"MaxSendSGE", c.MaxSendSGE, 1, int(d.limits.MaxSGE)},
		{"MaxRecvSGE", c.MaxRecvSGE, 1, int(d.limits.MaxSGE)},
		{"MaxInline", c.MaxInline, 0, int(d.limits.MaxInline)},
		{"PathMTU", c.PathMTU, 256, 4096},
	} {
		if v.v < v.min || v.v > v.max {
			return invalid("QP: %s is %d; the device takes %d to %d", v.name, v.v, v.min, v.max)
		}
	}
	if bits.OnesCount(uint(c.PathMTU)) != 1 {
		return invalid("QP: PathMTU is %d; it must be 256, 512, 1024, 2048 or 4096", c.PathMTU)
	}
	return nil
}

// log2Stride returns the log2 of the bytes of an entry that takes n bytes, at least least.
func log2Stride(n int, least uint8) uint8 { return max(least, uint8(bits.Len(uint(n-1)))) }

// CreateQP makes a queue pair in state INIT: receives may be posted, and it may be connected.
func (p *PD) CreateQP(ctx context.Context, cfg QPConfig) (*QP, error) {
	d := p.dev
	if err := cfg.defaults(d, p.admin); err != nil {
		return nil, err
	}
	sqStride := log2Stride(abi.SendWQEHeader+max(cfg.MaxSendSGE*abi.SGESize, cfg.MaxInline), 6)
	rqStride := log2Stride(abi.RecvWQEHeader+cfg.MaxRecvSGE*abi.SGESize, 5)
	in := abi.CreateQP{
		PDN: p.pdn, SendCQ: cfg.SendCQ.cqn, RecvCQ: cfg.RecvCQ.cqn, Type: abi.QPTypeRC,
		SQLog2Entries: log2Entries(cfg.SendEntries), RQLog2Entries: log2Entries(cfg.RecvEntries),
		SQLog2Stride: sqStride, RQLog2Stride: rqStride,
		MaxSendSGE: uint8(cfg.MaxSendSGE), MaxRecvSGE: uint8(cfg.MaxRecvSGE), MaxInline: uint16(cfg.MaxInline),
	}
	if cfg.SigAll {
		in.SigAll = 1
	}
	qp := &QP{pd: p, dev: d, sendCQ: cfg.SendCQ, recvCQ: cfg.RecvCQ, sigAll: cfg.SigAll, cfg: cfg}
	var err error
	if qp.sq, err = newWorkQueue(d, in.SQLog2Entries, sqStride, abi.DoorbellSQ); err != nil {
		return nil, err
	}
	if qp.rq, err = newWorkQueue(d, in.RQLog2Entries, rqStride, abi.DoorbellRQ); err != nil {
		qp.sq.free()
		return nil, err
	}
	qp.sq.maxSGE, qp.sq.maxData, qp.rq.maxSGE = cfg.MaxSendSGE, cfg.MaxInline, cfg.MaxRecvSGE
	in.SQPages, in.SQLevels = qp.sq.area.list.Root, qp.sq.area.list.Levels
	in.RQPages, in.RQLevels = qp.rq.area.list.Root, qp.rq.area.list.Levels
	err = p.admin.do(ctx, abi.AdminOpCreateQP, &in, nil, func(e *abi.AdminCQE) {
		if e.Status != abi.StatusOK {
			return
		}
		var r abi.CreateQPResult
		r.Unmarshal(e.Result[:])
		qp.qpn = r.QPN
		qp.sq.bell.record.Queue = r.QPN
		qp.rq.bell.record.Queue = r.QPN
		d.mu.Lock()
		d.qps[r.QPN] = qp
		d.mu.Unlock()
	})
	if err != nil {
		qp.sq.free()
		qp.rq.free()
		return nil, err
	}
	qp.sendCQ.attach(qp)
	qp.recvCQ.attach(qp)
	err = p.admin.do(context.WithoutCancel(ctx), abi.AdminOpModifyQP, &abi.ModifyQP{
		QPN: qp.qpn,
		Mask: abi.QPAttrState | abi.QPAttrAccess | abi.QPAttrPathMTU | abi.QPAttrTimeout | abi.QPAttrRetryCnt | abi.QPAttrRNRRetry |
			abi.QPAttrMinRNRTimer | abi.QPAttrMaxRdAtomic | abi.QPAttrMaxDestRdAtomic,
		Access: cfg.Access, State: abi.QPStateInit, PathMTU: abi.PathMTUFor(cfg.PathMTU),
		MinRNRTimer: cfg.MinRNRTimer, RetryCnt: cfg.RetryCount, RNRRetry: cfg.RNRRetry, Timeout: cfg.Timeout,
		MaxRdAtomic: cfg.ReadAtomic, MaxDestRdAtomic: cfg.ReadAtomic,
	}, nil, nil)
	if err != nil {
		_ = qp.Destroy(context.WithoutCancel(ctx)) // err says more
		return nil, fmt.Errorf("QP to INIT: %w", err)
	}
	qp.state.Store(uint32(abi.QPStateInit))
	return qp, nil
}

// Num is the queue pair number.
func (q *QP) Num() uint32 { return q.qpn }

// State is the state as far as the driver knows: events and failed completions change it.
func (q *QP) State() QPState { return QPState(q.state.Load()) }

// SendsTaken returns how many send work requests the device has read since the QP was made, modulo 2^32. It costs a look at memory: the time
// from PostSend until it grows is what a doorbell takes.
func (q *QP) SendsTaken() (uint32, error) { return q.sq.taken() }

// Query asks the device for the state and attributes.
func (q *QP) Query(ctx context.Context) (abi.QueryQPResult, error) {
	var r abi.QueryQPResult
	err := q.pd.admin.do(ctx, abi.AdminOpQueryQP, &abi.QueryQP{QPN: q.qpn}, &r, nil)
	return r, err
}

// QPAttr are the attributes of Modify and, in Mask, which of them are meant: as ibv_qp_attr with its mask.
type QPAttr = abi.ModifyQP

// Modify changes state and attributes, as ibv_modify_qp. Connect and Accept take a QP to RTS by themselves; what is left is mostly SQD: to stop
// sending (an EventSQDrained follows when SQDNotify is set), change what may not change while sending, and go on.
func (q *QP) Modify(ctx context.Context, attr QPAttr) error {
	attr.QPN = q.qpn
	err := q.pd.admin.do(ctx, abi.AdminOpModifyQP, &attr, nil, nil)
	if err == nil && attr.Mask&abi.QPAttrState != 0 {
		q.state.Store(uint32(attr.State))
	}
	return err
}

// Fail moves the QP to ERR: outstanding work is flushed, each with a WC.
func (q *QP) Fail(ctx context.Context) error {
	err := q.pd.admin.do(ctx, abi.AdminOpModifyQP, &abi.ModifyQP{QPN: q.qpn, Mask: abi.QPAttrState, State: abi.QPStateErr}, nil, nil)
	if err == nil {
		q.setError()
	}
	return err
}

func (q *QP) setError() { q.state.Store(uint32(abi.QPStateErr)) }

// complete accounts for a completion of this QP that CQ c found.
func (q *QP) complete(c *CQ, e *abi.CQE) error {
	w, cq := q.sq, q.sendCQ
	if receives(e) {
		w, cq = q.rq, q.recvCQ
	}
	if cq != c {
		return protocolError("completion of QP %d's %s in the wrong CQ", q.qpn, w.bell.record.Kind)
	}
	if err := w.complete(e.WRID, e.Status == WCSuccess); err != nil {
		return protocolError("QP %d: %s: %v", q.qpn, w.bell.record.Kind, err)
	}
	if e.Status != WCSuccess {
		q.setError()
	}
	return nil
}

// Destroy disconnects and frees the queue pair. Outstanding work gets no completion, and completions not polled yet are dropped.
func (q *QP) Destroy(ctx context.Context) error {
	return q.ended.once(func() error {
		q.sq.stop(q.dev.s, true)
		q.rq.stop(q.dev.s, true)
		err := q.pd.admin.do(ctx, abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: q.qpn}, nil, nil)
		if err != nil && !gone(err) {
			q.sq.stop(q.dev.s, false)
			q.rq.stop(q.dev.s, false)
			return err
		}
		q.setError()
		q.sendCQ.detach(q)
		q.recvCQ.detach(q)
		q.dev.mu.Lock()
		if q.dev.qps[q.qpn] == q {
			delete(q.dev.qps, q.qpn)
		}
		q.dev.mu.Unlock()
		q.dev.cm.forget(q)
		q.sq.free()
		q.rq.free()
		return err
	})
}
