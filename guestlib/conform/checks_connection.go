package conform

import (
	"bytes"
	"time"

	"github.com/falcon-vnic/vnic/queues/abi"
)

var connectionChecks = []check{
	{"cm.connect", "DEV-903 DEV-904 DEV-901", 0, cmConnect},
	{"cm.reject", "DEV-903", 0, cmReject},
	{"cm.refused", "DEV-903", 0, cmRefused},
	{"cm.end", "DEV-905 DEV-903", 0, cmEnd},
	{"cm.disconnect", "DEV-912", 0, cmDisconnect},
	{"cm.behind", "DEV-211 DEV-205", 0, cmBehind},
	{"cm.state", "DEV-901", 0, cmState},
	{"cm.reserved", "DEV-911", 0, cmReserved},
	{"cm.reads", "DEV-953", 0, cmReads},
	{"cm.orderings", "DEV-950", abi.FeatureExtendedVerbs, cmOrderings},
	{"rdma.ordering-weak", "DEV-951", abi.FeatureExtendedVerbs, orderingWeak},
	{"rdma.ordering-unordered", "DEV-951", abi.FeatureExtendedVerbs, orderingUnordered},
	{"rdma.complete-in-error", "DEV-952", abi.FeatureExtendedVerbs, completeInError},
}

// service is the service on which the kit listens.
const service = 0x7669_6e63

// cmPair is two queue pairs of one function in INIT. One of them connects to the other.
type cmPair struct {
	*qpPair
	id uint32 // of the side that connects
}

func (c *client) cmPair(change func(*abi.CreateQP)) *cmPair {
	r := c.newQPs(change)
	for _, q := range []*qp{r.a, r.b} {
		q.modify(q.step(abi.QPStateInit, 0))
	}
	if st := c.command(abi.AdminOpCMListen, &abi.CMListen{Service: service}, nil); st != abi.StatusOK && st != abi.StatusAddressInUse {
		c.t.Fatalf("CMListen: %s", st)
	}
	return &cmPair{qpPair: r}
}

// private puts private data into memory.
func (c *client) private(data string) (addr uint64, n uint16) {
	b := c.alloc(abi.PageSize)
	copy(b.Bytes(), data)
	return b.Pages()[0], uint16(len(data))
}

// ask sends the connection request of a and returns the event of that request.
func (p *cmPair) ask() abi.AsyncEvent {
	in := abi.CMConnect{QPN: p.a.qpn, Service: service, DGID: p.gid()}
	in.Priv, in.PrivLen = p.private("please")
	var out abi.CMConnectResult
	p.must(abi.AdminOpCMConnect, &in, &out)
	p.id = out.CMID
	e := p.stream.event(abi.EventConnectRequest)
	if e.Service != service || e.SrcGID != in.DGID || e.PeerQPN != p.a.qpn || string(e.Priv[:e.PrivLen]) != "please" {
		p.t.Fatalf("EventConnectRequest %+v, want service %#x, QP %#x, private data \"please\"", e, service, p.a.qpn)
	}
	return e
}

func (p *cmPair) accept(request uint32) {
	in := abi.CMAccept{CMID: request, QPN: p.b.qpn}
	in.Priv, in.PrivLen = p.private("welcome")
	p.must(abi.AdminOpCMAccept, &in, nil)
}

// established waits for the events of both sides.
func (p *cmPair) established(request uint32) {
	for range 2 {
		e := p.stream.event(abi.EventEstablished)
		if e.Number != p.id && e.Number != request {
			p.t.Fatalf("EventEstablished of connection %#x, want %#x and %#x", e.Number, p.id, request)
		}
		if e.Number == p.id && p.id != request && string(e.Priv[:e.PrivLen]) != "welcome" {
			p.t.Fatalf("EventEstablished has private data %q, want \"welcome\"", e.Priv[:e.PrivLen])
		}
	}
	p.a.wantState(abi.QPStateRTS)
	p.b.wantState(abi.QPStateRTS)
}

// connect connects the pair.
func (p *cmPair) connect() {
	e := p.ask()
	p.accept(e.Number)
	p.established(e.Number)
}

// over waits for the events that end the connection, exactly one for each side.
func (p *cmPair) over(want abi.EventType, n int) {
	for range n {
		p.stream.event(want)
	}
	p.stream.never("a second end of a connection", func(m *message) bool {
		return isEvent(abi.EventDisconnected)(m) || isEvent(abi.EventRejected)(m) || isEvent(abi.EventUnreachable)(m) || isEvent(abi.EventEstablished)(m)
	})
}

