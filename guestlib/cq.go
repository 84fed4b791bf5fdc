package guestlib

import (
	"context"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/falcon-vnic/vnic/guestlib/arena"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// area is the memory of one queue: the queue itself and its page list for the device.
type area struct {
	block *arena.Block
	list  *arena.PageList
}

func newArea(pool *arena.Pool, layout ring.Layout) (area, error) {
	block, err := pool.Alloc(int(layout.Size()))
	if err != nil {
		return area{}, err
	}
	list, err := pool.NewPageList(block.Pages())
	if err != nil {
		block.Free()
		return area{}, err
	}
	return area{block, list}, nil
}

func (a area) free() {
	a.list.Free()
	a.block.Free()
}

// log2Entries returns the log2 of the smallest queue of the ABI that has room for n entries.
func log2Entries(n int) uint8 { return uint8(max(1, bits.Len(uint(n-1)))) }

// discarded is written as the QPN of completions that Poll must skip. QPNs have 24 bits.
const discarded = 0xffffffff

// CQ is a completion queue. It is safe for concurrent use; each completion goes to one caller of
// Poll.
type CQ struct {
	dev    *Device
	admin  *admin
	cqn    uint32
	log2   uint8
	area   area
	bell   bell          // for arming, unless byWord
	byWord bool          // arming is a store in the queue's header (FeatureArmWord)
	anyone atomic.Bool   // armed for any completion, with no event since
	polled atomic.Uint32 // index of the next entry to poll; written with mu held
	ended  end
	closed chan struct{}

	resizing sync.Mutex

	mu     sync.Mutex
	reader *ring.CQReader
	entry  []byte          // scratch for one CQE
	qps    map[uint32]*QP  // QPs that complete here
	srqs   map[uint32]*SRQ // XRC SRQs that complete here
	old    *oldCQ          // area before Resize; its entries come first
	err    error           // why the CQ cannot be used any more

	wakeMu sync.Mutex
	wake   chan struct{} // closed and replaced at each event
}

// CreateCQ creates a completion queue of at least entries entries. It needs one entry for each work
// request that may be outstanding on its QPs: an overflow is fatal.
func (d *Device) CreateCQ(ctx context.Context, entries int) (*CQ, error) {
	if entries < 1 || entries > 1<<abi.MaxQueueLog2 {
		return nil, invalid("CQ of %d entries; 1 to %d", entries, 1<<abi.MaxQueueLog2)
	}
	log2 := log2Entries(entries)
	layout := ring.CQLayout(log2)
	mem, err := newArea(d.pool, layout)
	if err != nil {
		return nil, err
	}
	cq := &CQ{
		dev: d, admin: d.admin.Load(), log2: log2, area: mem, closed: make(chan struct{}),
		reader: ring.NewCQReader(ring.Mem(mem.block.Bytes()), layout),
		entry:  make([]byte, abi.CQESize),
		qps:    map[uint32]*QP{},
		srqs:   map[uint32]*SRQ{},
		wake:   make(chan struct{}),
		byWord: d.learned.Load().info.Features&abi.FeatureArmWord != 0,
	}
	in := abi.CreateCQ{Log2Entries: log2, Vector: d.vector(), Levels: mem.list.Levels, Pages: mem.list.Root}
	err = cq.admin.do(ctx, abi.AdminOpCreateCQ, &in, nil, func(e *abi.AdminCQE) {
		if e.Status != abi.StatusOK {
			return
		}
		var r abi.CreateCQResult
		r.Unmarshal(e.Result[:])
		cq.cqn = r.CQN
		cq.bell = bell{record: abi.Doorbell{Kind: abi.DoorbellCQArm, Queue: r.CQN}, fresh: &cq.polled}
		d.objects.cqs.add(r.CQN, cq) // before the reader can get an event of it
	})
	if err != nil {
		mem.free()
		return nil, err
	}
	return cq, nil
}

// vector returns the event queue of the window for the next CQ, in turn; 0: events are messages.
func (d *Device) vector() uint16 {
	if d.learned.Load().vectors == 0 {
		return 0
	}
	return 1 + uint16(d.nextVector.Add(1)%uint32(d.learned.Load().vectors))
}

// Poll takes up to len(wc) completions and returns their number. It does not block. An error means
// that the CQ, the device or the protocol is broken; Poll then also returns the completions taken
// before it. Failed work is not an error of Poll.
func (c *CQ) Poll(wc []WC) (int, error) {
	c.mu.Lock()
	n, err := c.poll(wc)
	c.mu.Unlock()
	if n == 0 && err == nil {
		err = c.admin.failure()
	}
	return n, err
}

func (c *CQ) poll(wc []WC) (n int, err error) {
	if c.err != nil {
		return 0, c.err
	}
	took := false
	for n < len(wc) {
		ok, err := c.next()
		if err != nil {
			return n, c.breakdown(err)
		}
		if !ok {
			break
		}
		took = true
		var e abi.CQE
		e.Unmarshal(c.entry)
		if e.QPN == discarded {
			continue
		}
		if err := c.account(&e); err != nil {
			return n, c.breakdown(err)
		}
		wc[n].fill(&e)
		n++
	}
	if took {
		c.polled.Store(c.reader.Next())
		if err := c.reader.Commit(); err != nil {
			return n, c.breakdown(err)
		}
	}
	return n, nil
}

// account frees the slots of the work queue. It returns an error if the completion does not belong
// to outstanding work, which is a mistake of the device.
func (c *CQ) account(e *abi.CQE) error {
	qp := c.qps[e.QPN]
	if s := c.srqs[e.SRQN]; s != nil {
		return s.complete()
	}
	if qp == nil {
		return protocolError("CQ %d: completion for QP %#x, which does not complete here", c.cqn, e.QPN)
	}
	return qp.complete(c, e)
}

// breakdown makes the CQ unusable because of err.
func (c *CQ) breakdown(err error) error {
	c.err = fmt.Errorf("CQ %d: %w", c.cqn, err)
	return c.err
}

// ready reports whether Poll would return something.
func (c *CQ) ready() (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return false, c.err
	}
	return c.old != nil && c.old.filled() || c.filled(c.reader.Next()), nil
}

