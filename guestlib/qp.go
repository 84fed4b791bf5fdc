package guestlib

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// QPConfig is the configuration of a queue pair. All fields but SendCQ may be zero.
type QPConfig struct {
	SendCQ *CQ // required
	RecvCQ *CQ // nil: SendCQ

	SRQ  *SRQ   // queue to take receives from; nil: the QP has its own receive queue
	Type QPType // 0: RC. UC has SENDs and WRITEs, which may be lost. XRCSend sends to the SRQs of an XRC domain, whose targets XRCD.CreateQP makes. UD and GSI send and receive datagrams.
	QKey uint32 // UD: Q_Key that received datagrams must have

	Ordering  abi.Ordering  // of data and completions, the same at both ends; 0: as in InfiniBand
	ErrorMode abi.ErrorMode // effect of a failed request, the same at both ends; 0: the QP fails. Unordered needs CompleteInError.

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
	RNRRetry    uint8 // 1 to 7, 7 means without limit; 0: 7
	Timeout     uint8 // 4.096 µs × 2^n; 0: the device's own limit
	ReadAtomic  uint8 // READs and atomics in flight each way; 0: the device's limit
}

// UC is the type of queue pairs of unreliable connections.
const UC = abi.QPTypeUC

// connected reports whether the QP's type is RC or UC.
func (c *QPConfig) connected() bool { return c.Type == abi.QPTypeRC || c.Type == UC }

// QP is a queue pair. It is safe for concurrent use. Work posted by several goroutines is done in
// the order in which their calls got the lock.
type QP struct {
	pd             *PD
	dev            *Device
	qpn            uint32
	sq, rq         *workQueue
	sendCQ, recvCQ *CQ
	srq            *SRQ // source of receives; nil: rq
	sigAll         bool
	cfg            QPConfig      // with defaults filled in
	state          atomic.Uint32 // QPState as far as the driver knows
	ended          end

	mu   sync.Mutex
	conn *conn // the connection, or the attempt to make one
	path Path
}

func (c *QPConfig) defaults(d *Device, a *admin) error {
	if c.SendCQ == nil {
		return invalid("QP without SendCQ")
	}
	if c.RecvCQ == nil {
		c.RecvCQ = c.SendCQ
	}
	if c.Type == 0 {
		c.Type = abi.QPTypeRC
	}
	if c.SRQ != nil && (!c.connected() && !c.datagrams() || c.SRQ.pd.admin != a) {
		return invalid("QP: an SRQ of this life of this device is for RC, UC and UD only")
	}
	if c.SendCQ.dev != d || c.RecvCQ.dev != d {
		return invalid("QP with a CQ of another device")
	}
	if c.SendCQ.admin != a || c.RecvCQ.admin != a {
		return fmt.Errorf("QP with a CQ from before a reset: %w", ErrClosed)
	}
	for _, v := range []struct {
		v   *int
		def int
	}{
		{&c.SendEntries, 64}, {&c.RecvEntries, 64}, {&c.MaxSendSGE, 1}, {&c.MaxRecvSGE, 1},
	} {
		if *v.v == 0 {
			*v.v = v.def
		}
	}
	for _, v := range []struct {
		name     string
		v        int
		min, max int
	}{
		{"SendEntries", c.SendEntries, 1, int(d.learned.Load().limits.MaxQPEntries)},
		{"RecvEntries", c.RecvEntries, 1, int(d.learned.Load().limits.MaxQPEntries)},
		{"MaxSendSGE", c.MaxSendSGE, 1, int(d.learned.Load().limits.MaxSGE)},
		{"MaxRecvSGE", c.MaxRecvSGE, 1, int(d.learned.Load().limits.MaxSGE)},
		{"MaxInline", c.MaxInline, 0, int(d.learned.Load().limits.MaxInline)},
	} {
		if v.v < v.min || v.v > v.max {
			return invalid("QP: %s is %d; the device takes %d to %d", v.name, v.v, v.min, v.max)
		}
	}
	return c.attributes(d)
}

// attributes checks and completes the attributes that all types of queue pairs have.
func (c *QPConfig) attributes(d *Device) error {
	if c.PathMTU == 0 {
		c.PathMTU = d.learned.Load().info.MTU
	}
	for _, v := range []struct {
		v   *uint8
		def uint8
	}{{&c.MinRNRTimer, 12}, {&c.RetryCount, 7}, {&c.RNRRetry, 7}, {&c.ReadAtomic, d.learned.Load().limits.MaxReadAtomic}} {
		if *v.v == 0 {
			*v.v = v.def
		}
	}
	if c.PathMTU < 256 || c.PathMTU > 4096 || bits.OnesCount(uint(c.PathMTU)) != 1 {
		return invalid("QP: PathMTU is %d; it must be 256, 512, 1024, 2048 or 4096", c.PathMTU)
	}
	return nil
}

