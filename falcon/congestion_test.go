package falcon_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cc"
	"github.com/falcon-vnic/vnic/falcon/cc/rue"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// TestTheCountOfAcknowledgedPacketsSaturates: the count of acknowledged packets stops at the maximum of the event's field.
func TestTheCountOfAcknowledgedPacketsSaturates(t *testing.T) {
	const most = 1<<10 - 1
	p, events := recording(slow(), nil)
	c := fixed(1024, 1024).(cc.Fixed)
	p.CC = recorder{c, events, nil}
	p.DataTxWindow, p.MaxTxn = falcon.MaxTxWindow, falcon.MaxTxWindow
	s := newSingle(t, p)
	s.push(1 + most)
	s.transmit()
	s.ack(wire.Ack{DataBase: 301}) // its event is on its way for 15 µs
	s.ack(wire.Ack{DataBase: 301 + most})
	s.push(2)
	s.transmit()
	s.ack(wire.Ack{DataBase: 303 + most})
	s.advance(20 * us)
	s.ack(wire.Ack{DataBase: 303 + most})
	s.advance(20 * us)
	var acked []uint16
	for _, e := range *events {
		acked = append(acked, e.Acked)
	}
	equal(t, "acknowledged", acked, []uint16{1, most})
}

// TestADelayAboveTheTargetIsReportedOnce: a round trip above the delay target limits a connection
// to one packet at a time. EvLongPath is sent once.
func TestADelayAboveTheTargetIsReportedOnce(t *testing.T) {
	for _, c := range []struct {
		delay falcon.Time
		told  int
	}{{1100 * us, 1}, {100 * us, 0}} {
		p := newPair(t, func(cfg *[2]falcon.Config, _ *falcon.ConnConfig, imp *sim.Impairment) {
			cfg[0].Profile, cfg[1].Profile = falcon.Software(), falcon.Software()
			imp.Delay = c.delay
		})
		p.Tracing = false
		for i := range 700 {
			p.push(p.a, 100, uint64(i+1))
			p.run(3 * ms)
		}
		if n := len(p.events(0, falcon.EvLongPath)); n != c.told {
			t.Errorf("one-way delay of %d ns: told %d times, want %d", c.delay, n, c.told)
		}
		if i := p.a.Info(); i.LongPath != (c.told > 0) || i.DelayTarget != 999948 {
			t.Errorf("one-way delay of %d ns: %+v", c.delay, i)
		}
	}
}

// recorder is congestion control that records its events and does what the test sets.
type recorder struct {
	cc.Fixed
	events *[]cc.Event
	then   func(s *cc.State) cc.Result
}

func (r recorder) Update(s *cc.State, ev *cc.Event) cc.Result {
	*r.events = append(*r.events, *ev)
	r.Fixed.Update(s, ev)
	if r.then != nil {
		return r.then(s)
	}
	return cc.Result{}
}

// recording is the test profile with a recorder and a RUE.
func recording(cfg rue.Config, then func(*cc.State) cc.Result) (falcon.Profile, *[]cc.Event) {
	p, events := testProfile(), new([]cc.Event)
	p.CC, p.RUE = recorder{fixed(32, 64).(cc.Fixed), events, then}, cfg
	return p, events
}

// slow is a RUE that needs 10 µs for an event and 5 µs for the result.
func slow() rue.Config {
	c := rue.Hardware()
	c.Service, c.Latency = 10*us, 5*us
	return c
}

