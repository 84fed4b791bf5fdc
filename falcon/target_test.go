package falcon_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

func nackCodes(t *testing.T, sent []sim.Sent) (psns []uint32) {
	t.Helper()
	for _, p := range only(sent, wire.TypeNACK) {
		n, _ := wire.ParseNack(p.Packet)
		if n.Code != wire.NackRNR {
			t.Errorf("NACK %+v, want receiver not ready", n)
		}
		psns = append(psns, n.PSN)
	}
	return psns
}

// TestTheHeldWaitWhileTheULPDecides shows why pushes behind one that the ULP was not ready for wait
// while the ULP has that one again, where Falcon §8.5.3.4 says that they are NACKed. An initiator
// sends all of them again when the same timeout ends. By the letter of the specification the first
// is then accepted, and the others wait for one more timeout if the ULP needs longer for its answer
// than the next packet needs to arrive.
func TestTheHeldWaitWhileTheULPDecides(t *testing.T) {
	const (
		pushes  = 16
		timer   = 14        // 1.28 ms
		timeout = 1280 * us // of it
		answers = 20 * us   // the ULP takes
	)
	took := func(toTheLetter bool) (all falcon.Time, nacks int) {
		p := newPair(t, func(cfg *[2]falcon.Config, _ *falcon.ConnConfig, _ *sim.Impairment) {
			cfg[1].Profile.NackHeld = toTheLetter
		})
		type asked struct {
			at  falcon.Time
			rsn uint32
		}
		var open []asked
		p.ulp[1].OnPush = func(now falcon.Time, ev *falcon.Event, _ uint64) { open = append(open, asked{now + answers, ev.RSN}) }
		begun := p.Now
		for tag := range uint64(pushes) {
			p.push(p.a, 100, tag)
		}
		for len(p.events(0, falcon.EvPushDone)) < pushes {
			if p.run(us); p.Now > begun+100*timeout {
				t.Fatalf("to the letter %t: %d of %d pushes after a hundred timeouts", toTheLetter, len(p.events(0, falcon.EvPushDone)), pushes)
			}
			for len(open) > 0 && open[0].at <= p.Now {
				if p.Now < begun+100*us { // not ready
					p.b.NackPush(p.Now, open[0].rsn, wire.NackRNR, timer, 0)
				} else {
					p.b.AckPush(p.Now, open[0].rsn)
				}
				open = open[1:]
			}
		}
		return p.Now - begun, len(p.packets(1, wire.TypeNACK))
	}
	waits, few := took(false)
	letter, many := took(true)
	t.Logf("%d pushes behind a ULP that was not ready once: %d µs and %d NACKs; to the letter %d µs and %d NACKs", pushes, waits/us, few, letter/us, many)
	if waits > timeout*11/10 || letter < waits+timeout*9/10 || few > pushes || many < 2*few-1 {
		t.Errorf("they take %d µs and %d NACKs, to the letter %d µs and %d NACKs", waits/us, few, letter/us, many)
	}
}

