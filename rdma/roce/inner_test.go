package roce

import (
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// TestARepeatedReadWaitsForItsFirstAnswer: a READ that is repeated before its answer has begun still waits for its
// first answer. Once it was answered, a repetition does not count.
func TestARepeatedReadWaitsForItsFirstAnswer(t *testing.T) {
	for _, tt := range []struct{ before, repeated, want bool }{
		{false, true, false}, {true, true, true}, {false, false, false}, {true, false, false},
	} {
		var s responder
		s.insert(answer{psn: 5, left: 4, again: tt.before})
		s.insert(answer{psn: 5, left: 4, again: tt.repeated})
		if n := s.answers.Len(); n != 1 {
			t.Fatalf("%+v: %d answers", tt, n)
		}
		if again := s.unanswered() == 0; again != tt.want {
			t.Errorf("%+v: again is %v", tt, again)
		}
	}
}

// TestAnOverlappingAnswerIsNotDueTwice: an answer that shares a packet with one that is due is not due twice. The
// first of those that are due starts again from its beginning, and the others are unchanged. Other
// answers are sent in the order of their PSNs.
func TestAnOverlappingAnswerIsNotDueTwice(t *testing.T) {
	type span struct{ psn, left int }
	for _, c := range []struct {
		name string
		add  span
		want []span // due before are 10 to 13 and 20 to 23
	}{
		{"before all", span{6, 4}, []span{{6, 4}, {10, 4}, {20, 4}}},
		{"into the first", span{6, 5}, []span{{6, 5}, {20, 4}}},
		{"the first", span{10, 4}, []span{{10, 4}, {20, 4}}},
		{"the end of the first", span{13, 1}, []span{{13, 1}, {20, 4}}},
		{"behind the first", span{14, 6}, []span{{10, 4}, {14, 6}, {20, 4}}},
		{"into the second", span{14, 7}, []span{{10, 4}, {20, 4}}},
		{"the second", span{20, 4}, []span{{10, 4}, {20, 4}}},
		{"the end of the second", span{23, 1}, []span{{10, 4}, {20, 4}}},
		{"behind all", span{24, 1}, []span{{10, 4}, {20, 4}, {24, 1}}},
	} {
		var s responder
		for _, a := range []span{{10, 4}, {20, 4}, c.add} {
			s.insert(answer{psn: wire.PSN(a.psn), left: a.left})
		}
		var got []span
		for i := range s.answers.Len() {
			got = append(got, span{int(s.answers.At(i).psn), s.answers.At(i).left})
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestResultsOfAtomicsInFlightAreKept: as many results of atomics are kept as a peer may have in flight.
func TestResultsOfAtomicsInFlightAreKept(t *testing.T) {
	var s responder
	for i := range 300 {
		s.keep(result{psn: wire.PSN(i), original: uint64(i)})
	}
	for i := range 300 {
		r := s.result(wire.PSN(i))
		if kept := i >= 300-maxAtomics; (r != nil) != kept || kept && r.original != uint64(i) {
			t.Errorf("result of %d: %+v", i, r)
		}
	}
}

// TestTheNewestAtomicOfAPSNIsRepeated: PSNs come again after 2^24 packets, when the result of an
// atomic before may still be kept (IBA §9.7.5.1.1).
func TestTheNewestAtomicOfAPSNIsRepeated(t *testing.T) {
	for _, between := range []int{0, 1, 5, maxAtomics - 2, maxAtomics, 3*maxAtomics + 7} {
		var s responder
		s.keep(result{psn: 5, original: 1})
		for i := range between {
			s.keep(result{psn: wire.PSN(1000 + i)})
		}
		s.keep(result{psn: 5, original: 2})
		if r := s.result(5); r == nil || r.original != 2 {
			t.Errorf("%d others between: %+v", between, r)
		}
	}
}

func TestMessagesAreCountedIn24Bits(t *testing.T) {
	s := responder{msn: 1<<24 - 2, expected: 1<<24 - 1, missed: true}
	s.took(1, true)
	if s.msn != 1<<24-1 || s.expected != 0 || s.missed {
		t.Errorf("%d messages, next %d", s.msn, s.expected)
	}
	s.took(2, false)
	if s.took(1, true); s.msn != 0 || s.expected != 3 {
		t.Errorf("%d messages, next %d", s.msn, s.expected)
	}
}

// TestOnlyPacketsInPlaceMakeAMessage: which packets make a message, and which do not belong where they come. The path
// MTU is 256.
func TestOnlyPacketsInPlaceMakeAMessage(t *testing.T) {
	type packet struct {
		op    ib.Opcode
		n     int
		whole uint32 // WRITE, first packet: the length of all
	}
	for _, c := range []struct {
		name    string
		packets []packet
		ok      bool // of the last of them; the others belong
	}{
		{"SEND Only, empty", []packet{{ib.SendOnly, 0, 0}}, true},
		{"SEND Only, full", []packet{{ib.SendOnly, 256, 0}}, true},
		{"SEND Only, too long", []packet{{ib.SendOnly, 257, 0}}, false},
		{"SEND Only with immediate", []packet{{ib.SendOnlyImm, 9, 0}}, true},
		{"SEND Only with invalidate", []packet{{ib.SendOnlyInv, 9, 0}}, true},
		{"SEND First, short", []packet{{ib.SendFirst, 255, 0}}, false},
		{"SEND First, long", []packet{{ib.SendFirst, 257, 0}}, false},
		{"SEND of three", []packet{{ib.SendFirst, 256, 0}, {ib.SendMiddle, 256, 0}, {ib.SendLast, 1, 0}}, true},
		{"SEND Middle, short", []packet{{ib.SendFirst, 256, 0}, {ib.SendMiddle, 255, 0}}, false},
		{"SEND Last, full", []packet{{ib.SendFirst, 256, 0}, {ib.SendLast, 256, 0}}, true},
		{"SEND Last, too long", []packet{{ib.SendFirst, 256, 0}, {ib.SendLast, 257, 0}}, false},
		{"SEND Last, empty", []packet{{ib.SendFirst, 256, 0}, {ib.SendLast, 0, 0}}, false},
		{"SEND Last with immediate", []packet{{ib.SendFirst, 256, 0}, {ib.SendLastImm, 1, 0}}, true},
		{"SEND Last with invalidate", []packet{{ib.SendFirst, 256, 0}, {ib.SendLastInv, 1, 0}}, true},
		{"a Middle without a First", []packet{{ib.SendMiddle, 256, 0}}, false},
		{"a Last without a First", []packet{{ib.SendLast, 1, 0}}, false},
		{"a First within", []packet{{ib.SendFirst, 256, 0}, {ib.SendFirst, 256, 0}}, false},
		{"an Only within", []packet{{ib.SendFirst, 256, 0}, {ib.SendOnly, 1, 0}}, false},
		{"a WRITE's within a SEND", []packet{{ib.SendFirst, 256, 0}, {ib.WriteMiddle, 256, 0}}, false},
		{"a SEND's within a WRITE", []packet{{ib.WriteFirst, 256, 300}, {ib.SendLast, 44, 0}}, false},
		{"WRITE Only, empty", []packet{{ib.WriteOnly, 0, 0}}, true},
		{"WRITE Only, full", []packet{{ib.WriteOnly, 256, 256}}, true},
		{"WRITE Only, less than it says", []packet{{ib.WriteOnly, 255, 256}}, false},
		{"WRITE Only, more than it says", []packet{{ib.WriteOnly, 256, 255}}, false},
		{"WRITE Only with immediate", []packet{{ib.WriteOnlyImm, 9, 9}}, true},
		{"WRITE of three", []packet{{ib.WriteFirst, 256, 513}, {ib.WriteMiddle, 256, 0}, {ib.WriteLast, 1, 0}}, true},
		{"WRITE that ends with a full packet", []packet{{ib.WriteFirst, 256, 512}, {ib.WriteLastImm, 256, 0}}, true},
		{"WRITE First that is all", []packet{{ib.WriteFirst, 256, 256}}, false},
		{"WRITE Middle that is all", []packet{{ib.WriteFirst, 256, 512}, {ib.WriteMiddle, 256, 0}}, false},
		{"WRITE Middle that is more", []packet{{ib.WriteFirst, 256, 400}, {ib.WriteMiddle, 256, 0}}, false},
		{"WRITE Last that is not all", []packet{{ib.WriteFirst, 256, 300}, {ib.WriteLast, 43, 0}}, false},
		{"WRITE Last that is more", []packet{{ib.WriteFirst, 256, 300}, {ib.WriteLast, 45, 0}}, false},
		{"the longest WRITE", []packet{{ib.WriteFirst, 256, 1 << 31}}, true},
		{"a longer WRITE", []packet{{ib.WriteFirst, 256, 1<<31 + 1}}, false},
	} {
		var m message
		for i, p := range c.packets {
			h := wire.Headers{Extended: ib.Extended{RETH: ib.RETH{VA: 1000, RKey: 7, Length: p.whole}}}
			next, ok := m.with(p.op.Info(), &h, p.n, 256)
			if want := c.ok || i < len(c.packets)-1; ok != want {
				t.Errorf("%s: packet %d belongs: %t", c.name, i, ok)
			}
			m = next
		}
	}
}

// TestASendIsNoLongerThanTheLongestMessage: a SEND names no length; it is over when it is longer than messages are.
func TestASendIsNoLongerThanTheLongestMessage(t *testing.T) {
	m := message{kind: sending, bytes: 1<<31 - 256}
	if m, ok := m.with(ib.SendMiddle.Info(), &wire.Headers{}, 256, 256); !ok || m.bytes != 1<<31 {
		t.Errorf("%d bytes belong: %t", m.bytes, ok)
	}
	m.bytes++
	if _, ok := m.with(ib.SendMiddle.Info(), &wire.Headers{}, 256, 256); ok {
		t.Errorf("%d bytes belong", m.bytes+256)
	}
}

// TestWriteGoesOn: where each packet of a WRITE goes, and what is to come behind it.
func TestWriteGoesOn(t *testing.T) {
	var m message
	ok := false
	h := wire.Headers{Extended: ib.Extended{RETH: ib.RETH{VA: 1000, RKey: 7, Length: 600}}}
	for i, n := range []int{256, 256, 88} {
		op := []ib.Opcode{ib.WriteFirst, ib.WriteMiddle, ib.WriteLast}[i]
		if m, ok = m.with(op.Info(), &h, n, 256); !ok {
			t.Fatalf("packet %d does not belong", i)
		}
		h.RETH = ib.RETH{}
		if want := (message{kind: writing, bytes: []uint64{256, 512, 600}[i], left: []uint32{344, 88, 0}[i], addr: 1000 + []uint64{256, 512, 600}[i], rkey: 7}); m != want {
			t.Errorf("packet %d: %+v, want %+v", i, m, want)
		}
	}
}

// TestRoundTripIsOfOnePacket: only an answer to the packet that is timed measures, and each timing
// measures once (RFC 6298 §3: none of a packet that may have been sent twice).
func TestRoundTripIsOfOnePacket(t *testing.T) {
	var r roundTrip
	if r.answered(50, 8) {
		t.Error("measured without a packet")
	}
	r.sent(100, 7)
	r.sent(150, 8)
	if r.answered(160, 7) || r.smoothed != 0 {
		t.Error("measured by an answer to what was before")
	}
	if !r.answered(400, 8) || r.smoothed != 300 {
		t.Errorf("round trip of %d, want 300", r.smoothed)
	}
	if r.answered(900, 9) || r.smoothed != 300 {
		t.Error("measured twice")
	}
}

// TestThePauseBeforeARetryFollowsRoundTrips: the pause before a retry follows RFC 6298: the first round trip and half of it,
// of the further ones an eighth, and of what they are off a quarter.
func TestThePauseBeforeARetryFollowsRoundTrips(t *testing.T) {
	const ms = 1_000_000
	var r roundTrip
	if r.rto() != 100*ms {
		t.Errorf("%d before the first round trip", r.rto())
	}
	now := transport.Time(ms)
	for i, c := range []struct{ took, smoothed, pause transport.Time }{
		{80 * ms, 80 * ms, 240 * ms},
		{160 * ms, 90 * ms, 90*ms + 4*50*ms},
		{10 * ms, 80 * ms, 80*ms + 4*(50+7.5)*ms},
		{80 * ms, 80 * ms, 80*ms + 4*43_125_000},
	} {
		psn := wire.PSN(i)
		r.sent(now, psn)
		now += c.took
		if !r.answered(now, psn+1) || r.smoothed != c.smoothed || r.rto() != c.pause {
			t.Errorf("round trip %d: smoothed %d, pause %d, want %d, %d", i, r.smoothed, r.rto(), c.smoothed, c.pause)
		}
	}
	r = roundTrip{}
	r.sent(0, 0)
	if r.answered(3*ms, 1); r.rto() != 10*ms {
		t.Errorf("pause %d after a short round trip, at least 10 ms", r.rto())
	}
	r = roundTrip{}
	r.sent(0, 0)
	if r.answered(4*ms, 1); r.rto() != 12*ms {
		t.Errorf("pause %d after one of 4 ms", r.rto())
	}
}
