package iwarp_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/iwarp"
	"github.com/falcon-vnic/vnic/rdma/iwarp/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// TestEachErrorOfAPeerEndsTheStreamWithItsCause: whatever is wrong with a segment, the peer gets the
// layer, type and code for it with the header of that segment (RFC 5040 §4.8, §7, RFC 5041 §7, RFC 7306
// §8.2), the queue pair fails, and nothing was changed or delivered.
func TestEachErrorOfAPeerEndsTheStreamWithItsCause(t *testing.T) {
	read := wire.ReadRequest{SinkSTag: 5, Size: 8, SourceSTag: key}
	atomic := wire.AtomicRequest{Opcode: wire.FetchAdd, STag: key, AddSwap: 1}
	with := func(change func(r *wire.ReadRequest)) []byte {
		r := read
		change(&r)
		return r.Append(nil)
	}
	added := func(change func(r *wire.AtomicRequest)) []byte {
		r := atomic
		change(&r)
		return r.Append(nil)
	}
	readHeader := wire.Header{Opcode: wire.OpReadRequest, Last: true, MSN: 1}
	atomicHeader := wire.Header{Opcode: wire.OpAtomicRequest, Last: true, MSN: 1}
	raw := func(h wire.Header, change func(b []byte)) []byte {
		b := append(h.Append(nil), make([]byte, 8)...)
		change(b)
		return b
	}
	send := wire.Header{Opcode: wire.OpSend, Last: true, MSN: 1}
	write := wire.Header{Opcode: wire.OpWrite, Last: true, STag: key}
	for _, c := range []struct {
		name    string
		prepare func(p *peer)
		h       wire.Header
		body    []byte
		ulpdu   []byte // in place of h and body
		cause   wire.Cause
		refused transport.Refusal // as the queue pair hears it; 0: it said so itself
	}{
		// RFC 7306.
		{"§5.1 atomic that is not aligned", nil, atomicHeader, added(func(r *wire.AtomicRequest) { r.TO = 12 }), nil, wire.StreamCatastrophic, transport.Invalid},
		{"§5.1.2 CmpSwap that is not aligned", nil, atomicHeader, added(func(r *wire.AtomicRequest) { r.Opcode, r.TO = wire.CmpSwap, 4 }), nil, wire.StreamCatastrophic, transport.Invalid},
		{"§5.1 atomic that is not aligned in memory", func(p *peer) { p.end.refusal = transport.Invalid }, atomicHeader, atomic.Append(nil), nil, wire.StreamCatastrophic, transport.Invalid},
		{"§5.2.1(4) atomic operation that there is not", nil, atomicHeader, added(func(r *wire.AtomicRequest) { r.Opcode = 1 }), nil, wire.UnexpectedOpcode, transport.Invalid},
		{"§5.2.2(7) atomic response to nothing", nil, wire.Header{Opcode: wire.OpAtomicResponse, Last: true, MSN: 1}, (&wire.AtomicResponse{}).Append(nil), nil, wire.MSNOutOfRange, 0},
		{"§6.3 immediate data of seven bytes", nil, wire.Header{Opcode: wire.OpImmediate, Last: true, MSN: 1}, make([]byte, 7), nil, wire.LengthMismatch, transport.Invalid},
		{"§6.3 immediate data of nine bytes", nil, wire.Header{Opcode: wire.OpImmediateSE, Last: true, MSN: 1}, make([]byte, 9), nil, wire.MessageTooLong, transport.Invalid},
		{"§6.3 immediate data that is not the last segment", nil, wire.Header{Opcode: wire.OpImmediate, MSN: 1}, make([]byte, 8), nil, wire.MessageTooLong, transport.Invalid},
		{"§6.3 immediate data without a receive", func(p *peer) { p.end.receives = 0 }, wire.Header{Opcode: wire.OpImmediate, Last: true, MSN: 1}, make([]byte, 8), nil, wire.NoBuffer, transport.NotReady},
		{"§8.2 opcode that there is not", nil, wire.Header{}, nil, raw(send, func(b []byte) { b[1] = b[1]&0xf0 | 0xc }), wire.UnexpectedOpcode, transport.Invalid},
		{"§8.2 version of RDMAP", nil, wire.Header{}, nil, raw(atomicHeader, func(b []byte) { b[1] = b[1]&0x3f | 0x80 }), wire.InvalidVersion, transport.Invalid},
		{"§8.2 version of DDP", nil, wire.Header{}, nil, raw(atomicHeader, func(b []byte) { b[0]++ }), wire.UntaggedVersion, transport.Invalid},
		{"§8.2 number of an atomic", nil, wire.Header{Opcode: wire.OpAtomicRequest, Last: true, MSN: 2}, atomic.Append(nil), nil, wire.MSNOutOfRange, transport.Sequence},
		{"§8.2 offset of an atomic", nil, wire.Header{Opcode: wire.OpAtomicRequest, Last: true, MSN: 1, MO: 4}, atomic.Append(nil), nil, wire.InvalidOffset, transport.Invalid},
		{"§8.2 atomic that is cut off", nil, atomicHeader, atomic.Append(nil)[:51], nil, wire.LengthMismatch, transport.Invalid},
		{"§8.2 atomic that is too long", nil, atomicHeader, append(atomic.Append(nil), 0), nil, wire.MessageTooLong, transport.Invalid},

		// Memory that the peer may not access: RDMAP's errors of requests, DDP's of WRITEs.
		{"atomic with an STag that there is not", nil, atomicHeader, added(func(r *wire.AtomicRequest) { r.STag++ }), nil, wire.InvalidSTag, transport.UnknownKey},
		{"atomic past the end", nil, atomicHeader, added(func(r *wire.AtomicRequest) { r.TO = 1 << 16 }), nil, wire.OutOfBounds, transport.OutOfBounds},
		{"atomic at the end of all", nil, atomicHeader, added(func(r *wire.AtomicRequest) { r.TO = math.MaxUint64 - 7 }), nil, wire.OutOfBounds, transport.OutOfBounds},
		{"READ with an STag that there is not", nil, readHeader, with(func(r *wire.ReadRequest) { r.SourceSTag = 0 }), nil, wire.InvalidSTag, transport.UnknownKey},
		{"READ of another stream's STag", func(p *peer) { p.end.refusal = transport.ForeignKey }, readHeader, read.Append(nil), nil, wire.STagOfAnotherStream, transport.ForeignKey},
		{"READ without the right", func(p *peer) { p.end.refusal = transport.Access }, readHeader, read.Append(nil), nil, wire.AccessViolation, transport.Access},
		{"READ past the end", nil, readHeader, with(func(r *wire.ReadRequest) { r.SourceTO = 1<<16 - 7 }), nil, wire.OutOfBounds, transport.OutOfBounds},
		{"READ that wraps", nil, readHeader, with(func(r *wire.ReadRequest) { r.SourceTO = math.MaxUint64 - 6 }), nil, wire.TOWraps, transport.OutOfBounds},
		{"READ whose sink wraps", nil, readHeader, with(func(r *wire.ReadRequest) { r.SinkTO = math.MaxUint64 - 6 }), nil, wire.TOWraps, transport.OutOfBounds},
		{"READ that is not possible", func(p *peer) { p.end.refusal = transport.Operation }, readHeader, read.Append(nil), nil, wire.OperationUnspecified, transport.Operation},
		{"READ that is not allowed", func(p *peer) { p.end.refusal = transport.Invalid }, readHeader, read.Append(nil), nil, wire.UnexpectedOpcode, transport.Invalid},
		{"READ that is cut off", nil, readHeader, read.Append(nil)[:27], nil, wire.LengthMismatch, transport.Invalid},
		{"READ in two segments", nil, wire.Header{Opcode: wire.OpReadRequest, MSN: 1}, read.Append(nil), nil, wire.MessageTooLong, transport.Invalid},
		{"WRITE with an STag that there is not", nil, wire.Header{Opcode: wire.OpWrite, Last: true, STag: 9}, []byte{1}, nil, wire.TaggedInvalidSTag, 0},
		{"WRITE of another stream's STag", func(p *peer) { p.end.refusal = transport.ForeignKey }, write, []byte{1}, nil, wire.TaggedSTagOfAnotherStream, 0},
		{"WRITE without the right", func(p *peer) { p.end.refusal = transport.Access }, write, []byte{1}, nil, wire.AccessViolation, 0},
		{"WRITE past the end", nil, wire.Header{Opcode: wire.OpWrite, Last: true, STag: key, TO: 1 << 16}, []byte{1}, nil, wire.TaggedOutOfBounds, 0},
		{"WRITE that wraps", nil, wire.Header{Opcode: wire.OpWrite, Last: true, STag: key, TO: math.MaxUint64}, []byte{1, 2}, nil, wire.TaggedTOWraps, transport.OutOfBounds},
		{"WRITE that is not possible", func(p *peer) { p.end.refusal = transport.Operation }, write, []byte{1}, nil, wire.OperationUnspecified, 0},
		{"SEND that makes a key invalid that there is not", nil, wire.Header{Opcode: wire.OpSendInv, Last: true, MSN: 1, Invalidate: 9}, nil, nil, wire.CannotInvalidate, 0},

		// Untagged buffers (RFC 5041 §7.1).
		{"SEND without a receive", func(p *peer) { p.end.receives = 0 }, send, []byte{1}, nil, wire.NoBuffer, transport.NotReady},
		{"SEND that is too long for its receive", func(p *peer) { p.end.capacity = 3 }, send, []byte{1, 2, 3, 4}, nil, wire.MessageTooLong, 0},
		{"SEND whose number is not the next", nil, wire.Header{Opcode: wire.OpSend, Last: true, MSN: 2}, nil, nil, wire.MSNOutOfRange, transport.Sequence},
		{"SEND whose number is 0", nil, wire.Header{Opcode: wire.OpSend, Last: true}, nil, nil, wire.MSNOutOfRange, transport.Sequence},
		{"SEND that does not begin at 0", nil, wire.Header{Opcode: wire.OpSend, Last: true, MSN: 1, MO: 1}, nil, nil, wire.InvalidOffset, transport.Invalid},
		{"SEND that changes its opcode", func(p *peer) { p.message(wire.Header{Opcode: wire.OpSend, MSN: 1}, nil) }, wire.Header{Opcode: wire.OpSendSE, Last: true, MSN: 1}, nil, nil, wire.UnexpectedOpcode, transport.Invalid},
		{"immediate data in a SEND", func(p *peer) { p.message(wire.Header{Opcode: wire.OpSend, MSN: 1}, nil) }, wire.Header{Opcode: wire.OpImmediate, Last: true, MSN: 1}, make([]byte, 8), nil, wire.UnexpectedOpcode, transport.Invalid},
		{"queue that there is not", nil, wire.Header{}, nil, raw(send, func(b []byte) { b[9] = 4 }), wire.InvalidQueue, transport.Invalid},
		{"queue of another opcode", nil, wire.Header{}, nil, raw(send, func(b []byte) { b[9] = 1 }), wire.InvalidQueue, transport.Invalid},
		{"untagged WRITE", nil, wire.Header{}, nil, raw(write, func(b []byte) { b[0] &= 0x7f }), wire.UnexpectedOpcode, transport.Invalid},
		{"tagged SEND", nil, wire.Header{}, nil, raw(send, func(b []byte) { b[0] |= 0x80 }), wire.UnexpectedOpcode, transport.Invalid},
		{"version of DDP in a WRITE", nil, wire.Header{}, nil, raw(write, func(b []byte) { b[0] |= 3 }), wire.TaggedVersion, transport.Invalid},
		{"FPDU without a header", nil, wire.Header{}, nil, []byte{0x41}, wire.LengthMismatch, transport.Invalid},
		{"FPDU of no bytes", nil, wire.Header{}, nil, []byte{}, wire.LengthMismatch, transport.Invalid},
		{"READ response to nothing", nil, wire.Header{Opcode: wire.OpReadResponse, Last: true, STag: key}, []byte{1}, nil, wire.TaggedInvalidSTag, 0},
	} {
		p := connected(t)
		p.end.receives = 1
		if c.prepare != nil {
			c.prepare(p)
		}
		ulpdu := c.ulpdu
		if ulpdu == nil {
			ulpdu = append(c.h.Append(nil), c.body...)
		}
		b := append(make([]byte, wire.FPDUHeaderLen), ulpdu...)
		b = append(b, make([]byte, wire.FPDULen(len(ulpdu))-len(b))...)
		wire.PutFPDU(b, len(ulpdu), true)
		p.send(b)
		got := p.terminated()
		header := wire.UntaggedLen
		if len(ulpdu) > 0 && ulpdu[0]&0x80 != 0 {
			header = wire.TaggedLen
		}
		if c.cause.Layer() == wire.LayerMPA || len(ulpdu) < header {
			header = 0
		}
		if got.Cause != c.cause || !bytes.Equal(got.DDP, ulpdu[:header]) || header > 0 && (!got.LengthValid || int(got.Length) != len(ulpdu)) {
			t.Errorf("%s: %v, %+v", c.name, got.Cause, got)
		}
		if reads := c.h.Opcode == wire.OpReadRequest && len(c.body) >= wire.ReadRequestLen && c.cause.Layer() == wire.LayerRDMAP; reads != (got.ReadRequest != nil) || reads && !bytes.Equal(got.ReadRequest, c.body) {
			t.Errorf("%s: the request in it is %x", c.name, got.ReadRequest)
		}
		if c.refused == 0 && len(p.end.refused) != 0 || c.refused != 0 && !slices.Equal(p.end.refused, []transport.Refusal{c.refused}) || p.end.serving {
			t.Errorf("%s: the queue pair hears %v, serves %t", c.name, p.end.refused, p.end.serving)
		}
		if len(p.end.messages) != 0 || !bytes.Equal(p.end.memory, make([]byte, 1<<16)) {
			t.Errorf("%s: %d messages, or memory is changed", c.name, len(p.end.messages))
		}
		p.message(wire.Header{Opcode: wire.OpSend, Last: true, MSN: 1}, nil) // nothing behind it counts
		if len(p.end.messages) != 0 || p.e.Stats().Refused != 1 {
			t.Errorf("%s: a message behind it is taken", c.name)
		}
		p.c.PeerClosed(p.now)
		p.run()
		if _, reset := p.c.Ending(); p.events[len(p.events)-1] != iwarp.Gone || reset || !p.end.ended {
			t.Errorf("%s: events %v, reset %t, ended %t", c.name, p.events, reset, p.end.ended)
		}
	}
}

