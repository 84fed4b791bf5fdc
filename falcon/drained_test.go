package falcon_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// TestWhatHoldsADrain: each kind of work in progress alone keeps a connection from being drained,
// and its end drains the connection.
func TestWhatHoldsADrain(t *testing.T) {
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

// TestDrainedOnce: later requests of the peer do not drain a connection again, and closing a
// connection with work left does not drain it.
func TestDrainedOnce(t *testing.T) {
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

// TestStalledResponsesAreReclaimedApart: a response that has waited too long for credits is given
// up. A response of another connection has its own time.
func TestStalledResponsesAreReclaimedApart(t *testing.T) {
	p := testProfile()
	p.RxTimeout = 100 * ms
	node := credit.New(nil, credit.NoLimit())
	s := newSingle(t, p, func(cfg *falcon.ConnConfig) { cfg.Credits = node })
	s.ulp.OnPull = noAnswer
	other := s.beside()
	node.Starve(true)
	for _, c := range []*falcon.Conn{s.c, other} {
		s.with(c, func() {
			s.pullRequest(500, 7, false)
			if err := c.RespondPull(s.now, 7, 1, 8); err != nil {
				t.Fatal(err)
			}
		})
		s.advance(10 * ms)
	}
	s.advance(85 * ms)
	for i, c := range []*falcon.Conn{s.c, other} {
		if n, want := c.Info().TargetTransaction, i; n != want {
			t.Errorf("connection %d: %d transactions after 105 ms, want %d", i, n, want)
		}
	}
	s.advance(10 * ms)
	if n := other.Info().TargetTransaction; n != 0 {
		t.Errorf("%d transactions after 115 ms", n)
	}
}
