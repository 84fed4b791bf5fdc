package falcon_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

func TestCase01_SinglePush(t *testing.T) {
	node := credit.New(nil, credit.NoLimit())
	p := newPair(t, func(cfg *[2]falcon.Config, conn *falcon.ConnConfig, _ *sim.Impairment) {
		cfg[0].Credits = node
		conn.TxDataPSN, conn.TxRSN = 0, 0
	})
	p.push(p.a, 1000, 11)
	if node.InUse() == (credit.Cost{}) {
		t.Error("no credits taken")
	}
	p.run(ms)
	p.wantKeys(1, falcon.EvPush, 11)
	p.wantTags(0, falcon.EvPushDone, 11)
	equal(t, "sent by initiator", p.sent(0), []wire.PacketType{wire.TypePushData})
	equal(t, "sent by target", p.sent(1), []wire.PacketType{wire.TypeBACK})
	h := header(t, p.packets(0, wire.TypePushData)[0].Packet)
	if h.PSN != 0 || h.RSN != 0 {
		t.Errorf("PSN %d RSN %d, want 0 0", h.PSN, h.RSN)
	}
	if node.InUse() != (credit.Cost{}) {
		t.Errorf("credits not returned: %v", node.InUse())
	}
	p.wantIdle()
}

func TestCase02_PullAnsweredAtOnce(t *testing.T) {
	p := newPair(t)
	p.pull(p.a, 4096, 21)
	p.run(ms)
	p.wantKeys(1, falcon.EvPull, 21)
	p.wantTags(0, falcon.EvPullDone, 21)
	p.wantTags(1, falcon.EvResponseDone, 21)
	equal(t, "sent by initiator", p.sent(0), []wire.PacketType{wire.TypePullRequest, wire.TypeBACK})
	equal(t, "sent by target", p.sent(1), []wire.PacketType{wire.TypePullData})
	p.wantIdle()
}

func TestCase03_PullAnsweredAfterCoalescing(t *testing.T) {
	p := newPair(t)
	var conn *falcon.Conn
	var rsn uint32
	p.ulp[1].OnPull = func(_ falcon.Time, ev *falcon.Event, _ uint64) { conn, rsn = ev.Conn, ev.RSN }
	p.pull(p.a, 100, 31)
	p.run(100 * us)
	if err := conn.RespondPull(p.Now, rsn, 31, 100); err != nil {
		t.Fatal(err)
	}
	p.run(ms)
	p.wantTags(0, falcon.EvPullDone, 31)
	equal(t, "sent by target", p.sent(1), []wire.PacketType{wire.TypeBACK, wire.TypePullData})
	p.wantIdle()
}

func TestCase04_DropRequest(t *testing.T) {
	p := newPair(t)
	p.dropNth(0, wire.TypePushData, 1)
	p.push(p.a, 100, 41)
	p.run(10 * ms)
	p.wantKeys(1, falcon.EvPush, 41)
	p.wantTags(0, falcon.EvPushDone, 41)
	sent := p.packets(0, wire.TypePushData)
	if len(sent) != 2 {
		t.Fatalf("%d copies sent, want 2", len(sent))
	}
	if a, b := header(t, sent[0].Packet).PSN, header(t, sent[1].Packet).PSN; a != b {
		t.Errorf("PSN %d retransmitted as %d", a, b)
	}
	p.wantIdle()
}

func TestCase05_DropAck(t *testing.T) {
	p := newPair(t)
	p.dropNth(1, wire.TypeBACK, 1)
	p.push(p.a, 100, 51)
	p.run(10 * ms)
	p.wantKeys(1, falcon.EvPush, 51)
	p.wantTags(0, falcon.EvPushDone, 51)
	if n := len(p.packets(1, wire.TypeBACK)); n != 2 {
		t.Errorf("%d ACKs, want 2", n)
	}
	p.wantIdle()
}

func TestCase06_MultiplePushesDropFirst(t *testing.T) {
	p := newPair(t)
	p.dropNth(0, wire.TypePushData, 1)
	p.push(p.a, 100, 1, 2, 3)
	p.run(50 * us)
	if s := p.be.Stats(); s.RxCells != 2 {
		t.Errorf("%d packets held, want 2", s.RxCells)
	}
	if n := len(p.packets(1, wire.TypeEACK)); n == 0 {
		t.Error("no EACK")
	}
	p.run(10 * ms)
	p.wantKeys(1, falcon.EvPush, 1, 2, 3)
	p.wantTags(0, falcon.EvPushDone, 1, 2, 3)
	p.wantIdle()
}

