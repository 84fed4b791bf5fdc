package falcon_test

import (
	"fmt"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// TestEveryPacketIsCounted: acknowledgements, NACKs by code, out-of-window notifications, Resyncs
// and completions by code are counted where they are sent and where they are received.
func TestEveryPacketIsCounted(t *testing.T) {
	p := newPair(t)
	p.ulp[1].OnPush = func(now falcon.Time, ev *falcon.Event, key uint64) {
		switch key {
		case 2:
			ev.Conn.NackPush(now, ev.RSN, wire.NackCIE, 0, 5)
		default:
			ev.Conn.AckPush(now, ev.RSN)
		}
	}
	p.dropNth(0, wire.TypePushData, 3)
	p.push(p.a, 100, 1, 2, 3, 4, 5, 6)
	p.run(20 * ms)
	a, b := p.ae.Stats(), p.be.Stats()
	for _, c := range []struct {
		what           string
		sent, received uint64
	}{
		{"ACKs", b.AcksSent, a.AcksReceived},
		{"EACKs", b.ExtendedAcksSent, a.ExtendedAcksReceived},
		{"NACKs with code 6", b.NackCodesSent[wire.NackCIE], a.NackCodesReceived[wire.NackCIE]},
		{"Resyncs", a.ResyncsSent, b.ResyncsReceived},
	} {
		if c.sent == 0 || c.sent != c.received {
			t.Errorf("%s: %d sent, %d received", c.what, c.sent, c.received)
		}
	}
	if a.Completions[falcon.CmplAck] != 5 || a.Completions[falcon.CmplTargetNackCIE] != 1 {
		t.Errorf("completions %v", a.Completions)
	}
	if n := p.a.Info().Retransmits; n == 0 || n < a.EarlyRetransmits {
		t.Errorf("%d packets of the connection sent again", n)
	}

	s := newSingle(t, ackProfile(1, 100*us))
	s.want(s.pushData(200+wire.DataWindow, 8, false), wire.DropBeyondWindow)
	s.advance(200 * us)
	s.want(s.ack(wire.Ack{Extended: true, DataOWN: true}), wire.DropNone)
	if st := s.e.Stats(); st.OWNSent != 1 || st.OWNReceived != 1 {
		t.Errorf("out-of-window notifications: %d sent, %d received", st.OWNSent, st.OWNReceived)
	}
}

// TestRareEventsAreCounted: rare events are counted exactly.
func TestRareEventsAreCounted(t *testing.T) {
	s := newSingle(t, testProfile(), func(cfg *falcon.ConnConfig) {
		cfg.Credits = credit.New(nil, credit.Cost{2, 100, 2, 100, 2, 100, 100, 100})
	})
	s.ulp.FillError = func(_ falcon.TxnKind, tag uint64) bool { return tag == 7 }
	for _, tag := range []uint64{7, 8, 9, 10} {
		if err := s.c.Push(s.now, tag, 32); (err == nil) != (tag < 9) {
			t.Errorf("push %d: %v", tag, err)
		}
	}
	s.transmit()
	for n := range uint32(3) {
		p := wire.PushData{Header: s.header(wire.TypePushData, 200+n, 7+n, false)}
		s.e.Receive(s.now, falcon.Packet{Data: p.Append(nil), CE: n > 0})
	}
	s.drain()
	st := s.e.Stats()
	if st.ECNMarked != 2 || st.Xoffs != 2 || st.FillErrors != 1 || st.ResyncsSent != 1 {
		t.Errorf("%d packets were marked, %d refused for credits, %d not filled, %d Resyncs", st.ECNMarked, st.Xoffs, st.FillErrors, st.ResyncsSent)
	}
}

// TestCase102_CountersOfTheEngine: each of the six counters, at the connection, function, host and
// NIC, is what stops a transaction when it is used up, and lets it go when it comes back.
func TestCase102_CountersOfTheEngine(t *testing.T) {
	for counter := range credit.NetPktRx {
		for level := range 4 {
			t.Run(fmt.Sprintf("%v at level %d", counter, level), func(t *testing.T) {
				limits := [4]credit.Cost{credit.NoLimit(), credit.NoLimit(), credit.NoLimit(), credit.NoLimit()}
				limits[level][counter] = 2 // one transaction of 100 bytes and no second one of 300
				var node *credit.Node
				for _, l := range limits[:3] {
					node = credit.New(node, l)
				}
				p := newPair(t, func(cfg *[2]falcon.Config, _ *falcon.ConnConfig, _ *sim.Impairment) {
					cfg[0].Credits = node
				}, func(_ *[2]falcon.Config, conn *falcon.ConnConfig, _ *sim.Impairment) { conn.MTU = 4000 })
				cfg := connConfig(true)
				cfg.LocalCID, cfg.RemoteCID, cfg.Credits = 1, 2, credit.New(node, limits[3])
				c, err := p.Nodes[0].Engine.Open(p.Now, cfg)
				if err != nil {
					t.Fatal(err)
				}
				m := sim.Mirror(cfg)
				m.Credits = credit.New(nil, limits[3])
				if _, err = p.Nodes[1].Engine.Open(p.Now, m); err != nil {
					t.Fatal(err)
				}
				switch counter {
				case credit.DataPktTx, credit.DataBufTx:
					exhaustData(t, p, c)
				default:
					exhaustRequests(t, p, c, counter)
				}
				if node.InUse() != (credit.Cost{}) {
					t.Errorf("left: %v", node.InUse())
				}
			})
		}
	}
}
