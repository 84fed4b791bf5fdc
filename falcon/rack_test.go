package falcon_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cc"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// TestReceivedDoesNotTimeOut: packets behind a hole that the peer has are not lost. They are not
// sent again when the retransmission timer would expire, but when the answer of the peer's ULP
// fails to arrive.
func TestReceivedDoesNotTimeOut(t *testing.T) {
	p := rttProfile(20 * us)
	p.TxnTimeout = 0
	s := newSingle(t, p)
	s.push(4)
	s.transmit()
	s.now += 30 * us
	s.ack(wire.Ack{Extended: true, DataRx: bits(1, 2, 3)})
	equal(t, "hole", psns(t, s.transmit()), []uint32{300})
	received := s.now
	equal(t, "after the timeout", psns(t, s.advance(1500*us)), []uint32{300})
	got := s.advance(received + p.AnswerTimeout - s.now)
	if n := len(got); n < 3 || got[n-1].At != received+p.AnswerTimeout {
		t.Errorf("without an answer: %v at %d", psns(t, got), s.now)
	}
	if st := s.e.Stats(); st.AnswerTimeouts != 3 || st.TimeoutRetransmits != 1 {
		t.Errorf("%d answers waited for in vain, %d timeouts, want 3 and 1", st.AnswerTimeouts, st.TimeoutRetransmits)
	}
}

// TestReceivedAndDropped: a target without room may drop a push that it had accepted, and NACK it.
// The push is in flight again.
func TestReceivedAndDropped(t *testing.T) {
	s := newSingle(t, rttProfile(20*us))
	s.push(2)
	s.transmit()
	s.now += 30 * us
	s.ack(wire.Ack{Extended: true, DataRx: bits(1)})
	s.nack(wire.Nack{PSN: 301, Code: wire.NackResource})
	got := s.advance(1100 * us)
	equal(t, "after the timeout", psns(t, got), []uint32{300, 301})
}

// TestReceivedIsNotSentAgain: an acknowledgement that says that a packet arrived stops the
// retransmission that is due.
func TestReceivedIsNotSentAgain(t *testing.T) {
	s := newSingle(t, rttProfile(20*us))
	s.push(5)
	s.transmit()
	s.now += 30 * us
	s.ack(wire.Ack{Extended: true, DataRx: bits(4)}) // 300 and 301 are lost, it seems
	s.ack(wire.Ack{Extended: true, DataRx: bits(1, 4)})
	equal(t, "sent again", psns(t, s.transmit()), []uint32{300})
}

// TestATimeoutIsSpuriousIfAnEarlierCopyArrived: a timeout was not needed if an earlier copy caused the peer's
// acknowledgement.
func TestATimeoutIsSpuriousIfAnEarlierCopyArrived(t *testing.T) {
	for _, c := range []struct {
		age  falcon.Time // of the packet the acknowledgement echoes
		want uint64
	}{{20 * us, 1}, {5 * us, 0}} {
		s := newSingle(t, rttProfile(20*us))
		s.push(1)
		if got := psns(t, s.advance(1010*us)); len(got) != 2 {
			t.Fatalf("sent %v, want the packet twice", got)
		}
		s.ack(wire.Ack{DataBase: 301, T1: falcon.FalconTime(s.now - c.age)})
		if st := s.e.Stats(); st.TimeoutRetransmits != 1 || st.SpuriousTimeouts != c.want {
			t.Errorf("%d timeouts, %d of them spurious, want 1 and %d", st.TimeoutRetransmits, st.SpuriousTimeouts, c.want)
		}
	}
}

// rackProfile finds losses by time alone.
func rackProfile(reorder falcon.Time) falcon.Profile {
	p := rttProfile(20 * us)
	p.RACK, p.ReorderTime, p.OOODistance = true, reorder, 100
	return p
}