// TestHoldLastsUntilAccepted: later requests are RNR NACKed until the ULP accepts the one that it
// was not ready for. Another delivery of that one does not end the hold (Falcon §8.5.3.4).
func TestHoldLastsUntilAccepted(t *testing.T) {
	t.Run("push", func(t *testing.T) {
		s := newSingle(t, testProfile())
		s.ulp.OnPush = noAnswer
		s.want(s.pushData(200, 7, false), wire.DropNone)
		s.want(s.pushData(202, 9, false), wire.DropNone) // waits for 8
		s.c.NackPush(s.now, 7, wire.NackRNR, 17, 0)
		equal(t, "NACKs", nackCodes(t, s.transmit()), []uint32{202, 200})
		s.want(s.pushData(201, 8, false), wire.DropNotReady)
		equal(t, "NACKs", nackCodes(t, s.transmit()), []uint32{201})

		s.want(s.pushData(200, 7, false), wire.DropNone) // with the ULP again
		s.want(s.pushData(201, 8, false), wire.DropNone) // waits for its answer
		if got := nackCodes(t, s.transmit()); len(got) != 0 || s.count(falcon.EvPush) != 2 {
			t.Fatalf("NACKs %v, %d deliveries while the ULP decides", got, s.count(falcon.EvPush))
		}
		s.c.NackPush(s.now, 7, wire.NackRNR, 17, 0)
		equal(t, "NACKs after the second refusal", nackCodes(t, s.transmit()), []uint32{201, 200})
		s.want(s.pushData(203, 10, false), wire.DropNotReady)
		if st := s.e.Stats(); st.RxCells != 0 {
			t.Errorf("%d cells held for pushes that come again", st.RxCells)
		}
		s.ulp.OnPush = nil
		for n := range uint32(4) {
			s.want(s.pushData(200+n, 7+n, false), wire.DropNone)
		}
		if n := s.count(falcon.EvPush); n != 6 {
			t.Errorf("%d deliveries, want 2 refused and 4", n)
		}
	})
	t.Run("pull", func(t *testing.T) {
		s := newSingle(t, testProfile())
		s.ulp.OnPull = noAnswer
		s.want(s.pullRequest(500, 7, false), wire.DropNone)
		s.c.RNRPull(s.now, 7, 11) // 0.48 ms
		s.want(s.pushData(200, 8, false), wire.DropNotReady)
		s.advance(500 * us)
		s.want(s.pushData(200, 8, false), wire.DropNone)
		s.transmit()
		s.c.RNRPull(s.now, 7, 11)
		equal(t, "NACKs after the second refusal", nackCodes(t, s.transmit()), []uint32{200})
		s.advance(500 * us)
		s.want(s.pushData(200, 8, false), wire.DropNone)
		if err := s.c.RespondPull(s.now, 7, 1, 64); err != nil {
			t.Fatal(err)
		}
		s.drain()
		if n := s.count(falcon.EvPush); n != 1 {
			t.Errorf("%d pushes delivered after the pull was answered, want 1", n)
		}
	})
	t.Run("refused for good", func(t *testing.T) {
		s := newSingle(t, testProfile())
		s.ulp.OnPush = noAnswer
		s.want(s.pushData(200, 7, false), wire.DropNone)
		s.c.NackPush(s.now, 7, wire.NackRNR, 17, 0)
		s.want(s.pushData(200, 7, false), wire.DropNone)
		s.want(s.pushData(201, 8, false), wire.DropNone)
		s.c.NackPush(s.now, 7, wire.NackCIE, 0, 1)
		s.drain()
		if n := s.count(falcon.EvPush); n != 3 {
			t.Errorf("%d deliveries, want the push behind one that completes in error too", n)
		}
	})
}

// TestADeferredPullIsDeliveredAgainAtItsTime: a pull that the ULP defers is delivered again at the requested time. On an
// ordered connection later requests wait with their payload, and get no RNR NACK.
func TestADeferredPullIsDeliveredAgainAtItsTime(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		s := newSingle(t, testProfile(), func(cfg *falcon.ConnConfig) { cfg.Ordered = ordered })
		var at falcon.Time
		s.ulp.OnPull = func(now falcon.Time, ev *falcon.Event, key uint64) {
			if at == 0 {
				at = now + 123*us
				ev.Conn.DeferPull(now, ev.RSN, at)
				return
			}
			_ = ev.Conn.RespondPull(now, ev.RSN, key, ev.Length)
		}
		request := wire.PullRequest{Header: s.header(wire.TypePullRequest, 500, 7, false), RequestLength: 64}
		pull := append(request.Append(nil), make([]byte, 44)...)
		sim.WritePayload(pull[wire.PullRequestLen:], 7)
		data := wire.PushData{Header: s.header(wire.TypePushData, 200, 8, false), RequestLength: 32}
		push := append(data.Append(nil), make([]byte, 32)...)
		sim.WritePayload(push[wire.PushDataLen:], 8)
		for _, b := range [][]byte{pull, push} { // of one batch: the push is delivered in place before the ULP says anything
			s.e.Receive(s.now, falcon.Packet{Data: b})
		}
		s.drain()
		clear(push[wire.PushDataLen:])
		s.want(s.pushData(201, 9, false), wire.DropNone)
		early := 2
		if ordered {
			early = 0
		}
		if n := s.count(falcon.EvPush); n != early {
			t.Errorf("ordered %v: %d pushes before the pull is served, want %d", ordered, n, early)
		}
		sent := s.advance(200 * us)
		if n := len(only(sent, wire.TypeNACK)); n != 0 {
			t.Errorf("ordered %v: %d NACKs", ordered, n)
		}
		if n := s.count(falcon.EvPush); n != 2 || s.ulp.Corrupt != 0 {
			t.Errorf("ordered %v: %d pushes, %d of them corrupt", ordered, n, s.ulp.Corrupt)
		}
		for i, e := range s.ulp.Events {
			if e.Kind == falcon.EvPull && i > 0 && e.At != at {
				t.Errorf("ordered %v: delivered again at %d, want %d", ordered, e.At, at)
			}
		}
		if st := s.e.Stats(); st.RxContexts != 0 || st.RxCells != 0 {
			t.Errorf("ordered %v: %d contexts, %d cells left", ordered, st.RxContexts, st.RxCells)
		}
	}
}

