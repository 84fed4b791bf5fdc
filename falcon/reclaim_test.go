package falcon_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// holes opens connections at the target and sends each as many pushes as its window holds, all but
// the first.
func holes(t *testing.T, e *falcon.Engine, now falcon.Time, conns int, function uint32) {
	t.Helper()
	cfg := sim.Mirror(connConfig(true))
	cfg.LocalFunction = function
	for i := range conns {
		cfg.LocalCID = uint32(0x300000 + i)
		if _, err := e.Open(now, cfg); err != nil {
			t.Fatal(err)
		}
		for n := uint32(1); n < wire.DataWindow; n++ {
			p := wire.PushData{RequestLength: 32, Header: wire.Header{
				CID: cfg.LocalCID, Function: function, Protocol: cfg.Protocol, Type: wire.TypePushData,
				DataBase: cfg.TxDataPSN, ReqBase: cfg.TxReqPSN, PSN: cfg.RxDataPSN + n, RSN: cfg.RxRSN + n,
			}}
			e.Receive(now, falcon.Packet{T1: falcon.FalconTime(now), Data: append(p.Append(nil), make([]byte, 32)...)})
		}
	}
}

// TestHolesTakeTheirShare: 4318 frames on 34 connections that never send the missing packets do not
// take the cells that another connection's pushes need at 2 % loss, whether that connection is of
// another function or of the same.
func TestHolesTakeTheirShare(t *testing.T) {
	took := func(attackers int, function uint32) falcon.Time {
		p := newPair(t, func(_ *[2]falcon.Config, _ *falcon.ConnConfig, imp *sim.Impairment) { imp.Loss = 0.02 })
		p.Tracing = false
		holes(t, p.be, p.Now, attackers, function)
		start, issued := p.Now, uint64(0)
		p.ulp[0].OnEvent = func(now falcon.Time, ev *falcon.Event) {
			for ; issued < 1000 && p.a.Push(now, issued, 1000) == nil; issued++ {
			}
		}
		p.push(p.a, 1000, 9999)
		if !p.Run(start+10000*ms, func() bool { return len(p.ulp[0].Events) >= 1001 && issued == 1000 }) {
			t.Fatalf("%d attackers: %d of 1001 pushes done in 10 s", attackers, len(p.tags(0, falcon.EvPushDone)))
		}
		return p.Now - start
	}
	alone := took(0, 0)
	for _, function := range []uint32{connConfig(true).RemoteFunction, 0x020003} {
		if attacked := took(34, function); attacked > alone*3/2 {
			t.Errorf("function %#x holds cells: pushes took %d µs, %d µs without", function, attacked/us, alone/us)
		}
	}
}

// TestSharesOfCells: if all cells are taken, a function that holds less than others gets theirs,
// and a connection gets those of a connection that holds more; of two that hold the same, neither
// gets any. The connection that lost a cell sends a NACK.
func TestSharesOfCells(t *testing.T) {
	s := newSingle(t, testProfile())
	s.e = falcon.NewEngine(falcon.Config{Profile: testProfile(), RxCells: 200}, s.ulp)
	var err error
	if s.c, err = s.e.Open(s.now, connConfig(true)); err != nil {
		t.Fatal(err)
	}
	holes(t, s.e, s.now, 4, 7)
	if st := s.e.Stats(); st.RxCells != 200 {
		t.Fatalf("%d cells, want all", st.RxCells)
	}
	for i := range 4 { // those that came last took from those that came first
		if n := s.e.Conn(uint32(0x300000 + i)).Info().WaitingForOrder; n < 30 {
			t.Errorf("connection %d has %d of 200 cells, want about 50", i, n)
		}
	}
	taken := uint32(0)
	for n := range uint32(120) {
		if s.pushData(201+n, 8+n, false) == wire.DropNone {
			taken++
		}
	}
	if taken < 99 || taken > 101 {
		t.Errorf("another function got %d of 200 cells, want half", taken)
	}
	nacks := 0
	for _, p := range only(s.transmit(), wire.TypeNACK) {
		if n, _ := wire.ParseNack(p.Packet); n.Code == wire.NackResource && !n.Request {
			nacks++
		}
	}
	if st := s.e.Stats(); uint64(nacks) != st.Evicted+st.RedZone {
		t.Errorf("%d NACKs for %d evicted and %d refused", nacks, st.Evicted, st.RedZone)
	}
	for i := range 4 {
		s.e.Conn(uint32(0x300000 + i)).Close(s.now)
	}
	s.c.Close(s.now)
	s.drain()
	if st := s.e.Stats(); st.RxCells != 0 || st.RxContexts != 0 {
		t.Errorf("%d cells, %d contexts left", st.RxCells, st.RxContexts)
	}
}

// TestContextsWithinCredits: where a function's credits bound its contexts, one of its connections
// does not take them all.
func TestContextsWithinCredits(t *testing.T) {
	limit := credit.NoLimit()
	limit[credit.NetPktRx] = 64
	s := newSingle(t, testProfile(), func(cfg *falcon.ConnConfig) { cfg.Credits = credit.New(nil, limit) })
	taken := 0
	for n := uint32(1); n < 60; n++ {
		if s.pullRequest(500+n, 7+n, false) == wire.DropNone {
			taken++
		}
	}
	if taken > 16 {
		t.Errorf("a connection holds %d of 64 contexts", taken)
	}
	s.want(s.pullRequest(500, 7, false), wire.DropNone) // its head of line goes on
}

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
			s.advance(d)
			if n := s.count(falcon.EvResponseDone); n != (i+1)/2 {
				t.Errorf("%d responses done after %d ms", n, s.now/ms-1)
			}
		}
		if st := s.e.Stats(); st.TxContexts != 0 || s.count(falcon.EvResponseDone) != 2 || st.Reclaimed != 2 {
			t.Errorf("%d contexts, %d responses done, %d reclaimed", st.TxContexts, s.count(falcon.EvResponseDone), st.Reclaimed)
		}
	})
}

// TestHoldOutlivesRxTimeout: requests behind one that the receiver is not ready for are not given
// up while the peer goes on sending that one.
func TestHoldOutlivesRxTimeout(t *testing.T) {
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
