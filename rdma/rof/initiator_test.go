package rof

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/rof/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// post is a request of n bytes.
func post(op abi.Opcode, n uint32) *transport.Request {
	r := &transport.Request{Length: n, Index: 40}
	r.WQE = abi.SendWQE{Opcode: op, RemoteAddr: 1 << 40, RKey: 4, Imm: 5, CompareAdd: 6, Swap: 7, RemoteSRQN: 8}
	return r
}

// TestPacketsOfARequest: how a message is cut, by operation and length: opcodes, offsets and
// lengths of its packets, and which of them the pipe is told is the last.
func TestPacketsOfARequest(t *testing.T) {
	const n = testSegment
	sends := [4]ib.Opcode{ib.SendOnly, ib.SendFirst, ib.SendMiddle, ib.SendLast}
	writes := [4]ib.Opcode{ib.WriteOnly, ib.WriteFirst, ib.WriteMiddle, ib.WriteLast}
	for op, ops := range map[abi.Opcode][4]ib.Opcode{
		abi.OpSend: sends, abi.OpWrite: writes, abi.OpAtomicWrite: writes,
		abi.OpSendImm:  {ib.SendOnlyImm, ib.SendFirst, ib.SendMiddle, ib.SendLastImm},
		abi.OpSendInv:  {ib.SendOnlyInv, ib.SendFirst, ib.SendMiddle, ib.SendLastInv},
		abi.OpWriteImm: {ib.WriteOnlyImm, ib.WriteFirst, ib.WriteMiddle, ib.WriteLastImm},
	} {
		only, first, middle, last := ops[0], ops[1], ops[2], ops[3]
		for length, want := range map[uint32][]ib.Opcode{
			0: {only}, 1: {only}, n - 1: {only}, n: {only}, n + 1: {first, last}, 2*n - 1: {first, last}, 2 * n: {first, last},
			2*n + 1: {first, middle, last}, 3*n + 5: {first, middle, middle, last},
		} {
			s, r := newStage(t, true, nil), post(op, length)
			for i, op := range want {
				offset := uint32(i * n)
				size := int(min(length-offset, n))
				name := fmt.Sprintf("%v of %d bytes, packet %d", op, length, i)
				got, err := s.Issue(testNow, r)
				c := s.pipe.last()
				if whole := i == len(want)-1; err != nil || got != size || r.Issued != whole ||
					(c.what == "last push") != whole || r.Offset != offset+uint32(size) || r.Pending != i+1 {
					t.Fatalf("%s: %d bytes, %v: %+v, %+v", name, got, err, r, c)
				}
				h, data := s.request(c)
				if h.RBTH.Opcode != op || h.RBTH.DestQP != testPeer || h.RBTH.SN != uint32(1+i) || h.RBTH.CE ||
					h.RBTH.Pad != uint8(-size&3) || len(data) != size {
					t.Errorf("%s: %+v with %d bytes", name, h.RBTH, len(data))
				}
				headers := wire.Opcodes[op].Headers
				if headers&ib.HasOETH != 0 && h.OETH.Offset != offset ||
					headers&ib.HasRETH != 0 && h.RETH != (ib.RETH{VA: 1<<40 + uint64(offset), RKey: 4, Length: uint32(size)}) ||
					headers&ib.HasImmDt != 0 && h.Imm.Data != 5 || headers&ib.HasIETH != 0 && h.Inv.RKey != 5 ||
					headers&ib.HasSETH != 0 && h.SETH.RMSN != 1 {
					t.Errorf("%s: %+v", name, h)
				}
				for k, b := range data {
					if b != byte(offset)+byte(k)|1 {
						t.Fatalf("%s: byte %d is %#x", name, k, b)
					}
				}
			}
			if a := s.user.account.Counters; a != (transport.Counters{PushesTx: uint64(len(want)), BytesTx: uint64(length)}) {
				t.Errorf("%v of %d bytes: counted %+v", op, length, a)
			}
		}
	}
}