func TestCase53_RACK(t *testing.T) {
	s := newSingle(t, rackProfile(us))
	s.push(1)
	s.transmit()
	s.now += 10 * us
	s.push(1)
	s.transmit()
	s.now += 20 * us
	s.ack(wire.Ack{Extended: true, DataRx: bits(1)})
	equal(t, "one sent 10 µs later arrived", psns(t, s.transmit()), []uint32{300})
	s.now += 10 * us
	s.ack(wire.Ack{Extended: true, DataRx: bits(1)})
	equal(t, "nothing sent later arrived", psns(t, s.transmit()), nil)
}

// TestCase53_RACKWaits: a packet may be overtaken by others sent within the reordering time. When
// that time is over, a timer finds the loss.
func TestCase53_RACKWaits(t *testing.T) {
	s := newSingle(t, rackProfile(15*us))
	start := s.now
	s.push(1)
	s.transmit()
	s.now += 10 * us
	s.push(1)
	s.transmit()
	s.now += 20 * us
	s.ack(wire.Ack{Extended: true, DataRx: bits(1)})
	got := s.advance(100 * us)
	equal(t, "sent", psns(t, got), []uint32{300})
	if want := start + 20*us + 15*us; got[0].At != want {
		t.Errorf("sent again at %d, want %d: a round trip and the reordering time after it was sent", got[0].At-start, want-start)
	}
}

// TestCase53_RACKEarlierCopy: the arrival of an earlier copy of a packet proves nothing about
// packets sent since, and a false loss makes the reordering time longer.
func TestCase53_RACKEarlierCopy(t *testing.T) {
	for _, c := range []struct {
		first bool // copy of 300 that arrived
		again []uint32
	}{{true, nil}, {false, []uint32{302}}} {
		s := newSingle(t, rackProfile(us))
		start := s.now
		s.push(1)
		s.transmit()
		s.now += 5 * us
		s.push(1)
		s.transmit()
		s.now += 20 * us
		s.push(1)
		s.transmit() // 302
		s.now += 5 * us
		s.ack(wire.Ack{Extended: true, DataRx: bits(1), T1: falcon.FalconTime(start + 5*us)})
		equal(t, "hole", psns(t, s.transmit()), []uint32{300})
		again := s.now
		s.now += 10 * us
		t1 := falcon.FalconTime(again + us)
		if c.first {
			t1 = falcon.FalconTime(start + 5*us)
		}
		s.ack(wire.Ack{Extended: true, DataBase: 302, T1: t1})
		equal(t, "after the copy", psns(t, s.transmit()), c.again)
		if n := s.e.Stats().SpuriousEarly; (n == 1) != c.first {
			t.Errorf("%d early retransmissions were not needed", n)
		}
	}
}

// TestThePeersRACKIsToldAllThatWasReceived: the peer's RACK needs to know all that was received (Falcon §9.1.6).
func TestThePeersRACKIsToldAllThatWasReceived(t *testing.T) {
	p := testProfile()
	p.RACK = true
	s := newSingle(t, p)
	s.ulp.OnPush = func(falcon.Time, *falcon.Event, uint64) {}
	s.pushData(200, 7, false)
	if got := s.advance(20 * us); len(got) != 1 || got[0].Type != wire.TypeEACK {
		t.Errorf("received and not acknowledged: %v, want one EACK", got)
	}
}

func TestCase54_Probe(t *testing.T) {
	for _, c := range []struct {
		probe falcon.Probe
		want  uint32
	}{{falcon.ProbeFirstUnacked, 300}, {falcon.ProbeFirstUnreceived, 301}, {falcon.ProbeLast, 302}} {
		p := rttProfile(20 * us)
		p.Probe = c.probe
		s := newSingle(t, p)
		s.push(3)
		s.transmit()
		s.now += 20 * us
		s.ack(wire.Ack{Extended: true, DataRx: bits(0)})
		heard := s.now
		got := s.advance(130 * us)
		if len(got) != 2 || header(t, got[0].Packet).PSN != c.want {
			t.Fatalf("probe %d sent %v, want %d first", c.probe, psns(t, got), c.want)
		}
		if first, second := got[0].At-heard, got[1].At-got[0].At; first != 2*rtt20 || second != 4*rtt20 {
			t.Errorf("probes after %d and %d, want two and four round trips", first, second)
		}
		if n := s.e.Stats().Probes; n != 2 {
			t.Errorf("%d probes counted", n)
		}
	}
}