// next copies the next entry to c.entry and reports whether there was one.
func (c *CQ) next() (bool, error) {
	if o := c.old; o != nil {
		if ok, err := o.reader.Poll(c.entry); ok || err != nil {
			return ok, err
		}
		o.area.free()
		c.old = nil
	}
	return c.reader.Poll(c.entry)
}

// oldCQ is the area of a CQ before it was resized. The device no longer uses it.
type oldCQ struct {
	area   area
	log2   uint8
	reader *ring.CQReader
}

func (o *oldCQ) filled() bool { return filled(o.area, o.log2, o.reader.Next()) }

// Resize gives the queue room for entries completions. Completions that are not polled yet are kept
// and come first.
func (c *CQ) Resize(ctx context.Context, entries int) error {
	if entries < 1 || entries > 1<<abi.MaxQueueLog2 {
		return invalid("CQ of %d entries; 1 to %d", entries, 1<<abi.MaxQueueLog2)
	}
	log2 := log2Entries(entries)
	layout := ring.CQLayout(log2)
	mem, err := newArea(c.dev.pool, layout)
	if err != nil {
		return err
	}
	c.resizing.Lock()
	defer c.resizing.Unlock()
	c.mu.Lock()
	if err = c.err; err == nil && c.old != nil && c.old.filled() {
		err = fmt.Errorf("CQ %d: %w: completions from before the last Resize were not polled", c.cqn, ErrBusy)
	}
	c.mu.Unlock()
	if err == nil {
		err = c.admin.do(ctx, abi.AdminOpResizeCQ, &abi.ResizeCQ{CQN: c.cqn, Log2Entries: log2, Levels: mem.list.Levels, Pages: mem.list.Root}, nil, nil)
	}
	if err != nil {
		mem.free()
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.old != nil {
		c.old.area.free()
	}
	c.old = &oldCQ{c.area, c.log2, c.reader}
	c.area, c.log2, c.reader = mem, log2, ring.NewCQReader(ring.Mem(mem.block.Bytes()), layout)
	c.polled.Store(0)
	c.signal() // waiters arm again, because some may have armed the old area
	return nil
}

// Moderate delays an event until count completions have arrived or the period is over. If either is
// 0 events are not delayed. It only reduces wake-ups; completions are not delayed.
func (c *CQ) Moderate(ctx context.Context, count int, period time.Duration) error {
	us := period.Microseconds()
	if count < 0 || count > 65535 || us < 0 || us > 65535 {
		return invalid("CQ: moderation of %d completions and %v; at most 65535 and 65.535 ms", count, period)
	}
	return c.admin.do(ctx, abi.AdminOpModifyCQ, &abi.ModifyCQ{CQN: c.cqn, Count: uint16(count), Period: uint16(us)}, nil, nil)
}

// filled reports whether the device has written the entry with free-running index i.
func (c *CQ) filled(i uint32) bool { return filled(c.area, c.log2, i) }

func filled(a area, log2 uint8, i uint32) bool {
	tail, err := ring.Mem(a.block.Bytes()).Load64(uint64(cqSlot(log2, i) + abi.CQETailOffset))
	var want uint64
	if i>>log2&1 == 0 {
		want = abi.Phase
	}
	return err == nil && tail&abi.Phase == want
}

// cqSlot returns the offset of the entry with free-running index i.
func cqSlot(log2 uint8, i uint32) int {
	return abi.QueueHeaderSize + int(i&(1<<log2-1))*abi.CQESize
}

// Wait blocks until a completion can be polled. It does not miss a completion that arrives between
// an empty Poll and Wait: it asks the device for an event at the first entry that is not polled
// yet, and the device sends that event at once if the entry is already written.
func (c *CQ) Wait(ctx context.Context) error { return c.wait(ctx, 0) }

// WaitSolicited is like Wait, but only completions of solicited sends and failures wake it. A Poll
// then returns all completions.
func (c *CQ) WaitSolicited(ctx context.Context) error { return c.wait(ctx, abi.ArmSolicitedOnly) }

func (c *CQ) wait(ctx context.Context, flags uint8) error {
	woken := false
	for {
		c.wakeMu.Lock()
		wake := c.wake // read before arming, because the event closes it
		c.wakeMu.Unlock()
		ready, err := c.ready()
		if err != nil {
			return err
		}
		if ready && (flags == 0 || woken) {
			return nil
		}
		if ready, err = c.arm(flags); err != nil || ready {
			return err
		}
		select {
		case <-wake:
			woken = true
		case <-ctx.Done():
			return ctx.Err()
		case <-c.closed:
			return fmt.Errorf("CQ %d: %w", c.cqn, ErrClosed)
		case <-c.admin.ended:
			return c.admin.failure()
		}
	}
}

// arm asks the device for an event. It returns true if a matching completion is already there; then
// possibly no event comes.
func (c *CQ) arm(flags uint8) (ready bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
		return false, c.err
	case c.old != nil && c.old.filled():
		return true, nil // arming is only for the new area
	case !c.byWord:
		c.dev.stream.Load().arm(&c.bell, flags)
		return false, nil
	}
	if flags == 0 {
		c.anyone.Store(true)
	}
	// The word holds one request. If another waiter has asked for any completion, keep that.
	if err = c.reader.Arm(!c.anyone.Load()); err == nil {
		ready, err = c.reader.Ready(flags != 0)
	}
	if err != nil {
		return false, c.breakdown(err)
	}
	return ready, nil
}