// TestReadsAndAtomicsAreSentAsPulls: the packets of READs and atomics, with what the pipe is told of their
// lengths. A READ's packet stays within one element of its scatter list.
func TestReadsAndAtomicsAreSentAsPulls(t *testing.T) {
	s := newStage(t, true, nil)
	s.user.element = func(offset uint32) uint32 { return 100 - offset%100 } // elements of 100 bytes
	r := post(abi.OpRead, 250)
	for i, want := range []uint32{100, 100, 50} {
		c := s.issue(r)
		h, _ := s.request(c)
		offset := uint64(100 * i)
		if c.what != "pull" || c.length != 44 || c.most != readHeader+int(want+3)&^3 || h.RBTH.Opcode != ib.ReadRequest ||
			h.RBTH.Pad != 0 || h.SETH.RMSN != uint32(1+i) ||
			h.RETH != (ib.RETH{VA: 1<<40 + offset, RKey: 4, Length: want}) ||
			h.STETH != (ib.STETH{VA: 0x5000 + offset, LKey: 0x99}) {
			t.Errorf("READ, packet %d: %+v, %+v", i, c, h)
		}
	}
	if !r.Issued || r.Pending != 3 {
		t.Errorf("%+v", r)
	}
	nothing := s.issue(post(abi.OpReadInv, 0))
	if h, _ := s.request(nothing); nothing.most != readHeader || h.STETH != (ib.STETH{}) || h.RETH.Length != 0 ||
		h.SETH.RMSN != 4 {
		t.Errorf("READ of nothing: %+v, %+v", nothing, h)
	}
	for i, c := range []struct {
		op       abi.Opcode
		wire     ib.Opcode
		compare  uint64
		swap     uint64
		mask     ib.AtomicMaskETH
		ofLength int
	}{
		{abi.OpFetchAdd, ib.FetchAdd, 0, 6, ib.AtomicMaskETH{}, 56},
		{abi.OpCmpSwap, ib.CmpSwap, 6, 7, ib.AtomicMaskETH{}, 56},
		{abi.OpMaskedFetchAdd, ib.MaskedFetchAdd, 0, 6, ib.AtomicMaskETH{SwapAdd: 8, Compare: ^uint64(0)}, 72},
		{abi.OpMaskedCmpSwap, ib.MaskedCmpSwap, 6, 7, ib.AtomicMaskETH{SwapAdd: 8, Compare: 9}, 72},
	} {
		r := post(c.op, 8)
		r.Masks = abi.AtomicMasks{SwapAdd: 8, Compare: 9}
		got := s.issue(r)
		h, data := s.request(got)
		want := ib.AtomicETH{VA: 1 << 40, RKey: 4, SwapAdd: c.swap, Compare: c.compare}
		if got.what != "pull" || got.length != c.ofLength || got.most != atomicLength || h.RBTH.Opcode != c.wire ||
			h.Atomic != want || h.Mask != c.mask ||
			h.STETH != (ib.STETH{VA: 0x5000, LKey: 0x99}) || h.SETH.RMSN != uint32(5+i) || len(data) != 0 || !r.Issued {
			t.Errorf("%v: %+v, %+v", c.op, got, h)
		}
	}
	if a := s.user.account.Counters; a != (transport.Counters{PullsTx: 8}) {
		t.Errorf("counted %+v", a)
	}
}