// TestSection8_1ErrorsOfThisEndHaveNoHeaders (RFC 7306 §8.1(1)): a request or answer whose memory is
// gone is not sent, nor anything behind it; the Terminate in its place has no headers.
func TestSection8_1ErrorsOfThisEndHaveNoHeaders(t *testing.T) {
	for _, op := range []abi.Opcode{abi.OpSend, abi.OpWrite, abi.OpWriteImm} {
		p := connected(t)
		p.message(wire.Header{Opcode: wire.OpWrite, Last: true}, nil)
		before := p.end.post(abi.SendWQE{Opcode: abi.OpWrite}, 8)
		r := p.end.post(abi.SendWQE{Opcode: op}, 8)
		behind := p.end.post(abi.SendWQE{Opcode: abi.OpSend}, 8)
		r.gone = true
		p.end.issue(p.now)
		if list := p.segments(); len(list) != 1 || list[0].Opcode != wire.OpWrite {
			t.Fatalf("%v: sent %+v", op, list)
		}
		p.c.Acknowledged(p.now, p.c.Written())
		p.run()
		got := p.terminated()
		if got.Cause != wire.LocalCatastrophic || got.DDP != nil || got.LengthValid || got.ReadRequest != nil {
			t.Errorf("%v: %+v", op, got)
		}
		if before.Status != abi.WCSuccess || !before.over || r.Status != abi.WCLocProtErr || behind.over {
			t.Errorf("%v: %v, %v", op, before.Status, r.Status)
		}
	}
}