func TestCase07_MultiplePullsDropFirst(t *testing.T) {
	p := newPair(t)
	p.dropNth(0, wire.TypePullRequest, 1)
	p.pull(p.a, 256, 1, 2, 3)
	p.run(50 * us)
	acks := p.packets(1, wire.TypeEACK)
	if len(acks) == 0 {
		t.Fatal("no EACK")
	}
	if a := ack(t, acks[0].Packet); a.Req != 0b110 {
		t.Errorf("request bitmap %b, want 110", a.Req)
	}
	p.run(10 * ms)
	p.wantKeys(1, falcon.EvPull, 1, 2, 3)
	p.wantTags(0, falcon.EvPullDone, 1, 2, 3)
	p.wantIdle()
}

func TestCase08_MultiplePullsDropResponse(t *testing.T) {
	p := newPair(t)
	p.dropNth(1, wire.TypePullData, 1)
	p.pull(p.a, 256, 1, 2, 3)
	p.run(50 * us)
	if n := len(p.events(0, falcon.EvPullDone)); n != 0 {
		t.Errorf("%d completions before the first response", n)
	}
	p.run(10 * ms)
	p.wantTags(0, falcon.EvPullDone, 1, 2, 3)
	p.wantKeys(0, falcon.EvPullDone, 1, 2, 3)
	equal(t, "pull requests", p.sent(0)[:3], []wire.PacketType{wire.TypePullRequest, wire.TypePullRequest, wire.TypePullRequest})
	p.wantIdle()
}

func TestCase09_Xoff(t *testing.T) {
	node := credit.New(nil, credit.Cost{4, 1 << 20, 4, 1 << 20, 8, 1 << 20})
	p := newPair(t, func(cfg *[2]falcon.Config, _ *falcon.ConnConfig, _ *sim.Impairment) { cfg[0].Credits = node })
	p.push(p.a, 100, 1, 2, 3, 4)
	if err := p.a.Push(p.Now, 5, 100); err != falcon.ErrXoff {
		t.Fatalf("fifth push: %v, want Xoff", err)
	}
	// Responses do not need request credits: the peer's pull is answered while Xoff holds.
	p.Links[0].Set(sim.Impairment{Delay: 5 * us})
	p.pull(p.b, 64, 9)
	p.run(ms)
	p.wantTags(1, falcon.EvPullDone, 9)
	if n := len(p.events(0, falcon.EvCredit)); n != 1 {
		t.Fatalf("%d EvCredit, want 1", n)
	}
	p.push(p.a, 100, 5)
	p.run(ms)
	p.wantTags(0, falcon.EvPushDone, 1, 2, 3, 4, 5)
	if node.InUse() != (credit.Cost{}) {
		t.Errorf("credits not returned: %v", node.InUse())
	}
	p.wantIdle()
}

func TestCase16_17_ReorderedRequests(t *testing.T) {
	for _, kind := range []string{"push", "pull"} {
		t.Run(kind, func(t *testing.T) {
			p := newPair(t)
			if kind == "push" {
				p.delayNth(0, wire.TypePushData, 1, 2*us)
				p.push(p.a, 100, 1, 2)
			} else {
				p.delayNth(0, wire.TypePullRequest, 1, 2*us)
				p.ulp[1].OnPull = func(falcon.Time, *falcon.Event, uint64) {} // answered never: only the request's ACK
				p.pull(p.a, 100, 1, 2)
			}
			p.run(100 * us)
			ev, first := falcon.EvPush, wire.TypePushData
			if kind == "pull" {
				ev, first = falcon.EvPull, wire.TypePullRequest
			}
			p.wantKeys(1, ev, 1, 2)
			if s := p.packets(0, first); len(s) != 2 {
				t.Errorf("%d packets sent, want 2", len(s))
			}
			equal(t, "one coalesced ACK", p.sent(1), []wire.PacketType{wire.TypeBACK})
		})
	}
}

func TestCase19_CompletionOrder(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		p := newPair(t, func(_ *[2]falcon.Config, conn *falcon.ConnConfig, _ *sim.Impairment) { conn.Ordered = ordered })
		p.dropNth(0, wire.TypePushData, 1)
		p.push(p.a, 100, 1, 2, 3)
		p.run(10 * ms)
		if ordered {
			p.wantTags(0, falcon.EvPushDone, 1, 2, 3)
			p.wantKeys(1, falcon.EvPush, 1, 2, 3)
		} else {
			p.wantTags(0, falcon.EvPushDone, 2, 3, 1)
			p.wantKeys(1, falcon.EvPush, 2, 3, 1)
		}
		p.wantIdle()
	}
}

