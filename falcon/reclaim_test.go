package falcon_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// TestReclaimFromSilentPeer: what waits for a peer that became silent is given up after RxTimeout,
// and not before (Falcon §11). What was not acknowledged is accepted if the peer sends it later.
func TestReclaimFromSilentPeer(t *testing.T) {
	profile := testProfile()
	profile.RxTimeout = 100 * ms
	empty := func(s *single) bool { st := s.e.Stats(); return st.RxContexts == 0 && st.RxCells == 0 }
	code := map[uint32]wire.NackCode{}
	newTarget := func() *single {
		s := newSingle(t, profile)
		clear(code)
		s.ulp.OnPush = func(now falcon.Time, ev *falcon.Event, _ uint64) {
			if c, ok := code[ev.RSN]; ok {
				ev.Conn.NackPush(now, ev.RSN, c, 1, 0)
				return
			}
			ev.Conn.AckPush(now, ev.RSN)
		}
		return s
	}
	t.Run("hole", func(t *testing.T) {
		s := newTarget()
		for n := uint32(1); n < wire.DataWindow; n++ {
			s.want(s.pushData(200+n, 7+n, false), wire.DropNone)
		}
		s.advance(99 * ms)
		if st := s.e.Stats(); st.RxCells != wire.DataWindow-1 {
			t.Fatalf("%d cells before the timeout", st.RxCells)
		}
		s.advance(2 * ms)
		if st := s.e.Stats(); !empty(s) || st.Reclaimed != wire.DataWindow-1 {
			t.Fatalf("%d contexts, %d cells, %d reclaimed", st.RxContexts, st.RxCells, st.Reclaimed)
		}
		for n := range uint32(wire.DataWindow) {
			s.want(s.pushData(200+n, 7+n, false), wire.DropNone)
		}
		if n := s.count(falcon.EvPush); n != wire.DataWindow {
			t.Errorf("%d of %d delivered", n, wire.DataWindow)
		}
	})
	t.Run("each in its time", func(t *testing.T) {
		s := newTarget()
		s.want(s.pushData(201, 8, false), wire.DropNone)
		s.advance(30 * ms)
		s.want(s.pushData(202, 9, false), wire.DropNone)
		s.advance(20 * ms)
		s.want(s.pushData(203, 10, false), wire.DropNone)
		for i, d := range []falcon.Time{49 * ms, 2 * ms, 28 * ms, 2 * ms, 18 * ms, 2 * ms} {
			s.advance(d)
			if st := s.e.Stats(); st.Reclaimed != uint64(i+1)/2 {
				t.Errorf("%d reclaimed after %d ms", st.Reclaimed, s.now/ms-1)
			}
		}
	})
	t.Run("not ready", func(t *testing.T) {
		s := newTarget()
		code[7] = wire.NackRNR
		s.want(s.pushData(200, 7, false), wire.DropNone)
		s.want(s.pushData(201, 8, false), wire.DropNotReady)
		if n := s.e.Stats().RxContexts; n != 2 {
			t.Fatalf("%d contexts held", n)
		}
		s.advance(101 * ms)
		if st := s.e.Stats(); !empty(s) || st.Reclaimed != 2 {
			t.Fatalf("pushes that were told to come again are held, or %d reclaimed", st.Reclaimed)
		}
		clear(code)
		s.want(s.pushData(201, 8, false), wire.DropNotReady)
		s.want(s.pushData(200, 7, false), wire.DropNone)
		s.want(s.pushData(201, 8, false), wire.DropNone)
		if n := s.count(falcon.EvPush); n != 3 {
			t.Errorf("%d deliveries, want 3", n)
		}
	})
	t.Run("refused", func(t *testing.T) {
		s := newTarget()
		code[7] = wire.NackCIE
		s.want(s.pushData(200, 7, false), wire.DropNone)
		s.advance(101 * ms)
		if st := s.e.Stats(); !empty(s) || st.Reclaimed != 1 {
			t.Fatalf("a refused push is held, or %d reclaimed", st.Reclaimed)
		}
		s.want(s.pushData(200, 7, false), wire.DropDuplicate) // never delivered twice
		s.want(s.resync(200, 7, wire.TypePushData), wire.DropDuplicate)
		if got := s.transmit(); len(got) == 0 || ack(t, got[len(got)-1].Packet).DataBase != 201 {
			t.Errorf("sent %v, want the Resync acknowledged", got)
		}
	})
	t.Run("pull", func(t *testing.T) {
		s := newTarget()
		s.want(s.pullRequest(501, 8, false), wire.DropNone)
		got := only(s.advance(101*ms), wire.TypeResync)
		if st := s.e.Stats(); !empty(s) || len(got) == 0 || st.Reclaimed != 1 {
			t.Fatalf("%d contexts, %d Resyncs, %d reclaimed", st.RxContexts, len(got), st.Reclaimed)
		}
		if r, _ := wire.ParseResync(got[0].Packet); r.Original != wire.TypePullData || r.Code != wire.ResyncTimeout || r.RSN != 8 {
			t.Errorf("Resync %+v", r)
		}
		s.want(s.pullRequest(500, 7, false), wire.DropNone)
		s.want(s.pullRequest(502, 9, false), wire.DropNone)
		if n := s.count(falcon.EvPull); n != 2 {
			t.Errorf("%d pulls delivered, want those before and after", n)
		}
		s.advance(100 * ms)
		if !s.c.Closed() || s.e.Stats().TxContexts != 0 {
			t.Error("the peer does not take the Resync, and the connection lives on")
		}
	})
	t.Run("response without credit", func(t *testing.T) {
		none := credit.NoLimit()
		node := credit.New(nil, none)
		s := newSingle(t, profile, func(cfg *falcon.ConnConfig) { cfg.Credits = node })
		node.Starve(true)
		s.want(s.pullRequest(500, 7, false), wire.DropNone)
		s.advance(50 * ms)
		s.want(s.pullRequest(501, 8, false), wire.DropNone)
		for i, d := range []falcon.Time{49 * ms, 2 * ms, 48 * ms, 2 * ms} {
			got := only(s.advance(d), wire.TypeResync)
			if n := s.e.Stats().Reclaimed; n != uint64(i+1)/2 {
				t.Errorf("%d reclaimed after %d ms", n, s.now/ms-1)
			}
			if i%2 == 0 {
				continue
			}
			if len(got) == 0 {
				t.Fatalf("no Resync after %d ms", s.now/ms-1)
			}
			psn := uint32(300 + i/2)
			if r, _ := wire.ParseResync(got[len(got)-1].Packet); r.Original != wire.TypePullData || r.Code != wire.ResyncTimeout || r.PSN != psn {
				t.Errorf("Resync %+v", r)
			}
			s.want(s.ack(wire.Ack{DataBase: psn + 1}), wire.DropNone)
		}
		if st := s.e.Stats(); st.TxContexts != 0 || s.count(falcon.EvResponseDone) != 2 {
			t.Errorf("%d contexts, %d responses done", st.TxContexts, s.count(falcon.EvResponseDone))
		}
	})
}