// TestAReadWhoseMemoryGoesIsRefused: the Terminate names the READ, which may be answered in part.
func TestAReadWhoseMemoryGoesIsRefused(t *testing.T) {
	p := connected(t)
	read := wire.ReadRequest{SinkSTag: 5, SinkTO: 7, Size: 3000, SourceSTag: key, SourceTO: 8}
	p.message(wire.Header{Opcode: wire.OpReadRequest, Last: true, MSN: 1}, read.Append(nil))
	p.next()
	p.end.unready = true
	p.next()
	p.run()
	got := p.terminated()
	if got.Cause != wire.OperationUnspecified || !bytes.Equal(got.ReadRequest, read.Append(nil)) || !slices.Equal(p.end.refused, []transport.Refusal{transport.Operation}) {
		t.Errorf("%+v, refused %v", got, p.end.refused)
	}
}

// TestAWrongAnswerFailsItsRequest: an answer that is not the one to the oldest READ or atomic ends the
// stream (RFC 7306 §5.2.2(7)), and that request with it.
func TestAWrongAnswerFailsItsRequest(t *testing.T) {
	response := func(id uint32) []byte { return (&wire.AtomicResponse{ID: id}).Append(nil) }
	for _, c := range []struct {
		name  string
		op    abi.Opcode
		h     wire.Header
		sink  bool // STag is that of the READ
		body  []byte
		cause wire.Cause
	}{
		{"another STag", abi.OpRead, wire.Header{Opcode: wire.OpReadResponse, Last: true, STag: 5}, false, make([]byte, 8), wire.TaggedInvalidSTag},
		{"STag of memory", abi.OpRead, wire.Header{Opcode: wire.OpReadResponse, Last: true, STag: key}, false, make([]byte, 8), wire.TaggedInvalidSTag},
		{"another place", abi.OpRead, wire.Header{Opcode: wire.OpReadResponse, Last: true, TO: 1}, true, make([]byte, 8), wire.TaggedOutOfBounds},
		{"more than was asked for", abi.OpRead, wire.Header{Opcode: wire.OpReadResponse, Last: true}, true, make([]byte, 9), wire.TaggedOutOfBounds},
		{"less than was asked for", abi.OpRead, wire.Header{Opcode: wire.OpReadResponse, Last: true}, true, make([]byte, 7), wire.TaggedOutOfBounds},
		{"no end", abi.OpRead, wire.Header{Opcode: wire.OpReadResponse}, true, make([]byte, 8), wire.TaggedOutOfBounds},
		{"an atomic's", abi.OpRead, wire.Header{Opcode: wire.OpAtomicResponse, Last: true, MSN: 1}, false, response(1), wire.MSNOutOfRange},
		{"a READ's", abi.OpFetchAdd, wire.Header{Opcode: wire.OpReadResponse, Last: true}, false, make([]byte, 8), wire.TaggedInvalidSTag},
		{"another number", abi.OpFetchAdd, wire.Header{Opcode: wire.OpAtomicResponse, Last: true, MSN: 2}, false, response(1), wire.MSNOutOfRange},
		{"another identifier", abi.OpFetchAdd, wire.Header{Opcode: wire.OpAtomicResponse, Last: true, MSN: 1}, false, response(2), wire.OperationUnspecified},
		{"cut off", abi.OpFetchAdd, wire.Header{Opcode: wire.OpAtomicResponse, Last: true, MSN: 1}, false, response(1)[:11], wire.LengthMismatch},
		{"too long", abi.OpFetchAdd, wire.Header{Opcode: wire.OpAtomicResponse, Last: true, MSN: 1}, false, append(response(1), 0), wire.MessageTooLong},
		{"not the last segment", abi.OpFetchAdd, wire.Header{Opcode: wire.OpAtomicResponse, MSN: 1}, false, response(1), wire.InvalidOffset},
	} {
		p := connected(t)
		p.message(wire.Header{Opcode: wire.OpWrite, Last: true}, nil)
		r := p.end.post(abi.SendWQE{Opcode: c.op}, 8)
		p.end.issue(p.now)
		sent := p.segments()
		if c.sink {
			request, _ := wire.ParseReadRequest(sent[0].body)
			c.h.STag = request.SinkSTag
		}
		p.message(c.h, c.body)
		if got := p.terminated(); got.Cause != c.cause || r.Status != abi.WCBadRespErr || r.placed != 0 || r.Vendor != uint32(c.cause) {
			t.Errorf("%s: %v, request %v", c.name, got.Cause, r.Status)
		}
	}
}

