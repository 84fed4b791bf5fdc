package rof

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/rof/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// reply is a response of the peer to this end's request sn, with data.
func reply(op ib.Opcode, sn uint32, change func(*wire.Headers), data []byte) []byte {
	h := headers(op, sn)
	if change != nil {
		change(&h)
	}
	return packet(h, data)
}

// TestReadResponses: a READ's data is taken from a response of any of a READ's kinds, to this queue
// pair, with its number and as long as was asked for. All others are errors.
func TestReadResponses(t *testing.T) {
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

// TestAtomicResponses: what an atomic found is placed in the guest's byte order.
func TestAtomicResponses(t *testing.T) {
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