// TestEachKindOfRequestHasItsOwnNumbers: messages that take a receive count in one sequence, READs and atomics in another,
// packets in a third; a request that waited has its number since it began.
func TestEachKindOfRequestHasItsOwnNumbers(t *testing.T) {
	s := newStage(t, true, nil)
	waits := post(abi.OpSend, 8)
	for range 3 {
		s.pipe.err = falcon.ErrXoff
		if _, err := s.Issue(testNow, waits); !errors.Is(err, transport.ErrBlocked) {
			t.Fatal(err)
		}
	}
	s.pipe.err = nil
	sn := uint32(0)
	for _, c := range []struct {
		r    *transport.Request
		rmsn []uint32 // by packet; 0: it has none
	}{
		{waits, []uint32{1}},
		{post(abi.OpWrite, 2*testSegment), []uint32{0, 0}},
		{post(abi.OpRead, 2*testSegment), []uint32{1, 2}},
		{post(abi.OpWriteImm, 2*testSegment), []uint32{0, 2}},
		{post(abi.OpSendInv, 2*testSegment), []uint32{3, 3}},
		{post(abi.OpFetchAdd, 8), []uint32{3}},
		{post(abi.OpSendImm, 0), []uint32{4}},
	} {
		for i, want := range c.rmsn {
			sn++
			if h, _ := s.request(s.issue(c.r)); h.SETH.RMSN != want || h.RBTH.SN != sn {
				t.Errorf("%v, packet %d: number %d, %d among all, want %d, %d", c.r.WQE.Opcode, i, h.SETH.RMSN, h.RBTH.SN, want, sn)
			}
		}
	}
}

// TestTheWindowLimitsPacketsUnderWay: so many packets of either kind are under way at most, and each that ends makes room
// for another.
func TestTheWindowLimitsPacketsUnderWay(t *testing.T) {
	s := newStage(t, true, func(t *transport.Terms) { t.Reads = 3 })
	full := func(op abi.Opcode) {
		t.Helper()
		if _, err := s.Issue(testNow, post(op, 8)); !errors.Is(err, transport.ErrWindow) {
			t.Fatalf("%v: %v", op, err)
		}
	}
	under := func(pushes, pulls int) {
		t.Helper()
		if a, b := s.UnderWay(); a != pushes || b != pulls {
			t.Fatalf("%d and %d packets are under way, want %d and %d", a, b, pushes, pulls)
		}
	}
	fill := func(op abi.Opcode, n int) (first call) {
		t.Helper()
		for i := range n {
			if c := s.issue(post(op, 8)); i == 0 {
				first = c
			}
		}
		return first
	}
	push := fill(abi.OpWrite, maxPushes)
	full(abi.OpWrite)
	pull := fill(abi.OpFetchAdd, 3)
	full(abi.OpRead)
	under(maxPushes, 3)
	s.answer(push, falcon.CmplAck, synNone, nil)
	under(maxPushes-1, 3)
	full(abi.OpRead)
	fill(abi.OpSend, 1)
	full(abi.OpSend)
	s.answer(pull, falcon.CmplTargetNackNRE, ib.SynAccess, nil)
	under(maxPushes, 2)
	full(abi.OpSend)
	fill(abi.OpRead, 1)
	full(abi.OpFetchAdd)
	s.LimitReads(2 * maxPulls) // more than there is room for
	fill(abi.OpRead, maxPulls-3)
	full(abi.OpRead)
	under(maxPushes, maxPulls)
	s.Forget()
	under(0, 0)
	fill(abi.OpWrite, maxPushes)
	full(abi.OpWrite)
	if n := len(s.user.done); n != 2 {
		t.Errorf("%d packets are done", n)
	}
}