// log2Stride returns the log2 of the size of an entry that has room for n bytes, at least least.
func log2Stride(n int, least uint8) uint8 { return max(least, uint8(bits.Len(uint(n-1)))) }

// CreateQP creates a queue pair in state INIT, in which receives can be posted and it can be
// connected. A datagram QP is in RTS.
func (p *PD) CreateQP(ctx context.Context, cfg QPConfig) (*QP, error) {
	d := p.dev
	if err := cfg.defaults(d, p.admin); err != nil {
		return nil, err
	}
	if cfg.datagrams() && d.learned.Load().info.Features&abi.FeatureDatagrams == 0 {
		return nil, errNoDatagrams
	}
	receives := cfg.connected() || cfg.datagrams()
	if !receives && cfg.Type != abi.QPTypeXRCSend {
		return nil, invalid("QP of type %s cannot be made in a PD", cfg.Type)
	}
	sqStride := log2Stride(abi.SendWQEHeader+max(cfg.MaxSendSGE*abi.SGESize, cfg.MaxInline), 6)
	rqStride := log2Stride(abi.RecvWQEHeader+cfg.MaxRecvSGE*abi.SGESize, 5)
	in := abi.CreateQP{
		PDN: p.pdn, SendCQ: cfg.SendCQ.cqn, Type: cfg.Type, SQLog2Entries: log2Entries(cfg.SendEntries), SQLog2Stride: sqStride,
		MaxSendSGE: uint8(cfg.MaxSendSGE), MaxInline: uint16(cfg.MaxInline),
	}
	in.Ordering, in.ErrorMode = cfg.Ordering, cfg.ErrorMode
	if cfg.SigAll {
		in.SigAll = 1
	}
	qp := &QP{pd: p, dev: d, sendCQ: cfg.SendCQ, srq: cfg.SRQ, sigAll: cfg.SigAll || cfg.Ordering == abi.OrderingUnordered, cfg: cfg}
	var err error
	if qp.sq, err = newWorkQueue(d, in.SQLog2Entries, sqStride, abi.DoorbellSQ); err != nil {
		return nil, err
	}
	qp.sq.maxSGE, qp.sq.maxData = cfg.MaxSendSGE, cfg.MaxInline
	qp.sq.anyOrder = cfg.Ordering == abi.OrderingUnordered
	in.SQPages, in.SQLevels = qp.sq.area.list.Root, qp.sq.area.list.Levels
	if receives {
		qp.recvCQ, in.RecvCQ = cfg.RecvCQ, cfg.RecvCQ.cqn
	}
	switch {
	case cfg.SRQ != nil:
		in.SRQN = cfg.SRQ.srqn
	case receives:
		in.RQLog2Entries, in.RQLog2Stride, in.MaxRecvSGE = log2Entries(cfg.RecvEntries), rqStride, uint8(cfg.MaxRecvSGE)
		if qp.rq, err = newWorkQueue(d, in.RQLog2Entries, rqStride, abi.DoorbellRQ); err != nil {
			qp.sq.free()
			return nil, err
		}
		qp.rq.maxSGE, qp.rq.anyOrder = cfg.MaxRecvSGE, qp.sq.anyOrder
		in.RQPages, in.RQLevels = qp.rq.area.list.Root, qp.rq.area.list.Levels
	}
	return qp.create(ctx, &in)
}

