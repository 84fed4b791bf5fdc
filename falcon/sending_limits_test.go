package falcon_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cc"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// TestRecencyBorder: a packet that was sent exactly a round trip ago may still be in flight. A
// nanosecond later it counts as lost, by a hole or by an out-of-window notification.
func TestRecencyBorder(t *testing.T) {
	for what, a := range map[string]wire.Ack{
		"a hole":                        {Extended: true, DataRx: bits(1, 2, 3)},
		"an out-of-window notification": {Extended: true, DataRx: bits(1, 2, 3), DataOWN: true},
		"a notification alone":          {Extended: true, DataOWN: true, DataAck: bits(1, 2, 3)},
	} {
		p := rttProfile(20 * us)
		p.OWNBypass = false
		s := newSingle(t, p)
		s.push(4)
		s.transmit()
		s.now += rtt20
		s.ack(a)
		equal(t, what+" after a round trip", psns(t, s.transmit()), nil)
		s.now++
		s.ack(a)
		equal(t, what+" a nanosecond later", psns(t, s.transmit()), []uint32{300})
	}
}

// TestBypassOncePerTimeout: an out-of-window notification bypasses recency again when a timeout has
// passed since the last one that did.
func TestBypassOncePerTimeout(t *testing.T) {
	const rto = 1_000_079
	p := rttProfile(20 * us)
	s := newSingle(t, p)
	s.push(1)
	s.transmit()
	notify := func() []uint32 {
		s.ack(wire.Ack{Extended: true, DataOWN: true})
		return psns(t, s.transmit())
	}
	equal(t, "the first", notify(), []uint32{300})
	s.now += 5 * us
	equal(t, "the second", notify(), nil)
	equal(t, "the timeout", psns(t, s.advance(rto-5*us)), []uint32{300})
	equal(t, "a timeout after the first", notify(), []uint32{300})
	equal(t, "the next", notify(), nil)
}

// TestPauseEndsAtTheSlack: after an out-of-window notification new packets wait until no more than
// the slack are in flight, in either window.
func TestPauseEndsAtTheSlack(t *testing.T) {
	p := rttProfile(us)
	p.DataOWNSlack, p.ReqOWNSlack = 8, 4
	s := newSingle(t, p, func(c *falcon.ConnConfig) { c.Ordered = false })
	s.push(10)
	s.pull(6)
	s.transmit()
	s.ack(wire.Ack{Extended: true, DataOWN: true, ReqOWN: true, DataRx: bits(0, 1, 2, 3, 4, 5, 6, 7, 8, 9), DataAck: bits(9), Req: 0b100000})
	s.transmit() // what the notification has sent again
	s.push(1)
	s.pull(1)
	equal(t, "ten and six in flight", psns(t, s.transmit()), nil)
	s.ack(wire.Ack{DataBase: 301, ReqBase: 101})
	equal(t, "nine and five", psns(t, s.transmit()), nil)
	s.ack(wire.Ack{DataBase: 302, ReqBase: 101})
	equal(t, "eight and five", psns(t, s.transmit()), []uint32{310})
	s.ack(wire.Ack{DataBase: 302, ReqBase: 102})
	equal(t, "eight and four", psns(t, s.transmit()), []uint32{106})
	s.push(2)
	equal(t, "the pause is over", psns(t, s.transmit()), []uint32{311, 312})
}

// narrowing is congestion control whose NIC window falls to one packet at the first timeout.
type narrowing struct{ cc.Fixed }

func (n narrowing) Update(s *cc.State, ev *cc.Event) cc.Result {
	if ev.Kind == cc.Retransmit {
		s.Ncwnd = 1
	}
	return n.Fixed.Update(s, ev)
}

