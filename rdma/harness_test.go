package rdma

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
	"github.com/falcon-vnic/vnic/rdma/local"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

const (
	arenaBase = uint64(1) << 32
	pathMTU   = 1024
)

// over is what connects the queue pairs of the worlds that are made.
var over = byFalcon

const (
	byFalcon  = "Falcon"
	insideNIC = "inside" // both functions belong to one NIC
	byRoCE    = "RoCE"
	byIWARP   = "iWARP"
)

// worldsOver sets it until the test ends.
func worldsOver(t testing.TB, wire string) {
	before := over
	over = wire
	t.Cleanup(func() { over = before })
}

// overAll runs a test over the wires that have all kinds of queue pairs.
func overAll(t *testing.T, f func(t *testing.T)) { overEach(t, f, byFalcon, insideNIC, byRoCE) }

func overEach(t *testing.T, f func(t *testing.T), wires ...string) {
	for _, wire := range wires {
		t.Run(wire, func(t *testing.T) {
			worldsOver(t, wire)
			f(t)
		})
	}
}

// network is where another wire than Falcon is spoken.
type network interface {
	step(now falcon.Time) (busy bool) // does what can be done now
	deadline() falcon.Time
	connect(a, b *qp, numberOfB, numberOfA uint32)
}

// world is two NICs with one function each, joined by impaired links, in virtual time.
type world struct {
	t      testing.TB
	now    falcon.Time
	sim    *sim.World
	hosts  [2]*host
	cid    falcon.CID
	mtu    int
	v6     bool
	refuse bool      // links get no connections
	roce   *roceNet  // nil: RoCEv2 is not spoken
	nets   []network // the first connects queue pairs; none: Falcon does
}

// host is one NIC, its function and a driver's view of the guest's memory.
type host struct {
	w       *world
	e       *Engine
	fe      *falcon.Engine
	fn      *Function
	arena   []byte
	mem     *queues.Memory
	used    uint64
	credits *credit.Node

	cqEvents   []uint32
	violations []abi.Violation
	mistakes   []verbs.Mistake
	async      []asyncEvent
}

// rof returns the host's wire to other hosts, local the wire inside the NIC.
func (h *host) rof() *rof.Engine     { return Wire[*rof.Engine](h.e) }
func (h *host) local() *local.Engine { return Wire[*local.Engine](h.e) }

type asyncEvent struct {
	typ            abi.EventType
	number, status uint32
	reason         string
}

func (h *host) CQEvent(cqn uint32) { h.cqEvents = append(h.cqEvents, cqn) }
func (h *host) AsyncEvent(typ abi.EventType, number, status uint32, reason string) {
	h.async = append(h.async, asyncEvent{typ, number, status, reason})
}

func (h *host) Violation(v *abi.Violation) { h.violations = append(h.violations, *v) }
func (h *host) Mistake(m *verbs.Mistake)   { h.mistakes = append(h.mistakes, *m) }

type worldConfig struct {
	arena  int
	limits verbs.Limits
	net    sim.Impairment
	seed   uint64
	tune   func(*Engine)
	credit credit.Cost                           // of each NIC; zero for no limit
	mtu    int                                   // path MTU; 0 for pathMTU
	peer   sim.Handler                           // takes the place of host 0's engine
	watch  func(host int, e *Engine) sim.Handler // stands between falcon and the engine
	v6     bool                                  // the functions have IPv6 addresses
}

