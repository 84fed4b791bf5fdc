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
	x := s.terms.Sending
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
	s.wake()
}

// missing handles an answer which shows that another one was lost.
func (s *requester) missing(now transport.Time) {
	if !s.rewound {
		s.port.stats.Missing++
		s.e.congestion.Lost(&s.traffic, now)
		s.rewind()
	}
}

// watch arms the timer that sends packets in flight again, or stops it if there are none.
func (s *requester) watch(now transport.Time) {
	switch {
	case s.notReady: // the timer is the peer's
		return
	case s.flying == 0:
		s.stop(&s.timer)
		return
	}
	once, altogether, forever := s.patience()
	at := now + min(s.rto, once)
	if !forever {
		at = min(at, max(s.heard+altogether, now))
	}
	s.arm(&s.timer, kindRetry, at)
}

// progress records that everything before psn was answered. The pause before the next retry stays
// long until a round trip is measured (RFC 6298 §5.7). Otherwise a peer that became slower than the
// pause would get everything twice, and no round trip could be measured.
func (s *requester) progress(now transport.Time, psn wire.PSN, packets int) {
	if s.rtt.answered(now, psn) {
		s.rto = s.rtt.rto()
	}
	s.traffic.Trip = s.rtt.smoothed
	s.e.congestion.Answered(&s.traffic, now, packets, packets*s.segment)
	s.heard, s.rewound, s.lastRNR = now, false, false
	s.watch(now)
	s.wake()
}

// timedOut sends again, or gives up.
func (s *requester) timedOut(now transport.Time) {
	if s.notReady {
		s.notReady = false
		s.heard = now
		s.wake()
		return
	}
	if s.entries.Len() == 0 || s.user == nil {
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
	s.port.stats.Timeouts++
	s.e.congestion.Collapsed(&s.traffic, now)
	s.rewind()
	s.rto *= 2
}
