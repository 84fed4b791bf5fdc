package falcon_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

func TestCase62_Exhausted(t *testing.T) {
	node := credit.New(nil, credit.NoLimit())
	p := newPair(t, func(cfg *[2]falcon.Config, conn *falcon.ConnConfig, _ *sim.Impairment) {
		cfg[0].Profile.MaxRetransmits, cfg[0].Profile.TxnTimeout = 3, 0
		conn.Credits = node
	})
	// Only Resyncs pass: the push completes in error, and the connection survives.
	p.Filter = func(from int, b []byte) sim.Verdict {
		typ, _ := wire.Peek(b)
		return sim.Verdict{Drop: from == 0 && typ == wire.TypePushData}
	}
	p.push(p.a, 100, 1)
	p.run(20 * ms)
	ev := p.events(0, falcon.EvPushDone)
	if len(ev) != 1 || ev[0].Code != falcon.CmplLocalTO {
		t.Fatalf("completion %+v, want kCmplLocalTO", ev)
	}
	if n := len(p.packets(0, wire.TypePushData)); n != 4 {
		t.Errorf("%d transmissions, want 4", n)
	}
	r, d := wire.ParseResync(p.packets(0, wire.TypeResync)[0].Packet)
	if d != wire.DropNone || r.Code != wire.ResyncRetransmit || r.PSN != 300 || r.RSN != 1 || r.Original != wire.TypePushData {
		t.Errorf("Resync %+v", r)
	}
	p.Filter = nil
	p.push(p.a, 100, 2)
	p.run(20 * ms)
	p.wantKeys(1, falcon.EvPush, 2)
	p.wantIdle()
	// Nothing passes: the connection ends.
	p.Links[0].Set(sim.Impairment{Down: true})
	p.push(p.a, 100, 3, 4)
	p.pull(p.a, 100, 5)
	p.run(100 * ms)
	closed := p.events(0, falcon.EvClosed)
	if len(closed) != 1 || closed[0].Reason != falcon.CloseResync || !p.a.Closed() {
		t.Fatalf("closed %+v", closed)
	}
	ev = p.events(0, falcon.EvPushDone)[2:]
	if len(ev) != 2 || ev[0].Tag != 3 || ev[0].Code != falcon.CmplLocalTO || len(p.events(0, falcon.EvPullDone)) != 1 {
		t.Errorf("completions %+v", ev)
	}
	if last := p.ulp[0].Events[len(p.ulp[0].Events)-1]; last.Kind != falcon.EvClosed {
		t.Errorf("last event is %v", last.Kind)
	}
	if node.InUse() != (credit.Cost{}) {
		t.Errorf("credits not returned: %v", node.InUse())
	}
	if s := p.ae.Stats(); s.TxContexts != 0 || s.Conns != 0 {
		t.Errorf("left: %+v", s)
	}
}

func TestAPullWithoutAnswerTimesOut(t *testing.T) {
	p := newPair(t, func(cfg *[2]falcon.Config, _ *falcon.ConnConfig, _ *sim.Impairment) {
		cfg[0].Profile.TxnTimeout = 3 * ms
	})
	p.ulp[1].OnPull = noAnswer
	p.pull(p.a, 100, 1, 2)
	p.push(p.a, 100, 3)
	p.run(2 * ms)
	p.pull(p.a, 100, 4)
	p.run(1500 * us)
	ev := p.events(0, falcon.EvPullDone)
	if len(ev) != 2 || ev[0].Code != falcon.CmplLocalTO {
		t.Fatalf("%+v", ev)
	}
	p.wantTags(0, falcon.EvPushDone, 3)
	// Late answers are discarded, and acknowledged.
	for _, e := range p.events(1, falcon.EvPull) {
		_ = e.Conn.RespondPull(p.Now, e.RSN, e.Key, e.Length)
	}
	p.run(10 * ms)
	if n := len(p.events(0, falcon.EvPullDone)); n != 3 {
		t.Errorf("%d pull completions, want 3", n)
	}
	p.wantIdle()
}

// TestUnsentDoesNotExpire: a transaction that waits for a window does not expire, however long the
// peer takes for the one before it, and needs no Resync.
func TestUnsentDoesNotExpire(t *testing.T) {
	p := newPair(t, func(cfg *[2]falcon.Config, _ *falcon.ConnConfig, _ *sim.Impairment) {
		cfg[0].Profile.TxnTimeout = 3 * ms
		cfg[0].Profile.CC = fixed(1, 64)
	})
	p.ulp[1].OnPush = func(now falcon.Time, ev *falcon.Event, key uint64) {
		if key != 1 {
			ev.Conn.AckPush(now, ev.RSN)
		}
	}
	p.push(p.a, 100, 1, 2, 3)
	p.run(10 * ms)
	ev := p.events(0, falcon.EvPushDone)
	if len(ev) != 3 || ev[0].Code != falcon.CmplLocalTO || ev[1].Code != falcon.CmplAck || ev[2].Code != falcon.CmplAck {
		t.Errorf("%+v", ev)
	}
	if s := p.ae.Stats(); s.TxnTimeouts != 1 || s.ResyncsSent != 1 {
		t.Errorf("%d timeouts and %d Resyncs, want one of each", s.TxnTimeouts, s.ResyncsSent)
	}
	p.wantKeys(1, falcon.EvPush, 1, 2, 3)
	p.wantIdle()
}