func newWorld(t testing.TB, c worldConfig) *world {
	if c.arena == 0 {
		c.arena = 16 << 20
	}
	if c.net.Delay == 0 {
		c.net.Delay = 5000
	}
	if c.credit == (credit.Cost{}) {
		c.credit = credit.NoLimit()
	}
	if c.mtu == 0 {
		c.mtu = pathMTU
	}
	w := &world{t: t, now: 1e9, cid: 100, mtu: c.mtu, v6: c.v6}
	var cfg [2]falcon.Config
	var ulp [2]sim.Handler
	for i := range w.hosts {
		h := &host{w: w, arena: make([]byte, c.arena), e: NewEngine(Config{}), credits: credit.New(nil, c.credit)}
		if over == insideNIC && i == 1 {
			h.e = w.hosts[0].e
		}
		if c.tune != nil {
			c.tune(h.e)
		}
		h.e.UseSecret([32]byte{byte(c.seed), byte(i)})
		h.mem = queues.NewMemory([]queues.Region{{Addr: arenaBase, Mem: h.arena}})
		h.fn = h.e.NewFunction(uint32(i+1), h.mem, c.limits, h)
		cfg[i] = falcon.Config{Profile: falcon.Software(), Credits: h.credits}
		ulp[i], w.hosts[i] = h.rof(), h
	}
	for i, h := range w.hosts {
		if c.watch != nil {
			ulp[i] = c.watch(i, h.e)
		}
	}
	if c.peer != nil {
		ulp[0] = c.peer
	}
	w.sim = sim.NewWorld(c.seed, cfg, ulp, c.net)
	w.sim.FlushAcks = true
	switch over {
	case byRoCE:
		w.speakRoCE(c.seed, c.net)
	case byIWARP:
		w.speakIWARP(c.seed)
	}
	for i, h := range w.hosts {
		h.fe = w.sim.Nodes[i].Engine
		h.rof().UseFalcon(h.fe)
	}
	return w
}

// cut makes the link from host i lose everything, or work again.
func (w *world) cut(i int, down bool) {
	imp := w.sim.Links[i].Impairment()
	imp.Down = down
	w.sim.Links[i].Set(imp)
}

// step does everything that can be done at the current time.
func (w *world) step() {
	w.sim.Now = w.now
	for again := true; again; {
		again = false
		for _, h := range w.hosts {
			for h.e.Run(w.now) {
			}
			w.openLinks(h)
		}
		w.sim.Step()
		for _, n := range w.nets {
			again = n.step(w.now) || again
		}
		for _, h := range w.hosts {
			again = again || h.e.Ready()
		}
	}
}

// next returns when something happens next.
func (w *world) next() falcon.Time {
	at := min(w.sim.Deadline(), w.hosts[0].e.Deadline(), w.hosts[1].e.Deadline())
	for _, n := range w.nets {
		at = min(at, n.deadline())
	}
	return at
}

// run lets time pass until done, at most for limit.
func (w *world) run(limit falcon.Time, done func() bool) {
	w.t.Helper()
	for end := w.now + limit; ; {
		w.step()
		if done() {
			return
		}
		next := w.next()
		if next >= end {
			w.t.Fatalf("not done after %d ms (next timer in %d ms)", (w.now-end+limit)/1e6, (next-w.now)/1e6)
		}
		w.now = max(w.now, next)
	}
}

// settle lets d pass.
func (w *world) settle(d falcon.Time) {
	for end := w.now + d; ; {
		w.step()
		next := w.next()
		if next > end {
			w.now = end
			return
		}
		w.now = max(w.now, next)
	}
}

// alloc takes n bytes of guest memory, page aligned, and returns their device address.
func (h *host) alloc(n int) uint64 {
	at := h.used
	h.used += (uint64(n) + abi.PageSize - 1) &^ (abi.PageSize - 1)
	if h.used > uint64(len(h.arena)) {
		h.w.t.Fatal("guest memory used up")
	}
	return arenaBase + at
}

// bytes returns guest memory as the guest sees it.
func (h *host) bytes(addr uint64, n int) []byte { return h.arena[addr-arenaBase:][:n:n] }