func TestCase93_EventFields(t *testing.T) {
	p, events := recording(rue.Immediate(), nil)
	s := newSingle(t, p)
	s.push(6)
	s.transmit()
	s.now += 10 * us
	info := wire.Congestion{Hops: 5, RxOccupancy: 9, ECN: 77}
	at := falcon.FalconTime
	want := cc.Event{
		Hops: 5, RxOccupancy: 9, ECN: 77, Acked: 2,
		T1: at(s.now - 10*us), T2: at(s.now - 5*us), T3: at(s.now - 5*us), T4: at(s.now), Now: at(s.now),
	}
	s.ack(wire.Ack{DataBase: 302, Congestion: info})
	eack := want
	eack.Acked, eack.EackDrop, eack.EackOwn = 1, true, true
	s.ack(wire.Ack{Extended: true, DataBase: 302, DataRx: bits(3), DataAck: bits(3), DataOWN: true, Congestion: info})
	nack := want
	nack.Kind, nack.Acked = cc.NackResource, 1
	n := wire.Nack{
		CID: s.c.Config().LocalCID, DataBase: 303, ReqBase: 100, PSN: 303, Code: wire.NackResource, Congestion: info,
		T1: want.T1, T2: want.T2,
	}
	s.receive(n.Append(nil))
	n.Code = wire.NackRNR
	other := nack
	other.Kind, other.Acked = cc.Nack, 0
	s.receive(n.Append(nil))
	equal(t, "events", *events, []cc.Event{want, eack, nack, other})
	*events = nil
	s.advance(2 * ms)
	if len(*events) == 0 || (*events)[0].Kind != cc.Retransmit || (*events)[0].RetransmitCount != 1 {
		t.Errorf("timeout: %+v", *events)
	}
}

// TestCase93_OneEventOutstanding: while an event is at the RUE, acknowledged packets add up for the
// next event.
func TestCase93_OneEventOutstanding(t *testing.T) {
	fcwnd := uint32(1 << 10)
	p, events := recording(slow(), func(s *cc.State) cc.Result { s.Fcwnd = fcwnd; return cc.Result{IPG: 2} })
	s := newSingle(t, p)
	s.push(20)
	s.transmit()
	sent := s.now
	s.ack(wire.Ack{DataBase: 301})
	s.advance(4 * us)
	s.ack(wire.Ack{DataBase: 303})
	s.ack(wire.Ack{DataBase: 306})
	if len(*events) != 0 || s.c.Info().Fcwnd != 32 {
		t.Fatalf("answered before its time: %+v, fcwnd %v", *events, s.c.Info().Fcwnd)
	}
	s.advance(11*us - 1)
	if s.c.Info().Fcwnd != 32 {
		t.Fatal("result in force before its latency")
	}
	s.advance(1)
	if got := s.c.Info().Fcwnd; got != 1 {
		t.Fatalf("fcwnd %v at %d µs, want the result at 15 µs", got, (s.now-sent)/us)
	}
	s.ack(wire.Ack{DataBase: 310})
	s.advance(20 * us)
	var acked []uint16
	var nows []uint32
	for _, e := range *events {
		acked, nows = append(acked, e.Acked), append(nows, e.Now)
	}
	equal(t, "acknowledged", acked, []uint16{1, 9})
	equal(t, "answered at", nows, []uint32{falcon.FalconTime(sent + 10*us), falcon.FalconTime(sent + 25*us)})
	if st := s.e.Stats(); st.RUEEvents != 2 || st.RUEBusy != 2 || st.RUESkipped != 0 {
		t.Errorf("%d events, %d busy, %d skipped", st.RUEEvents, st.RUEBusy, st.RUESkipped)
	}
	if at := s.e.Deadline(); at < sent+ms {
		t.Errorf("a timer runs at %d with nothing to wait for", at)
	}
}