func TestCase22_ZeroLengthPullData(t *testing.T) {
	p := newPair(t)
	p.ulp[1].OnPull = func(now falcon.Time, ev *falcon.Event, key uint64) {
		_ = ev.Conn.RespondPull(now, ev.RSN, key, 0)
	}
	p.pull(p.a, 512, 1)
	p.run(ms)
	ev := p.events(0, falcon.EvPullDone)
	if len(ev) != 1 || ev[0].Code != falcon.CmplAck || ev[0].Length != 0 {
		t.Fatalf("completion %+v", ev)
	}
	p.push(p.a, 64, 2)
	p.run(ms)
	p.wantTags(0, falcon.EvPushDone, 2)
	p.wantIdle()
}

// TestPullDataNeedsAPullThatWaits: data is accepted only for a pull that was sent and has got no
// data yet.
func TestPullDataNeedsAPullThatWaits(t *testing.T) {
	s := newSingle(t, testProfile())
	s.pull(3)
	s.transmit()
	s.want(s.pullData(200, 4, 8), wire.DropUnknownRSN) // the next one
	s.want(s.pullData(201, 2, 8), wire.DropNone)
	s.want(s.pullData(202, 2, 8), wire.DropUnknownRSN) // has its data, and waits for the first
	s.want(s.pullData(203, 1, 8), wire.DropNone)
	s.want(s.pullData(204, 1, 8), wire.DropUnknownRSN) // over
	s.pull(1)
	s.want(s.pullData(205, 4, 8), wire.DropUnknownRSN) // not sent yet
	if n := s.count(falcon.EvPullDone); n != 2 {
		t.Errorf("%d pulls completed, want 2", n)
	}
}

// TestRefusedPullTakesNoData: data is not accepted for a pull that was refused and whose completion
// waits for an older one.
func TestRefusedPullTakesNoData(t *testing.T) {
	s := newSingle(t, testProfile())
	s.pull(2)
	s.transmit()
	s.ack(wire.Ack{ReqBase: 102})
	n := wire.Nack{CID: s.c.Config().LocalCID, DataBase: 300, ReqBase: 102, PSN: 101, Code: wire.NackCID, Request: true}
	s.want(s.receive(n.Append(nil)), wire.DropNone)
	s.want(s.pullData(200, 2, 8), wire.DropUnknownRSN)
	s.want(s.pullData(201, 1, 8), wire.DropNone)
	var codes []falcon.Completion
	for _, e := range s.ulp.Events {
		codes = append(codes, e.Code)
	}
	equal(t, "completions", codes, []falcon.Completion{falcon.CmplAck, falcon.CmplTargetNackCID})
}

// TestPullDataStaysInPlace: only data that must wait for its turn is copied.
func TestPullDataStaysInPlace(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		s := newSingle(t, testProfile(), func(cfg *falcon.ConnConfig) { cfg.Ordered = ordered })
		s.pull(3)
		s.transmit()
		for i, c := range []struct {
			rsn   uint32
			cells int // on an ordered connection
		}{{3, 1}, {1, 1}, {2, 1}} {
			h := s.header(wire.TypePullData, 200+uint32(i), c.rsn, false)
			s.e.Receive(s.now, falcon.Packet{Data: append(h.Append(nil), make([]byte, 8)...)})
			want := 0
			if ordered {
				want = c.cells
			}
			if n := s.e.Stats().RxCells; n != want {
				t.Errorf("ordered %v, data of %d: %d cells, want %d", ordered, c.rsn, n, want)
			}
		}
		if s.drain(); s.e.Stats().RxCells != 0 || s.count(falcon.EvPullDone) != 3 {
			t.Errorf("ordered %v: %d cells left, %d pulls done", ordered, s.e.Stats().RxCells, s.count(falcon.EvPullDone))
		}
	}
}