// pageList writes a page list of n bytes at addr and returns its root. Pages may be listed in any
// order by swap.
func (h *host) pageList(addr uint64, n int, levels uint8) uint64 {
	pages := (n + int(addr%abi.PageSize) + abi.PageSize - 1) / abi.PageSize
	addr &^= abi.PageSize - 1
	entries := make([]uint64, pages)
	for i := range entries {
		entries[i] = addr + uint64(i)*abi.PageSize
	}
	for range levels {
		bytes := len(entries) * 8
		list := h.alloc(bytes)
		for i, e := range entries {
			binary.LittleEndian.PutUint64(h.bytes(list+uint64(8*i), 8), e)
		}
		n := (bytes + abi.PageSize - 1) / abi.PageSize
		entries = make([]uint64, n)
		for i := range entries {
			entries[i] = list + uint64(i)*abi.PageSize
		}
	}
	if len(entries) != 1 {
		h.w.t.Fatalf("%d levels do not hold %d pages", levels, pages)
	}
	return entries[0]
}

func levelsFor(n int) uint8 {
	levels := uint8(1)
	for pages := n/abi.PageSize + 2; pages > abi.PageListEntries; pages /= abi.PageListEntries {
		levels++
	}
	return levels
}

func ok(t testing.TB, st abi.Status) {
	t.Helper()
	if st != abi.StatusOK {
		t.Fatalf("status %v", st)
	}
}

// region is a registered piece of guest memory.
type region struct {
	h    *host
	addr uint64
	n    int
	key  uint32
}

func (r *region) bytes() []byte { return r.h.bytes(r.addr, r.n) }

const allAccess = abi.AccessLocalWrite | abi.AccessRemoteWrite | abi.AccessRemoteRead | abi.AccessRemoteAtomic

func (h *host) register(pdn uint32, n int, access uint32) *region {
	h.w.t.Helper()
	r := &region{h: h, addr: h.alloc(n), n: n}
	levels := levelsFor(n)
	var st abi.Status
	r.key, _, st = h.fn.RegMR(&abi.RegMR{
		PDN: pdn, Access: access, IOVA: r.addr, Length: uint64(n), Pages: h.pageList(r.addr, n, levels), Levels: levels,
	})
	ok(h.w.t, st)
	return r
}

func (r *region) sge(off, n int) abi.SGE {
	return abi.SGE{Addr: r.addr + uint64(off), Length: uint32(n), LKey: r.key}
}

// cq is a completion queue with its driver side.
type cq struct {
	h      *host
	number uint32
	reader *ring.CQReader
}

func (h *host) createCQ(log2 uint8) *cq {
	h.w.t.Helper()
	layout := ring.CQLayout(log2)
	n := int(layout.Size())
	at, levels := h.alloc(n), levelsFor(n)
	number, st := h.fn.CreateCQ(&abi.CreateCQ{Log2Entries: log2, Levels: levels, Pages: h.pageList(at, n, levels)})
	ok(h.w.t, st)
	return &cq{h: h, number: number, reader: ring.NewCQReader(ring.Mem(h.bytes(at, n)), layout)}
}

func (c *cq) poll() (x abi.CQE, ok bool) {
	var b [abi.CQESize]byte
	ok, err := c.reader.Poll(b[:])
	if err != nil {
		c.h.w.t.Fatal(err)
	}
	if ok {
		x.Unmarshal(b[:])
		if err := c.reader.Commit(); err != nil {
			c.h.w.t.Fatal(err)
		}
	}
	return x, ok
}

// wait polls until n entries came.
func (c *cq) wait(n int) []abi.CQE {
	c.h.w.t.Helper()
	var all []abi.CQE
	c.h.w.run(60e9, func() bool {
		for len(all) < n {
			x, ok := c.poll()
			if !ok {
				return false
			}
			all = append(all, x)
		}
		return true
	})
	return all
}

func (c *cq) arm(solicited bool) {
	d := &abi.Doorbell{Kind: abi.DoorbellCQArm, Queue: c.number, Index: c.reader.Next()}
	if solicited {
		d.Flags = abi.ArmSolicitedOnly
	}
	c.h.fn.Doorbell(c.h.w.now, d)
}

// armWord arms by the word in memory.
func (c *cq) armWord(solicited bool) (ready bool) {
	c.h.w.t.Helper()
	err := c.reader.Arm(solicited)
	if err == nil {
		ready, err = c.reader.Ready(solicited)
	}
	if err != nil {
		c.h.w.t.Fatal(err)
	}
	return ready
}