// signal wakes all waiters.
func (c *CQ) signal() {
	if c == nil {
		return // the QP has no such CQ
	}
	c.wakeMu.Lock()
	c.anyone.Store(false) // before the waiters wake, since they arm again
	close(c.wake)
	c.wake = make(chan struct{})
	c.wakeMu.Unlock()
}

// broken makes the CQ unusable after an error event of the device.
func (c *CQ) broken(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.breakdown(err)
	}
	c.mu.Unlock()
	c.signal()
}

func (c *CQ) attach(qp *QP) {
	if c == nil {
		return
	}
	c.mu.Lock()
	c.qps[qp.qpn] = qp
	c.mu.Unlock()
}

// detach removes a destroyed QP and discards its completions that were not polled, since the device
// may give its number to the next QP.
func (c *CQ) detach(qp *QP) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.qps, qp.qpn)
	c.discard(func(e *abi.CQE) bool { return e.QPN == qp.qpn })
}

// passOver discards the completions of a QP in RESET that were not polled: its queues do not know the
// work any more (DEV-610).
func (c *CQ) passOver(qp *QP) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.discard(func(e *abi.CQE) bool { return e.QPN == qp.qpn })
}

// detachSRQ is detach for a destroyed XRC SRQ.
func (c *CQ) detachSRQ(s *SRQ) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.srqs, s.srqn)
	c.discard(func(e *abi.CQE) bool { return e.SRQN == s.srqn })
}

