package roce

import (
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
)

// End-to-end credits (IBA §9.7.7.2): each acknowledgement says how many receives the responder has,
// so that the requester sends no message that would find none. Credits count from the message
// number in the AETH (MSN). Messages that take no receive need no credit. They are counted all the
// same, so each of them raises the limit.
//
//	messages   1  2  3  4  5  6  7
//	           └─────┘  └──┘  └─ the probe: may be sent, in case there is a receive by now
//	           MSN 3    2 credits: limit 5
//
// Shared receive queues and Soft-RoCE give no credits. Then there is no limit.

// limit says how far a requester may send.
type limit struct {
	none    bool     // the peer does not count its receives
	at      wire.PSN // number of the last message with a receive, 24 bits
	message wire.PSN // number of the last message that was issued, from 1
}

// allows reports whether a message may be sent: one that has a receive, or the first one beyond
// (IBA §9.7.7.2.5). A message that takes no receive may always be sent.
func (l *limit) allows(e *entry) bool {
	return l.none || !e.r.TakesReceive() || e.message.Sub(l.at) <= 1
}

// raise raises the limit. It never goes back, because receives are not taken away.
func (l *limit) raise(to wire.PSN) {
	if to.Sub(l.at) > 0 {
		l.at = to
	}
}

// number sets the message number of a new entry. Each request begins a message, except the middle
// and last packets of one with data.
func (l *limit) number(e *entry) {
	if e.pulls() || e.op.Info().First {
		l.message = l.message.Add(1)
	}
	e.message = l.message
}

// sent records that an entry is sent for the first time.
func (l *limit) sent(e *entry) {
	if !e.r.TakesReceive() && (e.pulls() || e.op.Info().First) {
		l.raise(l.at.Add(1))
	}
}

// credited applies the credits of an acknowledgement. It reports whether more may be sent than
// before.
func (l *limit) credited(h *ib.AETH) bool {
	if l.none || !h.Syndrome.Acks() {
		return false
	}
	n, counted := h.Syndrome.Credits()
	if !counted {
		l.none = true
		return true
	}
	before := l.at
	l.raise(wire.PSN(h.MSN).Add(n))
	return l.at != before
}
