package pathmtu

import (
	"cmp"
	"slices"

	"github.com/falcon-vnic/vnic/internal/vtime"
)

// Times and counts of RFC 8899 §5.1: PROBE_TIMER, MAX_PROBES, and how long a result is trusted.
const (
	answerWithin = vtime.Time(1e9)
	tries        = 3
	confirmEvery = vtime.Time(30e9)
	silentEvery  = vtime.Time(15e9) // between attempts on a peer that answers nothing
	againAfter   = vtime.Time(2e9)  // a result that became smaller is confirmed sooner
)

// CheckEvery is the least time between two checks of a path in use. A caller need not report its use
// more often (Used).
const CheckEvery = vtime.Time(500e6)

// soonest is the least time that an answer is waited for when the round trips of earlier ones are known
// (RFC 8899 §5.1.1); until then it is answerWithin.
const soonest = vtime.Time(100e6)

// Least returns the shortest probe over IPv4 or IPv6, in bytes of outer IP packet: any path is
// expected to carry it (BASE_PLPMTU, RFC 8899 §5.1.2).
func Least(v6 bool) int {
	if v6 {
		return 1280
	}
	return 1200
}

// usual lists MTUs that links have. A search tries them first.
var usual = [...]int{1280, 1400, 1420, 1450, 1492, 1500, 2000, 4000, 4352, 4500, 8900, 9000}

// steps is the number of sizes between two known ones that one round of a search tries.
const steps = 8

// state says what a round of probes is for.
type state uint8

const (
	searching  state = iota // what is the longest that passes?
	confirming              // does the MTU pass, and does nothing longer? While it is not known: Most
	checking                // does it still pass? Packets of that length are being sent
	doubtful                // it was not answered while something shorter was: what passes?
)

// Prober searches for the MTU of the path to one peer. Sizes are bytes of outer IP packet.
type Prober struct {
	least, most int
	state       state
	low         int   // longest size that was answered; 0: none
	high        int   // shortest size that was not, although a shorter one was; most+1: none
	mtu         int   // the result; 0: not known
	lowered     bool  // since the last result
	sizes       []int // of the round under way, longest first
	round       uint32
	sent        int // times that the round's probes were sent
	due         vtime.Time
	confirmAt   vtime.Time // when the next round confirms the result
	checked     vtime.Time // when the last check began
	sentAt      vtime.Time // when the round's probes were last sent
	rtt, varies vtime.Time // of answers, smoothed (RFC 6298 §2); 0: not known
}

// New returns a Prober for a path whose packets are at most most bytes long.
func New(most int, v6 bool) *Prober {
	p := &Prober{least: min(Least(v6), most), most: most, high: most + 1, checked: vtime.LongAgo}
	p.begin(confirming, p.most, p.least)
	return p
}

// MTU returns the longest packet that the path carries, or 0 while that is not known.
func (p *Prober) MTU() int { return p.mtu }

// Deadline returns when Due has to be called next.
func (p *Prober) Deadline() vtime.Time { return p.due }

// Used reports that packets longer than Least are being sent to the peer: the MTU is checked at once,
// if it was not lately. So a path whose MTU becomes smaller is known soon by whoever uses it.
func (p *Prober) Used(now vtime.Time) {
	resting := p.sent == 0 && now < p.due
	if resting && p.mtu > p.least && now >= p.checked+CheckEvery {
		p.checked = now
		p.begin(checking, p.mtu, p.least)
	}
}

// Due returns the sizes of the probes to send now, longest first, and the number of the round that
// they carry. There are none before the Deadline.
func (p *Prober) Due(now vtime.Time) (sizes []int, round uint32) {
	if now < p.due {
		return nil, 0
	}
	if p.sent == tries || p.sent == 1 && p.state == checking {
		p.conclude(now)
		if now < p.due {
			return nil, 0
		}
	}
	p.sent++
	p.sentAt, p.due = now, now+p.patience()
	n := len(p.sizes)
	for n > 0 && p.sizes[n-1] <= p.low {
		n-- // what is shorter than an answered one need not be asked again
	}
	return p.sizes[:n], p.round
}

