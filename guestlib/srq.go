package guestlib

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// Types of QPConfig beside RC.
const (
	XRCSend = abi.QPTypeXRCSend
)

// SRQConfig is the configuration of a shared receive queue. All fields may be zero.
type SRQConfig struct {
	Entries int // receives that are posted and not yet used by a message; 0: 64. Rounded up to a power of two.
	MaxSGE  int // 0: 1
	Limit   int // EventSRQLimit is sent once when fewer receives are left; 0: never

	// XRC makes the queue one for the targets of that XRC domain, instead of for QPs that name it.
	// Its receives complete at CQ.
	XRC *XRCD
	CQ  *CQ
}

// SRQ is a shared receive queue: the messages of many QPs use its receives, in the order in which
// they arrive. It is safe for concurrent use.
type SRQ struct {
	pd          *PD
	cq          *CQ // only for XRC
	srqn        uint32
	log2Stride  uint8
	outstanding atomic.Int64 // posted and not completed
	w           *workQueue
	ended       end
}

// CreateSRQ creates a shared receive queue. The SGEs of its receives name memory of this domain.
func (p *PD) CreateSRQ(ctx context.Context, cfg SRQConfig) (*SRQ, error) {
	if cfg.Entries == 0 {
		cfg.Entries = 64
	}
	if cfg.MaxSGE == 0 {
		cfg.MaxSGE = 1
	}
	l := &p.dev.learned.Load().limits
	switch {
	case cfg.Entries < 1 || cfg.Entries > int(l.MaxQPEntries):
		return nil, invalid("SRQ of %d entries; the device takes 1 to %d", cfg.Entries, l.MaxQPEntries)
	case cfg.MaxSGE < 1 || cfg.MaxSGE > int(l.MaxSGE):
		return nil, invalid("SRQ: MaxSGE is %d; the device takes 1 to %d", cfg.MaxSGE, l.MaxSGE)
	case cfg.Limit < 0 || cfg.Limit > cfg.Entries:
		return nil, invalid("SRQ: Limit is %d; 0 to %d", cfg.Limit, cfg.Entries)
	case (cfg.XRC == nil) != (cfg.CQ == nil):
		return nil, invalid("SRQ: XRC and CQ go together")
	}
	s := &SRQ{pd: p, cq: cfg.CQ, log2Stride: log2Stride(abi.RecvWQEHeader+cfg.MaxSGE*abi.SGESize, 5)}
	in := abi.CreateSRQ{
		PDN: p.pdn, Limit: uint32(cfg.Limit), Log2Entries: log2Entries(cfg.Entries), Log2Stride: s.log2Stride, MaxSGE: uint8(cfg.MaxSGE),
	}
	if cfg.XRC != nil {
		in.Type, in.XRCDN, in.CQN = abi.SRQTypeXRC, cfg.XRC.xrcdn, cfg.CQ.cqn
	}
	w, err := newSharedQueue(p.dev, in.Log2Entries, s.log2Stride, cfg.MaxSGE)
	if err != nil {
		return nil, err
	}
	s.w = w
	in.Pages, in.Levels = w.area.list.Root, w.area.list.Levels
	err = p.admin.do(ctx, abi.AdminOpCreateSRQ, &in, nil, func(e *abi.AdminCQE) {
		if e.Status != abi.StatusOK {
			return
		}
		var r abi.CreateSRQResult
		r.Unmarshal(e.Result[:])
		s.srqn, w.bell.record.Queue = r.SRQN, r.SRQN
		p.dev.objects.srqs.add(r.SRQN, s)
	})
	if err != nil {
		w.free()
		return nil, err
	}
	if s.cq != nil {
		s.cq.mu.Lock()
		s.cq.srqs[s.srqn] = s
		s.cq.mu.Unlock()
	}
	return s, nil
}

// newSharedQueue returns a work queue that does not remember posted requests.
func newSharedQueue(d *Device, log2, log2Stride uint8, maxSGE int) (*workQueue, error) {
	w, err := newWorkQueue(d, log2, log2Stride, abi.DoorbellSRQ)
	if err != nil {
		return nil, err
	}
	w.posted, w.maxSGE = nil, maxSGE
	return w, nil
}

// Num returns the number of the queue. An XRC peer names it in SendWR.RemoteSRQN.
func (s *SRQ) Num() uint32 { return s.srqn }

// PostRecv posts wr to the queue. It returns ErrQueueFull if too many receives wait for messages.
// wr may be reused at once, the memory in its SGL only after its completion. PostRecv does not
// block and does not allocate.
func (s *SRQ) PostRecv(wr *RecvWR) error {
	s.outstanding.Add(1) // before its completion can come
	err := s.w.receive(s.pd.dev.stream.Load(), wr)
	if err != nil {
		s.outstanding.Add(-1)
	}
	return err
}

// complete counts a completion.
func (s *SRQ) complete() error {
	if s.outstanding.Add(-1) < 0 {
		s.outstanding.Add(1)
		return protocolError("SRQ %d: more completions than receives", s.srqn)
	}
	return nil
}

// SetLimit asks for one EventSRQLimit when fewer than n receives are left. If there are fewer
// already, the event is sent at once. 0 means no event.
func (s *SRQ) SetLimit(ctx context.Context, n int) error {
	if n < 0 {
		return invalid("SRQ: Limit is %d", n)
	}
	return s.pd.admin.do(ctx, abi.AdminOpModifySRQ, &abi.ModifySRQ{SRQN: s.srqn, Mask: abi.SRQAttrLimit, Limit: uint32(n)}, nil, nil)
}