// TestAHoldOutlivesRxTimeout: requests behind one that the receiver is not ready for are not given
// up while the peer goes on sending that one.
func TestAHoldOutlivesRxTimeout(t *testing.T) {
	p := newPair(t, func(cfg *[2]falcon.Config, _ *falcon.ConnConfig, _ *sim.Impairment) {
		cfg[0].Profile.TxnTimeout = 60 * ms
		cfg[1].Profile.RxTimeout = 20 * ms
	})
	tries := 0
	p.ulp[1].OnPush = func(now falcon.Time, ev *falcon.Event, _ uint64) {
		if tries++; tries <= 10 {
			ev.Conn.NackPush(now, ev.RSN, wire.NackRNR, 24, 0) // 40.96 ms
			return
		}
		ev.Conn.AckPush(now, ev.RSN)
	}
	p.push(p.a, 100, 1)
	p.pull(p.a, 100, 2)
	p.run(1000 * ms)
	p.wantTags(0, falcon.EvPushDone, 1)
	p.wantTags(0, falcon.EvPullDone, 2)
	p.wantIdle()
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
	for i, d := range []falcon.Time{85 * ms, 10 * ms} {
		s.advance(d)
		if n := s.e.Stats().Reclaimed; n != uint64(i+1) {
			t.Errorf("%d reclaimed after %d ms, want %d", n, s.now/ms-1, i+1)
		}
	}
}

