package verbs

import (
	"encoding/binary"
	"testing"

	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// guest is a function with its memory and its driver, called directly. Its queue pairs have only a
// wire that does what the test sets.
type guest struct {
	Objects
	t      testing.TB
	shared Shared
	ram    []byte
	used   int
	pdn    uint32

	cqEvents   []uint32
	events     []event
	violations []abi.Violation
	mistakes   []Mistake

	turns   int  // asked for
	freed   int  // times that credit was
	resting bool // the scheduler lets nobody issue
	spent   []int
	ways    map[Address]*way
}

// event is an asynchronous event.
type event struct {
	typ    abi.EventType
	number uint32
	status abi.WCStatus
}

// ramBase is the device address of a guest's memory.
const ramBase = uint64(1) << 32

func newGuest(t testing.TB, limits Limits) *guest {
	t.Helper()
	g := &guest{t: t, ram: make([]byte, 2<<20), ways: map[Address]*way{}}
	g.shared.Bounds = Bounds{TurnOps: 8, TurnBytes: 64 << 10, Linger: 500e6, PollTime: 200e3}
	g.Init(&g.shared, queues.NewMemory([]queues.Region{{Addr: ramBase, Mem: g.ram}}), limits, g, g, g)
	g.UseFeatures(abi.FeatureExtendedVerbs)
	g.pdn = g.newPD()
	return g
}

func (g *guest) CQEvent(cqn uint32) { g.cqEvents = append(g.cqEvents, cqn) }
func (g *guest) AsyncEvent(typ abi.EventType, number, status uint32, _ string) {
	g.events = append(g.events, event{typ, number, abi.WCStatus(status)})
}
func (g *guest) Violation(v *abi.Violation)         { g.violations = append(g.violations, *v) }
func (g *guest) Mistake(m *Mistake)                 { g.mistakes = append(g.mistakes, *m) }
func (g *guest) Ready(*QP)                          { g.turns++ }
func (g *guest) May(vtime.Time) bool                { return !g.resting }
func (g *guest) Spend(n int)                        { g.spent = append(g.spent, n) }
func (g *guest) AnswerAt(now vtime.Time) vtime.Time { return now }
func (g *guest) Answered(int)                       {}
func (g *guest) Freed()                             { g.freed++ }
func (g *guest) To(to *Address, ordered bool) Destination {
	w := g.ways[*to]
	if w == nil {
		w = &way{}
		g.ways[*to] = w
	}
	return w
}

// way is a Destination that answers as the test sets.
type way struct {
	says   Sent
	wanted int
	left   int
	sent   []Datagram
}

func (w *way) Want(vtime.Time)  { w.wanted++ }
func (w *way) Leave(vtime.Time) { w.left++ }
func (w *way) Send(_ vtime.Time, d *Datagram) Sent {
	w.sent = append(w.sent, *d)
	return w.says
}

// good fails the test unless a command succeeded.
func (g *guest) good(st abi.Status) {
	g.t.Helper()
	if st != abi.StatusOK {
		g.t.Fatalf("status %v", st)
	}
}

func (g *guest) newPD() uint32 {
	g.t.Helper()
	pdn, st := g.AllocPD()
	g.good(st)
	return pdn
}

// pages takes so many pages of memory that lie side by side.
func (g *guest) pages(n int) uint64 {
	g.t.Helper()
	at := g.used
	if g.used += n * abi.PageSize; g.used > len(g.ram) {
		g.t.Fatal("guest memory used up")
	}
	return ramBase + uint64(at)
}

// mem is memory as the guest sees it.
func (g *guest) mem(addr uint64, n int) []byte { return g.ram[addr-ramBase:][:n:n] }

// list writes a page list of one level.
func (g *guest) list(pages ...uint64) (root uint64) {
	g.t.Helper()
	root = g.pages(1)
	for i, p := range pages {
		binary.LittleEndian.PutUint64(g.mem(root+uint64(8*i), 8), p)
	}
	return root
}

// run is a page list of pages that lie side by side.
func (g *guest) run(addr uint64, pages int) (root uint64) {
	g.t.Helper()
	list := make([]uint64, pages)
	for i := range list {
		list[i] = addr + uint64(i)*abi.PageSize
	}
	return g.list(list...)
}

// allRights are the access rights of most regions.
const allRights = abi.AccessLocalWrite | RemoteRights | abi.AccessMWBind

// region registers n bytes at a new place, under their own address.
func (g *guest) region(pdn uint32, n int, access uint32) *MR {
	g.t.Helper()
	pages := (n + abi.PageSize - 1) / abi.PageSize
	at := g.pages(pages)
	key, _, st := g.RegMR(&abi.RegMR{PDN: pdn, Access: access, IOVA: at, Length: uint64(n), Pages: g.run(at, pages), Levels: 1})
	g.good(st)
	return g.named(key)
}

// window makes a free window.
func (g *guest) window(pdn uint32, typ abi.MWType) (rkey uint32) {
	g.t.Helper()
	rkey, st := g.AllocMW(&abi.AllocMW{PDN: pdn, Type: typ})
	g.good(st)
	return rkey
}

// bound makes a window of type typ and binds it to all of m.
func (g *guest) bound(typ abi.MWType, to *Bindings, m *MR) *MR {
	g.t.Helper()
	key := g.window(m.pd.number, typ)
	if st := g.bind(m.pd, to, key, &abi.BindMW{Addr: m.iova, Length: m.length, LKey: m.key, Access: abi.AccessRemoteRead}); st != abi.WCSuccess {
		g.t.Fatalf("bound: %v", st)
	}
	return g.named(key)
}

// completions is a completion queue with its driver's side.
type completions struct {
	*ring.CQReader
	g      *guest
	number uint32
}

func (g *guest) newCQ(log2 uint8) *completions {
	g.t.Helper()
	layout := ring.CQLayout(log2)
	n := int(layout.Size())
	pages := (n + abi.PageSize - 1) / abi.PageSize
	at := g.pages(pages)
	number, st := g.CreateCQ(&abi.CreateCQ{Log2Entries: log2, Levels: 1, Pages: g.run(at, pages)})
	g.good(st)
	return &completions{ring.NewCQReader(ring.Mem(g.mem(at, n)), layout), g, number}
}

// poll returns all completions that are there.
func (c *completions) poll() (list []abi.CQE) {
	c.g.t.Helper()
	for {
		var b [abi.CQESize]byte
		ok, err := c.Poll(b[:])
		if err == nil && ok {
			err = c.Commit()
		}
		if err != nil {
			c.g.t.Fatal(err)
		}
		if !ok {
			return list
		}
		var x abi.CQE
		x.Unmarshal(b[:])
		x.Timestamp, x.Tail = 0, 0
		list = append(list, x)
	}
}

// statuses polls, and returns the outcomes alone.
func (c *completions) statuses() (list []abi.WCStatus) {
	c.g.t.Helper()
	for _, x := range c.poll() {
		list = append(list, x.Status)
	}
	return list
}

// side is a queue pair with its driver's side, and the wire that it is connected by.
type side struct {
	*QP
	g              *guest
	sends, recvs   *ring.Producer
	sendMem        []byte
	sent, received *completions
	wire           *wire
}

// What a side's queues hold.
const (
	sideEntries = 8
	sideSGEs    = 4
	sideInline  = 64
)

// newQP makes a queue pair; change may be nil.
func (g *guest) newQP(typ abi.QPType, change func(*abi.CreateQP)) *side {
	g.t.Helper()
	s := &side{g: g, sent: g.newCQ(5), received: g.newCQ(5)}
	sq, rq := ring.QueueLayout(3, 8), ring.QueueLayout(3, 7)
	at, from := g.pages(1), g.pages(1)
	s.sendMem = g.mem(at, int(sq.Size()))
	s.sends, s.recvs = ring.NewProducer(ring.Mem(s.sendMem), sq), ring.NewProducer(ring.Mem(g.mem(from, int(rq.Size()))), rq)
	c := &abi.CreateQP{
		PDN: g.pdn, SendCQ: s.sent.number, RecvCQ: s.received.number, Type: typ, SQLog2Entries: 3, RQLog2Entries: 3, SQLog2Stride: 8, RQLog2Stride: 7,
		MaxSendSGE: sideSGEs, MaxRecvSGE: sideSGEs, MaxInline: sideInline, SQLevels: 1, RQLevels: 1, SQPages: g.run(at, 1), RQPages: g.run(from, 1),
	}
	if change != nil {
		change(c)
	}
	number, st := g.CreateQP(c)
	g.good(st)
	s.QP = g.QP(number)
	if s.datagrams() {
		g.good(g.ModifyQP(0, &abi.ModifyQP{QPN: number, Mask: abi.QPAttrState | abi.QPAttrQKey, State: abi.QPStateInit, QKey: sideQKey}))
		return s
	}
	g.good(g.ModifyQP(0, &abi.ModifyQP{QPN: number, Mask: abi.QPAttrState | abi.QPAttrAccess, State: abi.QPStateInit, Access: RemoteRights}))
	return s
}

// sideQKey is the Q_Key of datagram queue pairs.
const sideQKey = 0x1234

// newRC makes a reliable connection in RTS.
func (g *guest) newRC(change func(*abi.CreateQP)) *side {
	g.t.Helper()
	s := g.newQP(abi.QPTypeRC, change)
	s.connect(0)
	return s
}

// newUD makes a datagram queue pair in RTS.
func (g *guest) newUD(change func(*abi.CreateQP)) *side {
	g.t.Helper()
	s := g.newQP(abi.QPTypeUD, change)
	g.good(g.ModifyQP(0, &abi.ModifyQP{QPN: s.number, Mask: abi.QPAttrState, State: abi.QPStateRTR}))
	g.good(g.ModifyQP(0, &abi.ModifyQP{QPN: s.number, Mask: abi.QPAttrState | abi.QPAttrSQPSN, State: abi.QPStateRTS}))
	return s
}

// become makes the queue pair one of another type, with the same queues.
func (s *side) become(typ abi.QPType) { s.typ, s.send.typ, s.recv.typ = typ, typ, typ }

// connect gives the queue pair a wire.
func (s *side) connect(now vtime.Time) {
	s.g.t.Helper()
	s.wire = &wire{segment: 1024, ordered: s.ordering == abi.OrderingStrong}
	s.g.good(s.Connect(now, s.wire, 0x77, 1024, [16]byte{15: 9}))
}

// post posts a send work request and rings the doorbell.
func (s *side) post(now vtime.Time, x abi.SendWQE, sges ...abi.SGE) {
	s.g.t.Helper()
	var rest []byte
	for i := range sges {
		rest = append(rest, make([]byte, abi.SGESize)...)
		sges[i].Marshal(rest[i*abi.SGESize:])
	}
	x.NumSGE = max(x.NumSGE, uint8(len(sges)))
	s.postRaw(now, x, rest)
}

// postRaw posts an entry with what follows its header as it is.
func (s *side) postRaw(now vtime.Time, x abi.SendWQE, rest []byte) {
	s.g.t.Helper()
	b := make([]byte, abi.SendWQEHeader, 256)
	x.Marshal(b)
	index := s.push(s.sends, append(b, rest...))
	s.g.Doorbell(now, &abi.Doorbell{Kind: abi.DoorbellSQ, Queue: s.number, Index: index})
}

// receive posts a receive and rings the doorbell.
func (s *side) receive(now vtime.Time, wrid uint64, sges ...abi.SGE) {
	s.g.t.Helper()
	x := abi.RecvWQE{WRID: wrid, NumSGE: uint8(len(sges))}
	b := make([]byte, abi.RecvWQEHeader+len(sges)*abi.SGESize)
	x.Marshal(b)
	for i := range sges {
		sges[i].Marshal(b[abi.RecvWQEHeader+i*abi.SGESize:])
	}
	index := s.push(s.recvs, b)
	s.g.Doorbell(now, &abi.Doorbell{Kind: abi.DoorbellRQ, Queue: s.number, Index: index})
}

func (s *side) push(p *ring.Producer, entry []byte) (index uint32) {
	s.g.t.Helper()
	err := p.Push(entry)
	if err == nil {
		index, _, err = p.Publish()
	}
	if err != nil {
		s.g.t.Fatal(err)
	}
	return index
}

// sge is n bytes of a region from off on.
func (m *MR) sge(off, n int) abi.SGE {
	return abi.SGE{Addr: m.iova + uint64(off), Length: uint32(n), LKey: m.key}
}

// write is a WRITE to the peer, signaled.
func write(wrid uint64) abi.SendWQE {
	return abi.SendWQE{WRID: wrid, Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: 0x1000, RKey: 1}
}

// wire is a connection that takes packets or not, as the test sets.
type wire struct {
	segment   int
	ordered   bool
	says      error        // to Issue
	fails     abi.WCStatus // how a request ends that is not taken
	terms     *transport.Terms
	issued    []*transport.Request // a packet each
	reads     int                  // that may be under way
	forgotten int
	end       string // how it ended
}

func (w *wire) Attach(t *transport.Terms) (segment int, ok bool) {
	w.terms = t
	return min(w.segment, t.PathMTU), w.segment > 0
}
func (w *wire) Ordered() bool                 { return w.ordered }
func (w *wire) Features() transport.Features  { return transport.AllFeatures }
func (w *wire) LimitReads(n int)              { w.reads = n }
func (w *wire) UnderWay() (pushes, pulls int) { return len(w.issued), 0 }
func (w *wire) Forget()                       { w.forgotten++ }
func (w *wire) Drain(vtime.Time)              { w.end += "drained" }
func (w *wire) Close(vtime.Time)              { w.end += "closed" }
func (w *wire) Abort(vtime.Time)              { w.end += "aborted" }
func (w *wire) Prefetch()                     {}
func (w *wire) ID() uint32                    { return 5 }
func (w *wire) Issue(_ vtime.Time, r *transport.Request) (n int, err error) {
	if w.says != nil {
		r.Status = max(r.Status, w.fails)
		return 0, w.says
	}
	n = min(int(r.Length-r.Offset), w.segment)
	r.Offset += uint32(n)
	r.Pending++
	r.Issued = r.Offset == r.Length
	w.issued = append(w.issued, r)
	return n, nil
}

// done ends the packet that was issued longest ago.
func (s *side) done(now vtime.Time, st abi.WCStatus) {
	s.g.t.Helper()
	r := s.wire.issued[0]
	s.wire.issued = s.wire.issued[1:]
	r.Pending--
	s.Done(now, r, st, 0)
	s.Settle(now)
}
