package falcon_test

import (
	"errors"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// TestHopelessCost: a transaction that costs more than a limit allows completes with kUlpCmplCdtErr
// instead of waiting for ever, at once, or when the limit is lowered while the request waits. Such
// a response ends at both sides (Falcon §11).
func TestHopelessCost(t *testing.T) {
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

// TestMarkedAcknowledgements: marked ACKs and NACKs count like other packets (Falcon §7.7.1:
// ECN-marked packets received).
func TestMarkedAcknowledgements(t *testing.T) {
	s := newSingle(t, ackProfile(1, 100*us))
	cfg := s.c.Config()
	a := wire.Ack{CID: cfg.LocalCID, DataBase: cfg.TxDataPSN, ReqBase: cfg.TxReqPSN}
	n := wire.Nack{CID: cfg.LocalCID, DataBase: cfg.TxDataPSN, ReqBase: cfg.TxReqPSN, Code: wire.NackResource}
	for _, b := range [][]byte{a.Append(nil), n.Append(nil)} {
		s.e.Receive(s.now, falcon.Packet{Data: b, CE: true})
	}
	s.want(s.pushData(200, 7, false), wire.DropNone)
	got := only(s.advance(200*us), wire.TypeBACK)
	if len(got) == 0 || ack(t, got[0].Packet).ECN != 2 {
		t.Errorf("sent %v, want the two marks told", got)
	}
}

// TestLevelOfAFunction: the level reported to the peer is that of the function if the function
// fills first.
func TestLevelOfAFunction(t *testing.T) {
	limit := credit.NoLimit()
	limit[credit.NetPktRx] = 64
	node := credit.New(nil, limit)
	s := newSingle(t, ackProfile(1, 100*us), func(cfg *falcon.ConnConfig) { cfg.Credits = node })
	s.ulp.OnPull = noAnswer
	for range 48 {
		node.TakeOne(credit.NetPktRx, false)
	}
	s.want(s.pullRequest(500, 7, false), wire.DropNone)
	got := only(s.advance(200*us), wire.TypeBACK)
	if len(got) == 0 || ack(t, got[0].Packet).RxOccupancy != 24 {
		t.Errorf("sent %v, want level 24 of 32 with 49 of 64 contexts in use", got)
	}
}

// TestPeersMayHaveMore: a peer may have more transactions in progress than this side ever would.
func TestPeersMayHaveMore(t *testing.T) {
	s := newSingle(t, testProfile(), func(cfg *falcon.ConnConfig) { cfg.Ordered = false })
	s.want(s.pullRequest(500, 7+falcon.MaxTxWindow-1, false), wire.DropNone)
	s.want(s.pullRequest(501, 7+falcon.MaxTxWindow, false), wire.DropResource)
}

// TestAckRequestOfABurst: with ARBurst the push after which nothing waits asks for an
// acknowledgement, and the last of a message does; nothing else (Falcon §9.1.3.1).
func TestAckRequestOfABurst(t *testing.T) {
	p := testProfile()
	p.ARBurst = true
	asked := func(issue func(c *falcon.Conn) error) (out []bool) {
		s := newSingle(t, p, func(cfg *falcon.ConnConfig) { cfg.Ordered = false })
		if err := issue(s.c); err != nil {
			t.Fatal(err)
		}
		for _, sent := range s.transmit() {
			out = append(out, header(t, sent.Packet).AckReq)
		}
		return out
	}
	push := func(c *falcon.Conn, tag uint64) error { return c.Push(ms, tag, 32) }
	equal(t, "a burst", asked(func(c *falcon.Conn) error {
		return errors.Join(push(c, 1), push(c, 2), push(c, 3))
	}), []bool{false, false, true})
	equal(t, "the end of a message", asked(func(c *falcon.Conn) error {
		return errors.Join(push(c, 1), c.PushLast(ms, 2, 32), push(c, 3))
	}), []bool{false, true, true})
	equal(t, "a pull behind", asked(func(c *falcon.Conn) error {
		return errors.Join(push(c, 1), c.Pull(ms, 2, 44, 64))
	}), []bool{false, false})
}

// TestRareCounters: rare events are counted exactly.
func TestRareCounters(t *testing.T) {
	s := newSingle(t, testProfile(), func(cfg *falcon.ConnConfig) {
		cfg.CreditLimit = credit.Cost{2, 100, 2, 100, 2, 100, 100, 100}
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