// TestATerminateFailsTheRequestThatItNames: the requests before it are done, it fails with the status
// that stands for the cause, and the connection is over. One that names none that is under way ends the
// connection with that status.
func TestATerminateFailsTheRequestThatItNames(t *testing.T) {
	type failing struct {
		op     abi.Opcode
		cause  wire.Cause
		status abi.WCStatus
	}
	cases := []failing{
		{abi.OpSend, wire.NoBuffer, abi.WCRNRRetryExcErr},
		{abi.OpWriteImm, wire.NoBuffer, abi.WCRNRRetryExcErr},
		{abi.OpRead, wire.NoBuffer, abi.WCRemInvReqErr},
		{abi.OpSend, wire.MessageTooLong, abi.WCRemInvReqErr},
		{abi.OpSend, wire.MSNOutOfRange, abi.WCRemInvReqErr},
		{abi.OpSend, wire.CannotInvalidate, abi.WCRemAccessErr},
		{abi.OpWrite, wire.TaggedInvalidSTag, abi.WCRemAccessErr},
		{abi.OpWrite, wire.TaggedOutOfBounds, abi.WCRemAccessErr},
		{abi.OpWrite, wire.TaggedSTagOfAnotherStream, abi.WCRemAccessErr},
		{abi.OpWrite, wire.AccessViolation, abi.WCRemAccessErr},
		{abi.OpWrite, wire.TaggedVersion, abi.WCRemInvReqErr},
		{abi.OpRead, wire.InvalidSTag, abi.WCRemAccessErr},
		{abi.OpRead, wire.OutOfBounds, abi.WCRemAccessErr},
		{abi.OpRead, wire.UnexpectedOpcode, abi.WCRemInvReqErr},
		{abi.OpRead, wire.OperationUnspecified, abi.WCRemOpErr},
		{abi.OpRead, wire.StreamCatastrophic, abi.WCRemOpErr},
		{abi.OpFetchAdd, wire.StreamCatastrophic, abi.WCRemInvReqErr},
		{abi.OpFetchAdd, wire.UnexpectedOpcode, abi.WCRemInvReqErr}, // RFC 7306 §1.1: the peer has no atomics
		{abi.OpFetchAdd, wire.GlobalCatastrophic, abi.WCRemOpErr},
		{abi.OpSend, wire.LocalCatastrophic, abi.WCRetryExcErr},
		{abi.OpSend, 0x3456, abi.WCRemOpErr},
	}
	for _, named := range []bool{true, false} {
		for _, c := range cases {
			p := connected(t)
			p.message(wire.Header{Opcode: wire.OpWrite, Last: true}, nil)
			before := p.end.post(abi.SendWQE{Opcode: abi.OpWrite, RemoteAddr: 800}, 8)
			r := p.end.post(abi.SendWQE{Opcode: c.op, RemoteAddr: 80, Imm: 7}, 8)
			behind := p.end.post(abi.SendWQE{Opcode: abi.OpSend}, 8)
			p.end.issue(p.now)
			sent := p.segments()
			refused := sent[1]
			if c.op == abi.OpWriteImm {
				refused = sent[2]
			}
			terminate := wire.Terminate{Cause: c.cause}
			if named {
				terminate.SetSegment(append(refused.Header.Append(nil), refused.body...))
			}
			p.message(wire.Header{Opcode: wire.OpTerminate, Last: true, MSN: 1}, terminate.Append(nil))
			status := c.status
			if !named && c.cause == wire.NoBuffer {
				status = abi.WCRNRRetryExcErr
			}
			if !named && c.cause == wire.StreamCatastrophic {
				status = abi.WCRemOpErr
			}
			if !p.end.ended || p.end.status != status || behind.over {
				t.Errorf("%v, %v, named %t: ended %t with %v, want %v", c.op, c.cause, named, p.end.ended, p.end.status, status)
			}
			if named && c.cause.Layer() < 2 && (!before.over || before.Status != abi.WCSuccess || r.Status != c.status || r.Vendor != uint32(c.cause)) {
				t.Errorf("%v, %v: %v, and the one before %v", c.op, c.cause, r.Status, before.Status)
			}
			if !named && (r.over || before.over) {
				t.Errorf("%v, %v: over, and not named", c.op, c.cause)
			}
			p.run()
			if list := p.segments(); len(list) != 0 || p.events[len(p.events)-1] != iwarp.Finish {
				t.Errorf("%v, %v: sent %+v, events %v", c.op, c.cause, list, p.events)
			}
		}
	}
}

