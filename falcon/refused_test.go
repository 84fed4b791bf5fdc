package falcon_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// TestRefusedTwice: the first refusal of a push counts; another one of the same push, late or of
// another kind, changes nothing.
func TestRefusedTwice(t *testing.T) {
	s := newSingle(t, testProfile())
	s.push(1)
	s.transmit()
	s.want(s.nack(wire.Nack{PSN: 300, Code: wire.NackCIE, ULPCode: 5}), wire.DropNone)
	first := only(s.transmit(), wire.TypeResync)
	s.want(s.nack(wire.Nack{PSN: 300, Code: wire.NackNRE, ULPCode: 6}), wire.DropNone)
	s.want(s.nack(wire.Nack{PSN: 300, Code: wire.NackRNR, RNR: 31}), wire.DropNone)
	if got := s.transmit(); len(first) != 1 || len(got) != 0 {
		t.Fatalf("%d Resyncs at first, %v later", len(first), got)
	}
	again := only(s.advance(1100*us), wire.TypeResync) // lost, as it is not acknowledged
	if len(again) != 1 {
		t.Fatalf("%d Resyncs after a timeout", len(again))
	}
	if r, _ := wire.ParseResync(again[0].Packet); r.Code != wire.ResyncCIE {
		t.Errorf("Resync %+v", r)
	}
	s.ack(wire.Ack{DataBase: 301})
	if ev := s.ulp.Events; len(ev) != 1 || ev[0].Code != falcon.CmplTargetNackCIE || ev[0].ULPCode != 5 {
		t.Errorf("events %+v", ev)
	}
}

// TestOnlyPushesMayBeNotReady: only a push can be answered with RNR. A pull request and pull data
// are sent again as without it.
func TestOnlyPushesMayBeNotReady(t *testing.T) {
	s := newSingle(t, testProfile())
	s.pullRequest(500, 7, false) // answered with data of PSN 300
	s.pull(1)
	s.transmit()
	s.want(s.nack(wire.Nack{PSN: 100, Code: wire.NackRNR, RNR: 31, Request: true}), wire.DropNone)
	s.want(s.nack(wire.Nack{PSN: 300, Code: wire.NackRNR, RNR: 31}), wire.DropNone)
	if n := s.count(falcon.EvRNR); n != 0 {
		t.Errorf("%d times told of a receiver that is not ready", n)
	}
	seen := map[uint32]bool{}
	for _, psn := range psns(t, s.advance(1100*us)) {
		seen[psn] = true
	}
	if !seen[100] || !seen[300] {
		t.Errorf("sent %v again", seen)
	}
}

// TestResyncIsNotReceived: if the peer has the push that a Resync replaces, this says nothing about
// the Resync, which is sent again after a timeout.
func TestResyncIsNotReceived(t *testing.T) {
	p := rttProfile(20 * us)
	p.AnswerTimeout = 100 * ms
	s := newSingle(t, p)
	s.push(1)
	s.transmit()
	s.nack(wire.Nack{PSN: 300, Code: wire.NackCIE})
	s.transmit()
	s.now += 30 * us
	s.ack(wire.Ack{Extended: true, DataRx: bits(0)})
	if got := only(s.advance(1100*us), wire.TypeResync); len(got) != 1 {
		t.Errorf("%d Resyncs after a timeout", len(got))
	}
}

// TestResyncOfAnother: a Resync removes from the order only the request with its RSN, its PSN and
// its kind.
func TestResyncOfAnother(t *testing.T) {
	s := newSingle(t, testProfile(), func(cfg *falcon.ConnConfig) { cfg.RxReqPSN = cfg.RxDataPSN })
	s.ulp.OnPush, s.ulp.OnPull = noAnswer, noAnswer
	s.want(s.pushData(201, 8, false), wire.DropNone)
	s.want(s.pullRequest(202, 9, false), wire.DropNone)
	for _, c := range []struct {
		psn, rsn uint32
		original wire.PacketType
	}{
		{203, 8, wire.TypePushData},    // another PSN
		{201, 8, wire.TypePullRequest}, // a pull's
		{204, 9, wire.TypePullRequest}, // another PSN
		{202, 9, wire.TypePushData},    // a push's
	} {
		s.want(s.resync(c.psn, c.rsn, c.original), wire.DropNone)
	}
	s.want(s.pushData(200, 7, false), wire.DropNone)
	if a, b := s.c.TargetState(8), s.c.TargetState(9); a != "PushReqUlpTx" || b != "PullReqUlpTx" {
		t.Errorf("requests in %q and %q, want them delivered", a, b)
	}
}