// TestAGonePeerIsProbedLessAndLess: a peer that is gone is probed less and less often, also when what is probed cannot
// be sent.
func TestAGonePeerIsProbedLessAndLess(t *testing.T) {
	for _, probe := range []falcon.Probe{falcon.ProbeFirstUnacked, falcon.ProbeFirstUnreceived, falcon.ProbeLast} {
		p := rttProfile(20 * us)
		p.Probe, p.TxnTimeout, p.MaxRetransmits, p.GiveUp = probe, 0, 0, 0
		s := newSingle(t, p)
		s.push(3)
		s.transmit()
		s.nack(wire.Nack{PSN: 300, Code: wire.NackRNR, RNR: 31})
		s.advance(400 * ms)
		if n := s.e.Stats().Probes; n < 3 || n > 20 {
			t.Errorf("%d probes in 0.4 s", n)
		}
	}
}

// TestReceivedAndRefused: for a push that was refused with RNR, an acknowledgement refers to the
// refused copy. The push is sent again when the peer's time is over.
func TestReceivedAndRefused(t *testing.T) {
	s := newSingle(t, rttProfile(20*us))
	s.push(1)
	s.transmit()
	s.now += 30 * us
	s.nack(wire.Nack{PSN: 300, Code: wire.NackRNR, RNR: 15}) // 1.92 ms
	again := s.now + 1920*us
	s.now += 10 * us
	s.ack(wire.Ack{Extended: true, DataRx: bits(0)})
	got := s.advance(again - s.now + us)
	equal(t, "after the peer's time", psns(t, got), []uint32{300})
	s.ack(wire.Ack{Extended: true, DataOWN: true, DataRx: bits(0)}) // nor does it go again as if it were lost
	equal(t, "after the timeout", psns(t, s.advance(1500*us)), []uint32{300})
}

// sentAgain sends two packets some time apart. An acknowledgement of the second makes the engine
// send the first again; then both are acknowledged. Either copy of the first may be the one that
// arrived.
func (s *single) sentAgain(base uint32, forNothing bool) {
	s.t.Helper()
	first := s.now
	s.push(1)
	s.transmit()
	s.now += 100 * us
	second := s.now
	s.push(1)
	s.transmit()
	s.now += 20 * us
	s.ack(wire.Ack{Extended: true, DataBase: base, DataRx: bits(1), T1: falcon.FalconTime(second)})
	equal(s.t, "sent again", psns(s.t, s.transmit()), []uint32{base})
	arrived := s.now
	if forNothing {
		arrived = first
	}
	s.now += 50 * us
	s.ack(wire.Ack{DataBase: base + 2, T1: falcon.FalconTime(arrived)})
}

// waits returns how long after its expected arrival a packet is sent again that was overtaken by
// one sent a microsecond later.
func (s *single) waits(base uint32) falcon.Time {
	s.t.Helper()
	const trip = 20 * us
	sent := s.now
	s.push(1)
	s.transmit()
	s.now += us
	s.push(1)
	s.transmit()
	s.now += trip
	s.ack(wire.Ack{Extended: true, DataBase: base, DataRx: bits(1), T1: falcon.FalconTime(sent + us)})
	got := s.advance(200 * us)
	if len(got) == 0 || header(s.t, got[0].Packet).PSN != base {
		s.t.Fatalf("sent %v, want %d again", psns(s.t, got), base)
	}
	s.ack(wire.Ack{DataBase: base + 2, T1: falcon.FalconTime(s.now)})
	return got[0].At - sent - trip
}

