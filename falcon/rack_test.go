package falcon_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
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

// TestSpuriousTimeouts: a timeout was not needed if an earlier copy caused the peer's
// acknowledgement.
func TestSpuriousTimeouts(t *testing.T) {
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

// TestRACKEack: the peer's RACK needs to know all that was received (Falcon §9.1.6).
func TestRACKEack(t *testing.T) {
	p := testProfile()
	p.RACK = true
	s := newSingle(t, p)
	s.ulp.OnPush = func(falcon.Time, *falcon.Event, uint64) {}
	s.pushData(200, 7, false)
	if got := s.advance(20 * us); len(got) != 1 || got[0].Type != wire.TypeEACK {
		t.Errorf("received and not acknowledged: %v, want one EACK", got)
	}
}

// TestAckRequestBehindHole: a push that must wait for an earlier one cannot be acknowledged, but
// its AR bit still causes an ACK at once.
func TestAckRequestBehindHole(t *testing.T) {
	s := newSingle(t, testProfile())
	s.want(s.pushData(201, 8, true), wire.DropNone)
	got := s.transmit()
	if len(got) != 1 || got[0].Type != wire.TypeEACK || ack(t, got[0].Packet).DataRx != bits(1) {
		t.Errorf("sent %v, want an EACK at once", got)
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

// rtt20 is 20 µs in whole Falcon units.
const rtt20 = 19922

// TestProbesEnd: a peer that is gone is probed less and less often, also when what is probed cannot
// be sent.
func TestProbesEnd(t *testing.T) {
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