// qp is a queue pair with its driver side.
type qp struct {
	entry      int // bytes of one of the send queue
	h          *host
	number     uint32
	q          *verbs.QP
	send, recv *cq
	sq, rq     *ring.Producer
	sqMem      []byte
	rqMem      []byte
}

// info returns what QPInfo shows of the queue pair.
func (p *qp) info() (info verbs.QPInfo) {
	p.h.fn.EachQP(func(i *verbs.QPInfo) {
		if i.Number == p.number {
			info = *i
		}
	})
	return info
}

type qpConfig struct {
	log2       uint8 // entries of both queues
	sge        uint8
	inline     uint16
	sigAll     bool
	send       *cq
	recv       *cq
	access     uint32
	noAccess   bool
	privileged bool
	typ        abi.QPType // 0: RC
	ordering   abi.Ordering
	cie        bool
	srq        *srq
	xrcd       uint32
	bare       bool  // sends have the SGEs that sge says, and no inline data
	stride     uint8 // log2, of sends
}

func (h *host) createQP(pdn uint32, c qpConfig) *qp {
	h.w.t.Helper()
	if c.log2 == 0 {
		c.log2 = 6
	}
	sends := c.sge
	if c.sge == 0 {
		c.sge = 4
	}
	if !c.bare {
		sends = c.sge
	}
	if c.inline == 0 && !c.bare {
		c.inline = 192
	}
	if c.stride == 0 {
		c.stride = 9
	}
	if c.typ == 0 {
		c.typ = abi.QPTypeRC
	}
	if c.send == nil {
		c.send = h.createCQ(10)
	}
	if c.recv == nil {
		c.recv = h.createCQ(10)
	}
	if c.access == 0 && !c.noAccess {
		c.access = abi.AccessRemoteRead | abi.AccessRemoteWrite | abi.AccessRemoteAtomic
	}
	p := &qp{h: h, send: c.send, recv: c.recv, entry: 1 << c.stride}
	sql, rql := ring.QueueLayout(c.log2, c.stride), ring.QueueLayout(c.log2, 9)
	make1 := func(l ring.Layout) (mem []byte, root uint64, levels uint8) {
		n := int(l.Size())
		at := h.alloc(n)
		levels = levelsFor(n)
		return h.bytes(at, n), h.pageList(at, n, levels), levels
	}
	cmd := &abi.CreateQP{
		PDN: pdn, SendCQ: c.send.number, RecvCQ: c.recv.number, Type: c.typ,
		SQLog2Entries: c.log2, RQLog2Entries: c.log2, SQLog2Stride: c.stride, RQLog2Stride: 9,
		MaxSendSGE: sends, MaxRecvSGE: c.sge, MaxInline: c.inline,
	}
	if c.sigAll {
		cmd.SigAll = 1
	}
	p.sqMem, cmd.SQPages, cmd.SQLevels = make1(sql)
	p.rqMem, cmd.RQPages, cmd.RQLevels = make1(rql)
	p.sq, p.rq = ring.NewProducer(ring.Mem(p.sqMem), sql), ring.NewProducer(ring.Mem(p.rqMem), rql)
	if c.srq != nil {
		cmd.SRQN = c.srq.number
	}
	cmd.Ordering = c.ordering
	if c.privileged {
		cmd.Flags = abi.QPPrivileged
	}
	if c.cie {
		cmd.ErrorMode = abi.ErrorModeCompleteInError
	}
	if c.srq != nil || c.typ == abi.QPTypeXRCSend || c.typ == abi.QPTypeXRCRecv {
		cmd.RQLog2Entries, cmd.RQLog2Stride, cmd.RQPages, cmd.RQLevels, cmd.MaxRecvSGE = 0, 0, 0, 0, 0
	}
	switch c.typ {
	case abi.QPTypeXRCSend:
		cmd.RecvCQ = 0
	case abi.QPTypeXRCRecv:
		*cmd = abi.CreateQP{Type: c.typ, XRCDN: c.xrcd}
	}
	var st abi.Status
	p.number, st = h.fn.CreateQP(cmd)
	ok(h.w.t, st)
	p.q = h.fn.QP(p.number)
	if typ := p.q.Type(); typ == abi.QPTypeUD || typ == abi.QPTypeGSI {
		p.modify(abi.ModifyQP{Mask: abi.QPAttrState | abi.QPAttrQKey, State: abi.QPStateInit, QKey: testQKey})
		return p
	}
	mask := uint32(abi.QPAttrState | abi.QPAttrAccess)
	if c.typ != abi.QPTypeUC {
		mask |= abi.QPAttrMinRNRTimer
	}
	ok(h.w.t, h.fn.ModifyQP(h.w.now, &abi.ModifyQP{
		QPN: p.number, Mask: mask, State: abi.QPStateInit, Access: c.access, MinRNRTimer: 1,
	}))
	return p
}