// TestReorderingTimeAdapts: each early retransmission that was not needed allows packets to be
// overtaken by a quarter of a round trip more, up to a whole one. After 64 in a row that were
// needed, the allowance is reset.
func TestReorderingTimeAdapts(t *testing.T) {
	p := rackProfile(us)
	p.AnswerTimeout = 1000 * ms
	s := newSingle(t, p)
	base := uint32(300)
	wait := func(want falcon.Time) {
		t.Helper()
		if got := s.waits(base); got != want {
			t.Errorf("sent again %d ns after it should have arrived, want %d", got, want)
		}
		base += 2
	}
	again := func(forNothing bool) {
		t.Helper()
		s.sentAgain(base, forNothing)
		base += 2
	}
	wait(us)
	for quarters := falcon.Time(1); quarters <= 6; quarters++ {
		again(true)
		wait(rtt20 * min(quarters, 4) / 4)
	}
	for range 62 { // the last wait was the first that was needed
		again(false)
	}
	wait(rtt20)
	wait(us)
}

// TestTheFirstAcknowledgedShowsTheRoundTrip: of packets sent together, the one acknowledged first
// shows how long a round trip takes; the others were only acknowledged later.
func TestTheFirstAcknowledgedShowsTheRoundTrip(t *testing.T) {
	s := newSingle(t, rackProfile(15*us))
	start := s.now
	s.push(1)
	s.transmit()
	s.now += 10 * us
	s.push(2)
	s.transmit()
	s.now += 20 * us
	s.ack(wire.Ack{Extended: true, DataRx: bits(1), T1: falcon.FalconTime(start + 10*us)})
	s.now += 3 * us
	s.ack(wire.Ack{Extended: true, DataRx: bits(1, 2), T1: falcon.FalconTime(start + 10*us)})
	got := s.advance(100 * us)
	if len(got) != 1 || got[0].At != start+20*us+15*us {
		t.Errorf("sent %v again, want 300 a round trip of 20 µs and the reordering time after it was sent", psns(t, got))
	}
}

// TestPacketsSentTogetherDoNotOutdateEachOther: a packet is not lost because one sent at the same
// time has arrived, however long ago.
func TestPacketsSentTogetherDoNotOutdateEachOther(t *testing.T) {
	s := newSingle(t, rackProfile(0))
	s.push(2)
	s.transmit()
	s.now += 20 * us
	s.ack(wire.Ack{Extended: true, DataRx: bits(1), T1: falcon.FalconTime(s.now - 20*us)})
	if got := s.advance(500 * us); len(psns(t, got)) != 0 {
		t.Errorf("sent %v again", psns(t, got))
	}
}

// TestRACKHasALimit: a packet that was sent again early as often as the profile allows waits for
// the retransmission timer. Meanwhile no needless timer runs.
func TestRACKHasALimit(t *testing.T) {
	p := rackProfile(us)
	p.EarlyLimit, p.AnswerTimeout = 1, 1000*ms
	s := newSingle(t, p)
	start := s.now
	s.push(1)
	s.transmit()
	again := start
	for n := range uint(3) { // others are sent later, and arrive
		s.now += 10 * us
		s.push(1)
		s.transmit()
		s.now += 20 * us
		received := []uint{1, 2, 3}[:n+1]
		s.ack(wire.Ack{Extended: true, DataRx: bits(received...), T1: falcon.FalconTime(s.now - 20*us)})
		got := psns(t, s.transmit())
		if n == 0 {
			again = s.now
			equal(t, "early", got, []uint32{300})
			continue
		}
		equal(t, "early, above the limit", got, nil)
	}
	if at := s.e.Deadline(); at < s.now+500*us {
		t.Fatalf("a timer runs in %d ns", at-s.now)
	}
	got := s.advance(2 * ms)
	if len(got) == 0 || header(t, got[0].Packet).PSN != 300 || got[0].At != again+1_000_079 {
		t.Errorf("sent %v, want 300 a timeout after it was sent last", got)
	}
}