// TestAgeCountsFromTheFirstPacket: the age of a transaction counts from its first packet, and the
// first out-of-window notification has effect however early it comes.
func TestAgeCountsFromTheFirstPacket(t *testing.T) {
	s := newSingle(t, testProfile(), func(cfg *falcon.ConnConfig) { cfg.GiveUp = 1500 * us })
	if err := s.c.Push(s.now, 1, 32); err != nil {
		t.Fatal(err)
	}
	s.transmit()
	if again := only(s.advance(1100*us), wire.TypePushData); len(again) != 1 { // at 2.1 ms, 1.1 ms old
		t.Errorf("%d packets after the first timeout, want the push again", len(again))
	}

	s = newSingle(t, testProfile())
	if err := s.c.Push(s.now, 1, 32); err != nil {
		t.Fatal(err)
	}
	s.transmit()
	s.want(s.ack(wire.Ack{Extended: true, DataOWN: true}), wire.DropNone)
	if again := only(s.transmit(), wire.TypePushData); len(again) != 1 {
		t.Errorf("%d packets after an out-of-window notification, want the push again", len(again))
	}
}

// TestWhatWaitsToBeSentEndsWithWhatIsBeforeIt: a transaction that waits in the connection scheduler
// has no timeout of its own (Falcon §11). The transactions before it in the window expire; then it
// is sent in their place or ends with the connection. So nothing keeps its resources for longer.
func TestWhatWaitsToBeSentEndsWithWhatIsBeforeIt(t *testing.T) {
	const pushes = 100
	for _, profile := range []falcon.Profile{falcon.Software(), falcon.Hardware()} {
		profile.CC = fixed(1, 1) // one packet under way
		p := newPair(t, func(cfg *[2]falcon.Config, _ *falcon.ConnConfig, _ *sim.Impairment) { cfg[0].Profile = profile })
		for i := range p.Links {
			p.Links[i].Set(sim.Impairment{Down: true})
		}
		for tag := range uint64(pushes) {
			p.push(p.a, 100, tag)
		}
		p.run(60_000 * ms)
		sent := map[uint32]bool{}
		for _, s := range p.packets(0, wire.TypePushData) {
			sent[header(t, s.Packet).PSN] = true
		}
		ended := p.events(0, falcon.EvPushDone)
		for _, e := range ended {
			if e.Code == falcon.CmplAck {
				t.Errorf("%s: push %d succeeded", profile.Name, e.Tag)
			}
		}
		if len(ended) != pushes || len(sent) == pushes {
			t.Errorf("%s: %d of %d pushes ended, %d were sent", profile.Name, len(ended), pushes, len(sent))
		}
	}
}

// TestAConnectionIsGivenUpByItsOwnLimit: a connection is given up by its own limit, even if the profile's limits are shorter,
// and never if it has none.
func TestAConnectionIsGivenUpByItsOwnLimit(t *testing.T) {
	const second = 1000 * ms
	for _, profile := range []falcon.Profile{falcon.Software(), falcon.Hardware()} {
		for _, c := range []struct {
			limit, outage falcon.Time
			survives      bool
		}{
			{falcon.Forever, 500 * second, true},
			{60 * second, 50 * second, true},
			{60 * second, 70 * second, false},
		} {
			if profile.MaxRetransmits > 0 && c.limit != falcon.Forever {
				continue // it counts attempts
			}
			p := newPair(t, func(cfg *[2]falcon.Config, conn *falcon.ConnConfig, _ *sim.Impairment) {
				for i := range cfg {
					cfg[i].Profile = profile
				}
				conn.GiveUp = c.limit
			})
			for i := range p.Links {
				p.Links[i].Set(sim.Impairment{Down: true})
			}
			p.push(p.a, 100, 1)
			p.run(c.outage)
			for i := range p.Links {
				p.Links[i].Set(sim.Impairment{})
			}
			p.run(30 * second)
			done, code := 0, falcon.Completion(0)
			for _, e := range p.ulp[0].Events {
				if e.Kind == falcon.EvPushDone {
					done, code = done+1, e.Code
				}
			}
			if done != 1 || (code == falcon.CmplAck) != c.survives {
				t.Errorf("limit %d s, outage %d s: %d completions, the last one %v", c.limit/second, c.outage/second, done, code)
			}
		}
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
	s.advance(2900 * us)
	if n := s.count(falcon.EvPushDone); n != 0 {
		t.Fatalf("%d completions before the timeout", n)
	}
	s.advance(200 * us)
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

// TestAPacketIsGivenUpAtItsAge: when its timer expires, a packet that is older than the limit is
// replaced by a Resync, a younger one is sent again.
func TestAPacketIsGivenUpAtItsAge(t *testing.T) {
	for limit, want := range map[falcon.Time]wire.PacketType{900 * us: wire.TypeResync, 1100 * us: wire.TypePushData} {
		p := testProfile()
		p.MaxRetransmits = 0
		s := newSingle(t, p, func(c *falcon.ConnConfig) { c.GiveUp = limit })
		s.push(1)
		s.transmit()
		if got := s.advance(1010 * us); len(got) != 1 || got[0].Type != want {
			t.Errorf("limit %d: sent %v, want one %v", limit, got, want)
		}
	}
}

// TestNoTransactionTimeout: without a timeout of transactions a pull that was accepted waits for
// its data for ever, whatever limit its packets have.
func TestNoTransactionTimeout(t *testing.T) {
	p := testProfile()
	p.TxnTimeout = 0
	s := newSingle(t, p, func(c *falcon.ConnConfig) { c.GiveUp = 2 * ms })
	s.pull(1)
	s.transmit()
	s.ack(wire.Ack{ReqBase: 101})
	s.advance(3600_000 * ms)
	if s.count(falcon.EvPullDone) != 0 {
		t.Error("it was given up")
	}
	s.want(s.pullData(200, 1, 8), wire.DropNone)
}