// modify sets attributes.
func (p *qp) modify(m abi.ModifyQP) {
	p.h.w.t.Helper()
	m.QPN = p.number
	ok(p.h.w.t, p.h.fn.ModifyQP(p.h.w.now, &m))
}

// connect joins two QPs of different hosts.
func (w *world) connect(a, b *qp, ordered bool) {
	w.t.Helper()
	w.connectAs(a, b, ordered, b.number, a.number)
}

// connectAs connects like connect, with what each side believes to be the other's number.
func (w *world) connectAs(a, b *qp, ordered bool, numberOfB, numberOfA uint32) {
	w.t.Helper()
	if len(w.nets) > 0 {
		w.nets[0].connect(a, b, numberOfB, numberOfA)
		return
	}
	ca, cb := w.cid, w.cid+1
	w.cid += 2
	open := func(p *qp, local, remote falcon.CID, peer *qp, peerNumber, tx, rx uint32) {
		cfg := falcon.ConnConfig{
			LocalCID: local, RemoteCID: remote, LocalFunction: p.h.fn.ID(), RemoteFunction: peer.h.fn.ID(),
			Protocol: falconwire.ProtocolRDMA, Ordered: ordered, MTU: w.mtu + 56,
			TxDataPSN: tx, TxReqPSN: tx + 1, TxRSN: tx + 2, RxDataPSN: rx, RxReqPSN: rx + 1, RxRSN: rx + 2,
		}
		gid := [16]byte{15: byte(peer.h.fn.ID())}
		if over == insideNIC {
			cfg.Credits = p.h.credits
			l, err := p.h.local().Open(cfg)
			if err != nil {
				w.t.Fatal(err)
			}
			ok(w.t, p.q.Connect(w.now, p.h.rof().Over(l), peerNumber, w.mtu, gid))
			return
		}
		c, err := p.h.fe.Open(w.now, cfg)
		if err != nil {
			w.t.Fatal(err)
		}
		ok(w.t, p.q.Connect(w.now, p.h.rof().Over(c), peerNumber, w.mtu, gid))
	}
	// PSNs and RSNs start shortly before their wrap.
	open(a, ca, cb, b, numberOfB, 0xfffffff0, 0xffffff00)
	open(b, cb, ca, a, numberOfA, 0xffffff00, 0xfffffff0)
}

// post posts a send work request and rings the doorbell.
func (p *qp) post(x abi.SendWQE, sges ...abi.SGE) { p.postRaw(x, nil, sges...); p.ring() }

// postInline posts data in the work request itself.
func (p *qp) postInline(x abi.SendWQE, data []byte) {
	x.Flags |= abi.SendInline
	x.InlineLen = uint32(len(data))
	p.postRaw(x, data)
	p.ring()
}

