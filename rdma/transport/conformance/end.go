package conformance

import (
	"errors"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// request is a request of an end, with its data and its result.
type request struct {
	transport.Request
	data     []byte // to send, or to fill
	gone     bool   // the data cannot be read
	done     int    // packets
	order    int    // position among the completed requests of the end, from 1
	notReady int    // highest count of not-ready answers
}

// message is a message of the peer that took a receive.
type message struct {
	op     abi.Opcode
	data   []byte
	imm    uint32
	failed abi.WCStatus
}

// end is an endpoint whose memory is a slice. It checks the calls that it gets.
type end struct {
	t    testing.TB
	conn transport.Conn
	acct transport.Account

	segment int
	over    int // requests

	requests []*request
	packets  int  // issued
	next     int  // first request that is not fully issued
	blocked  bool // ErrBlocked was returned, and no Unblocked came since

	memory   []byte // that the peer may access with key
	atomics  int    // number carried out
	gathered int    // number of calls of Gather
	receives int    // number posted
	taken    map[uint32][]byte
	number   uint32 // of the next message to complete
	messages []message
	serving  bool
	refuse   transport.Refusal // for every request
	alone    bool              // the refusal fails only the message
	refused  []transport.Refusal

	calling   bool // the conn is being called
	unsettled bool
	ended     bool
	endedWith abi.WCStatus
	finished  bool // no further calls may come
}

// key is the only key of an end's memory.
const key = 0x77

func newEnd(t testing.TB, conn transport.Conn) *end {
	return &end{t: t, conn: conn, memory: make([]byte, 1<<15), taken: map[uint32][]byte{}, number: 1, serving: true}
}

// attach attaches the connection to the end.
func (e *end) attach(o *Options, qpn, peer uint32) {
	e.t.Helper()
	var ok bool
	e.call(func() {
		terms := e.terms(o, qpn, peer)
		e.segment, ok = e.conn.Attach(&terms)
	})
	if !ok || e.segment <= 0 || e.segment > o.PathMTU {
		e.t.Fatalf("attached: %t, %d bytes a packet, path MTU %d", ok, e.segment, o.PathMTU)
	}
}

func (e *end) terms(o *Options, qpn, peer uint32) transport.Terms {
	return transport.Terms{
		Endpoint: e, QPN: qpn, Peer: peer, PathMTU: o.PathMTU, InError: o.InError, Unordered: o.Unordered, Unreliable: o.Unreliable,
		Serves: 16, Reads: 16, PSN: firstPSN(peer), Sending: &transport.Sending{PSN: firstPSN(qpn), Timeout: 14, RetryCount: 7},
		Account: &e.acct,
	}
}

// firstPSN returns the first PSN of a queue pair. It is chosen so that PSNs soon wrap to 0.
func firstPSN(qpn uint32) uint32 { return 0xffffe0 + qpn%16 }

// call calls the connection, which must not call back meanwhile.
func (e *end) call(do func()) {
	e.calling = true
	do()
	e.calling = false
}

// called is the first step of every call of the endpoint that may change something.
func (e *end) called(what string) {
	e.t.Helper()
	if e.calling {
		e.t.Errorf("%s from within a call of the endpoint", what)
	}
	if e.finished {
		e.t.Errorf("%s after the end", what)
	}
	e.unsettled = true
}

// post queues a request of n bytes.
func (e *end) post(op abi.Opcode, n int) *request {
	r := &request{data: make([]byte, n)}
	r.WQE = abi.SendWQE{Opcode: op, RKey: key, Imm: 0x1000 + uint32(len(e.requests))}
	r.Length, r.Index, r.Slot = uint32(n), uint32(len(e.requests)), uint32(len(e.requests))
	if !r.Pulls() {
		for i := range r.data {
			r.data[i] = byte(i*7 + len(e.requests))
		}
	}
	e.requests = append(e.requests, r)
	return r
}

// issue issues what can be issued.
func (e *end) issue(now transport.Time) (err error) {
	for err == nil && e.next < len(e.requests) && !e.blocked && !e.finished {
		r := e.requests[e.next]
		if r.Status != abi.WCSuccess {
			return nil
		}
		offset, n := r.Offset, 0
		e.call(func() { n, err = e.conn.Issue(now, &r.Request) })
		if err == nil {
			e.packets++
		}
		switch {
		case err == nil && (n < 0 || n > e.segment || r.Offset != offset+uint32(n)):
			e.t.Fatalf("issued %d bytes at %d, next is %d", n, offset, r.Offset)
		case err == nil && r.Issued != (r.Offset == r.Length):
			e.t.Fatalf("issued %d of %d bytes: all is %t", r.Offset, r.Length, r.Issued)
		case errors.Is(err, transport.ErrBlocked):
			e.blocked = true
		case errors.Is(err, transport.ErrFailed):
			e.finish(r)
		}
		if r.Issued {
			e.next++
		}
	}
	return err
}

// finish records that a request is over.
func (e *end) finish(r *request) {
	if r.order == 0 {
		e.over++
		r.order = e.over
	}
}

// Gather implements transport.Requester.
func (e *end) Gather(r *transport.Request, offset uint32, dst []byte) error {
	e.gathered++
	own := e.requests[r.Slot]
	if own.gone {
		return errors.New("gone")
	}
	if copy(dst, own.data[offset:]) < len(dst) {
		e.t.Errorf("Gather of %d bytes at %d of %d", len(dst), offset, len(own.data))
	}
	return nil
}

// Element implements transport.Requester.
func (e *end) Element(r *transport.Request, offset uint32) (addr uint64, lkey, left uint32) {
	return uint64(offset), key, r.Length - offset
}

// Scatter implements transport.Requester.
func (e *end) Scatter(r *transport.Request, offset uint32, src []byte) error {
	e.called("Scatter")
	if copy(e.requests[r.Slot].data[offset:], src) < len(src) {
		e.t.Errorf("Scatter of %d bytes at %d of %d", len(src), offset, r.Length)
	}
	return nil
}

// Done implements transport.Requester.
func (e *end) Done(_ transport.Time, r *transport.Request, st abi.WCStatus, vendor uint32) {
	e.called("Done")
	own := e.requests[r.Slot]
	own.done++
	if r.Pending < 0 || own.order != 0 {
		e.t.Errorf("request %d: done once too often", r.Slot)
	}
	if st != abi.WCSuccess && r.Status == abi.WCSuccess {
		r.Status, r.Vendor = st, vendor
	}
	if r.Issued && r.Pending == 0 {
		e.finish(own)
	}
}

// PeerNotReady implements transport.Requester.
func (e *end) PeerNotReady(_ transport.Time, r *transport.Request, times int) {
	e.called("PeerNotReady")
	own := e.requests[r.Slot]
	if times <= 0 {
		e.t.Errorf("not ready %d times", times)
	}
	own.notReady = max(own.notReady, times)
}

// Unanswered implements transport.Requester.
func (e *end) Unanswered(transport.Time, *transport.Request) { e.t.Error("a response went astray") }

// Serving implements transport.Responder.
func (e *end) Serving() bool { return e.serving }

// Heard implements transport.Responder.
func (e *end) Heard() { e.called("Heard") }

// Address implements transport.Responder.
func (e *end) Address(uint32) bool {
	e.t.Error("Address on a connection that is not XRC")
	return false
}

// Place implements transport.Responder.
func (e *end) Place(_ transport.Time, p *transport.Packet, data []byte) transport.Verdict {
	e.called("Place")
	if !e.serving {
		e.t.Error("Place while not serving")
	}
	if int(p.Length) != len(data) {
		e.t.Errorf("a packet of %d bytes says %d", len(data), p.Length)
	}
	if p.TakesReceive() {
		if e.taken[p.Message] == nil {
			if e.receives == 0 {
				return transport.Verdict{Refusal: transport.NotReady}
			}
			e.receives--
			e.taken[p.Message] = make([]byte, len(e.memory))
		}
	}
	switch {
	case e.refuse != transport.Accepted && !e.alone:
		e.serving = false
		return transport.Verdict{Refusal: e.refuse}
	case e.refuse != transport.Accepted:
		return transport.Verdict{Refusal: e.refuse, Alone: true, Failed: abi.WCLocAccessErr}
	case p.Spoiled:
		return transport.Verdict{Failed: abi.WCRemAbortErr}
	case p.Sends():
		copy(e.taken[p.Message][p.Offset:], data)
	case p.Length == 0 && p.Claimed == 0: // its key is not checked
	case p.RKey != key || p.Claimed != p.Length:
		e.t.Errorf("a WRITE names key %#x and %d bytes, has %d", p.RKey, p.Claimed, p.Length)
	default:
		copy(e.memory[p.Addr:], data)
	}
	return transport.Verdict{}
}

// Complete implements transport.Responder.
func (e *end) Complete(_ transport.Time, p *transport.Packet, n uint64, failed abi.WCStatus) {
	e.called("Complete")
	if !p.Last || !p.TakesReceive() || e.taken[p.Message] == nil {
		e.t.Errorf("message %d complete: %+v", p.Message, p)
		return
	}
	if p.Message != e.number {
		e.t.Errorf("message %d complete where %d was due", p.Message, e.number)
	}
	e.number++
	m := message{op: p.Op, imm: p.Imm, failed: failed, data: e.taken[p.Message][:n]}
	if !p.Sends() {
		m.data = e.memory[:n]
	}
	e.messages = append(e.messages, m)
	delete(e.taken, p.Message)
}

// Refused implements transport.Responder.
func (e *end) Refused(_ transport.Time, r transport.Refusal) {
	e.called("Refused")
	e.refused = append(e.refused, r)
	e.serving = false
}

// Read implements transport.Responder.
func (e *end) Read(rkey uint32, addr uint64, n uint32) (transport.Memory, transport.Refusal) {
	e.called("Read")
	if rkey != key || addr+uint64(n) > uint64(len(e.memory)) {
		return nil, transport.Access
	}
	return memory{e}, e.refuse
}

type memory struct{ e *end }

// Read implements transport.Memory.
func (m memory) Read(addr uint64, dst []byte) error {
	copy(dst, m.e.memory[addr:])
	return nil
}

// Atomic implements transport.Responder. It adds SwapAdd, whatever the operation.
func (e *end) Atomic(x *transport.Atomic) (original uint64, r transport.Refusal) {
	e.called("Atomic")
	if e.refuse != transport.Accepted {
		return 0, e.refuse
	}
	e.atomics++
	original = uint64(e.memory[x.Addr])
	e.memory[x.Addr] += byte(x.SwapAdd)
	return original, transport.Accepted
}

// Receives implements transport.Responder: receives are not counted.
func (e *end) Receives() (n int, counted bool) { return 0, false }

func (e *end) RNRTimer() uint8 { return 1 }

// AnswerAt implements transport.Responder.
func (e *end) AnswerAt(now transport.Time) transport.Time { return now }

// Answered implements transport.Responder.
func (e *end) Answered(int) { e.called("Answered") }

// Unblocked implements transport.Endpoint.
func (e *end) Unblocked(transport.Time) {
	e.called("Unblocked")
	e.blocked = false
}

// Ended implements transport.Endpoint.
func (e *end) Ended(_ transport.Time, st abi.WCStatus, reason string) {
	e.called("Ended")
	if reason == "" {
		e.t.Error("ended without a reason")
	}
	e.ended, e.endedWith = true, st
}

// Settle implements transport.Endpoint.
func (e *end) Settle(transport.Time) { e.unsettled, e.finished = false, e.finished || e.ended }