// TestRetransmissionsWithinTheNICWindow: of each window no more packets are retransmitted at a time
// than the NIC window allows. On an ordered connection a pull waits for the push before it; on an
// unordered one it does not.
func TestRetransmissionsWithinTheNICWindow(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		p := testProfile()
		p.CC = narrowing{fixed(32, 64).(cc.Fixed)}
		s := newSingle(t, p, func(c *falcon.ConnConfig) { c.Ordered = ordered })
		s.push(2)
		s.pull(2)
		s.transmit()
		got := psns(t, s.advance(1100*us))
		want := []uint32{300, 100}
		if ordered {
			want = want[:1]
		}
		equal(t, "sent again", got, want)
		s.ack(wire.Ack{DataBase: 301})
		got = psns(t, s.transmit())
		want = []uint32{301}
		if ordered {
			want = []uint32{301, 100}
		}
		equal(t, "then", got, want)
	}
}

// TestPullBlocksNewRequests: on an ordered connection nothing new passes a pull that must be sent
// again.
func TestPullBlocksNewRequests(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		s := newSingle(t, testProfile(), func(c *falcon.ConnConfig) { c.Ordered = ordered })
		s.pull(2)
		s.transmit()
		s.now += 1100 * us
		s.e.Advance(s.now)
		s.push(1)
		want := []uint32{100, 101, 300}
		if !ordered { // shares of the arbiter
			want = []uint32{100, 300, 101}
		}
		equal(t, "PSNs", psns(t, s.transmit()), want)
	}
}

// TestRequestsAndResponsesAlternate: new packets of an initiator and of a target share the
// transmitter one by one.
func TestRequestsAndResponsesAlternate(t *testing.T) {
	s := newSingle(t, testProfile())
	for n := range uint32(3) {
		s.pullRequest(500+n, 7+n, false)
	}
	s.push(3)
	var got []wire.PacketType
	for _, p := range s.transmit() {
		if p.Type.HasBase() {
			got = append(got, p.Type)
		}
	}
	const push, data = wire.TypePushData, wire.TypePullData
	equal(t, "packets", got, []wire.PacketType{push, data, push, data, push, data})
}

// TestPullDataWithinTheWindow: the fabric window and the transmit window hold pull data too.
func TestPullDataWithinTheWindow(t *testing.T) {
	for _, c := range []struct {
		fcwnd  float64
		window uint32
	}{{2, 256}, {32, 2}} {
		p := windows(c.fcwnd, 64)
		p.DataTxWindow = c.window
		s := newSingle(t, p)
		for n := range uint32(5) {
			s.pullRequest(500+n, 7+n, false)
		}
		equal(t, "at first", psns(t, s.transmit()), []uint32{300, 301})
		s.ack(wire.Ack{DataBase: 301})
		equal(t, "after one is acknowledged", psns(t, s.transmit()), []uint32{302})
	}
}

