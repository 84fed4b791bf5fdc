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

// TestConnectionsAcceptOnlyTermsThatFit: the terms that a connection accepts: segments of whole words and at least
// leastSegment bytes, and a peer whose number fits.
func TestConnectionsAcceptOnlyTermsThatFit(t *testing.T) {
	for name, c := range map[string]struct {
		mtu       int // of the pipe
		path      int
		peer      uint32
		unordered bool
		terms     func(*transport.Terms)
		segment   int // 0: refused
	}{
		"ordinary":               {mtu: 4096, path: 1024, segment: 1024},
		"least":                  {mtu: 4096, path: 64, segment: 64},
		"less":                   {mtu: 4096, path: 63},
		"no whole words":         {mtu: 4096, path: 71, segment: 68},
		"least pipe":             {mtu: 64 + wire.MaxDataHeaderLen, path: 1024, segment: 64},
		"smaller pipe":           {mtu: 63 + wire.MaxDataHeaderLen, path: 1024},
		"pipe of a path's":       {mtu: 1024 + wire.MaxDataHeaderLen, path: 1024, segment: 1024},
		"greatest peer":          {mtu: 4096, path: 1024, peer: 1<<24 - 1, segment: 1024},
		"no peer's number":       {mtu: 4096, path: 1024, peer: 1 << 24},
		"unordered":              {mtu: 4096, path: 1024, unordered: true, segment: 1024},
		"unreliable":             {mtu: 4096, path: 1024, terms: unreliable, segment: 1024},
		"unreliable, no order":   {mtu: 4096, path: 1024, unordered: true, terms: unreliable},
		"extended, no order too": {mtu: 4096, path: 1024, unordered: true, terms: extended, segment: 1024},
	} {
		conn := New().Over(&pipe{cfg: falcon.ConnConfig{MTU: c.mtu, Ordered: !c.unordered}})
		terms := &transport.Terms{Endpoint: &endpoint{}, PathMTU: c.path, Peer: c.peer, Account: &transport.Account{}}
		if c.terms != nil {
			c.terms(terms)
		}
		segment, ok := conn.Attach(terms)
		if segment != c.segment || ok != (c.segment > 0) {
			t.Errorf("%s: %d bytes, %t", name, segment, ok)
		}
		if _, again := conn.Attach(terms); again && ok {
			t.Errorf("%s: given twice", name)
		}
	}
}

// TestDetachedConnectionRefusesRequests: a queue pair that detaches gets no more calls. Requests of
// the peer are refused, and answers to requests in progress are ignored.
func TestDetachedConnectionRefusesRequests(t *testing.T) {
	for what, end := range map[string]func(*stage){
		"drain": func(s *stage) { s.Drain(testNow) },
		"close": func(s *stage) { s.Close(testNow) },
		"abort": func(s *stage) { s.Abort(testNow) },
	} {
		s := newStage(t, true, nil)
		own, peer := s.issue(post(abi.OpWrite, 8)), s.pull(read(1, 8), readHeader+8)
		before := s.user.settled
		end(s)
		if c := s.pipe.last(); c.what != what || what == "abort" && falcon.CloseReason(c.ulp) != falcon.CloseULP {
			t.Errorf("%s: %+v", what, c)
		}
		if c := s.push(send(ib.SendOnly, 2, 1, 0), nil); c.code != falconwire.NackNRE || c.ulp != uint8(synNotServing) ||
			c.rsn != 2 {
			t.Errorf("%s: a SEND: %+v", what, c)
		}
		if c := s.pull(read(2, 8), readHeader+8); c.what != "nack" || c.code != falconwire.NackCID || c.rsn != 3 {
			t.Errorf("%s: a READ: %+v", what, c)
		}
		calls := len(s.pipe.calls)
		for _, kind := range []falcon.EventKind{
			falcon.EvPushDone, falcon.EvRNR, falcon.EvCredit, falcon.EvClosed,
			falcon.EvResponseDone,
		} {
			s.Handle(testNow, &falcon.Event{Kind: kind, Tag: own.tag})
		}
		if _, err := s.Fill(falcon.TxnPush, own.tag, make([]byte, 400)); err == nil {
			t.Errorf("%s: a request is sent", what)
		}
		if _, err := s.Fill(falcon.TxnPullData, peer.tag, make([]byte, 400)); err == nil {
			t.Errorf("%s: a response is sent", what)
		}
		if u := s.user; u.settled != before || len(u.done)+len(u.ended)+u.unblocked != 0 || len(s.pipe.calls) != calls {
			t.Errorf("%s: %+v", what, u)
		}
	}
}

