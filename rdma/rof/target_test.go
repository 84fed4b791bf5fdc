package rof

import (
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/rof/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// send is a packet of a SEND of the peer.
func send(op ib.Opcode, sn, message, offset uint32) wire.Headers {
	h := headers(op, sn)
	h.SETH.RMSN, h.OETH.Offset = message, offset
	return h
}

// unordered, inError and extended are terms of queue pairs beside the plain one.
func unordered(t *transport.Terms) { t.Unordered, t.InError = true, true }
func inError(t *transport.Terms)   { t.InError = true }
func extended(t *transport.Terms)  { t.XRC = true }

// refusal is the answer to a push that fails both sides.
func refusal(syn ib.Syndrome) call {
	return call{what: "nack", code: falconwire.NackNRE, ulp: uint8(syn)}
}

// TestEachErrorOfAPushHasItsAnswer: the answer to the first packet of a peer, the counters and the calls, for each
// possible error.
func TestEachErrorOfAPushHasItsAnswer(t *testing.T) {
	ack := call{what: "ack"}
	only := send(ib.SendOnly, 1, 1, 0)
	other := only
	other.RBTH.DestQP++
	for name, c := range map[string]struct {
		terms   func(*transport.Terms)
		weak    bool // an unordered connection
		user    func(*endpoint)
		packet  []byte
		want    call
		counts  transport.Counters
		heard   bool
		placed  bool
		refused []transport.Refusal
		done    []completion
	}{
		"taken": {
			packet: packet(only, []byte("abcde")), want: ack, counts: transport.Counters{PushesRx: 1, BytesRx: 5},
			heard: true, placed: true, done: []completion{{1, 5, abi.WCSuccess}},
		},
		"of another queue pair": {
			packet: packet(other, nil), want: call{what: "nack", code: falconwire.NackCID},
			counts: transport.Counters{CIDMismatches: 1},
		},
		"nobody serves": {
			user: func(e *endpoint) { e.serving = false }, packet: packet(only, nil),
			want: refusal(synNotServing), counts: transport.Counters{Refused: 1},
		},
		"cut short": {
			packet: packet(only, nil)[:16], want: refusal(ib.SynInvalid), counts: transport.Counters{Refused: 1}, heard: true,
			refused: []transport.Refusal{transport.Invalid},
		},
		"not of whole words": {
			packet: append(packet(only, nil), 1), want: refusal(ib.SynInvalid), counts: transport.Counters{Refused: 1}, heard: true,
			refused: []transport.Refusal{transport.Invalid},
		},
		"of XRC": {
			packet: packet(send(ib.XRC|ib.SendOnly, 1, 1, 0), nil), want: refusal(ib.SynInvalid),
			counts: transport.Counters{Refused: 1}, heard: true, refused: []transport.Refusal{transport.Invalid},
		},
		"XRC": {
			terms: extended, packet: packet(send(ib.XRC|ib.SendOnly, 1, 1, 0), nil), want: ack,
			counts: transport.Counters{PushesRx: 1}, heard: true, placed: true, done: []completion{{1, 0, abi.WCSuccess}},
		},
		"XRC, not of it": {
			terms: extended, packet: packet(only, nil), want: refusal(ib.SynInvalid), counts: transport.Counters{Refused: 1},
			heard: true, refused: []transport.Refusal{transport.Invalid},
		},
		"XRC, no such queue": {
			terms: extended, user: func(e *endpoint) { e.noSRQ = true },
			packet: packet(send(ib.XRC|ib.SendOnly, 1, 1, 0), nil), want: refusal(ib.SynInvalid),
			counts: transport.Counters{Refused: 1}, heard: true, refused: []transport.Refusal{transport.Invalid},
		},
		"a READ as a push": {
			packet: packet(headers(ib.ReadRequest, 1), nil), want: refusal(ib.SynInvalid), counts: transport.Counters{Refused: 1},
			heard: true, refused: []transport.Refusal{transport.Invalid},
		},
		"one left out": {
			packet: packet(send(ib.SendOnly, 2, 1, 0), nil), want: refusal(ib.SynSequence),
			counts: transport.Counters{Refused: 1}, heard: true, refused: []transport.Refusal{transport.Sequence},
		},
		"one left out, unordered": {
			weak: true, packet: packet(send(ib.SendOnly, 2, 2, 0), nil), want: ack, counts: transport.Counters{PushesRx: 1},
			heard: true, placed: true,
		},
		"too far ahead, unordered": {
			weak: true, user: func(e *endpoint) { e.timer = 9 }, packet: packet(send(ib.SendOnly, 1+reorderWindow, 2, 0), nil),
			want:   call{what: "nack", code: falconwire.NackRNR, rnr: 9, ulp: uint8(ib.SynRNR) | 9},
			counts: transport.Counters{RNRTx: 1}, heard: true,
		},
		"no message": {
			packet: packet(send(ib.SendLast, 1, 1, 0), nil), want: refusal(ib.SynInvalid), counts: transport.Counters{Refused: 1},
			heard: true, refused: []transport.Refusal{transport.Invalid},
		},
		"no receive": {
			user: func(e *endpoint) { e.timer, e.verdict.Refusal = 17, transport.NotReady }, packet: packet(only, nil),
			want:   call{what: "nack", code: falconwire.NackRNR, rnr: 17, ulp: uint8(ib.SynRNR) | 17},
			counts: transport.Counters{RNRTx: 1}, heard: true, placed: true,
		},
		"refused": {
			user: func(e *endpoint) { e.verdict.Refusal = transport.Access }, packet: packet(only, nil),
			want:   refusal(ib.SynAccess),
			counts: transport.Counters{Refused: 1}, heard: true, placed: true,
		},
		"refused alone": {
			terms: inError,
			user: func(e *endpoint) {
				e.verdict = transport.Verdict{Refusal: transport.Access, Alone: true, Failed: abi.WCLocAccessErr}
			},
			packet: packet(only, []byte("abc")), want: call{what: "nack", code: falconwire.NackCIE, ulp: uint8(ib.SynAccess)},
			counts: transport.Counters{Refused: 1}, heard: true, placed: true, done: []completion{{1, 3, abi.WCLocAccessErr}},
		},
		"its receive failed": {
			terms: inError, user: func(e *endpoint) { e.verdict.Failed = abi.WCLocLenErr },
			packet: packet(only, []byte("abc")), want: ack,
			heard: true, placed: true, done: []completion{{1, 3, abi.WCLocLenErr}},
		},
	} {
		s := newStage(t, !c.weak, c.terms)
		if c.user != nil {
			c.user(s.user)
		}
		c.want.rsn = 1
		if got := s.pushRaw(c.packet); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
		u := s.user
		if u.account.Counters != c.counts || (u.heard == 1) != c.heard || (len(u.placed) == 1) != c.placed || u.settled != 1 {
			t.Errorf("%s: counted %+v, heard %d, placed %d, settled %d", name, u.account.Counters, u.heard, len(u.placed),
				u.settled)
		}
		if !slices.Equal(u.refused, c.refused) || !slices.Equal(u.completed, c.done) {
			t.Errorf("%s: refused %v, complete %v", name, u.refused, u.completed)
		}
	}
}

// TestNotReadyPacketComesAgain: behind a packet that was not ready, later packets are answered
// not-ready too, until it arrives again. After that a gap is an error again.
func TestNotReadyPacketComesAgain(t *testing.T) {
	s := newStage(t, true, nil)
	again := func(c call) bool { return c.what == "nack" && c.code == falconwire.NackRNR }
	s.user.verdict.Refusal = transport.NotReady
	if c := s.push(send(ib.SendOnly, 1, 1, 0), nil); !again(c) {
		t.Fatalf("without a receive: %+v", c)
	}
	s.user.verdict.Refusal = transport.Accepted
	if c := s.push(send(ib.SendOnly, 2, 2, 0), nil); !again(c) || len(s.user.placed) != 1 {
		t.Fatalf("behind it: %+v", c)
	}
	for sn := uint32(1); sn <= 2; sn++ {
		if c := s.push(send(ib.SendOnly, sn, sn, 0), nil); c.what != "ack" {
			t.Fatalf("packet %d, when it comes again: %+v", sn, c)
		}
	}
	c := s.push(send(ib.SendOnly, 4, 4, 0), nil)
	if want := refusal(ib.SynSequence); c.code != want.code || c.ulp != want.ulp {
		t.Errorf("a gap: %+v", c)
	}
	if n := s.user.account.Counters; n.RNRTx != 2 || n.Refused != 1 || n.PushesRx != 2 {
		t.Errorf("%+v", n)
	}
}

// TestEarlyPacketsArePlacedButCompleteInOrder: on an unordered connection data is placed as it comes, and messages complete in
// the order of the requests.
func TestEarlyPacketsArePlacedButCompleteInOrder(t *testing.T) {
	s := newStage(t, false, nil)
	for _, p := range []struct {
		h    wire.Headers
		n    int
		done []completion // by then
	}{
		{send(ib.SendOnly, 4, 2, 0), 7, nil},
		{send(ib.SendLast, 2, 1, 5), 3, nil},
		{headers(ib.WriteOnly, 3), 20, nil},
		{send(ib.SendFirst, 1, 1, 0), 5, []completion{{1, 8, abi.WCSuccess}, {2, 7, abi.WCSuccess}}},
	} {
		if c := s.push(p.h, make([]byte, p.n)); c.what != "ack" || !slices.Equal(s.user.completed, p.done) {
			t.Errorf("packet %d: %+v, complete %v", p.h.RBTH.SN, c, s.user.completed)
		}
	}
	if c := s.push(send(ib.SendOnly, 4, 2, 0), nil); c.ulp != uint8(ib.SynSequence) {
		t.Errorf("a packet that came before: %+v", c)
	}
	if n := s.user.account.Counters; len(s.user.placed) != 4 || n.PushesRx != 4 || n.BytesRx != 35 {
		t.Errorf("%d placed, %+v", len(s.user.placed), n)
	}
}

// TestEarlyPacketOfNoMessage: a packet that arrived early is checked when its turn comes, and fails
// the queue pair if it does not fit.
func TestEarlyPacketOfNoMessage(t *testing.T) {
	s := newStage(t, false, nil)
	for _, sn := range []uint32{3, 2} {
		if c := s.push(send(ib.SendOnly, sn, 9-sn, 0), nil); c.what != "ack" || len(s.user.refused) != 0 {
			t.Fatalf("before its turn: %+v, refused %v", c, s.user.refused)
		}
	}
	s.push(send(ib.SendOnly, 1, 1, 0), nil)
	if u := s.user; !slices.Equal(u.refused, []transport.Refusal{transport.Invalid}) || len(u.completed) != 1 ||
		u.account.Refused != 1 {
		t.Errorf("refused %v, complete %v, counted %+v", u.refused, u.completed, u.account.Counters)
	}
}

// TestEarlyPacketsBehindAnError: nothing completes any more when the queue pair failed with what
// was before it.
func TestEarlyPacketsBehindAnError(t *testing.T) {
	s := newStage(t, false, nil)
	s.user.complete = func(*transport.Packet, completion) { s.user.serving = false }
	s.push(send(ib.SendOnly, 2, 2, 0), nil)
	s.push(send(ib.SendOnly, 1, 1, 0), nil)
	if len(s.user.completed) != 1 {
		t.Errorf("complete %v", s.user.completed)
	}
}

// TestUnorderedMessagesCompleteAsTheyCome: in unordered mode each message completes as it comes, once, and what takes
// a receive has one packet.
func TestUnorderedMessagesCompleteAsTheyCome(t *testing.T) {
	s := newStage(t, false, unordered)
	for i, p := range []wire.Headers{
		send(ib.SendOnly, 3, 2, 0), headers(ib.WriteFirst, 4), send(ib.WriteOnlyImm, 2, 1, 0),
		headers(ib.WriteOnly, 1), headers(ib.WriteLast, 5),
	} {
		if c := s.push(p, make([]byte, 4+i)); c.what != "ack" {
			t.Errorf("packet %d: %+v", p.RBTH.SN, c)
		}
	}
	if want := []completion{{2, 4, abi.WCSuccess}, {1, 6, abi.WCSuccess}}; !slices.Equal(s.user.completed, want) {
		t.Errorf("complete %v, want %v", s.user.completed, want)
	}
	for _, op := range []ib.Opcode{ib.SendFirst, ib.SendMiddle, ib.SendLast, ib.WriteLastImm} {
		s := newStage(t, false, unordered)
		if c := s.push(send(op, 1, 1, 0), nil); c.ulp != uint8(ib.SynInvalid) ||
			!slices.Equal(s.user.refused, []transport.Refusal{transport.Invalid}) {
			t.Errorf("%v: %+v, refused %v", op, c, s.user.refused)
		}
	}
}

// TestMessagesOfSeveralPackets: a message is as long as its packets together; it failed if one of
// them did, and the next has nothing of that.
func TestMessagesOfSeveralPackets(t *testing.T) {
	s := newStage(t, true, inError)
	sn := uint32(0)
	packet := func(op ib.Opcode, message, offset uint32, n int, failed abi.WCStatus) {
		t.Helper()
		sn++
		s.user.verdict.Failed = failed
		if c := s.push(send(op, sn, message, offset), make([]byte, n)); c.what != "ack" {
			t.Fatalf("packet %d: %+v", sn, c)
		}
	}
	packet(ib.SendFirst, 1, 0, 10, abi.WCSuccess)
	packet(ib.SendMiddle, 1, 10, 20, abi.WCLocLenErr)
	packet(ib.SendLast, 1, 30, 3, abi.WCSuccess)
	packet(ib.SendFirst, 2, 0, 4, abi.WCSuccess)
	packet(ib.SendLast, 2, 4, 5, abi.WCSuccess)
	packet(ib.WriteFirst, 0, 0, 30, abi.WCSuccess)
	packet(ib.WriteLast, 0, 0, 5, abi.WCSuccess)
	packet(ib.WriteFirst, 0, 0, 30, abi.WCSuccess)
	packet(ib.WriteLastImm, 3, 0, 2, abi.WCSuccess)
	want := []completion{{1, 33, abi.WCLocLenErr}, {2, 9, abi.WCSuccess}, {3, 32, abi.WCSuccess}}
	if !slices.Equal(s.user.completed, want) {
		t.Errorf("complete %v, want %v", s.user.completed, want)
	}
	if n := s.user.account.Counters; n.PushesRx != 8 || n.BytesRx != 89 {
		t.Errorf("%+v", n) // what failed is not in its place
	}
}

// TestAPacketIsPassedOnAsItsOpcodeSays: what the queue pair is told about a packet, by opcode.
func TestAPacketIsPassedOnAsItsOpcodeSays(t *testing.T) {
	for op, want := range map[ib.Opcode]transport.Packet{
		ib.SendFirst:    {Op: abi.OpSend, First: true, Imm: 7},
		ib.SendMiddle:   {Op: abi.OpSend, Imm: 7},
		ib.SendLast:     {Op: abi.OpSend, Last: true, Imm: 7},
		ib.SendOnly:     {Op: abi.OpSend, First: true, Last: true, Imm: 7},
		ib.SendLastImm:  {Op: abi.OpSendImm, Last: true, Imm: 7},
		ib.SendOnlyImm:  {Op: abi.OpSendImm, First: true, Last: true, Imm: 7},
		ib.SendLastInv:  {Op: abi.OpSendInv, Last: true, Imm: 8},
		ib.SendOnlyInv:  {Op: abi.OpSendInv, First: true, Last: true, Imm: 8},
		ib.WriteFirst:   {Op: abi.OpWrite, First: true, Imm: 7},
		ib.WriteMiddle:  {Op: abi.OpWrite, Imm: 7},
		ib.WriteLast:    {Op: abi.OpWrite, Last: true, Imm: 7},
		ib.WriteOnly:    {Op: abi.OpWrite, First: true, Last: true, Imm: 7},
		ib.WriteLastImm: {Op: abi.OpWriteImm, Last: true, Imm: 7},
		ib.WriteOnlyImm: {Op: abi.OpWriteImm, First: true, Last: true, Imm: 7},
	} {
		x := &target{end: &end{e: New()}}
		h := &wire.Headers{
			RBTH: wire.RBTH{Opcode: op, Solicited: true, CE: true},
			Extended: ib.Extended{
				SETH: ib.SETH{RMSN: 3},
				OETH: ib.OETH{Offset: 4},
				RETH: ib.RETH{VA: 1 << 40, RKey: 5, Length: 6},
				Imm:  ib.ImmDt{Data: 7},
				Inv:  ib.IETH{RKey: 8},
			},
		}
		want.Solicited, want.Spoiled, want.ID, want.Message, want.Offset, want.Length = true, true, 2, 3, 4, 9
		want.Addr, want.RKey, want.Claimed = 1<<40, 5, 6
		a := x.decode(h, 2, make([]byte, 9))
		class := classWrite
		if op <= ib.SendOnlyImm || op == ib.SendLastInv || op == ib.SendOnlyInv {
			class = classSend
		}
		if a.Packet != want || !a.present || a.class != class || a.failed != abi.WCSuccess {
			t.Errorf("%v: %+v, want %+v", op, a, want)
		}
	}
}

// TestPacketsHaveTheirPlaceInAMessage: what may follow what, by class, offset, number and length.
func TestPacketsHaveTheirPlaceInAMessage(t *testing.T) {
	send := func(first bool, message, offset, length uint32) arrival {
		return arrival{class: classSend, Packet: transport.Packet{Op: abi.OpSend, First: first, Message: message, Offset: offset, Length: length}}
	}
	write := func(first bool, offset, length uint32) arrival {
		return arrival{class: classWrite, Packet: transport.Packet{Op: abi.OpWrite, First: first, Message: 99, Offset: offset, Length: length}}
	}
	pull := func(message uint32) arrival {
		return arrival{class: classPull, Packet: transport.Packet{First: true, Message: message}}
	}
	for name, c := range map[string]struct {
		class messageClass // of the message that is unfinished
		bytes uint64       // of it
		next  arrival
		want  bool
	}{
		"first of a SEND":                       {classNone, 0, send(true, 5, 0, 10), true},
		"first of a SEND, after a long message": {classNone, maxMessage, send(true, 5, 0, 10), true},
		"first of a SEND, not at its beginning": {classNone, 0, send(true, 5, 1, 10), false},
		"first of another SEND":                 {classNone, 0, send(true, 6, 0, 10), false},
		"first in a SEND":                       {classSend, 100, send(true, 5, 0, 10), false},
		"middle of a SEND":                      {classSend, 100, send(false, 5, 100, 10), true},
		"middle of a SEND, before its place":    {classSend, 100, send(false, 5, 99, 10), false},
		"middle of another SEND":                {classSend, 100, send(false, 6, 100, 10), false},
		"middle of a SEND without its first":    {classNone, 0, send(false, 5, 0, 10), false},
		"middle of a SEND in a WRITE":           {classWrite, 100, send(false, 5, 100, 10), false},
		"end of the longest SEND":               {classSend, maxMessage - 10, send(false, 5, maxMessage-10, 10), true},
		"end of a longer SEND":                  {classSend, maxMessage - 10, send(false, 5, maxMessage-10, 11), false},
		"first of a WRITE":                      {classNone, 0, write(true, 0, 10), true},
		"first of a WRITE in a SEND":            {classSend, 100, write(true, 0, 10), false},
		"middle of a WRITE":                     {classWrite, 100, write(false, 7, 10), true},
		"end of the longest WRITE":              {classWrite, maxMessage - 10, write(false, 0, 10), true},
		"end of a longer WRITE":                 {classWrite, maxMessage - 10, write(false, 0, 11), false},
		"next READ":                             {classNone, 0, pull(3), true},
		"another READ":                          {classNone, 0, pull(5), false},
		"a READ in a SEND":                      {classSend, 100, pull(3), false},
	} {
		x := target{message: 5, nextPull: 3, class: c.class, bytes: c.bytes}
		if got := x.legal(&c.next); got != c.want {
			t.Errorf("%s: legal is %t", name, got)
		}
	}
}

// admitStep is a packet so many numbers ahead of the one expected, and what becomes of it.
type admitStep struct {
	ahead int32
	want  admission
}

// TestPacketsAreAdmittedByNumber: what becomes of a packet by its distance from the one expected,
// on either kind of connection. Numbers wrap.
func TestPacketsAreAdmittedByNumber(t *testing.T) {
	for name, c := range map[string]struct {
		ordered, notReady bool
		steps             []admitStep
	}{
		"ordered":              {true, false, []admitStep{{-1, misplaced}, {0, admitted}, {1, misplaced}, {2, misplaced}}},
		"ordered, come again":  {true, true, []admitStep{{-1, misplaced}, {0, admitted}, {1, tooEarly}, {2, tooEarly}}},
		"unordered":            {false, false, unorderedSteps},
		"unordered, and again": {false, true, unorderedSteps},
	} {
		for _, expected := range []uint32{1, 5000, ^uint32(0) - 1} {
			x := target{end: &end{ordered: c.ordered}}
			x.begin()
			x.expected, x.notReady = expected, c.notReady
			if !c.ordered {
				x.arrivals[(expected+7)%reorderWindow].present = true
			}
			for _, s := range c.steps {
				if got := x.admit(expected + uint32(s.ahead)); got != s.want {
					t.Errorf("%s: %d ahead of %d: %d, want %d", name, s.ahead, expected, got, s.want)
				}
			}
		}
	}
}

// unorderedSteps: the packet 7 ahead is there already, and what is a window ahead of that is no
// copy of it.
var unorderedSteps = []admitStep{
	{-1, misplaced},
	{-1000, misplaced},
	{0, admitted},
	{1, admitted},
	{6, admitted},
	{7, misplaced},
	{8, admitted},
	{reorderWindow - 1, admitted},
	{reorderWindow, tooEarly},
	{reorderWindow + 1, tooEarly},
	{reorderWindow + 7, tooEarly},
}

func unreliable(t *transport.Terms) { t.Unreliable = true }

// part is a packet of an unreliable connection's peer, and how many bytes of data it has.
type part struct {
	op     ib.Opcode
	sn     uint32
	offset uint32
	n      int
}

// TestUnreliableMessagesCompleteOnlyWhenWhole: a message is complete if all its packets came, one after the other. What
// is left of one that lost a packet is not placed, and the next has its number.
func TestUnreliableMessagesCompleteOnlyWhenWhole(t *testing.T) {
	for name, c := range map[string]struct {
		parts  []part
		placed []uint32 // sequence numbers
		want   []completion
	}{
		"whole": {
			[]part{
				{ib.SendFirst, 1, 0, 10},
				{ib.SendMiddle, 2, 10, 20},
				{ib.SendLast, 3, 30, 3},
				{ib.SendOnlyImm, 4, 0, 7},
			},
			[]uint32{1, 2, 3, 4},
			[]completion{{1, 33, abi.WCSuccess}, {2, 7, abi.WCSuccess}},
		},
		"without its first": {
			[]part{{ib.SendMiddle, 2, 10, 10}, {ib.SendLast, 3, 20, 10}, {ib.SendOnly, 4, 0, 7}},
			[]uint32{4},
			[]completion{{1, 7, abi.WCSuccess}},
		},
		"without its middle": {
			[]part{{ib.SendFirst, 1, 0, 10}, {ib.SendLast, 3, 20, 10}, {ib.SendOnly, 4, 0, 7}},
			[]uint32{1, 4},
			[]completion{{1, 7, abi.WCSuccess}},
		},
		"without its last": {
			[]part{{ib.SendFirst, 1, 0, 10}, {ib.SendFirst, 3, 0, 20}, {ib.SendLast, 4, 20, 3}},
			[]uint32{1, 3, 4},
			[]completion{{1, 23, abi.WCSuccess}},
		},
		"without all between two firsts": {
			[]part{{ib.SendFirst, 1, 0, 10}, {ib.SendFirst, 2, 0, 20}, {ib.SendLast, 3, 20, 3}},
			[]uint32{1, 2, 3},
			[]completion{{1, 23, abi.WCSuccess}},
		},
		"only, after a gap": {
			[]part{{ib.SendOnly, 9, 0, 5}, {ib.SendOnly, 10, 0, 6}},
			[]uint32{9, 10},
			[]completion{{1, 5, abi.WCSuccess}, {2, 6, abi.WCSuccess}},
		},
		"numbers that wrap": {
			[]part{{ib.SendFirst, ^uint32(0), 0, 5}, {ib.SendLast, 0, 5, 6}},
			[]uint32{^uint32(0), 0},
			[]completion{{1, 11, abi.WCSuccess}},
		},
		"WRITEs": {
			[]part{
				{ib.WriteFirst, 1, 0, 10},
				{ib.WriteLast, 2, 0, 10},
				{ib.WriteFirst, 3, 0, 10},
				{ib.WriteLastImm, 4, 0, 5},
				{ib.WriteMiddle, 5, 0, 9},
			},
			[]uint32{1, 2, 3, 4},
			[]completion{{1, 15, abi.WCSuccess}},
		},
		"a WRITE in a SEND": {
			[]part{{ib.SendFirst, 1, 0, 10}, {ib.WriteMiddle, 2, 0, 10}, {ib.SendLast, 3, 10, 10}},
			[]uint32{1},
			nil,
		},
		"not in its place": {
			[]part{{ib.SendFirst, 1, 0, 10}, {ib.SendLast, 2, 9, 10}, {ib.SendOnly, 3, 0, 1}},
			[]uint32{1, 3},
			[]completion{{1, 1, abi.WCSuccess}},
		},
	} {
		s := newStage(t, true, unreliable)
		bytes, placed := uint64(0), []uint32{}
		for _, p := range c.parts {
			before := len(s.user.placed)
			h := send(ib.UC|p.op, p.sn, 77, p.offset) // their own numbers of messages do not matter
			if got := s.push(h, make([]byte, p.n)); got.what != "ack" || got.rsn != s.rsn {
				t.Errorf("%s: packet %d: %+v", name, p.sn, got)
			}
			if len(s.user.placed) > before {
				placed, bytes = append(placed, p.sn), bytes+uint64(p.n)
			}
		}
		if !slices.Equal(placed, c.placed) || !slices.Equal(s.user.completed, c.want) || len(s.user.refused) != 0 {
			t.Errorf("%s: placed %v, want %v; complete %v, want %v", name, placed, c.placed, s.user.completed, c.want)
		}
		if want := (transport.Counters{PushesRx: uint64(len(placed)), BytesRx: bytes}); s.user.account.Counters != want ||
			s.user.heard != len(c.parts) || s.user.settled != len(c.parts) {
			t.Errorf("%s: counted %+v, heard %d, settled %d", name, s.user.account.Counters, s.user.heard, s.user.settled)
		}
	}
}

// TestABadPacketQuietlyLosesItsUnreliableMessage: a message is lost if a packet of it is invalid, is not accepted by the
// queue pair, or was sent without data. The peer is told of none of that.
func TestABadPacketQuietlyLosesItsUnreliableMessage(t *testing.T) {
	first := packet(send(ib.UC|ib.SendFirst, 1, 0, 0), make([]byte, 8))
	spoiled := send(ib.UC|ib.SendFirst, 1, 0, 0)
	spoiled.RBTH.CE = true
	for name, c := range map[string]struct {
		b      []byte
		user   func(*endpoint)
		placed int
	}{
		"cut short":            {b: first[:16]},
		"not whole words":      {b: append(slices.Clone(first), 0)},
		"of another service":   {b: packet(send(ib.SendFirst, 1, 0, 0), make([]byte, 8))},
		"no packet of a SEND":  {b: packet(headers(ib.UC|ib.ReadRequest, 1), make([]byte, 8))},
		"spoiled":              {b: packet(spoiled, make([]byte, 8))},
		"refused":              {b: first, user: func(e *endpoint) { e.verdict.Refusal = transport.Access }, placed: 1},
		"without a receive":    {b: first, user: func(e *endpoint) { e.verdict.Refusal = transport.NotReady }, placed: 1},
		"nobody serves it now": {b: first, user: func(e *endpoint) { e.stops = true }, placed: 1},
	} {
		s := newStage(t, true, unreliable)
		if c.user != nil {
			c.user(s.user)
		}
		if got := s.pushRaw(c.b); got != (call{what: "ack", rsn: 1}) || len(s.user.placed) != c.placed ||
			s.user.account.Counters != (transport.Counters{}) {
			t.Errorf("%s: %+v, %d placed, counted %+v", name, got, len(s.user.placed), s.user.account.Counters)
		}
		s.user.verdict, s.user.serving = transport.Verdict{}, true
		s.push(send(ib.UC|ib.SendLast, 2, 0, 8), make([]byte, 8))
		if len(s.user.placed) != c.placed || len(s.user.completed) != 0 {
			t.Errorf("%s: what is left of it: %d placed, complete %v", name, len(s.user.placed), s.user.completed)
		}
	}
}

// TestUnreliableConnectionsRefuseStrayPacketsAndReads: an unreliable connection refuses packets for another
// queue pair and READs, and drops messages while its queue pair serves nobody.
func TestUnreliableConnectionsRefuseStrayPacketsAndReads(t *testing.T) {
	s := newStage(t, true, unreliable)
	other := send(ib.UC|ib.SendOnly, 1, 0, 0)
	other.RBTH.DestQP++
	if c := s.push(other, nil); c != (call{what: "nack", rsn: 1, code: falconwire.NackCID}) ||
		s.user.account.CIDMismatches != 1 || s.user.heard != 0 {
		t.Errorf("of another queue pair: %+v, %+v", c, s.user.account.Counters)
	}
	if c := s.pull(read(1, 8), readHeader+8); c != (call{what: "nack", rsn: 2, code: falconwire.NackCID}) {
		t.Errorf("a READ: %+v", c)
	}
	s.user.serving = false
	if c := s.push(send(ib.UC|ib.SendOnly, 1, 0, 0), nil); c != (call{what: "ack", rsn: 3}) || s.user.heard != 0 ||
		len(s.user.placed) != 0 {
		t.Errorf("nobody serves: %+v, heard %d, placed %d", c, s.user.heard, len(s.user.placed))
	}
}

// TestUnreliablePacketsSucceedWhateverThePeerAnswers: a packet is done with success whatever the peer answered, unless its data
// could not be read.
func TestUnreliablePacketsSucceedWhateverThePeerAnswers(t *testing.T) {
	s := newStage(t, true, unreliable)
	refused, unanswered, gone := s.issue(post(abi.OpSend, 8)), s.issue(post(abi.OpSend, 8)), s.issue(post(abi.OpSend, 8))
	if h, _ := s.request(refused); h.RBTH.Opcode != ib.UC|ib.SendOnly {
		t.Errorf("%+v", h)
	}
	s.answer(refused, falcon.CmplTargetNackNRE, ib.SynAccess, nil)
	s.answer(unanswered, falcon.CmplLocalTO, synNone, nil)
	s.user.gone = true
	if _, err := s.Fill(falcon.TxnPush, gone.tag, make([]byte, 400)); err == nil {
		t.Error("a packet without its data is sent")
	}
	s.answer(gone, falcon.CmplLocalXlr, synNone, nil)
	if want := []outcome{{}, {}, {abi.WCLocProtErr, 0}}; !slices.Equal(s.user.done, want) {
		t.Errorf("%+v, want %+v", s.user.done, want)
	}
}