// TestAResponseThatIsGivenUpEndsThePull: the initiator is told of a response that the target gave
// up for lack of credits, so that a pull without a timeout ends too (Falcon §6.4, §11).
func TestAResponseThatIsGivenUpEndsThePull(t *testing.T) {
	node := credit.New(nil, credit.NoLimit())
	p := newPair(t, func(cfg *[2]falcon.Config, conn *falcon.ConnConfig, _ *sim.Impairment) {
		conn.GiveUp = falcon.Forever
		cfg[1].Profile.RxTimeout, cfg[1].Credits = 100*ms, node
	})
	node.Starve(true)
	p.pull(p.a, 100, 1)
	p.run(99 * ms)
	if got := p.events(0, falcon.EvPullDone); len(got) != 0 {
		t.Fatalf("%+v before the timeout", got)
	}
	p.run(10 * ms)
	if got := p.events(0, falcon.EvPullDone); len(got) != 1 || got[0].Code != falcon.CmplRemoteErr {
		t.Errorf("completed %+v, want one with %v", got, falcon.CmplRemoteErr)
	}
	if got := p.events(1, falcon.EvResponseDone); len(got) != 1 || got[0].Code != falcon.CmplLocalTO {
		t.Errorf("response done %+v, want one with %v", got, falcon.CmplLocalTO)
	}
	p.wantIdle()
}

// TestNoReclaimTimeout: without a limit the target holds what waits for its peer for ever.
func TestNoReclaimTimeout(t *testing.T) {
	p := testProfile()
	p.RxTimeout = 0
	s := newSingle(t, p)
	s.want(s.pushData(201, 8, true), wire.DropNone)
	s.advance(3600_000 * ms)
	if st := s.e.Stats(); st.Reclaimed != 0 || st.RxCells != 1 {
		t.Errorf("%d reclaimed, %d cells held", st.Reclaimed, st.RxCells)
	}
}

// TestRefusalOutlivesItsTimeout: after the delay that it was given, the peer has RxTimeout to send
// a push again.
func TestRefusalOutlivesItsTimeout(t *testing.T) {
	p := testProfile()
	p.RxTimeout = 100 * ms
	s := newSingle(t, p)
	s.ulp.OnPush = noAnswer
	s.want(s.pushData(200, 7, false), wire.DropNone)
	s.c.NackPush(s.now, 7, wire.NackRNR, 24, 0) // 40.96 ms
	s.advance(140 * ms)
	if st := s.e.Stats(); st.RxContexts != 1 || st.Reclaimed != 0 {
		t.Errorf("%d contexts after 140 ms, %d reclaimed", st.RxContexts, st.Reclaimed)
	}
	s.advance(ms)
	if st := s.e.Stats(); st.RxContexts != 0 || st.Reclaimed != 1 {
		t.Errorf("%d contexts after 141 ms, %d reclaimed", st.RxContexts, st.Reclaimed)
	}
}

// TestPullUnderRNRIsNotReclaimed: a pull that the ULP put off waits for its own timer, not for the
// peer.
func TestPullUnderRNRIsNotReclaimed(t *testing.T) {
	p := testProfile()
	p.RxTimeout = 100 * ms
	s := newSingle(t, p)
	s.ulp.OnPull = noAnswer
	s.want(s.pullRequest(500, 7, false), wire.DropNone)
	s.c.RNRPull(s.now, 7, 31) // 491.52 ms
	s.want(s.pushData(200, 8, false), wire.DropNotReady)
	s.advance(400 * ms)
	if st := s.e.Stats(); st.Reclaimed != 1 || st.RxContexts != 1 {
		t.Errorf("%d reclaimed, %d contexts, want the push given up and the pull held", st.Reclaimed, st.RxContexts)
	}
	s.advance(100 * ms)
	if n := s.count(falcon.EvPull); n != 2 {
		t.Errorf("the pull was delivered %d times, want twice", n)
	}
}