// TestAnInitiatorGoesThroughFalconsStates walks a push and a pull of an ordered connection through the states of Falcon
// §8.4.1. The second of two completes late, since completions come in order; so its states can be
// seen. PushCplTx and PullDataUlpTx are those of a transaction whose completion is delivered: then
// it is over.
func TestAnInitiatorGoesThroughFalconsStates(t *testing.T) {
	is := func(state func() string, want string) {
		t.Helper()
		if got := state(); got != want {
			t.Errorf("in %s, want %s", got, want)
		}
	}
	t.Run("push", func(t *testing.T) {
		s := newSingle(t, testProfile())
		cfg := s.c.Config()
		s.push(2)
		first, second := s.c.Transaction(cfg.TxRSN), s.c.Transaction(cfg.TxRSN+1)
		is(second, "PushReqUlpRx")
		s.transmit()
		is(second, "PushDataTx")
		s.ack(wire.Ack{Extended: true, DataAck: wire.Bitmap128{Lo: 2}, DataRx: wire.Bitmap128{Lo: 2}})
		is(first, "PushDataTx")
		is(second, "PushDataAckd")
		s.ack(wire.Ack{DataBase: cfg.TxDataPSN + 2})
		is(first, "over")
		is(second, "over")
		if n := s.count(falcon.EvPushDone); n != 2 {
			t.Errorf("%d completions", n)
		}
	})
	t.Run("pull", func(t *testing.T) {
		s := newSingle(t, testProfile())
		cfg := s.c.Config()
		s.pull(2)
		first, second := s.c.Transaction(cfg.TxRSN), s.c.Transaction(cfg.TxRSN+1)
		is(second, "PullReqUlpRx")
		s.transmit()
		is(second, "PullReqTx")
		s.ack(wire.Ack{ReqBase: cfg.TxReqPSN + 2})
		is(second, "PullReqAckd")
		s.pullData(cfg.RxDataPSN, cfg.TxRSN+1, 64)
		is(second, "PullDataRx")
		is(first, "PullReqAckd")
		s.pullData(cfg.RxDataPSN+1, cfg.TxRSN, 64)
		is(first, "over")
		is(second, "over")
	})
}

// TestATargetGoesThroughFalconsStates walks pushes and pulls through the states of Falcon §8.5.1, and through those
// that a refusing upper layer adds. RespondPull acknowledges a pull and supplies its data in one
// call, so PullReqUlpAckd takes no time.
func TestATargetGoesThroughFalconsStates(t *testing.T) {
	setup := func(t *testing.T) (*single, func(want ...string)) {
		s := newSingle(t, testProfile())
		s.ulp.OnPush, s.ulp.OnPull = noAnswer, noAnswer
		return s, func(want ...string) {
			t.Helper()
			for i, w := range want {
				if got := s.c.TargetState(7 + uint32(i)); got != w {
					t.Errorf("request %d is in %q, want %q", i, got, w)
				}
			}
		}
	}
	t.Run("push", func(t *testing.T) {
		s, are := setup(t)
		s.pushData(201, 8, false)
		are("", "PushDataRx")
		s.pushData(200, 7, false)
		are("PushReqUlpTx", "PushReqUlpTx")
		s.c.AckPush(s.now, 8)
		are("PushReqUlpTx", "answered")
		s.c.NackPush(s.now, 7, wire.NackRNR, 1, 0)
		are("not ready", "answered")
		s.pushData(200, 7, false)
		are("PushReqUlpTx", "answered")
		s.c.AckPush(s.now, 7)
		are("", "")
	})
	t.Run("push in error", func(t *testing.T) {
		s, are := setup(t)
		s.pushData(200, 7, false)
		s.c.NackPush(s.now, 7, wire.NackCIE, 0, 5)
		are("refused")
		s.resync(200, 7, wire.TypePushData)
		are("")
	})
	t.Run("pull", func(t *testing.T) {
		s, are := setup(t)
		s.pullRequest(501, 8, false)
		are("", "PullReqRx")
		s.pullRequest(500, 7, false)
		are("PullReqUlpTx", "PullReqUlpTx")
		s.c.RNRPull(s.now, 7, 1)
		are("not ready", "PullReqUlpTx")
		s.advance(wire.RNRTimeout(1) + ms)
		are("PullReqUlpTx", "PullReqUlpTx")
		if err := s.c.RespondPull(s.now, 7, 1, 64); err != nil {
			t.Fatal(err)
		}
		are("", "PullReqUlpTx")
		response := s.c.Response(7)
		if got := response(); got != "PullDataUlpRx" {
			t.Errorf("the response is in %s", got)
		}
		s.transmit()
		if got := response(); got != "PullDataTx" {
			t.Errorf("the response is in %s", got)
		}
		s.ack(wire.Ack{DataBase: 301}) // PullDataAckd, which its completion ends at once
		if got, n := response(), s.count(falcon.EvResponseDone); got != "over" || n != 1 {
			t.Errorf("the response is in %s, %d completions", got, n)
		}
	})
}