// TestPipeEventsReachTheQueuePair: which calls a queue pair gets for the events of its pipe.
func TestPipeEventsReachTheQueuePair(t *testing.T) {
	s := newStage(t, true, nil)
	s.Handle(testNow, &falcon.Event{Kind: falcon.EvCredit})
	if s.user.unblocked != 1 || s.user.settled != 1 {
		t.Errorf("credit: %+v", s.user)
	}
	s.issue(post(abi.OpWrite, 8))
	s.Handle(testNow, &falcon.Event{Kind: falcon.EvClosed})
	if pushes, _ := s.UnderWay(); !slices.Equal(s.user.ended, []abi.WCStatus{abi.WCRetryExcErr}) ||
		s.user.settled != 2 || pushes != 0 {
		t.Errorf("closed: %+v, %d under way", s.user, pushes)
	}
}

// TestPacketsAreExplainedByTheirRequest: the texts for packets of this end's requests, and of the responses to them.
func TestPacketsAreExplainedByTheirRequest(t *testing.T) {
	if s := New().Over(&pipe{}); s.Explain(nil, true) != "" {
		t.Error("a connection of nobody says something")
	}
	s := newStage(t, true, nil)
	s.issue(post(abi.OpWrite, 8))
	r := post(abi.OpRead, 2*testSegment)
	r.Index, r.WQE.WRID = 41, 0xab
	s.issue(r)
	s.issue(r)
	s.answer(s.pipe.calls[0], falcon.CmplAck, synNone, nil) // and its place is free
	for _, c := range []struct {
		b    []byte
		out  bool
		want string
	}{
		{nil, true, "QP 17"},
		{packet(headers(0x11, 1), nil), true, "QP 17"},
		{packet(headers(ib.ReadRequest, 2), nil), true, "QP 17, READ Request, SN 2, WQE 41 (wr_id 0xab), bytes 0 to 256"},
		{packet(headers(ib.ReadRequest, 3), nil), true, "QP 17, READ Request, SN 3, WQE 41 (wr_id 0xab), bytes 256 to 512"},
		{
			packet(headers(ib.ReadRespOnly, 3), nil), false,
			"QP 17, READ Response Only, SN 3, WQE 41 (wr_id 0xab), bytes 256 to 512",
		},
		{packet(headers(ib.ReadRequest, 3), nil), false, "QP 17, READ Request, SN 3"},
		{packet(headers(ib.ReadRespOnly, 3), nil), true, "QP 17, READ Response Only, SN 3"},
		{packet(headers(ib.WriteOnly, 1), nil), true, "QP 17, WRITE Only, SN 1"},
		{packet(headers(ib.ReadRequest, 4), nil), true, "QP 17, READ Request, SN 4"},
	} {
		if got := s.Explain(c.b, c.out); got != c.want {
			t.Errorf("% x, out %t: %q, want %q", c.b, c.out, got, c.want)
		}
	}
}

// TestConnectionsInsideANICNeedNoFalcon: connections inside a NIC need no falcon engine.
func TestConnectionsInsideANICNeedNoFalcon(t *testing.T) {
	s := newStage(t, true, nil)
	s.Prefetch()
	s.end.e.CreditsChanged()
}