// TestIssueSaysWhyThePipeRefused: what Issue returns when the pipe takes no packet.
func TestIssueSaysWhyThePipeRefused(t *testing.T) {
	const vendor = uint32(falcon.CmplLocalRsrc) << 8
	unreliable := func(t *transport.Terms) { t.Unreliable = true }
	for _, c := range []struct {
		terms  func(*transport.Terms)
		err    error
		want   error
		status abi.WCStatus
		vendor uint32
		waits  uint64
	}{
		{nil, falcon.ErrXoff, transport.ErrBlocked, abi.WCSuccess, 0, 1},
		{nil, falcon.ErrDraining, transport.ErrEnding, abi.WCSuccess, 0, 0},
		{nil, falcon.ErrClosed, transport.ErrFailed, abi.WCRetryExcErr, vendor, 0},
		{nil, falcon.ErrTooLong, transport.ErrFailed, abi.WCGeneralErr, vendor, 0},
		{unreliable, falcon.ErrXoff, transport.ErrBlocked, abi.WCSuccess, 0, 1},
		{unreliable, falcon.ErrDraining, transport.ErrEnding, abi.WCSuccess, 0, 0},
		{unreliable, falcon.ErrClosed, transport.ErrEnding, abi.WCSuccess, 0, 0},
		{unreliable, falcon.ErrTooLong, transport.ErrFailed, abi.WCGeneralErr, vendor, 0},
	} {
		s, r := newStage(t, true, c.terms), post(abi.OpWrite, 8)
		s.pipe.err = c.err
		n, err := s.Issue(testNow, r)
		if n != 0 || !errors.Is(err, c.want) || r.Status != c.status || r.Vendor != c.vendor ||
			r.Issued != (c.want == transport.ErrFailed) || r.Pending != 0 || r.Offset != 0 {
			t.Errorf("%v: %d, %v, %+v", c.err, n, err, r)
		}
		if pushes, _ := s.UnderWay(); pushes != 0 ||
			s.user.account.Counters != (transport.Counters{CreditWaits: c.waits}) ||
			len(s.initiator.free) != maxPushes+maxPulls {
			t.Errorf("%v: %d under way, %d free, counted %+v", c.err, pushes, len(s.initiator.free), s.user.account.Counters)
		}
	}
}

// TestOnlyTheLastPacketIsSolicited: only the last packet of a message is a solicited event, and only if that was asked
// for.
func TestOnlyTheLastPacketIsSolicited(t *testing.T) {
	for _, asked := range []bool{false, true} {
		s, r := newStage(t, true, nil), post(abi.OpSend, 2*testSegment)
		if asked {
			r.WQE.Flags = abi.SendSolicited
		}
		for i := range 2 {
			if h, _ := s.request(s.issue(r)); h.RBTH.Solicited != (asked && i == 1) {
				t.Errorf("asked for %t, packet %d: %t", asked, i, h.RBTH.Solicited)
			}
		}
	}
}

// TestXRCRequestsNameTheSharedReceiveQueue: on an extended reliable connection packets are of its service and name the
// shared receive queue.
func TestXRCRequestsNameTheSharedReceiveQueue(t *testing.T) {
	s := newStage(t, true, extended)
	for op, want := range map[abi.Opcode]ib.Opcode{
		abi.OpSend: ib.SendOnly, abi.OpRead: ib.ReadRequest,
		abi.OpFetchAdd: ib.FetchAdd,
	} {
		c := s.issue(post(op, 8))
		if h, _ := s.request(c); h.RBTH.Opcode != ib.XRC|want || h.XRC.SRQ != 8 ||
			c.length != wire.Opcodes[ib.XRC|want].Len+map[bool]int{true: 8}[op == abi.OpSend] {
			t.Errorf("%v: %+v, %+v", op, c, h)
		}
	}
}

// TestARequestNeedsRoomForItsWholePacket: a packet needs room for its headers, its data and the pad, which is zero.
func TestARequestNeedsRoomForItsWholePacket(t *testing.T) {
	s := newStage(t, true, nil)
	for op, want := range map[abi.Opcode]int{abi.OpSend: 20 + 8, abi.OpRead: 44, abi.OpMaskedCmpSwap: 72} {
		c := s.issue(post(op, 5))
		b := bytes.Repeat([]byte{0xee}, want+1)
		if n, err := s.Fill(falcon.TxnPush, c.tag, b); err != nil || n != want || c.length != want || b[want] != 0xee {
			t.Errorf("%v: %d bytes, %v", op, n, err)
		}
		if op == abi.OpSend && !bytes.Equal(b[25:want], []byte{0, 0, 0}) {
			t.Errorf("pad % x", b[25:want])
		}
		if _, err := s.Fill(falcon.TxnPush, c.tag, b[:want-1]); err == nil {
			t.Errorf("%v: written into one byte less", op)
		}
		if _, err := s.Fill(falcon.TxnPush, c.tag, b[:want]); err != nil {
			t.Errorf("%v: %v", op, err)
		}
	}
}

