package conform

import (
	"encoding/binary"
	"time"

	"github.com/falcon-vnic/vnic/guestlib/arena"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// cq is a completion queue as the kit drives it.
type cq struct {
	c      *client
	cqn    uint32
	log2   uint8
	block  *arena.Block
	list   *arena.PageList
	reader *ring.CQReader
	arming uint64
}

// newCQ creates a completion queue of 2^log2 entries.
func (c *client) newCQ(log2 uint8) *cq {
	q := &cq{c: c}
	q.area(log2)
	var r abi.CreateCQResult
	c.must(abi.AdminOpCreateCQ, &abi.CreateCQ{Log2Entries: log2, Levels: q.list.Levels, Pages: q.list.Root}, &r)
	q.cqn = r.CQN
	return q
}

// area gives the queue new, zeroed memory.
func (q *cq) area(log2 uint8) {
	layout := ring.CQLayout(log2)
	q.log2, q.block = log2, q.c.alloc(int(layout.Size()))
	q.list = q.c.pages(q.block)
	q.reader = ring.NewCQReader(mem(q.block), layout)
}

// poll takes the next entry, if there is one.
func (q *cq) poll() (e abi.CQE, ok bool) {
	var b [abi.CQESize]byte
	ok, err := q.reader.Poll(b[:])
	q.c.t.noError(err)
	if ok {
		e.Unmarshal(b[:])
		q.c.t.noError(q.reader.Commit())
	}
	return e, ok
}

// next takes the next entry, and waits for it.
func (q *cq) next() (e abi.CQE) {
	q.c.t.until(func() (ok bool) {
		if e, ok = q.poll(); !ok && q.c.stream.ended() {
			q.c.t.Fatalf("the device closed the stream, want a completion")
		}
		return ok
	}, "a completion")
	return e
}

// want takes the next entry, which must be of that work request and have that status.
func (q *cq) want(wrid uint64, st abi.WCStatus) abi.CQE {
	e := q.next()
	if e.WRID != wrid || e.Status != st {
		q.c.t.Fatalf("completion of work request %d with %s (vendor error %#x), want %d with %s", e.WRID, e.Status, e.VendorErr, wrid, st)
	}
	return e
}

// empty fails the check if an entry comes within a short time.
func (q *cq) empty() {
	q.c.t.never(func() bool { _, ok := q.poll(); return ok }, "a completion came that there is no reason for")
}

// arm sends the doorbell that asks for an event at an index.
func (q *cq) arm(index uint32, flags uint8) {
	q.c.ring(abi.Doorbell{Kind: abi.DoorbellCQArm, Flags: flags, Queue: q.cqn, Index: index})
}

// armWord asks for an event by the word in the queue's header.
func (q *cq) armWord(index uint32, bits uint64) {
	q.arming++
	q.c.t.noError(mem(q.block).Store64Release(abi.CQHeaderArm, uint64(index)|bits|q.arming<<abi.CQArmNumber))
}

// event waits for an event of the queue. It also takes a repeated one, which may follow (DRV-710).
func (q *cq) event() {
	q.c.stream.wait("an event of the CQ", isCQEvent(q.cqn))
	for end := time.Now().Add(quiet / 3); time.Now().Before(end); time.Sleep(time.Millisecond) {
		q.c.stream.take(isCQEvent(q.cqn))
	}
}

// noEvent fails the check if an event of the queue comes within a short time. It reads a register
// first: the answer comes after the events of all that the device has done so far, however busy the
// machine is.
func (q *cq) noEvent() {
	q.c.state()
	q.c.stream.never("an event of the CQ that nobody asked for", isCQEvent(q.cqn))
}

// queue is a send or receive queue.
type queue struct {
	kind   abi.DoorbellKind
	block  *arena.Block
	list   *arena.PageList
	log2   uint8
	stride uint8
	ring   *ring.Producer
	last   uint32 // producer as last stored
}

func (c *client) newQueue(kind abi.DoorbellKind, log2, stride uint8) *queue {
	q := &queue{kind: kind, log2: log2, stride: stride, block: c.alloc(int(ring.QueueLayout(log2, stride).Size()))}
	q.list = c.pages(q.block)
	q.ring = ring.NewProducer(mem(q.block), ring.QueueLayout(log2, stride))
	return q
}

// word reads a word of the queue's header.
func (q *queue) word(t *T, at uint64) uint32 {
	v, err := mem(q.block).Load32(at)
	t.noError(err)
	return v
}

// qp is a queue pair.
type qp struct {
	c      *client
	qpn    uint32
	typ    abi.QPType
	sq, rq *queue
	send   *cq
}

// Sizes of the kit's queues.
const (
	queueLog2  = 4 // entries
	sendStride = 8
	recvStride = 7
	maxSGE     = 4
	maxInline  = 64
)

// newQP creates a queue pair of type RC in state RESET. change, if not nil, may change the command
// first.
func (c *client) newQP(pdn uint32, send, recv *cq, change func(*abi.CreateQP)) *qp {
	q := &qp{c: c, typ: abi.QPTypeRC, send: send, sq: c.newQueue(abi.DoorbellSQ, queueLog2, sendStride), rq: c.newQueue(abi.DoorbellRQ, queueLog2, recvStride)}
	in := abi.CreateQP{
		PDN: pdn, SendCQ: send.cqn, RecvCQ: recv.cqn, Type: abi.QPTypeRC, SQLog2Entries: queueLog2, RQLog2Entries: queueLog2,
		SQLog2Stride: sendStride, RQLog2Stride: recvStride, MaxSendSGE: maxSGE, MaxRecvSGE: maxSGE, MaxInline: maxInline,
		SQLevels: q.sq.list.Levels, SQPages: q.sq.list.Root, RQLevels: q.rq.list.Levels, RQPages: q.rq.list.Root,
	}
	if change != nil {
		change(&in)
	}
	q.typ = in.Type
	var r abi.CreateQPResult
	c.must(abi.AdminOpCreateQP, &in, &r)
	q.qpn = r.QPN
	return q
}

// modify sends a ModifyQP, which must succeed.
func (q *qp) modify(m abi.ModifyQP) {
	m.QPN = q.qpn
	q.c.must(abi.AdminOpModifyQP, &m, nil)
}

// try sends a ModifyQP and returns the status.
func (q *qp) try(m abi.ModifyQP) abi.Status {
	m.QPN = q.qpn
	return q.c.command(abi.AdminOpModifyQP, &m, nil)
}

func (q *qp) query() (r abi.QueryQPResult) {
	q.c.must(abi.AdminOpQueryQP, &abi.QueryQP{QPN: q.qpn}, &r)
	return r
}

func (q *qp) wantState(s abi.QPState) {
	if got := q.query().State; got != s {
		q.c.t.Fatalf("the QP is in %s, want %s", got, s)
	}
}

// step returns the command that moves a queue pair to its next state, with a peer.
func (q *qp) step(to abi.QPState, peer uint32) abi.ModifyQP {
	m := q.reliable(to, peer)
	if q.typ == abi.QPTypeUC {
		m.Mask &^= abi.QPAttrMaxDestRdAtomic | abi.QPAttrMinRNRTimer | abi.QPAttrTimeout | abi.QPAttrRetryCnt | abi.QPAttrRNRRetry | abi.QPAttrMaxRdAtomic
	}
	return m
}

// reliable is step for RC.
func (q *qp) reliable(to abi.QPState, peer uint32) abi.ModifyQP {
	switch to {
	case abi.QPStateInit:
		return abi.ModifyQP{State: to, Access: remoteAccess, Mask: abi.QPAttrState | abi.QPAttrPKeyIndex | abi.QPAttrPort | abi.QPAttrAccess}
	case abi.QPStateRTR:
		return abi.ModifyQP{
			State: to, PathMTU: abi.MTU1024, DestQPN: peer, MaxDestRdAtomic: 4, MinRNRTimer: 12, DGID: q.c.gid(),
			Mask: abi.QPAttrState | abi.QPAttrAV | abi.QPAttrPathMTU | abi.QPAttrDestQPN | abi.QPAttrRQPSN | abi.QPAttrMaxDestRdAtomic | abi.QPAttrMinRNRTimer,
		}
	case abi.QPStateRTS:
		return abi.ModifyQP{
			State: to, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRdAtomic: 4,
			Mask: abi.QPAttrState | abi.QPAttrTimeout | abi.QPAttrRetryCnt | abi.QPAttrRNRRetry | abi.QPAttrSQPSN | abi.QPAttrMaxRdAtomic,
		}
	}
	return abi.ModifyQP{State: to, Mask: abi.QPAttrState}
}

const remoteAccess = abi.AccessRemoteWrite | abi.AccessRemoteRead | abi.AccessRemoteAtomic

// connect moves the queue pair to RTS. The peer is a queue pair of the same function.
func (q *qp) connect(peer uint32) {
	for _, to := range []abi.QPState{abi.QPStateInit, abi.QPStateRTR, abi.QPStateRTS} {
		q.modify(q.step(to, peer))
	}
}

// gid returns the function's address.
func (c *client) gid() (g [16]byte) {
	binary.BigEndian.PutUint64(g[:], c.register(abi.RegGIDHi))
	binary.BigEndian.PutUint64(g[8:], c.register(abi.RegGIDLo))
	return g
}

// linkLocal returns the function's link-local address, which follows from its MAC address.
func (c *client) linkLocal() [16]byte {
	m := c.register(abi.RegMAC)
	return [16]byte{0xfe, 0x80, 8: byte(m) ^ 2, byte(m >> 8), byte(m >> 16), 0xff, 0xfe, byte(m >> 24), byte(m >> 32), byte(m >> 40)}
}

// entry encodes a send request: its header and SGEs.
func entry(w *abi.SendWQE, sgl ...abi.SGE) []byte {
	w.NumSGE = uint8(len(sgl))
	b := make([]byte, abi.SendWQEHeader+16*len(sgl))
	w.Marshal(b)
	for i := range sgl {
		sgl[i].Marshal(b[abi.SendWQEHeader+16*i:])
	}
	return b
}

// push writes an entry and the producer index, and rings if the device asked for that.
func (q *qp) push(on *queue, b []byte) {
	q.c.t.noError(on.ring.Push(b))
	q.publish(on)
}

func (q *qp) publish(on *queue) {
	index, bell, err := on.ring.Publish()
	q.c.t.noError(err)
	on.last = index
	if bell || q.c.features&abi.FeatureEventIndex == 0 {
		q.c.ring(abi.Doorbell{Kind: on.kind, Queue: q.qpn, Index: index})
	}
}

// post posts a send request.
func (q *qp) post(w abi.SendWQE, sgl ...abi.SGE) { q.push(q.sq, entry(&w, sgl...)) }

// postInline posts a send request with its data in the entry.
func (q *qp) postInline(w abi.SendWQE, data []byte) {
	w.Flags |= abi.SendInline
	w.InlineLen = uint32(len(data))
	q.push(q.sq, append(entry(&w), data...))
}

// postRecv posts a receive.
func (q *qp) postRecv(wrid uint64, sgl ...abi.SGE) { q.push(q.rq, recvEntry(wrid, sgl...)) }

func recvEntry(wrid uint64, sgl ...abi.SGE) []byte {
	b := make([]byte, abi.RecvWQEHeader+16*len(sgl))
	(&abi.RecvWQE{WRID: wrid, NumSGE: uint8(len(sgl))}).Marshal(b)
	for i := range sgl {
		sgl[i].Marshal(b[abi.RecvWQEHeader+16*i:])
	}
	return b
}

// qpPair is all that work requests need: two queue pairs of one function that are connected to each
// other, with their completion queues and a region.
type qpPair struct {
	*client
	pdn  uint32
	cq   *cq // of sends
	rcq  *cq // of receives
	mr   *region
	a, b *qp
}

// pairMemory is the size of a pair's region in bytes.
const pairMemory = 64 << 10

// qpPair returns a pair of a client with all features.
func (t *T) qpPair() *qpPair { return t.ready().qpPair(nil) }

func (c *client) qpPair(change func(*abi.CreateQP)) *qpPair {
	r := c.newQPs(change)
	r.a.connect(r.b.qpn)
	r.b.connect(r.a.qpn)
	return r
}

// newQPs makes a pair that is not connected yet.
func (c *client) newQPs(change func(*abi.CreateQP)) *qpPair {
	r := &qpPair{client: c, pdn: c.allocPD()}
	r.cq, r.rcq = c.newCQ(6), c.newCQ(6)
	r.mr = c.regMR(r.pdn, pairMemory, allAccess)
	r.a, r.b = c.newQP(r.pdn, r.cq, r.rcq, change), c.newQP(r.pdn, r.cq, r.rcq, change)
	return r
}

// copy posts a signaled WRITE of n bytes from offset off to offset to of the pair's region.
func (r *qpPair) copy(wrid uint64, off, to, n int) {
	r.a.post(abi.SendWQE{WRID: wrid, Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: r.mr.iova + uint64(to), RKey: r.mr.rkey}, r.mr.sge(off, n))
}

// restart starts the queue at index 0 again. The caller has zeroed the header of its area.
func (q *queue) restart() {
	q.ring, q.last = ring.NewProducer(mem(q.block), ring.QueueLayout(q.log2, q.stride)), 0
}
