package roce

import (
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// leastTimeout is the minimum of verbs' timeout: a host without real-time scheduling cannot tell a
// shorter delay from a loss.
const leastTimeout transport.Time = 8e6

// busyPeer is how long the guest of a busy machine may be unresponsive. IBA §9.7.6.1.3 allows a
// timeout to be up to four times as long as it is set to. Within that limit the timeout is
// lengthened until all attempts together take busyPeer.
const busyPeer transport.Time = 2e9

// mostRTO is the longest pause between two attempts if verbs' timeout is unlimited.
const mostRTO transport.Time = 1e9

// patience returns how long verbs allow a packet to be unanswered, for one attempt and for all
// together.
func (s *requester) patience() (once, altogether transport.Time, forever bool) {
	x := s.end.terms.Sending
	if x.Timeout == 0 {
		return mostRTO, 0, true
	}
	once = 4096 << x.Timeout
	attempts := transport.Time(x.RetryCount) + 1
	once = max(once, min(4*once, busyPeer/attempts), leastTimeout)
	return once, once * attempts, false
}

// rewind makes everything that is not answered be sent again.
func (s *requester) rewind() {
	for i := range s.sent {
		s.entries.At(i).again = true
	}
	s.sent, s.flying, s.quiet = 0, 0, 0
	s.rewound, s.rtt.timing = true, false
	s.end.wake()
}

// missing handles an answer which shows that another one was lost.
func (s *requester) missing(now transport.Time) {
	if !s.rewound {
		s.end.port.stats.Missing++
		s.end.e.congestion.Lost(&s.traffic, now)
		s.rewind()
	}
}

// watch arms the timer that sends packets in flight again, or stops it if there are none.
func (s *requester) watch(now transport.Time) {
	switch {
	case s.notReady: // the timer is the peer's
		return
	case s.flying == 0:
		s.end.stop(&s.timer)
		return
	}
	once, altogether, forever := s.patience()
	at := now + min(s.rto, once)
	if !forever {
		at = min(at, max(s.heard+altogether, now))
	}
	s.end.arm(&s.timer, kindRetry, at)
}

// progress records that everything before psn was answered. The pause before the next retry stays
// long until a round trip is measured (RFC 6298 §5.7). Otherwise a peer that became slower than the
// pause would get everything twice, and no round trip could be measured.
func (s *requester) progress(now transport.Time, psn wire.PSN, packets int) {
	if s.rtt.answered(now, psn) {
		s.rto = s.rtt.rto()
	}
	s.traffic.Trip = s.rtt.smoothed
	s.end.e.congestion.Answered(&s.traffic, now, packets, packets*s.end.segment)
	s.heard, s.rewound, s.lastRNR = now, false, false
	s.watch(now)
	s.end.wake()
}

// timedOut sends again, or gives up.
func (s *requester) timedOut(now transport.Time) {
	if s.notReady {
		s.notReady = false
		s.heard = now
		s.end.wake()
		return
	}
	if s.entries.Len() == 0 || s.end.user == nil {
		return
	}
	if _, altogether, forever := s.patience(); !forever && now >= s.heard+altogether {
		st := abi.WCRetryExcErr
		if s.lastRNR {
			st = abi.WCRNRRetryExcErr
		}
		s.fail(now, st, 0)
		return
	}
	s.end.port.stats.Timeouts++
	s.end.e.congestion.Collapsed(&s.traffic, now)
	s.rewind()
	s.rto *= 2
}

const (
	leastRTO transport.Time = 10e6  // hosts without real-time scheduling stall for milliseconds
	firstRTO transport.Time = 100e6 // before the first answer
)

// roundTrip measures how long answers take (RFC 6298). It times one packet at a time, and never one
// that was sent again (Karn).
type roundTrip struct {
	smoothed, varies transport.Time
	timing           bool
	of               wire.PSN
	since            transport.Time
}

// sent records that a packet that asks for an answer was sent for the first time.
func (t *roundTrip) sent(now transport.Time, psn wire.PSN) {
	if !t.timing {
		t.timing, t.of, t.since = true, psn, now
	}
}

// answered records that everything before psn was answered. It reports whether that measured a
// round trip.
func (t *roundTrip) answered(now transport.Time, psn wire.PSN) bool {
	if !t.timing || psn.Sub(t.of) <= 0 {
		return false
	}
	t.timing = false
	took := now - t.since
	if t.smoothed == 0 {
		t.smoothed, t.varies = took, took/2
		return true
	}
	off := took - t.smoothed
	if off < 0 {
		off = -off
	}
	t.varies += (off - t.varies) / 4
	t.smoothed += (took - t.smoothed) / 8
	return true
}

// rto returns the retransmission timeout.
func (t *roundTrip) rto() transport.Time {
	if t.smoothed == 0 {
		return firstRTO
	}
	return max(t.smoothed+4*t.varies, leastRTO)
}