// TestRequestMemoryGone: a packet whose data cannot be read is not sent, and its request fails with
// that error, whatever the pipe reports. If requests complete in error, this packet and all
// later ones of the message are sent as spoiled.
func TestRequestMemoryGone(t *testing.T) {
	for _, goesOn := range []bool{false, true} {
		s, r := newStage(t, true, func(t *transport.Terms) { t.InError = goesOn }), post(abi.OpSend, 2*testSegment)
		c := s.issue(r)
		s.user.gone = true
		b := bytes.Repeat([]byte{0xee}, c.length)
		n, err := s.Fill(falcon.TxnPush, c.tag, b)
		s.user.gone = false
		if !goesOn {
			if !errors.Is(err, errMemory) || r.Spoiled {
				t.Errorf("%d, %v", n, err)
			}
			s.answer(c, falcon.CmplLocalXlr, synNone, nil)
		} else {
			var h wire.Headers
			k, _ := h.Parse(b)
			if err != nil || n != c.length || !h.RBTH.CE || !bytes.Equal(b[k:], make([]byte, testSegment)) {
				t.Errorf("%d, %v, %+v, % x", n, err, h, b[k:])
			}
			if h, data := s.request(s.issue(r)); !h.RBTH.CE || !bytes.Equal(data, make([]byte, testSegment)) {
				t.Errorf("the next: %+v, % x", h, data)
			}
			s.answer(c, falcon.CmplAck, synNone, nil)
		}
		if d := s.user.done; len(d) != 1 || d[0].st != abi.WCLocProtErr {
			t.Errorf("complete in error %t: %+v", goesOn, d)
		}
	}
}

// TestAnswersToForgottenRequestsAreIgnored: after Forget, completions of requests that were in
// progress are ignored, however late they come.
func TestAnswersToForgottenRequestsAreIgnored(t *testing.T) {
	s := newStage(t, true, nil)
	push, pull := s.issue(post(abi.OpWrite, 8)), s.issue(post(abi.OpRead, 8))
	s.Forget()
	again := s.issue(post(abi.OpWrite, 8)) // in the same place
	for _, c := range []call{push, pull} {
		s.answer(c, falcon.CmplAck, synNone, nil)
		if _, err := s.Fill(falcon.TxnPush, c.tag, make([]byte, 400)); err == nil {
			t.Errorf("%+v is filled", c)
		}
		s.Handle(testNow, &falcon.Event{Kind: falcon.EvRNR, Tag: c.tag})
	}
	if pushes, pulls := s.UnderWay(); len(s.user.done) != 0 || s.user.account.RNRRx != 0 || pushes != 1 || pulls != 0 {
		t.Errorf("done %v, %d and %d under way", s.user.done, pushes, pulls)
	}
	if s.answer(again, falcon.CmplAck, synNone, nil); len(s.user.done) != 1 {
		t.Errorf("done %v", s.user.done)
	}
}

// reply is a response of the peer to this end's request sn, with data.
func reply(op ib.Opcode, sn uint32, change func(*wire.Headers), data []byte) []byte {
	h := headers(op, sn)
	if change != nil {
		change(&h)
	}
	return packet(h, data)
}