// TestCase92_BoundedQueue: a RUE that is too slow for its connections gets no more events than it
// can queue, and answers every event that it got.
func TestCase92_BoundedQueue(t *testing.T) {
	cfg := slow()
	cfg.Size, cfg.Threshold1, cfg.Threshold2, cfg.Threshold3 = 4, 2, 3, 3
	p, events := recording(cfg, nil)
	s := newSingle(t, p)
	conns := []*falcon.Conn{s.c}
	for i := range uint32(9) {
		c := connConfig(true)
		c.LocalCID += 1 + i
		conn, err := s.e.Open(s.now, c)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	round := func(base uint32) {
		for _, c := range conns {
			if err := c.Push(s.now, 1, 32); err != nil {
				t.Fatal(err)
			}
		}
		s.transmit()
		for _, c := range conns {
			a := wire.Ack{CID: c.Config().LocalCID, DataBase: base, ReqBase: 100}
			s.receive(a.Append(nil))
		}
	}
	// At first P1 holds for all, since none had an event: two below the first threshold, one below
	// the third; the last place needs P2 too, and one packet is not enough for it.
	round(301)
	if st := s.e.Stats(); st.RUEEvents != 3 || st.RUESkipped != 7 {
		t.Errorf("%d events, %d skipped, want 3 and 7", st.RUEEvents, st.RUESkipped)
	}
	s.advance(100 * us)
	// Now P1 holds only for those that were skipped.
	round(302)
	s.advance(100 * us)
	st := s.e.Stats()
	if st.RUEEvents != uint64(len(*events)) || st.RUEEvents != 6 {
		t.Errorf("%d events raised, %d answered, want 6", st.RUEEvents, len(*events))
	}
	last := (*events)[len(*events)-1]
	if last.Acked != 2 {
		t.Errorf("the first event of a skipped connection counts %d packets, want 2", last.Acked)
	}
}

// TestEachResultHasItsLatency: the RUE continues while results are pending, and a result does not
// come into force together with an earlier one.
func TestEachResultHasItsLatency(t *testing.T) {
	cfg := slow()
	cfg.Latency = 50 * us
	p, _ := recording(cfg, func(s *cc.State) cc.Result { s.Fcwnd = 7 << 10; return cc.Result{} })
	s := newSingle(t, p)
	c := connConfig(true)
	c.LocalCID++
	other, err := s.e.Open(s.now, c)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*falcon.Conn{s.c, other} {
		if err := c.Push(s.now, 1, 32); err != nil {
			t.Fatal(err)
		}
	}
	s.transmit()
	sent := s.now
	for _, c := range []*falcon.Conn{s.c, other} {
		a := wire.Ack{CID: c.Config().LocalCID, DataBase: 301, ReqBase: 100}
		s.receive(a.Append(nil))
	}
	for _, step := range []struct {
		at           falcon.Time // since the acknowledgements
		first, other float64
	}{{60*us - 1, 32, 32}, {60 * us, 7, 32}, {70*us - 1, 7, 32}, {70 * us, 7, 7}} {
		s.advance(sent + step.at - s.now)
		if a, b := s.c.Info().Fcwnd, other.Info().Fcwnd; a != step.first || b != step.other {
			t.Errorf("after %d ns: fcwnd %v and %v, want %v and %v", step.at, a, b, step.first, step.other)
		}
	}
}

// A result on its way does not reach a connection that took the CID of one closed meanwhile.
func TestResultOfAClosedConnection(t *testing.T) {
	p, events := recording(slow(), func(s *cc.State) cc.Result { s.Fcwnd = 7 << 10; return cc.Result{} })
	s := newSingle(t, p)
	s.push(2)
	s.transmit()
	s.ack(wire.Ack{DataBase: 301})
	s.c.Close(s.now)
	c, err := s.e.Open(s.now, connConfig(true))
	if err != nil {
		t.Fatal(err)
	}
	s.c = c
	s.push(1)
	s.transmit()
	s.advance(50 * us)
	if len(*events) != 1 || c.Info().Fcwnd != 32 {
		t.Errorf("%d events, fcwnd %v of the new connection", len(*events), c.Info().Fcwnd)
	}
	s.ack(wire.Ack{DataBase: 301})
	s.advance(50 * us)
	if c.Info().Fcwnd != 7 {
		t.Errorf("fcwnd %v after its own event", c.Info().Fcwnd)
	}
}

// TestRTOHoldsForPacketsInFlight: a new timeout applies to existing retransmission (Falcon
// §10.6.2.2), up and down.
func TestRTOHoldsForPacketsInFlight(t *testing.T) {
	for _, c := range []struct {
		rto  uint32 // FU
		want falcon.Time
	}{{1000, 131072}, {2000, 262144}, {15260, 2000158}} {
		for _, cfg := range []rue.Config{rue.Immediate(), rue.Hardware()} {
			p, _ := recording(cfg, func(s *cc.State) cc.Result { s.RTO = c.rto; return cc.Result{} })
			s := newSingle(t, p)
			s.push(2)
			sent := s.now
			s.transmit()
			s.now += 20 * us
			s.ack(wire.Ack{DataBase: 301})
			got := s.advance(3 * ms)
			if len(got) == 0 || got[0].At != sent+c.want || header(t, got[0].Packet).PSN != 301 {
				t.Errorf("RTO %d FU: retransmitted %+v, want it %d ns after transmission", c.rto, got, c.want)
			}
		}
	}
}

// TestCase90_PathChanges: a congested path is left, and a good one is not.
func TestCase90_PathChanges(t *testing.T) {
	for _, congested := range []bool{true, false} {
		params := cc.HardwareParams()
		params.PLB, params.InitialFcwnd, params.MinFcwnd, params.MaxFcwnd = true, 4, 4, 4
		p := testProfile()
		p.CC = cc.NewSwift(params)
		s := newSingle(t, p)
		path := s.c.Path()
		for i := range uint32(4 * 5) {
			s.push(1)
			s.transmit()
			s.now += 10 * us
			if congested {
				s.now += 300 * us
			}
			a := wire.Ack{CID: s.c.Config().LocalCID, DataBase: 301 + i, ReqBase: 100}
			a.T1 = falcon.FalconTime(s.now - 10*us)
			if congested {
				a.T1 = falcon.FalconTime(s.now - 305*us)
			}
			a.T2 = falcon.FalconTime(s.now - 5*us)
			s.receive(a.Append(nil))
		}
		if got := s.c.Path() != path; got != congested || s.e.Stats().Repaths > 1 {
			t.Errorf("congested %v: path changed %v, %d times", congested, got, s.e.Stats().Repaths)
		}
	}
}

// The queues of the RUE allocate nothing either, once they have grown.
func TestHardwareRUEDoesNotAllocate(t *testing.T) {
	b := newBackToBackWith(t, falcon.Hardware())
	round := func() {
		b.pushes(t, 50, 4096)
		b.pulls(t, 50, 4096)
	}
	for range 50 {
		round()
	}
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations in 100 transactions, want 0", n)
	}
	if b.e[0].Stats().RUEEvents == 0 {
		t.Error("no event went through the RUE")
	}
}

