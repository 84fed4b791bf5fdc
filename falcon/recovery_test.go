package falcon_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

func TestCase51_Recency(t *testing.T) {
	s := newSingle(t, rttProfile(20*us))
	s.push(7)
	s.transmit()
	s.now += 30 * us
	s.ack(wire.Ack{Extended: true, DataRx: bits(1, 3, 4, 6)})
	equal(t, "early retransmissions, distance 3", psns(t, s.transmit()), []uint32{300, 302})
	s.now += 10 * us
	s.ack(wire.Ack{Extended: true, DataRx: bits(1, 3, 4, 6)})
	equal(t, "within an RTT", psns(t, s.transmit()), nil)
	s.now += 15 * us
	s.ack(wire.Ack{Extended: true, DataRx: bits(1, 3, 4, 6)})
	equal(t, "an RTT later", psns(t, s.transmit()), []uint32{300, 302})
}

// TestCase51_OOOCount: with the count heuristic three packets received behind a missing one are
// enough, however close.
func TestCase51_OOOCount(t *testing.T) {
	p := rttProfile(20 * us)
	p.OOODistance, p.OOOCount = 100, 3
	s := newSingle(t, p)
	s.push(9)
	s.transmit()
	s.now += 30 * us
	s.ack(wire.Ack{Extended: true, DataRx: bits(1, 3)})
	equal(t, "two behind", psns(t, s.transmit()), nil)
	s.ack(wire.Ack{Extended: true, DataRx: bits(1, 3, 4, 6)})
	equal(t, "three behind", psns(t, s.transmit()), []uint32{300, 302})
	s.now += 10 * us
	s.ack(wire.Ack{Extended: true, DataBase: 302, DataRx: bits(1, 2, 4, 5, 6)})
	equal(t, "10 µs later recency stops the scan", psns(t, s.transmit()), nil)
}

func TestCase52_EarlyLimit(t *testing.T) {
	p := rttProfile(20 * us)
	p.EarlyLimit = 1
	s := newSingle(t, p)
	s.push(4)
	s.transmit()
	s.now += 30 * us
	s.ack(wire.Ack{Extended: true, DataRx: bits(1, 2, 3)})
	equal(t, "first", psns(t, s.transmit()), []uint32{300})
	s.now += 30 * us
	s.ack(wire.Ack{Extended: true, DataRx: bits(1, 2, 3)})
	equal(t, "second", psns(t, s.transmit()), nil)
	got := s.advance(ms + 10*us)
	if len(got) == 0 || header(t, got[len(got)-1].Packet).PSN != 300 {
		t.Errorf("RTO: %v", got)
	}
}

func TestCase55_OwnBypassesRecencyOnce(t *testing.T) {
	s := newSingle(t, rttProfile(20*us))
	s.push(1)
	s.transmit()
	s.now += 10 * us
	s.push(1)
	s.transmit()
	s.now += 10 * us
	s.ack(wire.Ack{Extended: true, DataOWN: true})
	equal(t, "first notification", psns(t, s.transmit()), []uint32{300, 301})
	s.now += 5 * us
	s.ack(wire.Ack{Extended: true, DataOWN: true})
	equal(t, "second notification", psns(t, s.transmit()), nil)
}

// TestCase56_OwnOncePerRTT: by the letter of Falcon §9.1.4 a notification does not cause a
// retransmission of what was sent within an RTT.
func TestCase56_OwnOncePerRTT(t *testing.T) {
	p := rttProfile(20 * us)
	p.OWNBypass = false
	s := newSingle(t, p)
	s.push(1)
	s.transmit()
	s.now += 10 * us
	s.push(1)
	s.transmit()
	s.now += 15 * us
	s.ack(wire.Ack{Extended: true, DataOWN: true})
	equal(t, "sent an RTT ago", psns(t, s.transmit()), []uint32{300})
	s.now += 10 * us
	s.ack(wire.Ack{Extended: true, DataOWN: true})
	equal(t, "10 µs later", psns(t, s.transmit()), []uint32{301})
}