// TestResyncOfAHold: a Resync of the request that the receiver was not ready for ends the hold, one
// of a later request does not.
func TestResyncOfAHold(t *testing.T) {
	s := newSingle(t, testProfile())
	s.ulp.OnPush = noAnswer
	s.want(s.pushData(200, 7, false), wire.DropNone)
	s.c.NackPush(s.now, 7, wire.NackRNR, 17, 0)
	s.want(s.pushData(201, 8, false), wire.DropNotReady)
	s.want(s.resync(201, 8, wire.TypePushData), wire.DropDuplicate)
	s.want(s.pushData(202, 9, false), wire.DropNotReady)
	s.want(s.resync(200, 7, wire.TypePushData), wire.DropDuplicate)
	s.want(s.pushData(202, 9, false), wire.DropNone)
	s.want(s.pushData(203, 10, false), wire.DropNone)
	var got []uint32
	for _, e := range s.ulp.Events {
		got = append(got, e.RSN)
	}
	equal(t, "deliveries", got, []uint32{7, 9, 10})
}

// TestRequestBorder: a request may be as far ahead as a window. One beyond is refused for lack of
// room; one that is already done is not answered.
func TestRequestBorder(t *testing.T) {
	for _, push := range []bool{true, false} {
		s := newSingle(t, testProfile())
		request := func(n, rsn uint32) wire.Drop {
			if push {
				return s.pushData(200+n, rsn, false)
			}
			return s.pullRequest(500+n, rsn, false)
		}
		s.want(request(0, 6), wire.DropRSN)
		if got := only(s.transmit(), wire.TypeNACK); len(got) != 0 {
			t.Errorf("%d NACKs of a request that is over", len(got))
		}
		s.want(request(0, 7+falcon.MaxTxWindow), wire.DropResource)
		got := only(s.transmit(), wire.TypeNACK)
		if len(got) != 1 {
			t.Fatalf("%d NACKs", len(got))
		}
		if n, _ := wire.ParseNack(got[0].Packet); n.Code != wire.NackResource || n.Request == push {
			t.Errorf("NACK %+v", n)
		}
		s.want(request(0, 7+falcon.MaxTxWindow-1), wire.DropNone)
	}
}

// TestResyncBorder: the order can skip an RSN as far ahead as a window, and no further.
func TestResyncBorder(t *testing.T) {
	s := newSingle(t, testProfile())
	s.want(s.resync(200, 7+falcon.MaxTxWindow-1, wire.TypePushData), wire.DropNone)
	s.want(s.resync(201, 7+falcon.MaxTxWindow, wire.TypePushData), wire.DropResource)
	got := only(s.transmit(), wire.TypeNACK)
	if len(got) != 1 {
		t.Fatalf("%d NACKs", len(got))
	}
	if n, _ := wire.ParseNack(got[0].Packet); n.PSN != 201 || n.Code != wire.NackResource || n.Request {
		t.Errorf("NACK %+v", n)
	}
	s.want(s.resync(500, 7+falcon.MaxTxWindow, wire.TypePullRequest), wire.DropResource)
	got = only(s.transmit(), wire.TypeNACK)
	if len(got) != 1 {
		t.Fatalf("%d NACKs", len(got))
	}
	if n, _ := wire.ParseNack(got[0].Packet); n.PSN != 500 || !n.Request {
		t.Errorf("NACK %+v", n)
	}
}