// TestAReadTakesOnlyMatchingResponses: a READ's data is taken from a response of any of a READ's kinds, to this queue
// pair, with its number and as long as was asked for. All others are errors.
func TestAReadTakesOnlyMatchingResponses(t *testing.T) {
	data := []byte("twelve bytes")
	bad := outcome{abi.WCBadRespErr, 0}
	refused := func(syn ib.Syndrome) func(*wire.Headers) {
		return func(h *wire.Headers) { h.RBTH.CE, h.RBTH.Syndrome = true, uint8(syn) }
	}
	for name, c := range map[string]struct {
		b    []byte
		want outcome
	}{
		"only":            {reply(ib.ReadRespOnly, 1, nil, data), outcome{}},
		"first":           {reply(ib.ReadRespFirst, 1, nil, data), outcome{}},
		"middle":          {reply(ib.ReadRespMiddle, 1, nil, data), outcome{}},
		"last":            {reply(ib.ReadRespLast, 1, nil, data), outcome{}},
		"a request":       {reply(ib.ReadRequest, 1, nil, data), bad},
		"reserved":        {reply(ib.ReadRespOnly+1, 1, nil, data), bad},
		"of an atomic":    {reply(ib.AtomicResponse, 1, nil, nil), bad},
		"of another SEND": {reply(ib.SendOnly, 1, nil, data), bad},
		"of XRC":          {reply(ib.XRC|ib.ReadRespOnly, 1, nil, data), bad},
		"to the next":     {reply(ib.ReadRespOnly, 2, nil, data), bad},
		"to the last":     {reply(ib.ReadRespOnly, 0, nil, data), bad},
		"a byte short":    {reply(ib.ReadRespOnly, 1, nil, data[:11]), bad},
		"a byte long":     {reply(ib.ReadRespOnly, 1, nil, append(data[:12:12], 1)), bad},
		"without data":    {reply(ib.ReadRespOnly, 1, nil, nil), bad},
		"cut short":       {reply(ib.ReadRespOnly, 1, nil, nil)[:20], bad},
		"not whole words": {append(reply(ib.ReadRespOnly, 1, nil, data), 0), bad},
		"nothing":         {nil, bad},
		"refused": {
			reply(ib.ReadRespOnly, 1, refused(ib.SynAccess), nil), outcome{abi.WCRemAccessErr, uint32(ib.SynAccess)},
		},
		"refused, as last": {
			reply(ib.ReadRespLast, 1, refused(ib.SynOperation), nil), outcome{abi.WCRemOpErr, uint32(ib.SynOperation)},
		},
		"nobody serves": {
			reply(ib.ReadRespOnly, 1, refused(synNotServing), nil), outcome{abi.WCRetryExcErr, uint32(synNotServing)},
		},
		"refused, the next": {reply(ib.ReadRespOnly, 2, refused(ib.SynAccess), nil), bad},
	} {
		s, r := newStage(t, true, nil), post(abi.OpRead, 12)
		s.answer(s.issue(r), falcon.CmplAck, synNone, c.b)
		good := c.want == (outcome{})
		if !slices.Equal(s.user.done, []outcome{c.want}) || good != bytes.Equal(s.user.scattered, data) ||
			(s.user.account.BytesRx == 12) != good || r.Pending != 0 {
			t.Errorf("%s: %+v, want %+v; %q, counted %+v", name, s.user.done, c.want, s.user.scattered, s.user.account.Counters)
		}
		if _, pulls := s.UnderWay(); pulls != 0 {
			t.Errorf("%s: %d under way", name, pulls)
		}
	}
}