func (p *qp) postRaw(x abi.SendWQE, data []byte, sges ...abi.SGE) {
	p.h.w.t.Helper()
	var b [512]byte
	if x.Flags&abi.SendInline == 0 && x.NumSGE == 0 {
		x.NumSGE = uint8(len(sges))
	}
	x.Marshal(b[:])
	for i := range sges {
		sges[i].Marshal(b[abi.SendWQEHeader+i*abi.SGESize:])
	}
	copy(b[abi.SendWQEHeader:], data)
	if err := p.sq.Push(b[:p.entry]); err != nil {
		p.h.w.t.Fatal(err)
	}
	if _, _, err := p.sq.Publish(); err != nil {
		p.h.w.t.Fatal(err)
	}
}

func (p *qp) ring() {
	p.h.fn.Doorbell(p.h.w.now, &abi.Doorbell{Kind: abi.DoorbellSQ, Queue: p.number, Index: p.sq.Next()})
}

// receive posts a receive and rings the doorbell.
func (p *qp) receive(wrid uint64, sges ...abi.SGE) {
	p.h.w.t.Helper()
	var b [512]byte
	x := abi.RecvWQE{WRID: wrid, NumSGE: uint8(len(sges))}
	x.Marshal(b[:])
	for i := range sges {
		sges[i].Marshal(b[abi.RecvWQEHeader+i*abi.SGESize:])
	}
	if err := p.rq.Push(b[:]); err != nil {
		p.h.w.t.Fatal(err)
	}
	index, _, err := p.rq.Publish()
	if err != nil {
		p.h.w.t.Fatal(err)
	}
	p.h.fn.Doorbell(p.h.w.now, &abi.Doorbell{Kind: abi.DoorbellRQ, Queue: p.number, Index: index})
}

// pair is a connected pair of QPs with a region each: the usual stage of a test.
type pair struct {
	*world
	a, b   *qp
	pd     [2]uint32
	ma, mb *region
}

func newPair(t testing.TB, ordered bool, size int, c worldConfig, qc qpConfig) *pair {
	t.Helper()
	p := &pair{world: newWorld(t, c)}
	for i, h := range p.hosts {
		pdn, st := h.fn.AllocPD()
		ok(t, st)
		p.pd[i] = pdn
	}
	p.ma = p.hosts[0].register(p.pd[0], size, allAccess)
	p.mb = p.hosts[1].register(p.pd[1], size, allAccess)
	p.a = p.hosts[0].createQP(p.pd[0], qc)
	p.b = p.hosts[1].createQP(p.pd[1], qc)
	p.connect(p.a, p.b, ordered)
	return p
}

// remote is the address part of a request to p.mb.
func (p *pair) remote(op abi.Opcode, off int) abi.SendWQE {
	return abi.SendWQE{Opcode: op, Flags: abi.SendSignaled, RemoteAddr: p.mb.addr + uint64(off), RKey: p.mb.key}
}

// fill makes the bytes of b depend on seed and place.
func fill(b []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 7))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

// success fails the test unless every completion is a success.
func success(t testing.TB, cqes []abi.CQE) {
	t.Helper()
	for _, c := range cqes {
		if c.Status != abi.WCSuccess {
			t.Fatalf("work request %d: %v (vendor %#x)", c.WRID, c.Status, c.VendorErr)
		}
	}
}

func describe(cqes []abi.CQE) string {
	s := ""
	for _, c := range cqes {
		s += fmt.Sprintf("%d:%v ", c.WRID, c.Status)
	}
	return s
}

// drop takes one entry off the CQ and reports whether there was one.
func (c *cq) drop() bool {
	_, ok := c.poll()
	return ok
}

// resetRings starts both queues again, on memory the test has cleared.
func (p *qp) resetRings() {
	n := len(p.sqMem)
	log2 := uint8(0)
	for l := ring.QueueLayout(log2, 9); int(l.Size()) < n; l = ring.QueueLayout(log2, 9) {
		log2++
	}
	l := ring.QueueLayout(log2, 9)
	p.sq, p.rq = ring.NewProducer(ring.Mem(p.sqMem), l), ring.NewProducer(ring.Mem(p.rqMem), l)
}