// patience returns how long answers are waited for before probes are sent again.
func (p *Prober) patience() vtime.Time {
	if p.rtt == 0 {
		return answerWithin
	}
	return max(soonest, min(p.rtt+4*p.varies, answerWithin))
}

// Answered reports that the peer received a probe of a round. An answer to another round is ignored:
// the path may have changed since.
func (p *Prober) Answered(now vtime.Time, size int, round uint32) {
	if round != p.round || p.sent == 0 || !slices.Contains(p.sizes, size) {
		return
	}
	if p.sent == 1 { // else it may be the answer to an earlier one
		p.took(now - p.sentAt)
	}
	p.low = max(p.low, size)
	if size == p.sizes[0] {
		p.conclude(now) // nothing longer is under way
	}
}

// took takes a round trip into account (RFC 6298 §2).
func (p *Prober) took(rtt vtime.Time) {
	if rtt = max(rtt, 1); p.rtt == 0 {
		p.rtt, p.varies = rtt, rtt/2
		return
	}
	off := max(p.rtt-rtt, rtt-p.rtt)
	p.varies += (off - p.varies) / 4
	p.rtt += (rtt - p.rtt) / 8
}

// begin starts a round with these sizes, at once.
func (p *Prober) begin(s state, sizes ...int) {
	slices.Sort(sizes)
	slices.Reverse(sizes)
	p.state, p.sizes = s, slices.Compact(sizes)
	p.round++
	p.sent, p.due = 0, vtime.LongAgo
}

// conclude ends a round: it searches on between what passes and what does not, or has the result.
func (p *Prober) conclude(now vtime.Time) {
	expected := cmp.Or(p.mtu, p.most)
	switch {
	case p.low == 0: // no answer at all says nothing about lengths: mtu stays
		p.rtt = 0 // answers may take longer than they did
		p.rest(max(p.confirmAt, now+silentEvery))
		return
	case p.state == checking && p.low == expected:
		p.rest(p.confirmAt)
		return
	case (p.state == checking || p.state == confirming) && p.low < expected:
		p.low, p.high = 0, expected+1
		p.begin(doubtful, append(p.known(p.least, expected), p.least, expected)...)
		return
	}
	for _, size := range p.sizes {
		if size > p.low {
			p.high = min(p.high, size)
		}
	}
	if expected > p.low {
		p.mtu, p.lowered = p.low, true // what is sent meanwhile has to pass
	}
	if p.low+1 >= p.high {
		after := confirmEvery
		if p.lowered {
			after = againAfter
		}
		p.mtu, p.lowered = p.low, false
		p.rest(now + after)
		return
	}
	p.begin(searching, p.between()...)
}

// known returns the usual MTUs between two sizes.
func (p *Prober) known(low, high int) (sizes []int) {
	for _, u := range usual {
		if u > low && u < high {
			sizes = append(sizes, u)
		}
	}
	return sizes
}

// between returns the sizes to try next, all longer than low and shorter than high: the very next
// one, usual MTUs if there are any, else sizes at equal distances.
func (p *Prober) between() []int {
	sizes := append(p.known(p.low+1, p.high), p.low+1)
	if len(sizes) == 1 || p.low != p.least {
		for i := 1; i <= steps; i++ {
			if at := p.low + (p.high-p.low)*i/(steps+1); at > p.low {
				sizes = append(sizes, at)
			}
		}
	}
	return sizes
}

// rest waits until a moment, and asks then whether the result still holds, and whether something
// longer passes by then.
func (p *Prober) rest(until vtime.Time) {
	p.low, p.high = 0, p.most+1
	sizes := []int{p.least, p.most}
	if p.mtu != 0 && p.mtu != p.most {
		sizes = append(sizes, p.mtu, p.mtu+1)
	}
	p.begin(confirming, sizes...)
	p.due, p.confirmAt = until, until
}