// TestCase94_CongestionInfo: hop count, marks and the level of the receive pools reach the sender's
// algorithm.
func TestCase94_CongestionInfo(t *testing.T) {
	p := testProfile()
	p.AckCount = 1
	p.RxPackets = falcon.Occupancy{Alpha: 1}
	s := newSingle(t, p)
	marked, held := uint16(0), 0
	s.ulp.OnPull = func(falcon.Time, *falcon.Event, uint64) {}
	for i := range uint32(20) {
		s.now += us
		h := wire.PullRequest{Header: s.header(wire.TypePullRequest, 500+i, 7+i, false), RequestLength: 64}
		ce := i%3 == 0
		if ce {
			marked++
		}
		s.e.Receive(s.now, falcon.Packet{T1: 1000 + i, Hops: uint8(i), CE: ce, Data: append(h.Append(nil), make([]byte, 44)...)})
		s.drain()
		held++
		got := s.transmit()
		if len(got) != 1 {
			t.Fatalf("%d packets, want the acknowledgement", len(got))
		}
		a := ack(t, got[0].Packet)
		want := wire.Congestion{Hops: uint8(min(i, 15)), ECN: marked, RxOccupancy: uint8(held * 32 / 65536)}
		if a.Congestion != want || a.T1 != 1000+i || a.T2 != falcon.FalconTime(s.now) {
			t.Errorf("packet %d: %+v t1 %d, want %+v", i, a.Congestion, a.T1, want)
		}
	}
	small := falcon.NewEngine(falcon.Config{Profile: p, RxContexts: 32}, s.ulp)
	s.e = small
	var err error
	if s.c, err = small.Open(s.now, connConfig(true)); err != nil {
		t.Fatal(err)
	}
	for i := range uint32(32) {
		s.pullRequest(500+i, 7+i, false)
		if got := ack(t, s.transmit()[0].Packet).RxOccupancy; got != uint8(min(i+1, 31)) {
			t.Errorf("%d of 32 contexts held: level %d", i+1, got)
		}
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

// TestALongPathIsReportedAfterASecond: the path is long when the delay was at the target for a
// second with a window of a packet, and neither below it, nor with more, nor for less time.
func TestALongPathIsReportedAfterASecond(t *testing.T) {
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
		heard(1000*ms, 0)
		heard(1020*ms, want)
		heard(3000*ms, want) // once
		d = 1                // the path got shorter, and longer again
		if c.target == 0 {
			continue
		}
		heard(3001*ms, want)
		d = c.delay
		heard(3002*ms, want)
		heard(3990*ms, want)
		heard(4010*ms, 2*want)
	}
}