// TestDuplicatesOfAnother: a push whose PSN arrived before is a duplicate, whatever its RSN, and
// affects no request.
func TestDuplicatesOfAnother(t *testing.T) {
	s := newSingle(t, testProfile())
	s.ulp.OnPush = noAnswer
	s.want(s.pushData(200, 7, false), wire.DropNone)
	s.want(s.pushData(201, 8, false), wire.DropNone)
	s.c.NackPush(s.now, 8, wire.NackCIE, 0, 1)
	s.transmit()
	s.want(s.pushData(200, 8, false), wire.DropDuplicate)
	s.want(s.pushData(200, 99, false), wire.DropDuplicate)
	s.want(s.pushData(200, 7, false), wire.DropDuplicate)
	if got := only(s.transmit(), wire.TypeNACK); len(got) != 0 {
		t.Errorf("%d NACKs", len(got))
	}
	s.want(s.pushData(201, 8, false), wire.DropDuplicate)
	if got := only(s.transmit(), wire.TypeNACK); len(got) != 1 {
		t.Errorf("%d NACKs of the one that was refused", len(got))
	}
}

// TestHeldBehindAnother: the ULP's answers to a later request neither end the hold of an earlier
// one that it was not ready for, nor take its place.
func TestHeldBehindAnother(t *testing.T) {
	for what, answer := range map[string]func(*single){
		"push": func(s *single) {
			s.want(s.pushData(201, 8, false), wire.DropNone)
			s.c.NackPush(s.now, 7, wire.NackRNR, 17, 0)
			s.c.AckPush(s.now, 8)
		},
		"pull put off": func(s *single) {
			s.want(s.pullRequest(500, 8, false), wire.DropNone)
			s.c.NackPush(s.now, 7, wire.NackRNR, 17, 0)
			s.c.DeferPull(s.now, 8, s.now+10*us)
			s.advance(20 * us)
		},
		"pull not ready": func(s *single) {
			s.want(s.pullRequest(500, 8, false), wire.DropNone)
			s.c.NackPush(s.now, 7, wire.NackRNR, 17, 0)
			s.c.RNRPull(s.now, 8, 1)
			s.advance(20 * us)
		},
	} {
		s := newSingle(t, testProfile())
		s.ulp.OnPush, s.ulp.OnPull = noAnswer, noAnswer
		s.want(s.pushData(200, 7, false), wire.DropNone)
		answer(s)
		before := len(s.ulp.Events)
		s.want(s.pushData(202, 9, false), wire.DropNotReady)
		s.want(s.pushData(200, 7, false), wire.DropNone) // again, with the ULP
		s.c.AckPush(s.now, 7)
		s.want(s.pushData(202, 9, false), wire.DropNone)
		var got []uint32
		for _, e := range s.ulp.Events[before:] {
			got = append(got, e.RSN)
		}
		want := []uint32{7, 8, 9}
		if what == "push" {
			want = []uint32{7, 9}
		}
		equal(t, what+": deliveries", got, want)
	}
}

// TestVoidEventOfAReusedContext: the event of a request that was withdrawn and then given up stays
// invalid when another request has got its context.
func TestVoidEventOfAReusedContext(t *testing.T) {
	s := newSingle(t, testProfile())
	other := s.beside()
	receive := func(psn, rsn uint32) wire.Drop {
		p := wire.PushData{Header: s.header(wire.TypePushData, psn, rsn, false), RequestLength: 8}
		return s.e.Receive(s.now, falcon.Packet{Data: append(p.Append(nil), 0, 0, 0, 0, 0, 0, 0, byte(rsn))})
	}
	receive(200, 7)
	receive(201, 8)
	var ev falcon.Event
	if !s.e.Next(&ev) || ev.RSN != 7 {
		t.Fatalf("event %+v", ev)
	}
	s.c.NackPush(s.now, 7, wire.NackRNR, 1, 0) // takes back 8, whose event waits
	r := wire.Resync{Header: s.header(wire.TypeResync, 201, 8, false), Code: wire.ResyncTimeout, Original: wire.TypePushData}
	s.e.Receive(s.now, falcon.Packet{Data: r.Append(nil)}) // and its peer gives it up
	s.with(other, func() { s.want(receive(200, 7), wire.DropNone) })
	var got []*falcon.Conn
	for s.e.Next(&ev) {
		got = append(got, ev.Conn)
	}
	if len(got) != 1 || got[0] != other {
		t.Errorf("%d events, want that of the other connection", len(got))
	}
}

