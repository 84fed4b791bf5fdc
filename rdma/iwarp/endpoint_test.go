package iwarp_test

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/iwarp"
	"github.com/falcon-vnic/vnic/rdma/iwarp/iwarptest"
	"github.com/falcon-vnic/vnic/rdma/iwarp/wire"
	"github.com/falcon-vnic/vnic/rdma/rdmap"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// endpoint is a queue pair whose memory is a slice, which endpoints may share. It writes down what is
// asked of it.
type endpoint struct {
	t        iwarptest.T
	conn     *iwarp.Conn
	account  transport.Account
	segment  int
	requests []*request
	next     int // first request that is not fully issued

	memory   []byte // that the peer may access with key
	receives int    // posted
	capacity int    // of each
	refusal  transport.Refusal
	serving  bool
	unready  bool // memory that the peer READs is gone
	woken    int  // calls of Unblocked
	later    transport.Time
	data     []byte // of the message that arrives
	messages []received
	log      []string
	quiet    bool // it writes nothing down

	refused []transport.Refusal
	ended   bool
	status  abi.WCStatus
	why     string
}

const key = 0x1234ab00

type request struct {
	transport.Request
	data   []byte
	gone   bool
	over   bool
	placed int // bytes
}

type received struct {
	op        abi.Opcode
	data      []byte
	n         uint64
	imm       uint32
	solicited bool
}

func newEndpoint(t iwarptest.T) *endpoint {
	return &endpoint{t: t, memory: make([]byte, 1<<16), capacity: 1 << 16, serving: true}
}

// attach attaches the connection to the endpoint.
func (e *endpoint) attach(c *iwarp.Conn) {
	e.t.Helper()
	segment, ok := c.Attach(&transport.Terms{Endpoint: e, QPN: 1, PathMTU: 1 << 16, Serves: 16, Reads: 16, Account: &e.account})
	if !ok || segment != c.MTU() {
		e.t.Fatalf("attached: %t, %d bytes a packet", ok, segment)
	}
	e.conn, e.segment = c, segment
}

// post queues a request.
func (e *endpoint) post(x abi.SendWQE, n int) *request {
	r := &request{data: make([]byte, n)}
	if x.RKey == 0 {
		x.RKey = key
	}
	r.WQE, r.Length, r.Slot = x, uint32(n), uint32(len(e.requests))
	e.requests = append(e.requests, r)
	return r
}

// issue issues what can be issued, and reports whether that was anything.
func (e *endpoint) issue(now transport.Time) (any bool) {
	for e.next < len(e.requests) && !e.ended && e.serving {
		r := e.requests[e.next]
		_, err := e.conn.Issue(now, &r.Request)
		if errors.Is(err, transport.ErrFailed) {
			r.over = true
			e.next++
			continue
		}
		if err != nil {
			return any
		}
		if any = true; r.Issued {
			e.next++
		}
	}
	return any
}

// note writes down what happens: a word, and what it happens to.
func (e *endpoint) note(what string, of fmt.Stringer) {
	switch {
	case e.quiet:
	case of == nil:
		e.log = append(e.log, what)
	default:
		e.log = append(e.log, what+" "+of.String())
	}
}

func (e *endpoint) Gather(r *transport.Request, offset uint32, dst []byte) error {
	own := e.requests[r.Slot]
	if own.gone {
		return errors.New("gone")
	}
	copy(dst, own.data[offset:])
	return nil
}

func (e *endpoint) Element(*transport.Request, uint32) (addr uint64, lkey, left uint32) {
	e.t.Error("Element")
	return 0, 0, 0
}

func (e *endpoint) Scatter(r *transport.Request, offset uint32, src []byte) error {
	own := e.requests[r.Slot]
	if own.gone {
		return errors.New("gone")
	}
	if int(offset) != own.placed || own.over {
		e.t.Errorf("%d bytes at %d, %d are placed; over: %t", len(src), offset, own.placed, own.over)
	}
	own.placed += copy(own.data[offset:], src)
	return nil
}