// create creates the queue pair at the device and moves it to INIT.
func (q *QP) create(ctx context.Context, in *abi.CreateQP) (*QP, error) {
	d, a, cfg := q.dev, q.pd.admin, &q.cfg
	err := a.do(ctx, abi.AdminOpCreateQP, in, nil, func(e *abi.AdminCQE) {
		if e.Status != abi.StatusOK {
			return
		}
		var r abi.CreateQPResult
		r.Unmarshal(e.Result[:])
		q.qpn = r.QPN
		for _, w := range []*workQueue{q.sq, q.rq} {
			if w != nil {
				w.bell.record.Queue = r.QPN
			}
		}
		d.objects.qps.add(r.QPN, q)
	})
	if errors.Is(err, ErrUnsupported) && in.Type != abi.QPTypeRC {
		err = fmt.Errorf("the function has no queue pairs of type %s; over iWARP there are only RC: %w", in.Type, err)
	}
	if err != nil {
		q.sq.free()
		q.rq.free()
		return nil, err
	}
	q.sendCQ.attach(q)
	q.recvCQ.attach(q)
	if cfg.datagrams() {
		if err := q.startDatagrams(context.WithoutCancel(ctx)); err != nil {
			_ = q.Destroy(context.WithoutCancel(ctx)) // err says more
			return nil, err
		}
		return q, nil
	}
	mask := uint32(abi.QPAttrState | abi.QPAttrAccess | abi.QPAttrPathMTU)
	if cfg.Type != UC {
		mask |= abi.QPAttrTimeout | abi.QPAttrRetryCnt | abi.QPAttrRNRRetry | abi.QPAttrMinRNRTimer | abi.QPAttrMaxRdAtomic | abi.QPAttrMaxDestRdAtomic
	}
	err = a.do(context.WithoutCancel(ctx), abi.AdminOpModifyQP, &abi.ModifyQP{
		QPN: q.qpn, Mask: mask,
		Access: cfg.Access, State: abi.QPStateInit, PathMTU: abi.PathMTUFor(cfg.PathMTU),
		MinRNRTimer: cfg.MinRNRTimer, RetryCnt: cfg.RetryCount, RNRRetry: cfg.RNRRetry, Timeout: cfg.Timeout,
		MaxRdAtomic: cfg.ReadAtomic, MaxDestRdAtomic: cfg.ReadAtomic,
	}, nil, nil)
	if err != nil {
		_ = q.Destroy(context.WithoutCancel(ctx)) // err says more
		return nil, fmt.Errorf("QP to INIT: %w", err)
	}
	q.state.Store(uint32(abi.QPStateInit))
	return q, nil
}

// Num returns the queue pair number.
func (q *QP) Num() uint32 { return q.qpn }

// State returns the state that the driver knows: events and failed completions change it.
func (q *QP) State() QPState { return QPState(q.state.Load()) }

// SendsTaken returns the number of send work requests that the device has read since the QP was
// created or in RESET, modulo 2^32. It only reads memory. The time from PostSend until it grows is
// the latency of a doorbell.
func (q *QP) SendsTaken() (uint32, error) { return q.sq.taken() }

// Query asks the device for the state and attributes.
func (q *QP) Query(ctx context.Context) (abi.QueryQPResult, error) {
	var r abi.QueryQPResult
	err := q.pd.admin.do(ctx, abi.AdminOpQueryQP, &abi.QueryQP{QPN: q.qpn}, &r, nil)
	return r, err
}

// QPAttr holds the attributes of Modify; Mask says which of them are set, as with ibv_qp_attr.
type QPAttr = abi.ModifyQP

// Modify changes state and attributes, like ibv_modify_qp. Connect and Accept move a QP to RTS by
// themselves. Modify is mostly needed for SQD: to stop sending (an EventSQDrained follows if
// SQDNotify is set), change attributes that must not change while sending, and go on. In RESET the QP
// has no work and no connection, and takes none: outstanding work gets no completion, and completions
// not polled yet are dropped. From there it goes to INIT.
func (q *QP) Modify(ctx context.Context, attr QPAttr) error {
	attr.QPN = q.qpn
	if attr.Mask&abi.QPAttrState == 0 {
		return q.pd.admin.do(ctx, abi.AdminOpModifyQP, &attr, nil, nil)
	}
	if attr.State == abi.QPStateReset {
		return q.reset(ctx, &attr)
	}
	err := q.pd.admin.do(ctx, abi.AdminOpModifyQP, &attr, nil, nil)
	if err != nil {
		return err
	}
	q.state.Store(uint32(attr.State))
	if attr.State == abi.QPStateInit {
		q.unrest()
	}
	return nil
}

// reset is Modify to RESET.
func (q *QP) reset(ctx context.Context, attr *abi.ModifyQP) error {
	s, from := q.dev.stream.Load(), q.State()
	q.sq.rest(s)
	q.rq.rest(s)
	err := q.pd.admin.do(ctx, abi.AdminOpModifyQP, attr, nil, func(e *abi.AdminCQE) {
		if e.Status == abi.StatusOK {
			q.dev.cm.forget(q) // before the event that the connection has ended, which would mean ERR
		}
	})
	if err != nil {
		if from != abi.QPStateReset {
			q.unrest()
		}
		return err
	}
	q.sendCQ.passOver(q) // while the queues still know what was posted, as others may poll
	q.recvCQ.passOver(q)
	q.sq.restart(s)
	q.rq.restart(s)
	q.mu.Lock()
	q.path = Path{}
	q.mu.Unlock()
	q.state.Store(uint32(abi.QPStateReset))
	return nil
}

