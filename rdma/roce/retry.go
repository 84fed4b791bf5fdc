package roce

import (
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// leastTimeout bounds verbs' timeout from below: a host without real-time scheduling cannot tell
// less from a loss. IBA §9.7.6.1.3 lets a timeout be up to four times as long as it is set to.
const leastTimeout transport.Time = 8e6

// mostRTO is the longest pause between two attempts where verbs' timeout is for ever.
const mostRTO transport.Time = 1e9

// patience is how long verbs let a packet go unanswered, once and altogether.
func (c *Conn) patience() (once, altogether transport.Time, forever bool) {
	s := c.terms.Sending
	if s.Timeout == 0 {
		return mostRTO, 0, true
	}
	once = max(4096<<s.Timeout, leastTimeout)
	return once, once * transport.Time(s.RetryCount+1), false
}

// rewind has everything sent again that is not answered.
func (c *Conn) rewind() {
	s := &c.requester
	for i := range s.sent {
		s.entries.At(i).again = true
	}
	s.sent, s.flying, s.quiet = 0, 0, 0
	s.rewound, s.rtt.timing = true, false
	c.wake()
}

// missing says that an answer shows that another one was lost.
func (c *Conn) missing(now transport.Time) {
	if !c.rewound {
		c.port.stats.Missing++
		c.e.congestion.Lost(&c.traffic, now)
		c.rewind()
	}
}

// watch sees to it that what is under way is sent again some time.
func (c *Conn) watch(now transport.Time) {
	s := &c.requester
	switch {
	case s.notReady: // the timer is the peer's
		return
	case s.flying == 0:
		c.e.timers.Stop(&s.timer)
		return
	}
	once, altogether, forever := c.patience()
	at := now + min(s.rto, once)
	if !forever {
		at = min(at, max(s.heard+altogether, now))
	}
	c.e.timers.Arm(&s.timer, c, kindRetry, at)
}

// progress notes that something was answered: everything before psn.
func (c *Conn) progress(now transport.Time, psn wire.PSN, packets int) {
	s := &c.requester
	s.rtt.answered(now, psn)
	c.e.congestion.Answered(&s.traffic, now, packets, packets*c.segment)
	s.heard, s.rto, s.rewound, s.lastRNR = now, s.rtt.rto(), false, false
	c.watch(now)
	c.wake()
}

// timedOut sends again, or gives up.
func (c *Conn) timedOut(now transport.Time) {
	s := &c.requester
	if s.notReady {
		s.notReady = false
		s.heard = now
		c.wake()
		return
	}
	if s.entries.Len() == 0 || c.user == nil {
		return
	}
	if _, altogether, forever := c.patience(); !forever && now >= s.heard+altogether {
		st := abi.WCRetryExcErr
		if s.lastRNR {
			st = abi.WCRNRRetryExcErr
		}
		c.fail(now, st, 0)
		return
	}
	c.port.stats.Timeouts++
	c.e.congestion.Collapsed(&s.traffic, now)
	c.rewind()
	s.rto *= 2
}
