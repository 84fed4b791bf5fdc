package falcon_test

import (
	"errors"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// TestCase73_CreditsOfATransaction: what each kind takes when it is issued (Falcon §8.2.3), and
// that it comes back.
func TestCase73_CreditsOfATransaction(t *testing.T) {
	nodes := [2]*credit.Node{credit.New(nil, credit.NoLimit()), credit.New(nil, credit.NoLimit())}
	p := newPair(t, func(cfg *[2]falcon.Config, _ *falcon.ConnConfig, _ *sim.Impairment) {
		for i := range cfg {
			cfg[i].Credits, cfg[i].CreditCell = nodes[i], 64
		}
	})
	p.ulp[1].OnPush, p.ulp[1].OnPull = noAnswer, noAnswer
	p.push(p.a, 200, 1)
	if got, want := nodes[0].InUse(), (credit.Cost{1, 4, 1, 0, 0, 0}); got != want {
		t.Errorf("push: %v, want %v", got, want)
	}
	p.pull(p.a, 1000, 2)
	if got, want := nodes[0].InUse(), (credit.Cost{2, 5, 2, 16, 0, 0}); got != want {
		t.Errorf("push and pull: %v, want %v", got, want)
	}
	p.run(20 * us)
	p.b.AckPush(p.Now, 1)
	if err := p.b.RespondPull(p.Now, 2, 2, 100); err != nil {
		t.Fatal(err)
	}
	if got, want := nodes[1].InUse(), (credit.Cost{0, 0, 0, 0, 1, 2}); got != want {
		t.Errorf("response: %v, want %v", got, want)
	}
	p.run(ms)
	for i, n := range nodes {
		if n.InUse() != (credit.Cost{}) {
			t.Errorf("node %d holds %v", i, n.InUse())
		}
	}
	p.wantIdle()
}

// TestCase74_Xoff: a pool of one. The second request gets Xoff until the first is done; the second
// response waits for the first (what isekai calls global Xoff). Neither blocks the other kind.
func TestCase74_Xoff(t *testing.T) {
	limit := credit.Cost{1, 100, 1, 100, 1, 100}
	p := newPair(t, func(cfg *[2]falcon.Config, _ *falcon.ConnConfig, _ *sim.Impairment) {
		cfg[0].Credits = credit.New(nil, limit)
		cfg[0].Profile.AckTimeout, cfg[1].Profile.AckTimeout = 100*us, 100*us
	})
	p.pull(p.a, 100, 1)
	if err := p.a.Pull(p.Now, 2, 10, 10); !errors.Is(err, falcon.ErrXoff) || !p.a.Info().Xoff {
		t.Errorf("second pull: %v, Xoff %v", err, p.a.Info().Xoff)
	}
	p.pull(p.b, 100, 3, 4)
	p.run(6 * us)
	if n := len(p.packets(0, wire.TypePullData)); n != 1 {
		t.Errorf("%d responses sent with a pool of one, want 1", n)
	}
	if n := len(p.events(0, falcon.EvCredit)); n != 0 {
		t.Error("Xon before the pull is over")
	}
	p.run(ms)
	if n := len(p.events(0, falcon.EvCredit)); n != 1 || p.a.Info().Xoff {
		t.Errorf("%d Xon, Xoff %v", n, p.a.Info().Xoff)
	}
	p.push(p.a, 100, 2)
	p.run(ms)
	p.wantTags(0, falcon.EvPushDone, 2)
	p.wantTags(1, falcon.EvPullDone, 3, 4)
	p.wantIdle()
}

// TestCreditIsOfferedOnce: of many connections that wait, as many get EvCredit, in order, as can
// have what was freed. What one of them does not use goes to the next when CreditsChanged is
// called.
func TestCreditIsOfferedOnce(t *testing.T) {
	limit := credit.NoLimit()
	limit[credit.ReqPktTx] = 4
	s := &single{t: t, now: ms, ulp: &sim.ULP{Record: true}}
	root := credit.New(nil, limit)
	s.e = falcon.NewEngine(falcon.Config{Profile: testProfile(), Credits: root}, s.ulp)
	var conns []*falcon.Conn
	for i := range uint32(20) {
		cfg := connConfig(true)
		cfg.LocalCID = i + 1
		c, err := s.e.Open(s.now, cfg)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		if err := c.Push(s.now, 1, 10); (i < 4) != (err == nil) {
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	offered := func() (list []uint32) {
		var ev falcon.Event
		for s.e.Next(&ev) {
			if ev.Kind == falcon.EvCredit {
				list = append(list, ev.Conn.Config().LocalCID)
			}
		}
		return list
	}
	conns[0].Close(s.now)
	conns[1].Close(s.now)
	equal(t, "offered", offered(), []uint32{5, 6})
	if err := conns[4].Push(s.now, 1, 10); err != nil {
		t.Fatal(err)
	}
	conns[10].Close(s.now)
	equal(t, "offered while 6 has not taken it up", offered(), nil)
	s.e.CreditsChanged()
	equal(t, "offered when 6 does not", offered(), []uint32{7})
	s.e.HoldCredit(true)
	conns[2].Close(s.now)
	conns[3].Close(s.now)
	equal(t, "offered while held", offered(), nil)
	s.e.HoldCredit(false)
	equal(t, "offered then", offered(), []uint32{8, 9})
	if n := root.Refusals(); n != 16 { // who waits is refused once, however often it is looked at
		t.Errorf("%d refusals where 16 connections waited", n)
	}
}

func exhaustRequests(t *testing.T, p *pair, c *falcon.Conn, counter credit.Counter) {
	issue := func(tag uint64) error {
		switch counter {
		case credit.ReqBufTx:
			return c.Push(p.Now, tag, 256)
		case credit.ReqBufRx:
			return c.Pull(p.Now, tag, 44, 256)
		}
		return c.Push(p.Now, tag, 100)
	}
	n := uint64(0)
	for issue(n+1) == nil {
		if n++; n > 2 {
			t.Fatal("not exhausted")
		}
	}
	if want := map[bool]uint64{true: 1, false: 2}[counter == credit.ReqBufTx || counter == credit.ReqBufRx]; n != want {
		t.Errorf("%d transactions, want %d", n, want)
	}
	p.run(ms)
	if len(p.events(0, falcon.EvCredit)) != 1 {
		t.Errorf("%d EvCredit, want 1", len(p.events(0, falcon.EvCredit)))
	}
	if err := issue(9); err != nil {
		t.Errorf("not recovered: %v", err)
	}
	p.run(ms)
}

func exhaustData(t *testing.T, p *pair, c *falcon.Conn) {
	peer := p.Nodes[1].Engine.Conn(c.Config().RemoteCID)
	const length = 130 // two cells
	for tag := range uint64(4) {
		if err := peer.Pull(p.Now, tag, 44, length); err != nil {
			t.Fatal(err)
		}
	}
	p.run(6 * us)
	if n := len(p.packets(0, wire.TypePullData)); n > 2 || n == 0 {
		t.Errorf("%d responses at once", n)
	}
	p.run(5 * ms)
	if n := len(p.events(1, falcon.EvPullDone)); n != 4 {
		t.Errorf("%d pulls completed, want 4", n)
	}
}

// TestCase78_RequestsDoNotStarveResponses: all contexts of the initiator are taken by requests that
// wait for the peer's responses, and both sides are in that state; responses have contexts of their
// own (CR rules 1 and 2).
func TestCase78_RequestsDoNotStarveResponses(t *testing.T) {
	p := newPair(t, func(cfg *[2]falcon.Config, _ *falcon.ConnConfig, _ *sim.Impairment) {
		cfg[0].TxContexts, cfg[1].TxContexts = 1, 1
	})
	p.pull(p.a, 100, 1)
	p.pull(p.b, 100, 2)
	if err := p.a.Push(p.Now, 3, 10); !errors.Is(err, falcon.ErrXoff) {
		t.Errorf("second transaction: %v", err)
	}
	p.run(ms)
	p.wantTags(0, falcon.EvPullDone, 1)
	p.wantTags(1, falcon.EvPullDone, 2)
	p.wantIdle()
}

// TestACostAboveTheLimitCompletesAtOnce: a transaction that costs more than a limit allows
// completes with kUlpCmplCdtErr instead of waiting for ever, at once, or when the limit is lowered
// while the request waits. Such a response ends at both sides (Falcon §11).
func TestACostAboveTheLimitCompletesAtOnce(t *testing.T) {
	limit := credit.NoLimit()
	limit[credit.ReqBufTx] = 1
	node := credit.New(nil, limit)
	s := newSingle(t, testProfile(), func(cfg *falcon.ConnConfig) { cfg.Credits = node })
	if err := s.c.Push(s.now, 1, 1000); err != nil {
		t.Fatal(err)
	}
	s.drain()
	if ev := s.ulp.Events; len(ev) != 1 || ev[0].Kind != falcon.EvPushDone || ev[0].Tag != 1 || ev[0].Code != falcon.CmplUlpCdtErr {
		t.Errorf("events %+v", ev)
	}
	node.SetLimit(credit.NoLimit())
	node.Starve(true)
	if err := s.c.Push(s.now, 2, 1000); err == nil {
		t.Fatal("a push without credit was taken")
	}
	node.Starve(false)
	node.SetLimit(limit)
	s.e.CreditsChanged()
	s.drain()
	if s.count(falcon.EvCredit) != 1 || s.c.Push(s.now, 2, 1000) != nil {
		t.Error("the push that waits is not told that its limit was lowered")
	}
	s.drain()
	if st := s.e.Stats(); st.Completions[falcon.CmplUlpCdtErr] != 2 || st.Rejected != 2 || st.TxContexts != 0 {
		t.Errorf("%d completions, %d at once, %d contexts", st.Completions[falcon.CmplUlpCdtErr], st.Rejected, st.TxContexts)
	}

	p := newPair(t, func(_ *[2]falcon.Config, conn *falcon.ConnConfig, _ *sim.Impairment) {})
	small := credit.NoLimit()
	small[credit.DataBufTx] = 1
	cfg := sim.Mirror(connConfig(true))
	cfg.LocalCID, cfg.RemoteCID, cfg.Credits = 9, 8, credit.New(nil, small)
	if _, err := p.be.Open(p.Now, cfg); err != nil {
		t.Fatal(err)
	}
	c, err := p.ae.Open(p.Now, sim.Mirror(cfg))
	if err != nil {
		t.Fatal(err)
	}
	p.pull(c, 1000, 3)
	p.run(ms)
	if done := p.events(0, falcon.EvPullDone); len(done) != 1 || done[0].Code != falcon.CmplRemoteErr {
		t.Errorf("pull: %+v", done)
	}
	if done := p.events(1, falcon.EvResponseDone); len(done) != 1 || done[0].Code != falcon.CmplUlpCdtErr {
		t.Errorf("response: %+v", done)
	}
}

// TestResponsesLeaveRequestsTheirContexts: responses in progress do not count against TxContexts,
// which is for requests.
func TestResponsesLeaveRequestsTheirContexts(t *testing.T) {
	p := newPair(t, func(cfg *[2]falcon.Config, _ *falcon.ConnConfig, _ *sim.Impairment) { cfg[0].TxContexts = 1 })
	p.pull(p.b, 1000, 1, 2, 3)
	p.run(6 * us) // the responses are on their way
	if n := p.ae.Stats().TxContexts; n != 3 {
		t.Fatalf("%d responses under way, want 3", n)
	}
	if err := p.a.Push(p.Now, 9, 100); err != nil {
		t.Errorf("push: %v", err)
	}
	if err := p.a.Push(p.Now, 10, 100); err == nil {
		t.Error("two pushes were taken with one context")
	}
	p.run(ms) // all is over
	p.push(p.a, 100, 11)
	if err := p.a.Push(p.Now, 12, 100); err == nil {
		t.Error("two pushes were taken with one context when the responses were over")
	}
}

// TestAConnectionHasAsManyTransactionsAsTheProfileAllows: a connection has as many transactions as
// the profile allows, and gets EvCredit when another can begin.
func TestAConnectionHasAsManyTransactionsAsTheProfileAllows(t *testing.T) {
	p := testProfile()
	p.MaxTxn = 8
	s := newSingle(t, p)
	s.push(8)
	if err := s.c.Push(s.now, 9, 32); !errors.Is(err, falcon.ErrXoff) {
		t.Fatalf("a ninth of eight: %v", err)
	}
	s.transmit()
	if s.drain(); s.count(falcon.EvCredit) != 0 {
		t.Error("told of room where there is none")
	}
	s.ack(wire.Ack{DataBase: 301})
	if s.count(falcon.EvCredit) != 1 {
		t.Errorf("%d times told", s.count(falcon.EvCredit))
	}
	s.push(1)
}

// TestPeerThatIsNotReadyHoldsNoCredits: a transaction that waits for a receiver returns its
// credits, and so do those that can only wait behind it: pushes that were not sent, and pulls that
// the peer has. Others can have all the credits. When the peer is ready, everything is sent,
// whoever has the credits, and completes in order: the peer reserves places for it, for which the
// others may be waiting.
func TestPeerThatIsNotReadyHoldsNoCredits(t *testing.T) {
	for _, fcwnd := range []float64{2, 32} {
		node := credit.New(nil, credit.NoLimit())
		limit := credit.NoLimit()
		limit[credit.ReqPktTx] = 8
		node.SetLimit(limit)
		p := newPair(t, func(cfg *[2]falcon.Config, _ *falcon.ConnConfig, _ *sim.Impairment) {
			cfg[0].Profile.CC, cfg[0].Credits = fixed(fcwnd, 64), node
		})
		ready := false
		p.ulp[1].OnPush = func(now falcon.Time, ev *falcon.Event, _ uint64) {
			if ready {
				ev.Conn.AckPush(now, ev.RSN)
			} else {
				ev.Conn.NackPush(now, ev.RSN, wire.NackRNR, 17, 0) // 3.84 ms
			}
		}
		p.push(p.a, 100, 1, 2, 3, 4, 5, 6)
		p.pull(p.a, 100, 7, 8)
		p.run(3 * ms)
		if held := node.InUse(); held != (credit.Cost{}) || node.Parked() != 8 {
			t.Fatalf("window %v: %v held and %d parked while the peer is not ready", fcwnd, held, node.Parked())
		}
		if err := p.a.Push(p.Now, 9, 100); !errors.Is(err, falcon.ErrXoff) {
			t.Errorf("window %v: a push that could only wait: %v", fcwnd, err)
		}
		all := credit.Cost{credit.ReqPktTx: 8}
		if !node.Take(&all) {
			t.Fatalf("window %v: another cannot have the credits", fcwnd)
		}
		ready = true
		p.run(40 * ms)
		p.wantTags(0, falcon.EvPushDone, 1, 2, 3, 4, 5, 6)
		p.wantTags(0, falcon.EvPullDone, 7, 8)
		if len(p.events(0, falcon.EvCredit)) != 0 {
			t.Errorf("window %v: who was refused hears of credit that another has", fcwnd)
		}
		_ = node.Return(&all)
		p.ae.CreditsChanged()
		p.run(1 * ms)
		if len(p.events(0, falcon.EvCredit)) == 0 {
			t.Errorf("window %v: who was refused hears of no credit", fcwnd)
		}
		p.push(p.a, 100, 9)
		p.run(10 * ms)
		p.wantTags(0, falcon.EvPushDone, 1, 2, 3, 4, 5, 6, 9)
		p.wantIdle()
		if held := node.InUse(); held != (credit.Cost{}) || node.Parked() != 0 {
			t.Errorf("window %v: %v held and %d parked at the end", fcwnd, held, node.Parked())
		}
	}
}

// TestParkedIsBounded: as many transactions may be parked as the node allows, and the others keep
// their credits. Closing the connection removes all of them.
func TestParkedIsBounded(t *testing.T) {
	function := credit.New(nil, credit.NoLimit())
	limit := credit.NoLimit()
	limit[credit.ReqPktTx] = 1
	p := newPair(t, func(cfg *[2]falcon.Config, c *falcon.ConnConfig, _ *sim.Impairment) {
		c.Ordered, cfg[0].Credits = false, function
	})
	p.ulp[1].OnPush = func(now falcon.Time, ev *falcon.Event, _ uint64) { ev.Conn.NackPush(now, ev.RSN, wire.NackRNR, 17, 0) }
	function.SetLimit(limit)
	for tag := range uint64(5) {
		p.push(p.a, 100, tag)
		p.run(20 * us)
	}
	if err := p.a.Push(p.Now, 5, 100); !errors.Is(err, falcon.ErrXoff) || function.Parked() != 4 || function.InUse()[credit.ReqPktTx] != 1 {
		t.Errorf("%v, %d parked, %v in use", err, function.Parked(), function.InUse())
	}
	p.a.Close(p.Now)
	p.run(1 * ms)
	if function.Parked() != 0 || function.InUse() != (credit.Cost{}) || p.ae.Stats().CreditErrors != 0 {
		t.Errorf("%d parked, %v in use after the end", function.Parked(), function.InUse())
	}
}

// TestForeignCreditsAreNoticedWhenTold: room that becomes available outside the engine is not
// noticed until CreditsChanged is called.
func TestForeignCreditsAreNoticedWhenTold(t *testing.T) {
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