// discard marks completions that were not polled and for which gone is true, so that Poll skips
// them.
func (c *CQ) discard(gone func(*abi.CQE) bool) {
	if c.err != nil {
		return
	}
	if o := c.old; o != nil {
		c.discardIn(o.area, o.log2, o.reader.Next(), gone)
	}
	c.discardIn(c.area, c.log2, c.reader.Next(), gone)
}

func (c *CQ) discardIn(a area, log2 uint8, next uint32, gone func(*abi.CQE) bool) {
	mem := a.block.Bytes()
	for i := next; i-next < 1<<log2 && filled(a, log2, i); i++ {
		at := mem[cqSlot(log2, i):][:abi.CQESize]
		var e abi.CQE
		if e.Unmarshal(at); gone(&e) {
			e.QPN, e.SRQN = discarded, 0
			e.Marshal(c.entry)
			copy(at[:abi.CQETailOffset], c.entry) // without the phase bit
		}
	}
}

// Destroy destroys the queue. It returns ErrBusy while QPs complete to it.
func (c *CQ) Destroy(ctx context.Context) error {
	return c.ended.once(func() error {
		c.dev.stream.Load().mute(&c.bell)
		err := c.admin.do(ctx, abi.AdminOpDestroyCQ, &abi.DestroyCQ{CQN: c.cqn}, nil, nil)
		if err != nil && !gone(err) {
			c.dev.stream.Load().unmute(&c.bell)
			c.signal() // waiters arm again, because their doorbells were dropped
			return err
		}
		c.dev.objects.cqs.remove(c.cqn, c)
		c.broken(ErrClosed)
		close(c.closed)
		c.mu.Lock()
		if c.old != nil {
			c.old.area.free()
			c.old = nil
		}
		c.area.free()
		c.mu.Unlock()
		return err
	})
}

// WC is a work completion, as ibv_wc. After a failure only ID, QPN, Status and VendorErr are valid.
type WC struct {
	ID        uint64 // of the work request
	Timestamp uint64 // nanoseconds of the device's monotonic clock
	QPN       uint32 // local QP
	SrcQP     uint32 // peer's QP
	ByteLen   uint32 // bytes received (receive, READ, atomics)
	Imm       uint32 // valid with WCWithImm; the invalidated key with WCWithInv
	VendorErr uint32 // detail of a failure, for logs
	Status    WCStatus
	Opcode    WCOpcode
	Flags     uint8
	SL        uint8   // of a datagram: the RoCE packet type, 0xa from IPv4, 0x9 from IPv6
	SourceMAC [6]byte // of a datagram: its source MAC address, that of the gateway
}

// Flags of WC.
const (
	WCWithGRH = abi.WCFlagGRH // GRHSize bytes precede the data, and count in ByteLen
	WCWithImm = abi.WCFlagImm
	WCWithInv = abi.WCFlagInv
)

// WCSuccess is the Status of successful work.
const WCSuccess = abi.WCSuccess

// Err returns nil for successful work, otherwise a *WCError.
func (w *WC) Err() error {
	if w.Status == WCSuccess {
		return nil
	}
	return &WCError{ID: w.ID, QPN: w.QPN, Status: w.Status, VendorErr: w.VendorErr}
}

func (w *WC) fill(e *abi.CQE) {
	*w = WC{
		ID: e.WRID, Timestamp: e.Timestamp, QPN: e.QPN, SrcQP: e.SrcQP, ByteLen: e.ByteLen, Imm: e.Imm,
		VendorErr: e.VendorErr, Status: e.Status, Opcode: e.Opcode, Flags: e.Flags &^ abi.WCFlagSolicited, SL: e.SL,
		SourceMAC: e.SourceMAC,
	}
}

// receives reports whether e completes a receive: bit 7 of the opcode is set, also after failures.
func receives(e *abi.CQE) bool { return e.Opcode&abi.WCOpRecv != 0 }