// TestOnlyScanAllSearchesBehindARecentPacket: the search for lost packets ends at one that was sent within an RTT, or passes over
// it.
func TestOnlyScanAllSearchesBehindARecentPacket(t *testing.T) {
	for _, all := range []bool{false, true} {
		p := rttProfile(20 * us)
		p.ScanAll = all
		s := newSingle(t, p)
		s.push(7)
		s.transmit()
		s.now += 30 * us
		s.ack(wire.Ack{Extended: true, DataRx: bits(3)})
		equal(t, "first hole", psns(t, s.transmit()), []uint32{300})
		s.now += 5 * us
		s.ack(wire.Ack{Extended: true, DataRx: bits(1, 3, 5)})
		want := map[bool][]uint32{true: {302}}[all]
		equal(t, "second hole", psns(t, s.transmit()), want)
	}
}

func TestCase57_PauseOnOwn(t *testing.T) {
	p := rttProfile(us)
	p.MaxTxn = 512
	s := newSingle(t, p, func(c *falcon.ConnConfig) { c.TxDataPSN = 100 })
	s.push(100)
	if got := s.transmit(); len(got) != 100 {
		t.Fatalf("%d packets", len(got))
	}
	s.now += 10 * us
	var rx wire.Bitmap128
	rx.Lo, rx.Hi = ^uint64(0), ^uint64(0)
	s.ack(wire.Ack{Extended: true, DataOWN: true, DataBase: 100, DataRx: rx})
	s.push(1)
	equal(t, "100 in flight", psns(t, s.transmit()), nil)
	s.ack(wire.Ack{Extended: true, DataBase: 150, DataRx: rx})
	equal(t, "50 in flight", psns(t, s.transmit()), []uint32{200})
}

func TestCase59_RNRTimeouts(t *testing.T) {
	for _, c := range []struct {
		index uint8
		delay falcon.Time // not before, and exactly then
	}{{8, 1_000_079}, {15, 1_920_000}} { // 0.16 ms is below the RTO of 7630 FU
		s := newSingle(t, rttProfile(20*us))
		s.push(2)
		s.transmit()
		start := s.now
		s.now += 10 * us
		s.nack(wire.Nack{PSN: 300, Code: wire.NackRNR, RNR: c.index})
		at := s.now + c.delay
		if n := s.count(falcon.EvRNR); n != 1 {
			t.Errorf("%d EvRNR, want 1", n)
		}
		// An EACK in between does not cause an early retransmission.
		s.now += 50 * us
		s.ack(wire.Ack{Extended: true, DataRx: bits(4)})
		equal(t, "early", psns(t, s.transmit()), []uint32{301})
		_ = start
		for _, p := range s.advance(at - s.now + us) {
			if header(t, p.Packet).PSN == 300 && p.At != at {
				t.Errorf("index %d: sent %d ns off", c.index, p.At-at)
			}
		}
		if got := s.c.Info().DataInFlight; got != 2 {
			t.Errorf("%d in flight", got)
		}
	}
}

func TestCase61_EarlyRetransmission(t *testing.T) {
	p := newPair(t)
	p.dropNth(0, wire.TypePushData, 1)
	p.push(p.a, 100, 1, 2, 3, 4)
	p.run(10 * ms)
	var n int
	for _, s := range p.packets(0, wire.TypePushData) {
		if header(t, s.Packet).PSN == 300 {
			n++
		}
	}
	if n != 2 {
		t.Errorf("PSN 300 sent %d times, want 2", n)
	}
	a := ack(t, p.packets(1, wire.TypeEACK)[0].Packet)
	if a.DataRx != bits(1, 2, 3) || a.DataBase != 300 {
		t.Errorf("EACK %+v", a)
	}
	if s := p.ae.Stats(); s.EarlyRetransmits != 1 || s.TimeoutRetransmits != 0 {
		t.Errorf("%d early, %d timeouts, want 1, 0", s.EarlyRetransmits, s.TimeoutRetransmits)
	}
	p.wantTags(0, falcon.EvPushDone, 1, 2, 3, 4)
	p.wantKeys(1, falcon.EvPush, 1, 2, 3, 4)
	p.wantIdle()
	p.wantSequence("testdata/case61.mmd")
}

// TestAPacketOfTheLastRoundTripIsNotLost: a packet that was sent within a round trip may still be
// in flight. An older one counts as lost, by a hole or by an out-of-window notification.
func TestAPacketOfTheLastRoundTripIsNotLost(t *testing.T) {
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
		s.now += rtt20 - us
		s.ack(a)
		equal(t, what+" within a round trip", psns(t, s.transmit()), nil)
		s.now += 2 * us
		s.ack(a)
		equal(t, what+" later", psns(t, s.transmit()), []uint32{300})
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