func (e *endpoint) Done(_ transport.Time, r *transport.Request, st abi.WCStatus, vendor uint32) {
	own := e.requests[r.Slot]
	if own.over || r.Pending < 0 {
		e.t.Errorf("request %d is done once too often", r.Slot)
	}
	if r.Status == abi.WCSuccess {
		r.Status, r.Vendor = st, vendor
	}
	if r.Issued && r.Pending == 0 || st != abi.WCSuccess {
		own.over = true
		e.note("done", own.WQE.Opcode)
	}
}

func (e *endpoint) PeerNotReady(transport.Time, *transport.Request, int) { e.t.Error("PeerNotReady") }
func (e *endpoint) Unanswered(transport.Time, *transport.Request)        { e.t.Error("Unanswered") }
func (e *endpoint) Unblocked(transport.Time)                             { e.woken++ }
func (e *endpoint) Serving() bool                                        { return e.serving }
func (e *endpoint) Heard()                                               {}
func (e *endpoint) Settle(transport.Time)                                {}
func (e *endpoint) Receives() (n int, counted bool)                      { return 0, false }
func (e *endpoint) RNRTimer() uint8                                      { return 0 }
func (e *endpoint) AnswerAt(now transport.Time) transport.Time           { return now + e.later }
func (e *endpoint) Answered(int)                                         {}

func (e *endpoint) Address(uint32) bool {
	e.t.Error("Address")
	return false
}

// check returns why a peer may not access n bytes at addr.
func (e *endpoint) check(rkey uint32, addr uint64, n int) transport.Refusal {
	switch {
	case e.refusal != transport.Accepted:
		return e.refusal
	case rkey != key:
		return transport.UnknownKey
	case addr > uint64(len(e.memory)) || uint64(n) > uint64(len(e.memory))-addr:
		return transport.OutOfBounds
	}
	return transport.Accepted
}

func (e *endpoint) Place(_ transport.Time, p *transport.Packet, data []byte) transport.Verdict {
	if p.TakesReceive() && p.First && e.receives == 0 {
		return transport.Verdict{Refusal: transport.NotReady}
	}
	why := e.refusal
	switch {
	case p.Sends() && int(p.Offset)+len(data) > e.capacity:
		why = transport.Invalid
	case p.Op == abi.OpSendInv && p.Imm != key:
		why = transport.Access
	case p.Sends() && why == transport.Accepted:
		if int(p.Offset) != len(e.data) {
			e.t.Errorf("data at %d behind %d bytes", p.Offset, len(e.data))
		}
		e.data = append(e.data, data...)
	case len(data) > 0:
		if why = e.check(p.RKey, p.Addr, len(data)); why == transport.Accepted {
			copy(e.memory[p.Addr:], data)
		}
	}
	if why != transport.Accepted {
		e.serving = false
		e.conn.Forget()
		return transport.Verdict{Refusal: why}
	}
	if len(data) > 0 {
		e.note("place", p.Op)
	}
	return transport.Verdict{}
}

func (e *endpoint) Complete(_ transport.Time, p *transport.Packet, n uint64, failed abi.WCStatus) {
	if e.receives--; e.quiet {
		e.data = e.data[:0]
		return
	}
	if int(p.Message) != len(e.messages)+1 || failed != abi.WCSuccess || !p.Last {
		e.t.Errorf("message %d behind %d is complete: %v, %+v", p.Message, len(e.messages), failed, p)
	}
	e.messages = append(e.messages, received{op: p.Op, data: append([]byte(nil), e.data...), n: n, imm: p.Imm, solicited: p.Solicited})
	e.data = e.data[:0]
	e.note("complete", p.Op)
}

func (e *endpoint) Refused(_ transport.Time, r transport.Refusal) {
	e.refused = append(e.refused, r)
	e.serving = false
	e.conn.Forget()
}