func cmConnect(t *T) {
	p := t.ready().cmPair(nil)
	p.connect()
	p.nop(1)
	p.cq.want(1, abi.WCSuccess)
	p.must(abi.AdminOpCMDisconnect, &abi.CMDisconnect{CMID: p.id}, nil)
	p.over(abi.EventDisconnected, 2)
	p.a.wantState(abi.QPStateErr)
	p.b.wantState(abi.QPStateErr)
	for _, q := range []*qp{p.a, p.b} { // and again, once they are in INIT
		q.modify(abi.ModifyQP{State: abi.QPStateReset, Mask: abi.QPAttrState})
		for _, w := range []*queue{q.sq, q.rq} {
			clear(w.block.Bytes()[:abi.QueueHeaderSize])
			w.restart()
		}
		q.modify(q.step(abi.QPStateInit, 0))
	}
	p.connect()
	p.nop(2)
	p.cq.want(2, abi.WCSuccess)
}

func cmReject(t *T) {
	p := t.ready().cmPair(nil)
	e := p.ask()
	in := abi.CMReject{CMID: e.Number, Reason: 4711}
	in.Priv, in.PrivLen = p.private("sorry")
	p.must(abi.AdminOpCMReject, &in, nil)
	m := p.stream.event(abi.EventRejected)
	if m.Number != p.id || m.Status != 4711 || string(m.Priv[:m.PrivLen]) != "sorry" {
		t.Fatalf("EventRejected of %#x with reason %d and private data %q", m.Number, m.Status, m.Priv[:m.PrivLen])
	}
	p.over(abi.EventRejected, 0)
	p.a.wantState(abi.QPStateInit)
	p.refuse(abi.AdminOpCMAccept, &abi.CMAccept{CMID: e.Number, QPN: p.b.qpn}, abi.StatusNotFound)
	p.connect() // the QP may be used for another connection
}

func cmRefused(t *T) {
	p := t.ready().cmPair(nil)
	p.must(abi.AdminOpCMUnlisten, &abi.CMUnlisten{Service: service}, nil)
	var out abi.CMConnectResult
	p.must(abi.AdminOpCMConnect, &abi.CMConnect{QPN: p.a.qpn, Service: service, DGID: p.gid()}, &out)
	if e := p.stream.event(abi.EventRejected); e.Number != out.CMID {
		t.Fatalf("EventRejected of %#x, want %#x", e.Number, out.CMID)
	}
	p.over(abi.EventRejected, 0)
	p.a.wantState(abi.QPStateInit)
	nobody := p.gid()
	nobody[15] ^= 0x80
	st := p.command(abi.AdminOpCMConnect, &abi.CMConnect{QPN: p.a.qpn, Service: service, DGID: nobody}, &out)
	switch st {
	case abi.StatusUnreachable:
	case abi.StatusOK: // the address exists: the connection must end nevertheless
		p.stream.wait("an end of the connection", func(m *message) bool {
			return isEvent(abi.EventRejected)(m) || isEvent(abi.EventUnreachable)(m)
		})
	default:
		t.Fatalf("CMConnect to an address where nobody is: %s, want %s", st, abi.StatusUnreachable)
	}
}

const (
	eventsBehind  = 256   // number of waiting events at which a driver gets no more connections
	eventsCarried = 16384 // more events than any transport of messages buffers
)

// cmBehind checks that a driver which takes no events gets no more connections after a while. When
// the driver takes its events, none is missing, and it gets connections again.
func cmBehind(t *T) {
	p := t.ready().cmPair(nil)
	p.must(abi.AdminOpCMUnlisten, &abi.CMUnlisten{Service: service}, nil)
	gid := p.gid()
	connect := func() (id uint32, st abi.Status) { // each is rejected
		t.until(func() bool {
			var out abi.CMConnectResult
			st = p.command(abi.AdminOpCMConnect, &abi.CMConnect{QPN: p.a.qpn, Service: service, DGID: gid}, &out)
			id = out.CMID
			return st != abi.StatusBadState // of the one before
		}, "the end of a connection that nobody listens for")
		return id, st
	}
	resume := p.stream.pause()
	defer resume()
	var asked []uint32
	for {
		id, st := connect()
		if st == abi.StatusBusy {
			break
		}
		if asked = append(asked, id); st != abi.StatusOK || len(asked) == eventsCarried {
			t.Fatalf("CMConnect of a driver that has not taken %d events: %s, want %s", len(asked), st, abi.StatusBusy)
		}
	}
	if len(asked) < eventsBehind {
		t.Fatalf("CMConnect of a driver that has not taken %d events: %s, want that of %d", len(asked), abi.StatusBusy, eventsBehind)
	}
	resume()
	want := map[uint32]int{} // a number may be used again
	for _, id := range asked {
		want[id]++
	}
	for range asked {
		e := p.stream.event(abi.EventRejected)
		if want[e.Number]--; want[e.Number] < 0 {
			t.Fatalf("EventRejected of %#x, which is of no connection or came already", e.Number)
		}
	}
	p.over(abi.EventRejected, 0)
	id, st := connect()
	if st != abi.StatusOK {
		t.Fatalf("CMConnect of a driver that has taken all events: %s", st)
	}
	if e := p.stream.event(abi.EventRejected); e.Number != id {
		t.Fatalf("EventRejected of %#x, want %#x", e.Number, id)
	}
}