// TestATerminateThatSaysNothingEndsTheConnection: whatever is in a Terminate, cut off or nonsense, the
// connection is over.
func TestATerminateThatSaysNothingEndsTheConnection(t *testing.T) {
	whole := wire.Terminate{Cause: wire.MessageTooLong}
	whole.SetSegment((&wire.Header{Opcode: wire.OpSend, Last: true, MSN: 1}).Append(nil))
	b := whole.Append(nil)
	for n := range len(b) {
		p := connected(t)
		p.message(wire.Header{Opcode: wire.OpTerminate, Last: n%2 == 0, MSN: uint32(n), MO: uint32(n)}, b[:n])
		if !p.end.ended || p.end.status == abi.WCSuccess {
			t.Errorf("%d bytes: ended %t, %v", n, p.end.ended, p.end.status)
		}
	}
}

// TestAConnectionThatClosesInTheMiddleSaysSo: an end that closes between the segments of a message
// tells the peer, and one that closes behind a message just closes.
func TestAConnectionThatClosesInTheMiddleSaysSo(t *testing.T) {
	for _, half := range []bool{false, true} {
		p := connected(t)
		p.message(wire.Header{Opcode: wire.OpWrite, Last: true}, nil)
		p.end.post(abi.SendWQE{Opcode: abi.OpSend}, 2*p.end.segment)
		p.end.issue(p.now)
		p.next()
		if !half {
			p.next()
		}
		p.c.Close(p.now)
		p.run()
		if half {
			if got := p.terminated(); got.Cause != wire.LocalCatastrophic || got.DDP != nil {
				t.Errorf("%+v", got)
			}
		} else if list := p.segments(); len(list) != 0 || p.events[len(p.events)-1] != iwarp.Finish {
			t.Errorf("sent %+v, events %v", list, p.events)
		}
		if p.end.ended || p.end.requests[0].over {
			t.Error("the queue pair hears of an end that it made")
		}
	}
}