// TestBothHalvesOfABitmapCount: both halves of an acknowledgement's bitmaps count.
func TestBothHalvesOfABitmapCount(t *testing.T) {
	p := rttProfile(20 * us)
	p.AnswerTimeout = 10 * ms
	s := newSingle(t, p)
	s.push(100)
	s.transmit()
	s.now += 10 * us
	s.ack(wire.Ack{Extended: true, DataAck: bits(70, 71), DataRx: bits(70, 71, 72, 99)})
	if got := s.c.Info().DataInFlight; got != 100 {
		t.Errorf("%d in flight", got)
	}
	got := psns(t, s.advance(1100*us)) // after the timeout of all that did not arrive
	seen := map[uint32]bool{}
	for _, psn := range got {
		seen[psn] = true
	}
	for psn := uint32(300); psn < 400; psn++ {
		arrived := psn >= 370 && psn <= 372 || psn == 399
		if seen[psn] == arrived {
			t.Errorf("%d: arrived %v, sent again %v", psn, arrived, seen[psn])
		}
	}
}

// TestTheAnswerTimeoutStartsOnce: a second acknowledgement of a packet's arrival does not postpone
// the time at which its answer counts as lost, and its earlier copies are counted once.
func TestTheAnswerTimeoutStartsOnce(t *testing.T) {
	p := rttProfile(20 * us)
	p.AnswerTimeout = 500 * us
	s := newSingle(t, p)
	s.push(1)
	s.transmit()
	s.now += 10 * us
	s.ack(wire.Ack{Extended: true, DataRx: bits(0)})
	heard := s.now
	s.now += 300 * us
	s.ack(wire.Ack{Extended: true, DataRx: bits(0)})
	got := s.advance(400 * us)
	if len(got) != 1 || got[0].At != heard+500*us {
		t.Errorf("sent %v, want once, 500 µs after it was first heard of", got)
	}

	s = newSingle(t, rttProfile(20*us))
	sent := s.now
	s.push(4)
	s.transmit()
	s.now += 30 * us
	s.ack(wire.Ack{Extended: true, DataRx: bits(1, 2, 3), T1: falcon.FalconTime(sent)})
	s.transmit() // 300 again
	s.now += us
	s.ack(wire.Ack{Extended: true, DataRx: bits(0, 1, 2, 3), T1: falcon.FalconTime(sent)})
	s.ack(wire.Ack{DataBase: 304, T1: falcon.FalconTime(sent)})
	if n := s.e.Stats().SpuriousEarly; n != 1 {
		t.Errorf("%d early retransmissions were not needed, want one, told twice", n)
	}
}

// TestBasesTellNoTimes: acknowledgements carried by other packets do not show which copy arrived.
func TestBasesTellNoTimes(t *testing.T) {
	s := newSingle(t, rttProfile(20*us))
	s.push(1)
	if got := psns(t, s.advance(1010*us)); len(got) != 2 {
		t.Fatalf("sent %v, want the packet twice", got)
	}
	p := wire.PushData{Header: s.header(wire.TypePushData, 200, 7, false)}
	p.DataBase++
	s.want(s.receive(p.Append(nil)), wire.DropNone)
	if st := s.e.Stats(); st.SpuriousTimeouts != 0 || s.count(falcon.EvPushDone) != 1 {
		t.Errorf("%d timeouts count as spurious, %d completions", st.SpuriousTimeouts, s.count(falcon.EvPushDone))
	}
}

// TestTimerOutlivesAPacket: when another packet acknowledges one of two in flight, the timer of the
// other one continues.
func TestTimerOutlivesAPacket(t *testing.T) {
	s := newSingle(t, testProfile())
	start := s.now
	s.push(2)
	s.transmit()
	p := wire.PushData{Header: s.header(wire.TypePushData, 200, 7, false)}
	p.DataBase++
	s.want(s.receive(p.Append(nil)), wire.DropNone)
	got := only(s.advance(1100*us), wire.TypePushData)
	if len(got) != 1 || got[0].At != start+1_000_079 || header(t, got[0].Packet).PSN != 301 {
		t.Errorf("sent %v, want 301 again", got)
	}
}

// TestAPushUnderRNRIsNotProbed: a push that waits for its receiver is not probed, the next one is.
func TestAPushUnderRNRIsNotProbed(t *testing.T) {
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