// Resize gives the queue room for entries receives. It returns ErrQueueFull if more are waiting
// now.
func (s *SRQ) Resize(ctx context.Context, entries int) error {
	if entries < 1 || entries > int(s.pd.dev.learned.Load().limits.MaxQPEntries) {
		return invalid("SRQ of %d entries; the device takes 1 to %d", entries, s.pd.dev.learned.Load().limits.MaxQPEntries)
	}
	w := s.w
	w.mu.Lock() // no receive must be posted meanwhile (DRV-922)
	defer w.mu.Unlock()
	if w.dead {
		return ErrClosed
	}
	n, err := newSharedQueue(s.pd.dev, log2Entries(entries), s.log2Stride, w.maxSGE)
	if err != nil {
		return err
	}
	taken, err := ring.Mem(w.area.block.Bytes()).Load32(abi.QueueHeaderConsumer)
	if err == nil && w.next-taken > n.layout.Entries() {
		err = fmt.Errorf("SRQ: %w: %d receives wait for messages", ErrQueueFull, w.next-taken)
	}
	var r abi.ModifySRQResult
	if err == nil {
		err = s.pd.admin.do(ctx, abi.AdminOpModifySRQ, &abi.ModifySRQ{
			SRQN: s.srqn, Mask: abi.SRQAttrArea, Log2Entries: log2Entries(entries), Levels: n.area.list.Levels, Pages: n.area.list.Root,
		}, &r, nil)
	}
	if err != nil {
		n.free()
		return err
	}
	if w.next-r.Consumer > w.layout.Entries() {
		n.free()
		return protocolError("SRQ %d: consumer %d of %d posted", s.srqn, r.Consumer, w.next)
	}
	old := w.area.block.Bytes()
	for i := r.Consumer; i != w.next; i++ {
		at := abi.QueueHeaderSize + int(i&(w.layout.Entries()-1))*int(w.layout.Stride())
		if err := n.ring.Push(old[at:][:w.layout.Stride()]); err != nil {
			n.free()
			return protocolError("SRQ %d: %v", s.srqn, err)
		}
	}
	if _, _, err := n.ring.Publish(); err != nil {
		n.free()
		return protocolError("SRQ %d: %v", s.srqn, err)
	}
	w.area.free()
	w.area, w.layout, w.ring, w.next = n.area, n.layout, n.ring, w.next-r.Consumer
	s.pd.dev.stream.Load().ring(&w.bell, w.ring.Next())
	return nil
}

// Query asks the device for the queue's limit and size.
func (s *SRQ) Query(ctx context.Context) (abi.QuerySRQResult, error) {
	var r abi.QuerySRQResult
	err := s.pd.admin.do(ctx, abi.AdminOpQuerySRQ, &abi.QuerySRQ{SRQN: s.srqn}, &r, nil)
	return r, err
}

// Destroy destroys the queue. It returns ErrBusy while QPs use it. Receives that no message has
// used get no completion.
func (s *SRQ) Destroy(ctx context.Context) error {
	return s.ended.once(func() error {
		d := s.pd.dev
		s.w.stop(d.stream.Load())
		err := s.pd.admin.do(ctx, abi.AdminOpDestroySRQ, &abi.DestroySRQ{SRQN: s.srqn}, nil, nil)
		if err != nil && !gone(err) {
			s.w.resume(d.stream.Load())
			return err
		}
		if s.cq != nil {
			s.cq.detachSRQ(s)
		}
		d.objects.srqs.remove(s.srqn, s)
		s.w.free()
		return err
	})
}

// XRCD is an XRC domain: its SRQs receive from all its targets.
type XRCD struct {
	dev   *Device
	admin *admin
	xrcdn uint32
	ended end
}

// OpenXRCD creates an XRC domain.
func (d *Device) OpenXRCD(ctx context.Context) (*XRCD, error) {
	var r abi.OpenXRCDResult
	a := d.admin.Load()
	if err := a.do(ctx, abi.AdminOpOpenXRCD, nil, &r, nil); err != nil {
		return nil, err
	}
	return &XRCD{dev: d, admin: a, xrcdn: r.XRCDN}, nil
}

// CreateQP creates a target in state INIT: the end of a connection whose other end has type
// XRCSend. No work can be posted to it. Each message names the SRQ that receives it.
func (x *XRCD) CreateQP(ctx context.Context, cfg QPConfig) (*QP, error) {
	if err := cfg.attributes(x.dev); err != nil {
		return nil, err
	}
	q := &QP{pd: &PD{dev: x.dev, admin: x.admin}, dev: x.dev, cfg: cfg}
	return q.create(ctx, &abi.CreateQP{Type: abi.QPTypeXRCRecv, XRCDN: x.xrcdn})
}

// Close destroys the domain. It returns ErrBusy while the domain has targets or SRQs.
func (x *XRCD) Close(ctx context.Context) error {
	return x.ended.once(func() error {
		return x.admin.do(ctx, abi.AdminOpCloseXRCD, &abi.CloseXRCD{XRCDN: x.xrcdn}, nil, nil)
	})
}