// TestDeferredPullWithoutCells: a push behind it that finds no cell is NACKed and sent again.
func TestDeferredPullWithoutCells(t *testing.T) {
	s := newSingle(t, testProfile())
	s.e = falcon.NewEngine(falcon.Config{Profile: testProfile(), RxCells: 1}, s.ulp)
	var err error
	if s.c, err = s.e.Open(s.now, connConfig(true)); err != nil {
		t.Fatal(err)
	}
	tries := 0
	s.ulp.OnPull = func(now falcon.Time, ev *falcon.Event, key uint64) {
		if tries++; tries == 1 {
			ev.Conn.DeferPull(now, ev.RSN, now+10*us)
			return
		}
		_ = ev.Conn.RespondPull(now, ev.RSN, key, ev.Length)
	}
	r := wire.PullRequest{Header: s.header(wire.TypePullRequest, 500, 7, false), RequestLength: 64}
	s.e.Receive(s.now, falcon.Packet{Data: append(r.Append(nil), make([]byte, 44)...)})
	for n := range uint32(2) {
		d := wire.PushData{Header: s.header(wire.TypePushData, 200+n, 8+n, false), RequestLength: 32}
		s.e.Receive(s.now, falcon.Packet{Data: append(d.Append(nil), make([]byte, 32)...)})
	}
	s.drain()
	s.advance(20 * us)
	s.want(s.pushData(200, 8, false), wire.DropBehindWindow)
	s.want(s.pushData(201, 9, false), wire.DropNone)
	if n := s.count(falcon.EvPush); n != 2 || s.e.Stats().RxCells != 0 {
		t.Errorf("%d pushes, %d cells held", n, s.e.Stats().RxCells)
	}
}

// TestPullHeadersFitTheirContext: a request's headers may be as long as its context holds.
func TestPullHeadersFitTheirContext(t *testing.T) {
	s := newSingle(t, testProfile())
	for n, want := range []wire.Drop{wire.DropNone, wire.DropLength} {
		p := wire.PullRequest{Header: s.header(wire.TypePullRequest, 500, 7, false), RequestLength: 64}
		s.want(s.receive(append(p.Append(nil), make([]byte, falcon.MaxPullHeader+n)...)), want)
	}
}

// TestAResyncRemovesOnlyItsOwnRequest: a Resync removes from the order only the request with its
// RSN, its PSN and its kind.
func TestAResyncRemovesOnlyItsOwnRequest(t *testing.T) {
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

// TestAResyncOfTheHeldRequestEndsTheHold: a Resync of the request that the receiver was not ready
// for ends the hold, one of a later request does not.
func TestAResyncOfTheHeldRequestEndsTheHold(t *testing.T) {
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

// TestRequestsMayBeAWindowAhead: a request may be as far ahead as a window. One beyond is refused
// for lack of room; one that is already done is not answered.
func TestRequestsMayBeAWindowAhead(t *testing.T) {
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

// TestAResyncSkipsUpToAWindowAhead: the order can skip an RSN as far ahead as a window, and no
// further.
func TestAResyncSkipsUpToAWindowAhead(t *testing.T) {
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

// TestAReceivedPSNIsADuplicateWhateverItsRSN: a push whose PSN arrived before is a duplicate,
// whatever its RSN, and affects no request.
func TestAReceivedPSNIsADuplicateWhateverItsRSN(t *testing.T) {
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

// TestAnswersToLaterRequestsDoNotEndAHold: the ULP's answers to a later request neither end the
// hold of an earlier one that it was not ready for, nor take its place.
func TestAnswersToLaterRequestsDoNotEndAHold(t *testing.T) {
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