// TestAtomicResultsAreInTheGuestsByteOrder: what an atomic found is placed in the guest's byte order.
func TestAtomicResultsAreInTheGuestsByteOrder(t *testing.T) {
	original := func(h *wire.Headers) { h.AtomicAck.Original = 0x0102030405060708 }
	s := newStage(t, true, nil)
	s.answer(s.issue(post(abi.OpCmpSwap, 8)), falcon.CmplAck, synNone, reply(ib.AtomicResponse, 1, original, nil))
	if !slices.Equal(s.user.done, []outcome{{}}) || binary.LittleEndian.Uint64(s.user.scattered) != 0x0102030405060708 ||
		s.user.account.BytesRx != 8 {
		t.Errorf("%+v, % x, %+v", s.user.done, s.user.scattered, s.user.account.Counters)
	}
	s.answer(s.issue(post(abi.OpCmpSwap, 8)), falcon.CmplAck, synNone, reply(ib.ReadRespOnly, 2, nil, make([]byte, 8)))
	if want := (outcome{abi.WCBadRespErr, 0}); s.user.done[1] != want {
		t.Errorf("a READ's response: %+v", s.user.done[1])
	}
	s = newStage(t, true, extended)
	for _, c := range []struct {
		op abi.Opcode
		b  []byte
	}{
		{abi.OpRead, reply(ib.XRC|ib.ReadRespLast, 1, nil, make([]byte, 8))},
		{abi.OpFetchAdd, reply(ib.XRC|ib.AtomicResponse, 2, original, nil)},
		{abi.OpRead, reply(ib.ReadRespOnly, 3, nil, make([]byte, 8))},
	} {
		s.answer(s.issue(post(c.op, 8)), falcon.CmplAck, synNone, c.b)
	}
	if !slices.Equal(s.user.done, []outcome{{}, {}, {abi.WCBadRespErr, 0}}) {
		t.Errorf("XRC: %+v", s.user.done)
	}
}

// TestResponsesOfSeveralPackets: each response has its place in the message.
func TestResponsesOfSeveralPackets(t *testing.T) {
	s, r := newStage(t, true, nil), post(abi.OpRead, testSegment+2)
	first, second := s.issue(r), s.issue(r)
	s.answer(second, falcon.CmplAck, synNone, reply(ib.ReadRespOnly, 2, nil, []byte("xy")))
	s.answer(first, falcon.CmplAck, synNone, reply(ib.ReadRespOnly, 1, nil, bytes.Repeat([]byte{1}, testSegment)))
	if want := append(bytes.Repeat([]byte{1}, testSegment), "xy"...); !bytes.Equal(s.user.scattered, want) ||
		s.user.account.BytesRx != testSegment+2 {
		t.Errorf("% x", s.user.scattered)
	}
}

// TestResponseWithoutMemory: a response whose place is gone fails its request.
func TestResponseWithoutMemory(t *testing.T) {
	s := newStage(t, true, nil)
	c := s.issue(post(abi.OpRead, 4))
	s.user.gone = true
	s.answer(c, falcon.CmplAck, synNone, reply(ib.ReadRespOnly, 1, nil, []byte("1234")))
	if !slices.Equal(s.user.done, []outcome{{abi.WCLocProtErr, 0}}) || s.user.account.BytesRx != 0 {
		t.Errorf("%+v, %+v", s.user.done, s.user.account.Counters)
	}
}

// TestResponseOfAnother: a response to another queue pair is dropped. The request continues to
// wait, and the queue pair gets Unanswered.
func TestResponseOfAnother(t *testing.T) {
	s := newStage(t, true, nil)
	c := s.issue(post(abi.OpRead, 4))
	other := func(h *wire.Headers) { h.RBTH.DestQP++ }
	s.answer(c, falcon.CmplAck, synNone, reply(ib.ReadRespOnly, 1, other, []byte("1234")))
	if _, pulls := s.UnderWay(); s.user.unanswered != 1 || pulls != 1 || len(s.user.done) != 0 ||
		s.user.account.Counters != (transport.Counters{PullsTx: 1, CIDMismatches: 1}) {
		t.Errorf("%d, %d under way, %v, %+v", s.user.unanswered, pulls, s.user.done, s.user.account.Counters)
	}
}

