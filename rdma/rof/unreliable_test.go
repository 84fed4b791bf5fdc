package rof

import (
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

func unreliable(t *transport.Terms) { t.Unreliable = true }

// part is a packet of an unreliable connection's peer, and how many bytes of data it has.
type part struct {
	op     ib.Opcode
	sn     uint32
	offset uint32
	n      int
}

// TestUnreliableMessages: a message is complete if all its packets came, one after the other. What
// is left of one that lost a packet is not placed, and the next has its number.
func TestUnreliableMessages(t *testing.T) {
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

// TestUnreliableLosses: a message is lost if a packet of it is invalid, is not accepted by the
// queue pair, or was sent without data. The peer is told of none of that.
func TestUnreliableLosses(t *testing.T) {
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

// TestUnreliablePeers: an unreliable connection knows packets of another one's, READs, and who
// serves nobody.
func TestUnreliablePeers(t *testing.T) {
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

// TestUnreliableEnds: a packet is done with success whatever the peer answered, unless its data
// could not be read.
func TestUnreliableEnds(t *testing.T) {
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
