package falcon_test

import (
	"errors"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/psp"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// TestWorkInProgressHoldsADrain: each kind of work in progress alone keeps a connection from being
// drained, and its end drains the connection.
func TestWorkInProgressHoldsADrain(t *testing.T) {
	exhausted := func(s *single) { // the transaction is over, and its Resync is not acknowledged
		s.advance(1100 * us)
		if len(s.ulp.Events) != 0 {
			s.t.Fatalf("%d events", len(s.ulp.Events))
		}
		s.advance(1000 * us)
	}
	node := credit.New(nil, credit.NoLimit())
	for what, c := range map[string]struct{ begin, end func(*single) }{
		"a pull without data": {
			func(s *single) { s.pull(1); s.transmit(); s.ack(wire.Ack{ReqBase: 101}) },
			func(s *single) { s.pullData(200, 1, 8); s.transmit() },
		},
		"a pull request without acknowledgement": {
			func(s *single) { s.pull(1); exhausted(s) },
			func(s *single) { s.ack(wire.Ack{ReqBase: 101}) },
		},
		"a push without acknowledgement": {
			func(s *single) { s.push(1); exhausted(s) },
			func(s *single) { s.ack(wire.Ack{DataBase: 301}) },
		},
		"a request without answer": {
			func(s *single) { s.pullRequest(500, 7, true); s.transmit() },
			func(s *single) { _ = s.c.RespondPull(s.now, 7, 1, 8); s.transmit(); s.ack(wire.Ack{DataBase: 301}) },
		},
		"a response without credit": {
			func(s *single) {
				s.pullRequest(500, 7, true)
				s.transmit()
				node.Starve(true)
				_ = s.c.RespondPull(s.now, 7, 1, 8)
			},
			func(s *single) {
				node.Starve(false)
				s.e.CreditsChanged()
				s.drain()
				s.transmit()
				s.ack(wire.Ack{DataBase: 301})
			},
		},
		"a request and a response": {
			func(s *single) {
				s.pullRequest(500, 7, false)
				s.pullRequest(501, 8, true)
				s.transmit()
				node.Starve(true)
				_ = s.c.RespondPull(s.now, 7, 1, 8)
			},
			func(s *single) {
				_ = s.c.RespondPull(s.now, 8, 1, 8)
				node.Starve(false)
				s.e.CreditsChanged()
				s.drain()
				s.transmit()
				s.ack(wire.Ack{DataBase: 302})
			},
		},
		"a NACK": {
			func(s *single) { s.want(s.pullRequest(500, 7+falcon.MaxTxWindow, false), wire.DropResource) },
			func(s *single) { s.transmit() },
		},
	} {
		node.Starve(false)
		p := testProfile()
		p.TxnTimeout, p.MaxRetransmits = 1500*us, 0
		if what == "a pull without data" {
			p.TxnTimeout = 0
		}
		s := newSingle(t, p, func(cfg *falcon.ConnConfig) { cfg.Credits = node })
		s.ulp.OnPull = noAnswer
		c.begin(s)
		s.c.Drain(s.now)
		if s.drain(); s.count(falcon.EvDrained) != 0 {
			t.Errorf("%s: drained at once", what)
		}
		c.end(s)
		s.transmit() // the last acknowledgement
		if s.drain(); s.count(falcon.EvDrained) != 1 {
			t.Errorf("%s: %d times drained in the end", what, s.count(falcon.EvDrained))
		}
		s.c.Drain(s.now)
		s.drain()
		s.c.Close(s.now)
		if s.drain(); s.count(falcon.EvDrained) != 1 {
			t.Errorf("%s: told %d times that it is drained", what, s.count(falcon.EvDrained))
		}
	}
}

// TestAConnectionDrainsAtMostOnce: later requests of the peer do not drain a connection again, and closing a
// connection with work left does not drain it.
func TestAConnectionDrainsAtMostOnce(t *testing.T) {
	s := newSingle(t, testProfile())
	s.c.Drain(s.now)
	s.want(s.pushData(200, 7, true), wire.DropNone)
	s.transmit()
	if s.drain(); s.count(falcon.EvDrained) != 1 {
		t.Errorf("%d times drained", s.count(falcon.EvDrained))
	}

	s = newSingle(t, testProfile())
	s.push(1) // not sent yet
	s.c.Drain(s.now)
	s.c.Close(s.now)
	if s.drain(); s.count(falcon.EvDrained) != 0 || s.count(falcon.EvPushDone) != 1 {
		t.Errorf("%d times drained with a push that is not sent", s.count(falcon.EvDrained))
	}
}

// TestCloseKeepsOutcomes: transactions that had ended, and waited for older ones, complete with
// their own result. The others fail.
func TestCloseKeepsOutcomes(t *testing.T) {
	s := newSingle(t, testProfile())
	s.push(3)
	s.transmit()
	s.ack(wire.Ack{Extended: true, DataAck: bits(1), DataRx: bits(1)})
	s.c.Close(s.now)
	s.drain()
	var codes []falcon.Completion
	for _, e := range s.ulp.Events {
		if e.Kind == falcon.EvPushDone {
			codes = append(codes, e.Code)
		}
	}
	equal(t, "completions", codes, []falcon.Completion{falcon.CmplDeadConn, falcon.CmplAck, falcon.CmplDeadConn})
}

// TestCloseBeforeSending: transactions of each kind that were not sent yet end with the connection
// too. Those of other connections that wait are not affected.
func TestCloseBeforeSending(t *testing.T) {
	node := credit.New(nil, credit.NoLimit())
	s := newSingle(t, testProfile(), func(cfg *falcon.ConnConfig) { cfg.Credits = node })
	s.ulp.OnPull = noAnswer
	other := s.beside()
	s.push(1)
	s.pull(1)
	s.pullRequest(500, 7, false)
	if err := s.c.RespondPull(s.now, 7, 1, 8); err != nil {
		t.Fatal(err)
	}
	node.Starve(true) // responses from here on wait for credits
	stall := func(psn, rsn uint32) {
		s.pullRequest(psn, rsn, false)
		if err := s.c.RespondPull(s.now, rsn, 2, 8); err != nil {
			t.Fatal(err)
		}
	}
	stall(501, 8)
	s.with(other, func() { stall(500, 7) })
	s.c.Close(s.now)
	if s.drain(); s.count(falcon.EvResponseDone) != 2 || s.count(falcon.EvPushDone) != 1 || s.count(falcon.EvPullDone) != 1 {
		t.Errorf("%d responses, %d pushes, %d pulls done", s.count(falcon.EvResponseDone), s.count(falcon.EvPushDone), s.count(falcon.EvPullDone))
	}
	if n := s.e.Stats().TxContexts; n != 1 {
		t.Errorf("%d contexts held, want that of the other connection's response", n)
	}
	node.Starve(false)
	s.e.CreditsChanged()
	s.drain()
	if got := only(s.transmit(), wire.TypePullData); len(got) != 1 {
		t.Errorf("%d responses of the other connection", len(got))
	}
}

// TestADrainFinishesTransactionsAndBeginsNone: transactions in progress are finished, in both directions, and no new ones begin.
func TestADrainFinishesTransactionsAndBeginsNone(t *testing.T) {
	p := newPair(t)
	p.ulp[0].OnPull = noAnswer
	p.push(p.a, 100, 1, 2)
	p.pull(p.a, 100, 3)
	p.pull(p.b, 100, 4)
	p.dropNth(0, wire.TypePushData, 2)
	p.run(20 * us)
	p.a.Drain(p.Now)
	p.a.Drain(p.Now)
	if err := p.a.Push(p.Now, 9, 10); !errors.Is(err, falcon.ErrDraining) {
		t.Errorf("push while draining: %v", err)
	}
	if err := p.a.Pull(p.Now, 9, 10, 10); !errors.Is(err, falcon.ErrDraining) {
		t.Errorf("pull while draining: %v", err)
	}
	p.push(p.b, 100, 5) // the peer may not know yet
	p.run(3 * ms)
	p.wantTags(0, falcon.EvPushDone, 1, 2)
	p.wantTags(0, falcon.EvPullDone, 3)
	if n := len(p.events(0, falcon.EvDrained)); n != 0 {
		t.Fatalf("drained with a request of the peer unanswered")
	}
	for _, e := range p.events(0, falcon.EvPull) {
		if err := p.a.RespondPull(p.Now, e.RSN, e.Key, e.Length); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(p.events(0, falcon.EvDrained)); n != 0 {
		t.Fatalf("drained with a response not acknowledged")
	}
	p.run(5 * ms)
	p.wantTags(1, falcon.EvPullDone, 4)
	p.wantTags(1, falcon.EvPushDone, 5)
	if n := len(p.events(0, falcon.EvDrained)); n != 1 {
		t.Errorf("%d drained events, want 1", n)
	}
	p.wantIdle()
	p.a.Close(p.Now)
	p.run(us)
	if last := p.ulp[0].Events[len(p.ulp[0].Events)-1]; last.Kind != falcon.EvClosed || last.Reason != falcon.CloseLocal {
		t.Errorf("last event %+v", last.Event)
	}
	// An idle connection is drained at once.
	p.b.Drain(p.Now)
	p.run(us)
	if n := len(p.events(1, falcon.EvDrained)); n != 1 {
		t.Errorf("idle: %d drained events", n)
	}
}

func TestAnAbortEndsTransactionsAndTellsItsReason(t *testing.T) {
	for _, reason := range []falcon.CloseReason{falcon.ClosePeer, falcon.CloseULP, falcon.CloseKeys} {
		s := newSingle(t, testProfile())
		s.push(1)
		s.transmit()
		s.c.Abort(s.now, reason)
		s.c.Abort(s.now, falcon.CloseLocal)
		s.drain()
		ev := s.ulp.Events
		if len(ev) != 2 || ev[0].Kind != falcon.EvPushDone || ev[0].Code != falcon.CmplDeadConn {
			t.Fatalf("%v: %+v", reason, ev)
		}
		if last := ev[1]; last.Kind != falcon.EvClosed || last.Reason != reason || last.Code != falcon.CmplDeadConn {
			t.Errorf("%v: %+v", reason, last.Event)
		}
	}
}

// TestAPathThatShrinksEndsConnectionsWithLongerPackets: when the network carries shorter packets than
// before, connections go on with such, unless a longer packet is not acknowledged: they end for that
// reason, at the end that cannot send it again.
func TestAPathThatShrinksEndsConnectionsWithLongerPackets(t *testing.T) {
	const long, short = 1000, 400
	for what, c := range map[string]struct {
		begin func(p *pair)
		ends  [2]bool
	}{
		"nothing is in flight":         {func(*pair) {}, [2]bool{}},
		"short packets are in flight":  {func(p *pair) { p.push(p.a, short, 1); p.pull(p.a, short, 2) }, [2]bool{}},
		"a long push is in flight":     {func(p *pair) { p.push(p.a, long, 1) }, [2]bool{true, false}},
		"a long response is in flight": {func(p *pair) { p.pull(p.a, long, 1) }, [2]bool{false, true}},
	} {
		p := newPair(t)
		carries := long
		p.Filter = func(_ int, b []byte) sim.Verdict { return sim.Verdict{Drop: len(b) > carries+wire.MaxHeaderLen} }
		p.push(p.a, long, 100)
		p.run(5 * ms)
		carries = short
		c.begin(p)
		p.run(2 * ms)
		for i, conn := range []*falcon.Conn{p.a, p.b} {
			conn.Limit(short)
			p.run(us)
			if got := p.events(i, falcon.EvLimit); len(got) != 1 || got[0].Length != short {
				t.Errorf("%s: node %d is told %v", what, i, got)
			}
		}
		p.run(2 * ms) // longer than an RTO
		for i := range p.Nodes {
			got := p.events(i, falcon.EvClosed)
			if ended := len(got) > 0; ended != c.ends[i] || ended && (got[0].Reason != falcon.CloseMTU || got[0].Code != falcon.CmplDeadConn) {
				t.Errorf("%s: node %d: %+v", what, i, got)
			}
		}
		if c.ends != [2]bool{} {
			continue
		}
		p.push(p.a, short, 3)
		p.pull(p.b, short, 4)
		p.run(5 * ms)
		carries = long
		p.a.Limit(long)
		p.push(p.a, long, 5)
		p.run(5 * ms)
		if n := len(p.events(0, falcon.EvPushDone)) + len(p.events(0, falcon.EvPullDone)) + len(p.events(1, falcon.EvPullDone)); n < 4 {
			t.Errorf("%s: %d transactions are done", what, n)
		}
		p.wantIdle()
	}
}

// TestFailureStaysOnItsConnection: one connection of two engines is cut off and dies. Its
// neighbour, which shares their credits, contexts and cells, is not affected.
func TestFailureStaysOnItsConnection(t *testing.T) {
	nodes := [2]*credit.Node{credit.New(nil, credit.NoLimit()), credit.New(nil, credit.NoLimit())}
	p := newPair(t, func(cfg *[2]falcon.Config, _ *falcon.ConnConfig, _ *sim.Impairment) {
		for i := range cfg {
			cfg[i].Credits = nodes[i]
			cfg[i].Profile.MaxRetransmits, cfg[i].Profile.TxnTimeout = 2, 0
		}
	})
	cfg := connConfig(true)
	cfg.LocalCID++
	cfg.RemoteCID++
	neighbour, other, err := p.Connect(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.Filter = func(_ int, b []byte) sim.Verdict {
		cid, _ := wire.PeekCID(b)
		return sim.Verdict{Drop: cid == connConfig(true).LocalCID || cid == connConfig(true).RemoteCID}
	}
	p.push(p.a, 100, 1, 2, 3)
	p.pull(p.a, 100, 4)
	p.push(p.b, 100, 5)
	for i := range uint64(100) {
		p.push(neighbour, 100, 1000+i)
		p.pull(other, 100, 2000+i)
		p.run(ms / 2)
	}
	if !p.a.Closed() || !p.b.Closed() {
		t.Fatal("the connection that was cut off lives")
	}
	if neighbour.Closed() || other.Closed() {
		t.Fatal("its neighbour died")
	}
	good := [2]int{}
	for i := range 2 {
		for _, e := range p.ulp[i].Events {
			if (e.Conn == neighbour || e.Conn == other) && (e.Kind == falcon.EvPushDone || e.Kind == falcon.EvPullDone) {
				if e.Code != falcon.CmplAck {
					t.Errorf("neighbour: %+v", e.Event)
				}
				good[i]++
			}
		}
		if st := p.Nodes[i].Engine.Stats(); st.ConnsClosed != [falcon.CloseReasons]uint64{falcon.CloseResync: 1} || st.Conns != 1 || st.TxContexts != 0 || st.RxContexts != 0 || st.RxCells != 0 {
			t.Errorf("node %d: %+v", i, st)
		}
		if nodes[i].InUse() != (credit.Cost{}) {
			t.Errorf("node %d: credits left: %v", i, nodes[i].InUse())
		}
	}
	if good != [2]int{100, 100} {
		t.Errorf("neighbour completed %v, want 100 on each side", good)
	}
}

// TestRekeyDoesNotDisturb: the engine's packets use security associations that are replaced twice
// in the middle of a transfer, the second time in the other phase. Nothing is lost, retransmitted
// or reordered because of it (Falcon §9.2.2.3).
func TestRekeyDoesNotDisturb(t *testing.T) {
	b := newBackToBack(t)
	var rx [2]*psp.RxSADB
	var tx [2]*psp.TxSA
	var sides [2]*psp.Association
	var guards [2]psp.Guard
	var open [2]*psp.Opener
	rekey := func(i int) { // node i receives with a new SPI, its peer seals with it
		spi, key, err := rx[i].Issue(0, psp.ClassFalcon)
		if err != nil {
			t.Fatal(err)
		}
		if tx[1-i], err = psp.NewTransportTxSA(0, spi, key, 1); err != nil {
			t.Fatal(err)
		}
		if sides[i] == nil {
			sides[i] = psp.NewAssociation(psp.AssociationConfig{SPI: spi, Generation: rx[i].Generation().Current, AnyPCID: true, Margin: 1e9})
			guards[i] = sides[i].Guard(0)
			return
		}
		sides[i].Rekey(spi, rx[i].Generation().Current)
	}
	for i := range rx {
		rx[i] = psp.NewRxSADB(psp.Master{}, 1000, 1)
		open[i] = rx[i].Opener(0)
		rekey(i)
	}
	packets := 0
	b.through = func(to int, packet []byte) falcon.Packet {
		if packets++; packets%50 == 0 {
			rekey(to)
		}
		if packets%120 == 0 {
			rx[to].Rotate(&[32]byte{byte(packets)})
			rekey(to)
		}
		sa := tx[1-to]
		sealed := append(make([]byte, sa.HeaderLen()), packet...)
		sealed = append(sealed, make([]byte, sa.Overhead()-sa.HeaderLen())...)
		n, err := sa.Seal(b.now, 252, sealed, len(packet))
		if err != nil {
			t.Fatal(err)
		}
		h, _, clear, err := open[to].Open(sealed[:n])
		if err != nil {
			t.Fatal(err)
		}
		if err := guards[to].Check(h, open[to]); err != nil {
			t.Fatalf("packet %d: %v", packets, err)
		}
		return falcon.Packet{T1: uint32(h.IV >> 17), Data: clear}
	}
	for range 10 {
		b.pushes(t, 40, 1000)
		b.pulls(t, 40, 1000)
	}
	for i, e := range b.e {
		if st := e.Stats(); st.TimeoutRetransmits+st.EarlyRetransmits+st.ResyncsSent+st.NacksSent != 0 || st.PacketsReceived != st.Drops[wire.DropNone] {
			t.Errorf("node %d was disturbed: %+v", i, st)
		}
	}
}

// TestADrainAcknowledgesEverythingReceivedFirst: everything that the peer sent is acknowledged before the connection counts
// as drained. Otherwise the peer would take it for lost when the connection closes.
func TestADrainAcknowledgesEverythingReceivedFirst(t *testing.T) {
	s := newSingle(t, ackProfile(100, 100*us))
	s.ulp.OnPush = noAnswer
	s.pushData(200, 7, false)
	s.c.AckPush(s.now, 7)
	s.c.Drain(s.now)
	s.drain()
	if n := s.count(falcon.EvDrained); n != 0 {
		t.Fatal("drained with an acknowledgement held back")
	}
	if got := s.transmit(); len(got) != 1 || got[0].Type != wire.TypeBACK || ack(t, got[0].Packet).DataBase != 201 {
		t.Fatalf("sent %v, want a BACK", got)
	}
	s.drain()
	if n := s.count(falcon.EvDrained); n != 1 {
		t.Errorf("%d drained events, want 1", n)
	}
}