// TestHowRequestsEnd: the status of a packet, by the pipe's completion code, and by whether the
// peer was not ready before.
func TestHowRequestsEnd(t *testing.T) {
	for _, c := range []struct {
		code falcon.Completion
		syn  ib.Syndrome
		rnrs int
		want outcome
	}{
		{falcon.CmplAck, synNone, 0, outcome{}},
		{falcon.CmplAck, synNone, 1, outcome{}},
		{falcon.CmplTargetNackNRE, ib.SynAccess, 0, outcome{abi.WCRemAccessErr, 0x362}},
		{falcon.CmplTargetNackNRE, synNotServing, 0, outcome{abi.WCRetryExcErr, 0x36f}},
		{falcon.CmplTargetNackCIE, ib.SynInvalid, 0, outcome{abi.WCRemInvReqErr, 0x161}},
		{falcon.CmplLocalTO, synNone, 0, outcome{abi.WCRetryExcErr, 0x800}},
		{falcon.CmplLocalTO, synNone, 1, outcome{abi.WCRNRRetryExcErr, 0x800}},
		{falcon.CmplDeadConn, synNone, 2, outcome{abi.WCRNRRetryExcErr, 0xa00}},
		{falcon.CmplTargetNackNRE, ib.SynAccess, 1, outcome{abi.WCRemAccessErr, 0x362}},
	} {
		s, r := newStage(t, true, nil), post(abi.OpWrite, 4)
		call := s.issue(r)
		for range c.rnrs {
			s.Handle(testNow, &falcon.Event{Kind: falcon.EvRNR, Tag: call.tag})
		}
		s.answer(call, c.code, c.syn, nil)
		if pushes, _ := s.UnderWay(); !slices.Equal(s.user.done, []outcome{c.want}) || pushes != 0 || r.Pending != 0 {
			t.Errorf("%v %#x after %d: %+v, want %+v", c.code, c.syn, c.rnrs, s.user.done, c.want)
		}
	}
}

// TestPeerNotReady: the queue pair is told of each not-ready answer and their number; on an ordered
// connection only for packets of the oldest message with data, because the others get the same
// answer (Falcon §8.5.3.4). All are counted.
func TestPeerNotReady(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		s := newStage(t, ordered, nil)
		s.initiator.sn = ^uint32(0) - 1 // numbers wrap
		notReady := func(c call) { s.Handle(testNow, &falcon.Event{Kind: falcon.EvRNR, Tag: c.tag}) }
		pull := s.issue(post(abi.OpRead, 4))
		notReady(pull)
		first := s.issue(post(abi.OpSend, 4))
		second := s.issue(post(abi.OpSend, 4))
		s.answer(first, falcon.CmplAck, synNone, nil)
		third := s.issue(post(abi.OpSend, 4)) // in the first one's place
		notReady(third)
		notReady(second)
		notReady(second)
		notReady(pull)
		want := []int{1, 2}
		if !ordered {
			want = []int{1, 1, 1, 2, 2}
		}
		if !slices.Equal(s.user.notReady, want) || s.user.account.RNRRx != 5 {
			t.Errorf("ordered %t: %v, want %v, counted %+v", ordered, s.user.notReady, want, s.user.account.Counters)
		}
	}
}

// TestNotReadyOfALongMessage: each packet of the oldest message counts, not only its first.
func TestNotReadyOfALongMessage(t *testing.T) {
	s, r := newStage(t, true, nil), post(abi.OpSend, 2*testSegment)
	first, second := s.issue(r), s.issue(r)
	for _, c := range []call{first, second, second} {
		s.Handle(testNow, &falcon.Event{Kind: falcon.EvRNR, Tag: c.tag})
	}
	if !slices.Equal(s.user.notReady, []int{1, 1, 2}) {
		t.Errorf("%v", s.user.notReady)
	}
}

// TestNotReadyForLong: the number of answers saturates at its maximum.
func TestNotReadyForLong(t *testing.T) {
	s := newStage(t, true, nil)
	c := s.issue(post(abi.OpSend, 4))
	for range 300 {
		s.Handle(testNow, &falcon.Event{Kind: falcon.EvRNR, Tag: c.tag})
	}
	if n := s.user.notReady; n[253] != 254 || n[254] != 255 || n[255] != 255 || n[299] != 255 {
		t.Errorf("%v", n)
	}
}
