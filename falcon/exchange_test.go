package falcon_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// TestCountersOfAnExchange: both ends count a known exchange exactly: pushes and pulls of which one
// is lost, one is refused and one meets a receiver that is not ready.
func TestCountersOfAnExchange(t *testing.T) {
	p := newPair(t)
	refused := false
	p.ulp[1].OnPush = func(now falcon.Time, ev *falcon.Event, key uint64) {
		switch {
		case key == 2:
			ev.Conn.NackPush(now, ev.RSN, wire.NackCIE, 0, 5)
		case key == 4 && !refused:
			refused = true
			ev.Conn.NackPush(now, ev.RSN, wire.NackRNR, 1, 0)
		default:
			ev.Conn.AckPush(now, ev.RSN)
		}
	}
	p.dropNth(0, wire.TypePushData, 3)
	p.push(p.a, 100, 1, 2, 3, 4, 5, 6)
	p.pull(p.a, 1000, 7, 8)
	p.run(100 * ms)
	// The EACK that shows the loss is sent at once. The Resync has the PSN of a push that was
	// received: one duplicate. A push behind the one that is not ready gets the same answer.
	initiator := falcon.Stats{
		PacketsReceived: 8, Drops: [wire.DropCount]uint64{wire.DropNone: 8},
		PacketsSent: 14, DataSent: 8, AcksSent: 1, AcksReceived: 2, ExtendedAcksReceived: 1, NacksReceived: 4,
		NackCodesReceived: [wire.NackCodes]uint64{wire.NackRNR: 3, wire.NackCIE: 1},
		ResyncsSent:       1, EarlyRetransmits: 1,
		Completions: [falcon.CompletionCodes]uint64{falcon.CmplAck: 7, falcon.CmplTargetNackCIE: 1},
		RUEEvents:   6, Conns: 1,
	}
	target := falcon.Stats{
		PacketsReceived: 13, Drops: [wire.DropCount]uint64{wire.DropNone: 12, wire.DropDuplicate: 1},
		PacketsSent: 8, DataSent: 2, AcksSent: 2, ExtendedAcksSent: 1, AcksReceived: 1, NacksSent: 4,
		NackCodesSent:   [wire.NackCodes]uint64{wire.NackRNR: 3, wire.NackCIE: 1},
		ResyncsReceived: 1, RUEEvents: 1, Conns: 1,
	}
	if got := *p.ae.Stats(); got != initiator {
		t.Errorf("initiator: %+v\nwant %+v", got, initiator)
	}
	if got := *p.be.Stats(); got != target {
		t.Errorf("target: %+v\nwant %+v", got, target)
	}
}

// TestFirstTimes: the age of a transaction counts from its first packet, and the first
// out-of-window notification has effect however early it comes.
func TestFirstTimes(t *testing.T) {
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

// TestSharesOfFunctionsEnd: a function's share lasts as long as one of its connections, and only a
// weight that matters is kept.
func TestSharesOfFunctionsEnd(t *testing.T) {
	s := newSingle(t, testProfile())
	cfg := connConfig(true)
	cfg.LocalCID++
	c, err := s.e.Open(s.now, cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range []*falcon.Conn{s.c, c} {
		if n := s.e.Shares(); n != 1 {
			t.Errorf("%d shares with %d connections of one function", n, 2-i)
		}
		c.Close(s.now)
	}
	if n := s.e.Shares(); n != 0 {
		t.Errorf("%d shares without a connection", n)
	}
	s.e.SetWeight(7, 2)
	s.e.SetWeight(8, 1)
	if n := s.e.Weights(); n != 1 {
		t.Errorf("%d weights are kept, want that of function 7", n)
	}
}