// unrest lets work be posted again.
func (q *QP) unrest() {
	q.sq.unrest(q.dev.stream.Load())
	q.rq.unrest(q.dev.stream.Load())
}

// Fail moves the QP to ERR. Outstanding work is flushed; each request gets a WC.
func (q *QP) Fail(ctx context.Context) error {
	err := q.pd.admin.do(ctx, abi.AdminOpModifyQP, &abi.ModifyQP{QPN: q.qpn, Mask: abi.QPAttrState, State: abi.QPStateErr}, nil, nil)
	if err == nil {
		q.setError()
	}
	return err
}

func (q *QP) setError() { q.state.Store(uint32(abi.QPStateErr)) }

// complete handles a completion of this QP that was polled from CQ c.
func (q *QP) complete(c *CQ, e *abi.CQE) error {
	w, cq := q.sq, q.sendCQ
	if receives(e) {
		w, cq = q.rq, q.recvCQ
	}
	if receives(e) && q.srq != nil {
		if cq != c || e.SRQN != q.srq.srqn {
			return protocolError("receive completion of QP %d, which shares SRQ %d, of SRQ %d", q.qpn, q.srq.srqn, e.SRQN)
		}
		if e.Status != WCSuccess && (q.cfg.ErrorMode == abi.ErrorModeVerbs || fatal(e.Status)) {
			q.setError()
		}
		return q.srq.complete()
	}
	if w == nil {
		return protocolError("completion of QP %d's queue, which it does not have", q.qpn)
	}
	if cq != c {
		return protocolError("completion of QP %d's %s in the wrong CQ", q.qpn, w.bell.record.Kind)
	}
	if err := w.complete(e.WRID, e.Status == WCSuccess); err != nil {
		return protocolError("QP %d: %s: %v", q.qpn, w.bell.record.Kind, err)
	}
	switch {
	case e.Status == WCSuccess || q.cfg.ErrorMode == abi.ErrorModeCompleteInError && !fatal(e.Status):
	case q.cfg.Type == UC && !receives(e) && e.Status == abi.WCWRFlushErr && q.State() == abi.QPStateSQE: // behind the one that failed
	case q.cfg.datagrams() && !receives(e), q.cfg.Type == UC && !receives(e) && e.Status != abi.WCWRFlushErr:
		q.state.CompareAndSwap(uint32(abi.QPStateRTS), uint32(abi.QPStateSQE))
	default:
		q.setError()
	}
	return nil
}

// stop makes the queues refuse work.
func (q *QP) stop(s *stream) {
	q.sq.stop(s)
	q.rq.stop(s)
}

// resume undoes stop.
func (q *QP) resume(s *stream) {
	q.sq.resume(s)
	q.rq.resume(s)
}

// Destroy disconnects and frees the queue pair. Outstanding work gets no completion, and
// completions not polled yet are dropped.
func (q *QP) Destroy(ctx context.Context) error {
	return q.ended.once(func() error {
		q.stop(q.dev.stream.Load())
		err := q.pd.admin.do(ctx, abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: q.qpn}, nil, nil)
		if err != nil && !gone(err) {
			q.resume(q.dev.stream.Load())
			return err
		}
		q.setError()
		q.sendCQ.detach(q)
		q.recvCQ.detach(q)
		q.dev.objects.qps.remove(q.qpn, q)
		q.dev.cm.forget(q)
		q.sq.free()
		q.rq.free()
		return err
	})
}

// fatal reports whether a failure moves the QP to ERR even with ErrorModeCompleteInError.
func fatal(st WCStatus) bool {
	switch st {
	case abi.WCRetryExcErr, abi.WCRNRRetryExcErr, abi.WCRespTimeoutErr, abi.WCBadRespErr, abi.WCGeneralErr, abi.WCWRFlushErr:
		return true
	}
	return false
}

// QPAddress is the address of a queue pair for its peer. Programs exchange it by a way of their
// own: a connected queue pair, a TCP socket.
type QPAddress struct {
	GID GID
	QPN uint32
}

// Path holds the header fields that a program chooses for a peer, like ibv_ah_attr. If all are zero
// the device chooses.
type Path struct {
	FlowLabel    uint32 // 20 bits; connections with different labels take different paths through the fabric
	TrafficClass uint8  // the upper six bits are the DSCP, of the outer header too; the lower two belong to the network
	HopLimit     uint8
	SL           uint8 // not sent
}