// TestGiveUpBorder: a packet is given up when it is exactly as old as the limit.
func TestGiveUpBorder(t *testing.T) {
	const rto = 1_000_079
	for limit, want := range map[falcon.Time]wire.PacketType{rto: wire.TypeResync, rto + 1: wire.TypePushData} {
		p := testProfile()
		p.MaxRetransmits = 0
		s := newSingle(t, p, func(c *falcon.ConnConfig) { c.GiveUp = limit })
		s.push(1)
		s.transmit()
		if got := s.advance(rto); len(got) != 1 || got[0].Type != want {
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

// TestRNRProbe: a push that waits for its receiver is not probed, the next one is.
func TestRNRProbe(t *testing.T) {
	for _, probe := range []falcon.Probe{falcon.ProbeFirstUnacked, falcon.ProbeFirstUnreceived} {
		p := rttProfile(20 * us)
		p.Probe = probe
		s := newSingle(t, p)
		s.push(2)
		s.transmit()
		s.nack(wire.Nack{PSN: 300, Code: wire.NackRNR, RNR: 31})
		equal(t, "probes", psns(t, s.advance(50*us)), []uint32{301})
	}
}

// slowPath is congestion control that holds the connection below a packet, with a gap of 51.2 µs.
type slowPath struct {
	cc.Fixed
	rtt uint32
}

func (c slowPath) Init(s *cc.State) { c.Fixed.Init(s); s.RTT = c.rtt }
func (c slowPath) Update(s *cc.State, _ *cc.Event) cc.Result {
	s.RTT = c.rtt
	return cc.Result{IPG: 100}
}

// TestProbeWaitsForTheGap: while the window is below a packet a probe also waits for the gap
// between packets.
func TestProbeWaitsForTheGap(t *testing.T) {
	p := testProfile()
	p.Probe, p.CC = falcon.ProbeLast, slowPath{cc.Fixed{Fcwnd: 512, Ncwnd: 64, RTO: 7630}, falcon.FalconTime(20 * us)}
	s := newSingle(t, p)
	s.push(2)
	s.transmit()
	s.now += 20 * us
	s.ack(wire.Ack{DataBase: 301}) // from now on there is a gap
	got := s.advance(200 * us)
	if len(got) < 2 || got[1].At-got[0].At != 2*rtt20+51_200 {
		t.Errorf("sent %v, want a probe two round trips and a gap behind 301", got)
	}
}

// TestFlushWithoutAcks: a flush sends nothing if nothing was received.
func TestFlushWithoutAcks(t *testing.T) {
	s := newSingle(t, testProfile())
	s.push(1)
	s.transmit()
	s.e.FlushAcks(s.now)
	if got := s.transmit(); len(got) != 0 {
		t.Errorf("sent %v", got)
	}
}

// distance is congestion control whose delay and target the test sets.
type distance struct {
	cc.Fixed
	delay, target, fcwnd *uint32
}

func (d distance) Update(s *cc.State, ev *cc.Event) cc.Result {
	d.Fixed.Update(s, ev)
	s.Delay, s.BaseDelay, s.Fcwnd = *d.delay, *d.target, *d.fcwnd
	return cc.Result{}
}

// TestLongPathBorders: the path is long when the delay was at the target for a second with a window
// of a packet, and neither below it, nor with more, nor for less time.
func TestLongPathBorders(t *testing.T) {
	for _, c := range []struct {
		delay, target, fcwnd uint32
		told                 bool
	}{
		{100, 100, cc.One, true},
		{101, 100, cc.One / 2, true},
		{99, 100, cc.One, false},
		{100, 100, cc.One + 1, false},
		{100, 0, cc.One, false}, // the algorithm has no target
	} {
		p := testProfile()
		d, target, fcwnd := c.delay, c.target, c.fcwnd
		p.CC = distance{fixed(1, 64).(cc.Fixed), &d, &target, &fcwnd}
		s := newSingle(t, p)
		heard := func(now falcon.Time, want int) {
			t.Helper()
			s.now = now
			s.ack(wire.Ack{T1: 1})
			if n := s.count(falcon.EvLongPath); n != want {
				t.Errorf("%+v: told %d times at %d ms, want %d", c, n, s.now/ms, want)
			}
		}
		want := 0
		if c.told {
			want = 1
		}
		heard(10*ms, 0)
		heard(1010*ms-1, 0)
		heard(1010*ms, want)
		heard(3000*ms, want) // once
		d = 1                // the path got shorter, and longer again
		if c.target == 0 {
			continue
		}
		heard(3001*ms, want)
		d = c.delay
		heard(3002*ms, want)
		heard(4001*ms, want)
		heard(4002*ms, 2*want)
	}
}

// TestAckRequestOfRetransmissions: retransmissions ask for an acknowledgement if the profile uses
// AR at all.
func TestAckRequestOfRetransmissions(t *testing.T) {
	for what, c := range map[string]struct {
		edit func(*falcon.Profile)
		want bool
	}{
		"never":       {func(*falcon.Profile) {}, false},
		"of a burst":  {func(p *falcon.Profile) { p.ARBurst = true }, true},
		"of a share":  {func(p *falcon.Profile) { p.ARPercent = 1 }, true},
		"of a window": {func(p *falcon.Profile) { p.ARFcwnd = 1 }, true},
	} {
		p := testProfile()
		c.edit(&p)
		s := newSingle(t, p)
		s.push(1)
		s.transmit()
		got := s.advance(1100 * us)
		if len(got) != 1 || header(t, got[0].Packet).AckReq != c.want {
			t.Errorf("%s: sent %v, want AR %v", what, got, c.want)
		}
	}
}