func (e *endpoint) Read(rkey uint32, addr uint64, n uint32) (transport.Memory, transport.Refusal) {
	e.note("read", nil)
	return region{e}, e.check(rkey, addr, int(n))
}

type region struct{ e *endpoint }

func (m region) Read(addr uint64, dst []byte) error {
	if m.e.unready {
		return errors.New("gone")
	}
	copy(dst, m.e.memory[addr:])
	return nil
}

func (e *endpoint) Atomic(x *transport.Atomic) (original uint64, why transport.Refusal) {
	if why = e.check(x.RKey, x.Addr, 8); why != transport.Accepted {
		return 0, why
	}
	e.note("atomic", nil)
	word := e.memory[x.Addr:][:8]
	original = binary.LittleEndian.Uint64(word)
	result := original
	switch x.Op {
	case abi.OpFetchAdd:
		result = original + x.SwapAdd
	case abi.OpMaskedFetchAdd:
		result = rdmap.FetchAdd(original, x.SwapAdd, x.Masks.SwapAdd)
	case abi.OpCmpSwap:
		if original == x.Compare {
			result = x.SwapAdd
		}
	case abi.OpMaskedCmpSwap:
		result = rdmap.CmpSwap(original, x.Compare, x.Masks.Compare, x.SwapAdd, x.Masks.SwapAdd)
	}
	binary.LittleEndian.PutUint64(word, result)
	return original, transport.Accepted
}

func (e *endpoint) Ended(_ transport.Time, st abi.WCStatus, reason string) {
	if e.ended || reason == "" {
		e.t.Errorf("ended twice, or without a reason: %q", reason)
	}
	e.ended, e.serving, e.status, e.why = true, false, st, reason
}

// pair is a connection between two endpoints.
type pair struct {
	*iwarptest.Net
	t    iwarptest.T
	link *iwarptest.Link
	ends [2]*endpoint
	now  transport.Time
}

func newPair(t iwarptest.T, seed uint64, s iwarptest.Shape) *pair {
	w := iwarptest.New(t, seed)
	p := &pair{Net: w, t: t, link: w.Connect(0, s, [2]iwarp.Settings{iwarptest.Usual(), iwarptest.Usual()}), now: 1e9}
	for i := range p.ends {
		p.ends[i] = newEndpoint(t)
		p.ends[i].attach(p.link.Conns[i])
	}
	return p
}

// until lets time pass until done returns true.
func (p *pair) until(done func() bool) {
	p.t.Helper()
	if !p.pass(60e9, done) {
		for _, e := range p.ends {
			p.t.Logf("issued %d of %d, ended %t %v %s, log %v", e.next, len(e.requests), e.ended, e.status, e.why, e.log)
		}
		p.t.Fatal("not done in a minute")
	}
}

func (p *pair) pass(d transport.Time, done func() bool) bool {
	for deadline := p.now + d; ; {
		next := p.Step(p.now)
		for p.ends[0].issue(p.now) || p.ends[1].issue(p.now) {
			next = p.Step(p.now)
		}
		if done() {
			return true
		}
		if next > deadline {
			p.now = deadline
			return false
		}
		p.now = max(p.now, next)
	}
}

// over reports whether all requests of both ends are over.
func (p *pair) over() bool {
	for _, e := range p.ends {
		for _, r := range e.requests {
			if !r.over {
				return false
			}
		}
	}
	return true
}

// fpdu returns a segment as an FPDU.
func fpdu(h wire.Header, body []byte, crc bool) []byte {
	u := append(h.Append(make([]byte, wire.FPDUHeaderLen)), body...)
	n := len(u) - wire.FPDUHeaderLen
	u = append(u, make([]byte, wire.FPDULen(n)-len(u))...)
	wire.PutFPDU(u, n, crc)
	return u
}