// TestShortFill: a push may turn out shorter than it was said to be, down to nothing; what the ULP
// cannot have written becomes a Resync.
func TestShortFill(t *testing.T) {
	for n, good := range map[int]bool{-1: false, 0: true, 31: true, 32: true, 33: false} {
		u := &fills{n: n}
		e := falcon.NewEngine(falcon.Config{Profile: testProfile()}, u)
		c, err := e.Open(ms, connConfig(true))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Push(ms, 1, 32); err != nil {
			t.Fatal(err)
		}
		var buf [200]byte
		sent, _ := e.Transmit(ms, buf[:])
		if typ, _ := wire.Peek(buf[:sent]); (typ == wire.TypePushData) != good {
			t.Errorf("%d of 32 bytes filled: sent %v", n, typ)
			continue
		}
		if !good {
			continue
		}
		if p, payload, d := wire.ParsePushData(buf[:sent]); d != wire.DropNone || int(p.RequestLength) != n || len(payload) != n {
			t.Errorf("%d of 32 bytes filled: sent %+v with %d bytes, %v", n, p, len(payload), d)
		}
	}
}

// fills is a ULP that returns the length that the test sets.
type fills struct{ n int }

func (f *fills) Fill(*falcon.Conn, falcon.TxnKind, uint64, []byte) (int, error) { return f.n, nil }

// TestCreditsThatWereNotTold: room that becomes available outside the engine is not noticed until
// CreditsChanged is called.
func TestCreditsThatWereNotTold(t *testing.T) {
	s := starved(t)
	if err := s.c.Push(s.now, 1, 10); err == nil {
		t.Fatal("a push without credit was taken")
	}
	s.drain() // looks at it once
	s.c.Config().Credits.Starve(false)
	if s.drain(); s.count(falcon.EvCredit) != 0 {
		t.Error("told of credits that the engine was not told of")
	}
	s.e.CreditsChanged()
	if s.drain(); s.count(falcon.EvCredit) != 1 {
		t.Errorf("%d times told", s.count(falcon.EvCredit))
	}
}

// TestRefusedAndTooOld: a transaction that was refused, and whose Resync is not acknowledged in
// time, ends as it was refused.
func TestRefusedAndTooOld(t *testing.T) {
	p := testProfile()
	p.TxnTimeout, p.MaxRetransmits = 3*ms, 0
	s := newSingle(t, p)
	s.push(2)
	s.transmit()
	s.nack(wire.Nack{PSN: 300, Code: wire.NackCIE, ULPCode: 7})
	s.advance(3*ms - 1)
	if n := s.count(falcon.EvPushDone); n != 0 {
		t.Fatalf("%d completions before the timeout", n)
	}
	s.advance(1)
	if ev := s.ulp.Events; len(ev) != 2 || ev[0].Code != falcon.CmplTargetNackCIE || ev[0].ULPCode != 7 || ev[1].Code != falcon.CmplLocalTO {
		t.Errorf("events %+v", ev)
	}
	s.ack(wire.Ack{DataBase: 302})
	if st := s.e.Stats(); st.TxContexts != 0 || st.TxnTimeouts != 2 || len(s.ulp.Events) != 2 {
		t.Errorf("%d contexts left, %d timeouts, %d events", st.TxContexts, st.TxnTimeouts, len(s.ulp.Events))
	}
}

// TestAgeOfAResync: the age of a Resync counts from when it was sent first.
func TestAgeOfAResync(t *testing.T) {
	p := testProfile()
	p.ResyncGiveUp, p.MaxRetransmits, p.TxnTimeout = 5*ms, 0, 0
	s := newSingle(t, p)
	s.push(1)
	s.transmit()
	s.advance(50 * ms)
	s.nack(wire.Nack{PSN: 300, Code: wire.NackCIE})
	s.advance(4500 * us)
	if s.c.Closed() {
		t.Error("given up before its time")
	}
	s.advance(ms)
	if !s.c.Closed() {
		t.Error("not given up")
	}
}