// cmEnd checks each way to end a connection, at either side.
func cmEnd(t *T) {
	c := t.ready()
	for _, end := range []struct {
		name string
		do   func(p *cmPair)
		gone bool // the QP
	}{
		{"ModifyQP to ERR", func(p *cmPair) { p.a.modify(abi.ModifyQP{State: abi.QPStateErr, Mask: abi.QPAttrState}) }, false},
		{"ModifyQP to RESET", func(p *cmPair) { p.a.modify(abi.ModifyQP{State: abi.QPStateReset, Mask: abi.QPAttrState}) }, true},
		{"DestroyQP", func(p *cmPair) { p.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: p.a.qpn}, nil) }, true},
		{"CMDisconnect", func(p *cmPair) { p.must(abi.AdminOpCMDisconnect, &abi.CMDisconnect{CMID: p.id}, nil) }, false},
	} {
		p := c.cmPair(nil)
		p.connect()
		end.do(p)
		p.stream.event(abi.EventDisconnected)
		p.stream.event(abi.EventDisconnected)
		t.until(func() bool { return p.b.query().State == abi.QPStateErr }, "the peer's QP to move to ERR after %s", end.name)
		if !end.gone {
			p.a.wantState(abi.QPStateErr)
		}
	}
}

// cmDisconnect checks that outstanding work completes or is flushed, in order and once. The end of
// the connection comes in time, and at once after a second request.
func cmDisconnect(t *T) {
	c := t.ready()
	for _, twice := range []bool{false, true} {
		p := c.cmPair(nil)
		p.connect()
		const n = 8
		for i := range uint64(n) {
			p.copy(i, 0, 32<<10, 16<<10)
		}
		start := time.Now()
		p.must(abi.AdminOpCMDisconnect, &abi.CMDisconnect{CMID: p.id}, nil)
		if twice {
			if st := p.command(abi.AdminOpCMDisconnect, &abi.CMDisconnect{CMID: p.id}, nil); st != abi.StatusOK && st != abi.StatusNotFound {
				t.Fatalf("a second CMDisconnect: %s", st)
			}
		}
		p.over(abi.EventDisconnected, 2)
		if d := time.Since(start); d > t.cfg.Wait {
			t.Fatalf("the connection ended %v after CMDisconnect", d)
		}
		flushed := false
		for i := range uint64(n) {
			e := p.cq.next()
			if e.WRID != i || e.Status != abi.WCSuccess && e.Status != abi.WCWRFlushErr || flushed && e.Status == abi.WCSuccess {
				t.Fatalf("completion %d after CMDisconnect: work request %d, %s", i, e.WRID, e.Status)
			}
			flushed = e.Status == abi.WCWRFlushErr
		}
		p.nop(99)
		p.cq.want(99, abi.WCWRFlushErr)
	}
}

func cmState(t *T) {
	p := t.ready().cmPair(nil)
	p.refuse(abi.AdminOpCMListen, &abi.CMListen{Service: service}, abi.StatusAddressInUse)
	fresh := p.newQP(p.pdn, p.cq, p.rcq, nil) // in RESET
	p.refuse(abi.AdminOpCMConnect, &abi.CMConnect{QPN: fresh.qpn, Service: service, DGID: p.gid()}, abi.StatusBadState)
	e := p.ask()
	p.refuse(abi.AdminOpCMConnect, &abi.CMConnect{QPN: p.a.qpn, Service: service, DGID: p.gid()}, abi.StatusBadState)
	p.refuse(abi.AdminOpCMAccept, &abi.CMAccept{CMID: e.Number, QPN: fresh.qpn}, abi.StatusBadState)
	p.accept(e.Number)
	p.established(e.Number)
}

func cmReserved(t *T) {
	p := t.ready().cmPair(nil)
	for _, s := range []uint64{abi.FirstReservedService, ^uint64(0)} {
		p.refuse(abi.AdminOpCMListen, &abi.CMListen{Service: s}, abi.StatusDenied)
		p.refuse(abi.AdminOpCMConnect, &abi.CMConnect{QPN: p.a.qpn, Service: s, DGID: p.gid()}, abi.StatusDenied)
	}
}

func cmReads(t *T) {
	p := t.ready().cmPair(nil)
	set := func(q *qp, m abi.ModifyQP) {
		m.State, m.Mask = abi.QPStateInit, m.Mask|abi.QPAttrState
		q.modify(m)
	}
	set(p.a, abi.ModifyQP{MaxRdAtomic: 4, Mask: abi.QPAttrMaxRdAtomic})
	set(p.b, abi.ModifyQP{MaxDestRdAtomic: 2, Mask: abi.QPAttrMaxDestRdAtomic})
	p.connect()
	if got := p.a.query().MaxRdAtomic; got != 2 {
		t.Fatalf("MaxRdAtomic is %d after a connection to a peer with MaxDestRdAtomic 2", got)
	}
}

