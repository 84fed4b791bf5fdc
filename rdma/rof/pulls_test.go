package rof

import (
	"bytes"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/rof/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// read asks for n bytes of this end's memory; its number among READs and atomics is that among all.
func read(sn, n uint32) wire.Headers {
	h := headers(ib.ReadRequest, sn)
	h.SETH.RMSN = sn
	h.RETH = ib.RETH{VA: 0x1000, RKey: 4, Length: n}
	h.STETH = ib.STETH{VA: 0x2000, LKey: 6}
	return h
}

func atomic(op ib.Opcode, sn uint32) wire.Headers {
	h := headers(op, sn)
	h.SETH.RMSN = sn
	h.Atomic = ib.AtomicETH{VA: 0x1000, RKey: 4, SwapAdd: 20, Compare: 30}
	h.Mask = ib.AtomicMaskETH{SwapAdd: 1 << 7, Compare: 1 << 8}
	return h
}

const (
	readHeader   = 24 // of a response
	atomicLength = 32 // of a response with its headers
)

// TestReadsOfWrongLengthsAreRefused: a READ may have a packet's data; the peer may count the pad of the response or
// not, and then gets none. Other lengths are no requests.
func TestReadsOfWrongLengthsAreRefused(t *testing.T) {
	for _, c := range []struct {
		n     uint32
		asked int
		ok    bool
	}{
		{0, readHeader, true},
		{0, readHeader + 4, false},
		{1, readHeader + 4, true},
		{1, readHeader + 1, true},
		{1, readHeader + 2, false},
		{1, readHeader, false},
		{3, readHeader + 4, true},
		{3, readHeader + 3, true},
		{4, readHeader + 4, true},
		{4, readHeader + 3, false},
		{4, readHeader + 5, false},
		{testSegment - 1, readHeader + testSegment, true},
		{testSegment, readHeader + testSegment, true},
		{testSegment + 1, readHeader + testSegment + 4, false},
	} {
		s := newStage(t, true, nil)
		s.user.timer = 3
		call := s.pull(read(1, c.n), c.asked)
		h, data, err := s.response(call)
		if err != nil || call.what != "respond" || h.RBTH.CE == c.ok || h.RBTH.Opcode != ib.ReadRespOnly ||
			h.STETH != (ib.STETH{VA: 0x2000, LKey: 6}) {
			t.Errorf("READ of %d bytes asking for %d: %+v, %+v, %v", c.n, c.asked, call, h, err)
			continue
		}
		if !c.ok {
			if call.length != readHeader || h.RBTH.Syndrome != uint8(ib.SynInvalid) || len(data) != 0 ||
				!slices.Equal(s.user.refused, []transport.Refusal{transport.Invalid}) {
				t.Errorf("READ of %d bytes asking for %d: %+v, %+v, refused %v", c.n, c.asked, call, h, s.user.refused)
			}
			continue
		}
		want := make([]byte, c.n)
		for i := range want {
			want[i] = byte(i)
		}
		if call.length != c.asked || !bytes.Equal(data, want) || len(s.user.answered) != 1 ||
			s.user.answered[0] != int(c.n) || s.user.account.PullsRx != 1 {
			t.Errorf("READ of %d bytes asking for %d: %+v, data % x, charged %v", c.n, c.asked, call, data, s.user.answered)
		}
	}
}

// TestThePadOfAResponseIsZero: the pad of a response is zero, whatever its packet's memory held before.
func TestThePadOfAResponseIsZero(t *testing.T) {
	s := newStage(t, true, nil)
	c := s.pull(read(1, 5), readHeader+8)
	b := bytes.Repeat([]byte{0xee}, c.length+1)
	if n, err := s.Fill(falcon.TxnPullData, c.tag, b); err != nil || n != readHeader+8 ||
		!bytes.Equal(b[readHeader:], []byte{0, 1, 2, 3, 4, 0, 0, 0, 0xee}) {
		t.Errorf("%d, % x, %v", n, b[readHeader:], err)
	}
	if _, err := s.Fill(falcon.TxnPullData, c.tag, b[:c.length-1]); err == nil {
		t.Error("a response in less memory than it has bytes")
	}
}

// TestAnAtomicIsCarriedOutOnce: what the queue pair carries out by opcode, once, and what is answered. A response of
// another length than theirs is no request.
func TestAnAtomicIsCarriedOutOnce(t *testing.T) {
	for op, want := range map[ib.Opcode]abi.Opcode{
		ib.CmpSwap: abi.OpCmpSwap, ib.FetchAdd: abi.OpFetchAdd, ib.MaskedCmpSwap: abi.OpMaskedCmpSwap,
		ib.MaskedFetchAdd: abi.OpMaskedFetchAdd,
	} {
		for _, asked := range []int{atomicLength - 4, atomicLength, atomicLength + 4} {
			s := newStage(t, true, nil)
			s.user.original = 1 << 50
			call := s.pull(atomic(op, 1), asked)
			for range 2 { // sent again
				h, _, err := s.response(call)
				if good := asked == atomicLength; err != nil || call.length != atomicLength ||
					h.RBTH.Opcode != ib.AtomicResponse || h.RBTH.CE == good ||
					good != (h.AtomicAck.Original == 1<<50) || good != (len(s.user.atomics) == 1) {
					t.Errorf("%v asking for %d: %+v, %+v, %v", op, asked, call, h, err)
				}
			}
			x := transport.Atomic{Op: want, Addr: 0x1000, RKey: 4, Compare: 30, SwapAdd: 20}
			if op == ib.MaskedCmpSwap || op == ib.MaskedFetchAdd {
				x.Masks = abi.AtomicMasks{SwapAdd: 1 << 7, Compare: 1 << 8}
			}
			if asked == atomicLength && s.user.atomics[0] != x {
				t.Errorf("%v: carried out %+v, want %+v", op, s.user.atomics[0], x)
			}
		}
	}
}

// TestRefusedReadsAreAnsweredWithTheReason: the answers to READs that are refused, the counters, and whether the queue pair
// gets Refused.
func TestRefusedReadsAreAnsweredWithTheReason(t *testing.T) {
	other := read(1, 8)
	other.RBTH.DestQP++
	far := read(2, 8)
	far.SETH.RMSN = 1
	number := read(1, 8)
	number.SETH.RMSN = 2
	xrc := read(1, 8)
	xrc.RBTH.Opcode |= ib.XRC
	for name, c := range map[string]struct {
		terms   func(*transport.Terms)
		user    func(*endpoint)
		h       wire.Headers
		cut     int // bytes that are missing
		syn     ib.Syndrome
		counts  transport.Counters
		refused []transport.Refusal
	}{
		"cut short": {
			h: read(1, 8), cut: 4, syn: ib.SynInvalid, counts: transport.Counters{Refused: 1},
			refused: []transport.Refusal{transport.Invalid},
		},
		"reserved": {
			h: headers(ib.ReadRespOnly+1, 1), syn: ib.SynInvalid, counts: transport.Counters{Refused: 1},
			refused: []transport.Refusal{transport.Invalid},
		},
		"of another service": {
			h: xrc, syn: ib.SynInvalid, counts: transport.Counters{Refused: 1}, refused: []transport.Refusal{transport.Invalid},
		},
		"a SEND": {
			h: send(ib.SendOnly, 1, 1, 0), syn: ib.SynInvalid, counts: transport.Counters{Refused: 1},
			refused: []transport.Refusal{transport.Invalid},
		},
		"one left out": {
			h: far, syn: ib.SynSequence, counts: transport.Counters{Refused: 1}, refused: []transport.Refusal{transport.Sequence},
		},
		"another READ": {
			h: number, syn: ib.SynInvalid, counts: transport.Counters{Refused: 1}, refused: []transport.Refusal{transport.Invalid},
		},
		"nobody serves": {
			user: func(e *endpoint) { e.serving = false }, h: read(1, 8), syn: synNotServing,
			counts: transport.Counters{Refused: 1},
		},
		"no access": {
			user: func(e *endpoint) { e.refusal = transport.Access }, h: read(1, 8), syn: ib.SynAccess,
			counts: transport.Counters{Refused: 1}, refused: []transport.Refusal{transport.Access},
		},
		"no access, alone": {
			terms: inError, user: func(e *endpoint) { e.refusal = transport.Access }, h: read(1, 8), syn: ib.SynAccess,
			counts: transport.Counters{Refused: 1},
		},
	} {
		s := newStage(t, true, c.terms)
		if c.user != nil {
			c.user(s.user)
		}
		b := packet(c.h, nil)
		call := s.pullRaw(b[:len(b)-c.cut], readHeader+8)
		h, data, err := s.response(call)
		if err != nil || call.what != "respond" || call.length != readHeader || !h.RBTH.CE ||
			h.RBTH.Syndrome != uint8(c.syn) || len(data) != 0 || h.RBTH.SN != c.h.RBTH.SN {
			t.Errorf("%s: %+v, %+v, %v", name, call, h, err)
		}
		if u := s.user; u.account.Counters != c.counts || !slices.Equal(u.refused, c.refused) || u.heard != 1 ||
			len(u.answered) != 0 {
			t.Errorf("%s: counted %+v, refused %v, heard %d, charged %v", name, u.account.Counters, u.refused, u.heard,
				u.answered)
		}
	}
	s := newStage(t, true, nil)
	if c := s.pull(other, readHeader+8); c != (call{what: "nack", rsn: 1, code: falconwire.NackCID}) ||
		s.user.account.CIDMismatches != 1 || s.user.heard != 0 {
		t.Errorf("of another queue pair: %+v, %+v", c, s.user.account.Counters)
	}
}

// TestXRCPullsNeedAReachableReceiveQueue: an extended reliable connection answers in its service, if the queue that a
// request names is reached by it.
func TestXRCPullsNeedAReachableReceiveQueue(t *testing.T) {
	for _, none := range []bool{false, true} {
		s := newStage(t, true, extended)
		s.user.noSRQ = none
		for i, c := range []struct {
			h     wire.Headers
			asked int
			want  ib.Opcode
		}{
			{read(1, 8), readHeader + 8, ib.ReadRespOnly},
			{atomic(ib.FetchAdd, 2), atomicLength, ib.AtomicResponse},
			{atomic(ib.MaskedCmpSwap, 3), atomicLength, ib.AtomicResponse},
		} {
			c.h.RBTH.Opcode |= ib.XRC
			if h, _, err := s.response(s.pull(c.h, c.asked)); err != nil || h.RBTH.CE != none ||
				!none && h.RBTH.Opcode != ib.XRC|c.want {
				t.Errorf("request %d, no such queue %t: %+v, %v", i, none, h, err)
			}
		}
		if n := len(s.user.atomics); n != map[bool]int{false: 2}[none] {
			t.Errorf("no such queue %t: %d atomics", none, n)
		}
	}
}

// TestRefusedAloneGoesOn: behind a READ that was refused alone the next one has its turn; behind
// one that was not it has none.
func TestRefusedAloneGoesOn(t *testing.T) {
	for _, alone := range []bool{false, true} {
		s := newStage(t, true, func(t *transport.Terms) { t.InError = alone })
		s.user.refusal = transport.Access
		s.pull(read(1, 8), readHeader+8)
		s.user.refusal = transport.Accepted
		c := s.pull(read(2, 8), readHeader+8)
		if h, _, err := s.response(c); err != nil || h.RBTH.CE == alone {
			t.Errorf("alone %t: %+v, %v", alone, h, err)
		}
	}
}

// TestReadsWaitForTheRate: a READ waits until the function's rate lets it be answered, and is then
// carried out at once.
func TestReadsWaitForTheRate(t *testing.T) {
	s := newStage(t, true, nil)
	s.user.rate = testNow + 1
	if c := s.pull(read(1, 8), readHeader+8); c != (call{what: "defer", rsn: 1, at: testNow + 1}) || s.user.heard != 0 {
		t.Errorf("before the time: %+v", c)
	}
	if n := s.user.account.Counters; n != (transport.Counters{RateWaits: 1, PullsDeferred: 1}) {
		t.Errorf("counted %+v", n)
	}
	s.user.rate = testNow
	if c := s.pull(read(1, 8), readHeader+8); c.what != "respond" {
		t.Errorf("at the time: %+v", c)
	}
}

// TestPullsWaitWhileTooManyAreUnacknowledged: a connection keeps a limited number of requests whose responses are not
// acknowledged. The next request is deferred, and accepted when one was acknowledged. Responses of
// a set that was dropped are no longer found.
func TestPullsWaitWhileTooManyAreUnacknowledged(t *testing.T) {
	s := newStage(t, true, func(t *transport.Terms) { t.Serves = 2 * maxServed })
	calls := map[uint64]call{}
	for sn := range uint32(maxServed) {
		c := s.pull(read(1+sn, 8), readHeader+8)
		calls[c.tag] = c
	}
	if len(calls) != maxServed || s.user.account.PullsRx != maxServed {
		t.Fatalf("%d different tags, %+v", len(calls), s.user.account.Counters)
	}
	next := read(maxServed+1, 8)
	if c := s.pull(next, readHeader+8); c.what != "defer" || c.at != testNow+pullRetry ||
		s.user.account.PullsDeferred != 1 {
		t.Fatalf("one more: %+v", c)
	}
	first := s.pipe.calls[0]
	for range 2 { // once is enough
		s.Handle(testNow, &falcon.Event{Kind: falcon.EvResponseDone, Tag: first.tag})
	}
	if _, _, err := s.response(first); err == nil {
		t.Error("a response that was acknowledged is sent again")
	}
	if c := s.pull(next, readHeader+8); c.what != "respond" || c.tag != first.tag {
		t.Fatalf("one more, when one is done: %+v", c)
	}
	if c := s.pull(read(maxServed+2, 8), readHeader+8); c.what != "defer" {
		t.Fatalf("two more: %+v", c)
	}
	last := s.pipe.calls[1]
	if _, _, err := s.response(last); err != nil {
		t.Error(err)
	}
	if s.target.pulls.tagged(last.tag+1<<32) != nil || s.target.pulls.tagged(last.tag-1<<32) != nil ||
		s.target.pulls.tagged(last.tag&^0xffffffff|maxServed) != nil {
		t.Error("a tag of no request is found")
	}
	s.target.pulls.drop()
	if _, _, err := s.response(last); err == nil {
		t.Error("a response is sent that was dropped")
	}
}

// TestTooManyUnansweredReadsAreRefused: the peer may have a limited number of READs for which no response was sent.
// A response sent again counts once, and one that the pipe does not take no longer counts.
func TestTooManyUnansweredReadsAreRefused(t *testing.T) {
	s := newStage(t, true, func(t *transport.Terms) { t.Serves = 2 })
	sn := uint32(0)
	ask := func() (call, bool) {
		sn++
		refused := len(s.user.refused)
		return s.pull(read(sn, 8), readHeader+8), len(s.user.refused) == refused
	}
	first, ok := ask()
	if !ok {
		t.Fatal("the first is refused")
	}
	if _, ok := ask(); !ok {
		t.Fatal("the second is refused")
	}
	for range 3 {
		if _, _, err := s.response(first); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok := ask(); !ok {
		t.Fatal("the third is refused, when the first was answered")
	}
	if _, ok := ask(); ok {
		t.Fatal("the fourth is taken, and one was answered")
	}

	s, sn = newStage(t, true, func(t *transport.Terms) { t.Serves = 1 }), 0
	s.pipe.err = falcon.ErrClosed
	ask()
	s.pipe.err = nil
	if _, ok := ask(); !ok {
		t.Error("a request that the pipe gave up counts")
	}
	if _, ok := ask(); ok {
		t.Error("two at a time are taken of one")
	}
	if n := len(s.target.pulls.free); n != maxServed-2 {
		t.Errorf("%d free", n)
	}
}

// TestAtomicsInTurn: on an unordered connection an atomic waits for what was sent before it, a READ
// does not; in unordered mode neither does. (RFC 7306 §5.2.1)
func TestAtomicsInTurn(t *testing.T) {
	for name, c := range map[string]struct {
		terms func(*transport.Terms)
		h     wire.Headers
		asked int
		want  string
	}{
		"READ":                {nil, read(2, 8), readHeader + 8, "respond"},
		"atomic":              {nil, atomic(ib.FetchAdd, 2), atomicLength, "defer"},
		"unordered READ":      {unordered, read(2, 8), readHeader + 8, "respond"},
		"unordered atomic":    {unordered, atomic(ib.FetchAdd, 2), atomicLength, "respond"},
		"READ far ahead":      {nil, read(1+reorderWindow, 8), readHeader + 8, "defer"},
		"READ not as far":     {nil, read(reorderWindow, 8), readHeader + 8, "respond"},
		"atomic in its turn":  {nil, atomic(ib.CmpSwap, 1), atomicLength, "respond"},
		"masked atomic":       {nil, atomic(ib.MaskedCmpSwap, 2), atomicLength, "defer"},
		"other masked atomic": {nil, atomic(ib.MaskedFetchAdd, 2), atomicLength, "defer"},
		"CmpSwap":             {nil, atomic(ib.CmpSwap, 2), atomicLength, "defer"},
	} {
		s := newStage(t, false, c.terms)
		got := s.pull(c.h, c.asked)
		if got.what != c.want || len(s.user.refused) != 0 || got.what == "defer" && got.at != testNow+pullRetry {
			t.Errorf("%s: %+v, refused %v", name, got, s.user.refused)
		}
		if n := s.user.account.Counters; (n.PullsDeferred == 1) != (c.want == "defer") ||
			(n.PullsRx == 1) != (c.want == "respond") {
			t.Errorf("%s: counted %+v", name, n)
		}
		if free := len(s.target.pulls.free); (free == maxServed) != (c.want == "defer") {
			t.Errorf("%s: %d free", name, free)
		}
	}
}

// TestAnEarlyReadIsAnsweredAtOnce: a READ ahead of its turn is answered, and counts in its turn among READs.
func TestAnEarlyReadIsAnsweredAtOnce(t *testing.T) {
	s := newStage(t, false, nil)
	second, third := read(3, 8), read(4, 8)
	second.SETH.RMSN, third.SETH.RMSN = 1, 2
	for _, h := range []wire.Headers{third, second} {
		if c := s.pull(h, readHeader+8); c.what != "respond" {
			t.Fatalf("%+v", c)
		}
	}
	s.push(send(ib.SendFirst, 1, 1, 0), []byte("1234"))
	s.push(send(ib.SendLast, 2, 1, 4), []byte("5678"))
	if len(s.user.refused) != 0 || !slices.Equal(s.user.completed, []completion{{1, 8, abi.WCSuccess}}) ||
		s.target.expected != 5 || s.target.nextPull != 3 {
		t.Errorf("refused %v, complete %v, next %d, READ %d", s.user.refused, s.user.completed, s.target.expected,
			s.target.nextPull)
	}
}

// TestReadMemoryGone: a READ whose memory is gone when its response is sent fails as an operational
// error, also when it is sent again: nothing is read again. A READ of 0 bytes needs no memory.
func TestReadMemoryGone(t *testing.T) {
	s := newStage(t, true, nil)
	c, nothing := s.pull(read(1, 8), readHeader+8), s.pull(read(2, 0), readHeader)
	s.user.gone = true
	for range 2 {
		h, data, err := s.response(c)
		if err != nil || !h.RBTH.CE || h.RBTH.Syndrome != uint8(ib.SynOperation) || len(data) != 0 || s.user.reads != 1 {
			t.Fatalf("%+v, %v, read %d times", h, err, s.user.reads)
		}
		s.user.gone = false
	}
	s.user.gone = true
	if h, _, err := s.response(nothing); err != nil || h.RBTH.CE {
		t.Errorf("READ of nothing: %+v, %v", h, err)
	}
}
