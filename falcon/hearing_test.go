package falcon_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cc"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

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

// TestLagOfTheFirst: of packets sent together, the one acknowledged first shows how long a round
// trip takes; the others were only acknowledged later.
func TestLagOfTheFirst(t *testing.T) {
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

// TestSentTogether: a packet is not lost because one sent at the same time has arrived, however
// long ago.
func TestSentTogether(t *testing.T) {
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

// TestReceivedInTheUpperHalf: both halves of an acknowledgement's bitmaps count.
func TestReceivedInTheUpperHalf(t *testing.T) {
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

// TestOneAnswerTimeout: a second acknowledgement of a packet's arrival does not postpone the time
// at which its answer counts as lost, and its earlier copies are counted once.
func TestOneAnswerTimeout(t *testing.T) {
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

// TestAckedSaturates: the count of acknowledged packets stops at the maximum of the event's field.
func TestAckedSaturates(t *testing.T) {
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

// TestImpossibleBases: an acknowledgement may cover all packets that were sent, in either window,
// and not one more.
func TestImpossibleBases(t *testing.T) {
	s := newSingle(t, testProfile())
	s.push(3)
	s.pull(2)
	s.transmit()
	s.want(s.ack(wire.Ack{ReqBase: 103}), wire.DropImpossibleAck)
	s.want(s.ack(wire.Ack{DataBase: 304}), wire.DropImpossibleAck)
	s.want(s.ack(wire.Ack{DataBase: 303, ReqBase: 103}), wire.DropImpossibleAck)
	if n := s.count(falcon.EvPushDone); n != 0 {
		t.Errorf("%d completions", n)
	}
	s.want(s.ack(wire.Ack{DataBase: 303, ReqBase: 102}), wire.DropNone)
	if n := s.count(falcon.EvPushDone); n != 3 {
		t.Errorf("%d completions, want 3", n)
	}
}

// TestPullDataForNothing: data is accepted only for a pull that was sent and has got no data yet.
func TestPullDataForNothing(t *testing.T) {
	s := newSingle(t, testProfile())
	s.pull(3)
	s.transmit()
	s.want(s.pullData(200, 4, 8), wire.DropUnknownRSN) // the next one
	s.want(s.pullData(201, 2, 8), wire.DropNone)
	s.want(s.pullData(202, 2, 8), wire.DropUnknownRSN) // has its data, and waits for the first
	s.want(s.pullData(203, 1, 8), wire.DropNone)
	s.want(s.pullData(204, 1, 8), wire.DropUnknownRSN) // over
	s.pull(1)
	s.want(s.pullData(205, 4, 8), wire.DropUnknownRSN) // not sent yet
	if n := s.count(falcon.EvPullDone); n != 2 {
		t.Errorf("%d pulls completed, want 2", n)
	}
}

// TestRefusedPullTakesNoData: data is not accepted for a pull that was refused and whose completion
// waits for an older one.
func TestRefusedPullTakesNoData(t *testing.T) {
	s := newSingle(t, testProfile())
	s.pull(2)
	s.transmit()
	s.ack(wire.Ack{ReqBase: 102})
	n := wire.Nack{CID: s.c.Config().LocalCID, DataBase: 300, ReqBase: 102, PSN: 101, Code: wire.NackCID, Request: true}
	s.want(s.receive(n.Append(nil)), wire.DropNone)
	s.want(s.pullData(200, 2, 8), wire.DropUnknownRSN)
	s.want(s.pullData(201, 1, 8), wire.DropNone)
	var codes []falcon.Completion
	for _, e := range s.ulp.Events {
		codes = append(codes, e.Code)
	}
	equal(t, "completions", codes, []falcon.Completion{falcon.CmplAck, falcon.CmplTargetNackCID})
}