func cmOrderings(t *T) {
	c := t.ready()
	p := c.cmPair(nil)
	p.b = c.newQP(p.pdn, p.cq, p.rcq, func(q *abi.CreateQP) { q.Ordering = abi.OrderingWeak })
	p.b.modify(p.b.step(abi.QPStateInit, 0))
	e := p.ask()
	p.refuse(abi.AdminOpCMAccept, &abi.CMAccept{CMID: e.Number, QPN: p.b.qpn}, abi.StatusInvalidArgument)
	p.stream.event(abi.EventRejected)
	p.stream.never("EventEstablished of a connection with different orderings", isEvent(abi.EventEstablished))
}

func orderingWeak(t *T) {
	r := t.ready().qpPair(func(q *abi.CreateQP) { q.Ordering = abi.OrderingWeak })
	copy(r.mr.bytes(), bytes.Repeat([]byte("weak"), 4000))
	for i := range uint64(1 << queueLog2) {
		r.copy(i, 0, 32<<10, int(64+4001*(i%4)))
	}
	for i := range uint64(1 << queueLog2) {
		r.cq.want(i, abi.WCSuccess)
	}
	if !bytes.Equal(r.mr.bytes()[:12067], r.mr.bytes()[32<<10:][:12067]) {
		t.Fatalf("WRITEs with OrderingWeak: the data is not what was sent")
	}
	r.mr.store64(0, 0)
	for i := range uint64(8) {
		r.a.post(abi.SendWQE{WRID: i, Opcode: abi.OpFetchAdd, Flags: abi.SendSignaled, RemoteAddr: r.mr.iova, RKey: r.mr.rkey, CompareAdd: 1}, r.mr.sge(64+int(8*i), 8))
	}
	for i := range uint64(8) {
		r.cq.want(i, abi.WCSuccess)
		if got := r.mr.load64(64 + int(8*i)); got != i {
			t.Fatalf("atomic %d found %d: they are carried out in order", i, got)
		}
	}
}

func orderingUnordered(t *T) {
	r := t.ready().qpPair(func(q *abi.CreateQP) { q.Ordering, q.ErrorMode = abi.OrderingUnordered, abi.ErrorModeCompleteInError })
	seen := map[uint64]bool{}
	for i := range uint64(1 << queueLog2) { // without SendSignaled
		r.a.post(abi.SendWQE{WRID: i, Opcode: abi.OpWrite, RemoteAddr: r.mr.iova + 32<<10, RKey: r.mr.rkey}, r.mr.sge(0, int(64+1000*i)))
	}
	for range 1 << queueLog2 {
		e := r.cq.next()
		if e.Status != abi.WCSuccess || seen[e.WRID] || e.WRID >= 1<<queueLog2 {
			t.Fatalf("completion of work request %d, %s; each has one", e.WRID, e.Status)
		}
		seen[e.WRID] = true
	}
	r.a.post(abi.SendWQE{WRID: 50, Opcode: abi.OpSend}, r.mr.sge(0, 4097))
	r.cq.want(50, abi.WCLocLenErr)
}

func completeInError(t *T) {
	r := t.ready().qpPair(func(q *abi.CreateQP) { q.ErrorMode = abi.ErrorModeCompleteInError })
	r.nop(1)
	r.a.post(abi.SendWQE{WRID: 2, Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: r.mr.iova, RKey: r.mr.rkey ^ 0x55_5500}, r.mr.sge(0, 8))
	r.nop(3)
	r.cq.want(1, abi.WCSuccess)
	if e := r.cq.next(); e.WRID != 2 || e.Status == abi.WCSuccess || e.Status == abi.WCWRFlushErr {
		t.Fatalf("a request without the right key: work request %d, %s", e.WRID, e.Status)
	}
	r.cq.want(3, abi.WCSuccess) // the QP goes on
	r.b.postRecv(9)
	r.a.post(abi.SendWQE{WRID: 4, Opcode: abi.OpWriteImm, Flags: abi.SendSignaled, RemoteAddr: r.mr.iova, RKey: r.mr.rkey ^ 0x55_5500}, r.mr.sge(0, 8))
	r.rcq.want(9, abi.WCLocAccessErr)
	if e := r.cq.next(); e.WRID != 4 || e.Status == abi.WCSuccess {
		t.Fatalf("a WRITE with immediate data without the right key: work request %d, %s", e.WRID, e.Status)
	}
	r.a.wantState(abi.QPStateRTS)
	r.b.wantState(abi.QPStateRTS)
}
