package pathmtu

import (
	"slices"

	"github.com/falcon-vnic/vnic/internal/vtime"
)

// Times and counts of RFC 8899 §5.1: PROBE_TIMER, MAX_PROBES, and how long a result is trusted.
const (
	answerWithin = vtime.Time(1e9)
	tries        = 3
	confirmEvery = vtime.Time(30e9)
	silentEvery  = vtime.Time(15e9) // between attempts on a peer that answers nothing
)

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

// Prober searches the MTU of the path to one peer. Sizes are bytes of outer IP packet.
type Prober struct {
	least, most int
	low         int   // longest size that was answered; 0: none
	high        int   // shortest size that was not, although a shorter one was; most+1: none
	mtu         int   // the result; 0: not known
	sizes       []int // of the round under way, longest first
	round       uint32
	sent        int // times that the round's probes were sent
	due         vtime.Time
}

// New returns a Prober for a path whose packets are at most most bytes long.
func New(most int, v6 bool) *Prober {
	p := &Prober{least: min(Least(v6), most), most: most, high: most + 1}
	p.begin(p.most, p.least)
	return p
}

// MTU returns the longest packet that the path carries, or 0 while that is not known.
func (p *Prober) MTU() int { return p.mtu }

// Deadline returns when Due has to be called next.
func (p *Prober) Deadline() vtime.Time { return p.due }

// Due returns the sizes of the probes to send now, longest first, and the number of the round that
// they carry. There are none before the Deadline.
func (p *Prober) Due(now vtime.Time) (sizes []int, round uint32) {
	if now < p.due {
		return nil, 0
	}
	if p.sent == tries {
		p.conclude(now)
		if now < p.due {
			return nil, 0
		}
	}
	p.sent++
	p.due = now + answerWithin
	n := len(p.sizes)
	for n > 0 && p.sizes[n-1] <= p.low {
		n-- // what is shorter than an answered one need not be asked again
	}
	return p.sizes[:n], p.round
}

// Answered reports that the peer received a probe of a round. An answer to another round is ignored:
// the path may have changed since.
func (p *Prober) Answered(now vtime.Time, size int, round uint32) {
	if round != p.round || p.sent == 0 || !slices.Contains(p.sizes, size) {
		return
	}
	p.low = max(p.low, size)
	if size == p.sizes[0] {
		p.conclude(now) // nothing longer is under way
	}
}

// begin starts a round with these sizes, at once.
func (p *Prober) begin(sizes ...int) {
	slices.Sort(sizes)
	slices.Reverse(sizes)
	p.sizes = slices.Compact(sizes)
	p.round++
	p.sent, p.due = 0, vtime.LongAgo
}

// conclude ends a round: it searches on between what passes and what does not, or has the result.
func (p *Prober) conclude(now vtime.Time) {
	if p.low == 0 {
		p.confirm(now, silentEvery) // no answer at all says nothing about lengths: mtu stays
		return
	}
	for _, size := range p.sizes {
		if size > p.low {
			p.high = min(p.high, size)
		}
	}
	if p.low+1 >= p.high {
		p.mtu = p.low
		p.confirm(now, confirmEvery)
		return
	}
	p.begin(p.between()...)
}

// between returns the sizes to try next, all longer than low and shorter than high: the very next
// one, usual MTUs if there are any, else sizes at equal distances.
func (p *Prober) between() []int {
	sizes := []int{p.low + 1}
	for _, u := range usual {
		if u > p.low+1 && u < p.high {
			sizes = append(sizes, u)
		}
	}
	if len(sizes) == 1 || p.low != p.least {
		for i := 1; i <= steps; i++ {
			if at := p.low + (p.high-p.low)*i/(steps+1); at > p.low {
				sizes = append(sizes, at)
			}
		}
	}
	return sizes
}

// confirm asks again after a while whether the result still holds, and whether something longer
// passes by then.
func (p *Prober) confirm(now, after vtime.Time) {
	p.low, p.high = 0, p.most+1
	sizes := []int{p.least, p.most}
	if p.mtu != 0 && p.mtu != p.most {
		sizes = append(sizes, p.mtu, p.mtu+1)
	}
	p.begin(sizes...)
	p.due = now + after
}