// SetPath sets the header fields with which the QP will send after it is connected or wired. The QP
// must be in INIT.
func (q *QP) SetPath(ctx context.Context, p Path) error {
	if s := q.State(); s != abi.QPStateInit {
		return stateError("QP %d is in %s; the path of a QP is set in INIT", q.qpn, s)
	}
	err := q.Modify(ctx, abi.ModifyQP{FlowLabel: p.FlowLabel, TrafficClass: p.TrafficClass, HopLimit: p.HopLimit, SL: p.SL, Mask: abi.QPAttrAV})
	if err != nil {
		return fmt.Errorf("path of QP %d: %w", q.qpn, err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.path = p
	return nil
}

// QPAddressSize is the length of an encoded QPAddress in bytes.
const QPAddressSize = 20

// AppendBinary appends the address as QPAddressSize bytes.
func (a QPAddress) AppendBinary(b []byte) ([]byte, error) {
	return binary.BigEndian.AppendUint32(append(b, a.GID[:]...), a.QPN), nil
}

// UnmarshalBinary decodes the encoding of AppendBinary.
func (a *QPAddress) UnmarshalBinary(b []byte) error {
	if len(b) != QPAddressSize {
		return invalid("QP address of %d bytes; it has %d", len(b), QPAddressSize)
	}
	a.QPN = binary.BigEndian.Uint32(b[copy(a.GID[:], b):])
	return nil
}

// Address returns the QP's address for a peer.
func (q *QP) Address() QPAddress { return QPAddress{q.dev.learned.Load().info.GID, q.qpn} }

// Wire moves a QP from INIT through RTR to RTS, with a peer whose address the program has got by a
// way of its own. The peer must do the same, sooner or later. Wire does not wait for the peer:
// receives and sends may be posted at once. If the peer is not there in time (8 s, or longer if the
// QP's timeouts say so), a send fails with WCRetryExcErr; a send of a UC QP is lost. Unlike with
// Connect, the program does not learn when the peer leaves. A peer may be another QP of this
// function, or the QP itself.
func (q *QP) Wire(ctx context.Context, peer QPAddress) error {
	if q.dev.learned.Load().info.Features&abi.FeatureExtendedVerbs == 0 {
		return fmt.Errorf("%w: this device connects QPs by Connect and Accept only", ErrUnsupported)
	}
	if s := q.State(); s != abi.QPStateInit {
		return stateError("QP %d is in %s; only a QP in INIT can be wired", q.qpn, s)
	}
	c := &q.cfg
	toRTR, toRTS := uint32(0), uint32(0) // further attributes of reliable connections
	if c.Type != UC {
		toRTR = abi.QPAttrMaxDestRdAtomic | abi.QPAttrMinRNRTimer
		toRTS = abi.QPAttrTimeout | abi.QPAttrRetryCnt | abi.QPAttrRNRRetry | abi.QPAttrMaxRdAtomic
	}
	q.mu.Lock()
	p := q.path
	q.mu.Unlock()
	err := q.Modify(ctx, abi.ModifyQP{
		FlowLabel: p.FlowLabel, TrafficClass: p.TrafficClass, HopLimit: p.HopLimit, SL: p.SL,
		State: abi.QPStateRTR, PathMTU: abi.PathMTUFor(c.PathMTU), DestQPN: peer.QPN, DGID: peer.GID, RQPSN: wirePSN, MinRNRTimer: c.MinRNRTimer, MaxDestRdAtomic: c.ReadAtomic,
		Mask: abi.QPAttrState | abi.QPAttrAV | abi.QPAttrPathMTU | abi.QPAttrDestQPN | abi.QPAttrRQPSN | toRTR,
	})
	if err == nil {
		err = q.Modify(context.WithoutCancel(ctx), abi.ModifyQP{
			State: abi.QPStateRTS, Timeout: c.Timeout, RetryCnt: c.RetryCount, RNRRetry: c.RNRRetry, SQPSN: wirePSN, MaxRdAtomic: c.ReadAtomic,
			Mask: abi.QPAttrState | abi.QPAttrSQPSN | toRTS,
		})
	}
	if err != nil {
		return fmt.Errorf("wire QP %d to QP %d of %s: %w", q.qpn, peer.QPN, peer.GID, err)
	}
	return nil
}

// wirePSN is a placeholder for the first PSNs, which Falcon negotiates by itself.
const wirePSN = 0