// TestNothingBehindARefusedRequestIsCarriedOut: over streams that are cut anywhere, the requests before
// the refused one are carried out and those behind it are not; both ends hear of the end, the one that
// sent it with the status of the refusal.
func TestNothingBehindARefusedRequestIsCarriedOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPair(t, rapid.Uint64().Draw(t, "seed"), drawShape(t))
		a, b := p.ends[0], p.ends[1]
		b.receives, b.capacity = 100, 4000
		memory := bytes.Clone(b.memory)
		ops := rapid.SampledFrom([]abi.Opcode{abi.OpSend, abi.OpWrite, abi.OpWriteImm, abi.OpRead, abi.OpFetchAdd})
		bad, messages := rapid.IntRange(0, 15).Draw(t, "refused"), 0
		var want abi.WCStatus
		for i := range rapid.IntRange(bad+1, 30).Draw(t, "requests") {
			x := abi.SendWQE{Opcode: ops.Draw(t, "op"), RemoteAddr: 8 * rapid.Uint64Range(0, 1000).Draw(t, "address"), CompareAdd: 1}
			n := rapid.IntRange(1, 4000).Draw(t, "size")
			if x.Opcode == abi.OpFetchAdd {
				n = 8
			}
			if i == bad {
				switch want = abi.WCRemAccessErr; x.Opcode {
				case abi.OpSend:
					n, want = 4001, abi.WCRemInvReqErr
				case abi.OpFetchAdd:
					x.RemoteAddr, want = x.RemoteAddr+4, abi.WCRemInvReqErr
				default:
					x.RKey = key + 1
				}
			}
			r := a.post(x, n)
			for at := range r.data {
				r.data[at] = byte(at*3 + i + 1)
			}
			if i >= bad {
				continue
			}
			switch x.Opcode {
			case abi.OpWrite, abi.OpWriteImm:
				copy(memory[x.RemoteAddr:], r.data)
			case abi.OpFetchAdd:
				word := memory[x.RemoteAddr:][:8]
				binary.LittleEndian.PutUint64(word, binary.LittleEndian.Uint64(word)+1)
			}
			if r.TakesReceive() {
				messages++
			}
		}
		p.until(func() bool { return a.ended && b.ended })
		if !bytes.Equal(b.memory, memory) || len(b.messages) != messages {
			t.Fatalf("other things were carried out than the %d requests before: %d messages, want %d", bad, len(b.messages), messages)
		}
		if a.status != want {
			t.Fatalf("ended with %v (%s), want %v", a.status, a.why, want)
		}
		for i, r := range a.requests {
			failed := r.Status != abi.WCSuccess
			if failed && (i != bad || r.Status != want) || i >= bad && r.Pulls() && r.over && !failed {
				t.Fatalf("request %d, %v, behind or before number %d, which was refused: over %t, %v", i, r.WQE.Opcode, bad, r.over, r.Status)
			}
		}
	})
}
