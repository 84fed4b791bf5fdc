package sim

import (
	"cmp"
	"container/heap"
	"math"

	"github.com/falcon-vnic/vnic/falcon"
)

// Impairment describes what a link does to frames. Probabilities are 0..1 and independent.
type Impairment struct {
	Loss         float64
	Duplicate    float64 // a second copy, with its own jitter
	Reorder      float64 // delayed by ReorderDelay, so that later frames overtake
	Corrupt      float64 // one bit flipped
	Mark         float64 // congestion experienced
	Delay        falcon.Time
	Jitter       falcon.Time // uniform, added to Delay; reorders frames if larger than their distance
	ReorderDelay falcon.Time
	Rate         int64 // bits per second, 0 = unlimited
	Queue        int   // frames in flight, 0 = 65536; more are lost
	Down         bool  // everything is lost
}

// LinkStats counts frames.
type LinkStats struct {
	Sent, Delivered, Lost, Duplicated, Reordered, Corrupted, Marked, Overflowed uint64
}

// Frame is a frame that a link delivers. Data is valid until the next call of Receive.
type Frame struct {
	Data []byte
	CE   bool
}

// Link is one direction of a wire.
type Link struct {
	imp   Impairment
	seed  uint64
	index uint64      // of the next frame
	busy  falcon.Time // until when the sender is serialising
	queue flights
	order uint64
	free  []*flight
	last  *flight
	stats LinkStats
}

type flight struct {
	at    falcon.Time
	order uint64
	ce    bool
	data  []byte
}

// NewLink returns a link. Equal seeds impair the n-th frame equally.
func NewLink(seed uint64, imp Impairment) *Link { return &Link{seed: seed, imp: imp} }

// Set changes the impairment. Frames in flight are not affected.
func (l *Link) Set(imp Impairment) { l.imp = imp }

// Seed restarts the decisions as those of a new link with this seed.
func (l *Link) Seed(seed uint64) { l.seed, l.index = seed, 0 }

// Impairment returns the current setting.
func (l *Link) Impairment() Impairment { return l.imp }

// InFlight returns the number of frames on the wire.
func (l *Link) InFlight() int { return len(l.queue) }

// Stats returns the counters.
func (l *Link) Stats() LinkStats { return l.stats }

// Send puts a copy of the frame on the wire.
func (l *Link) Send(now falcon.Time, frame []byte) {
	index := l.index
	l.index++
	l.stats.Sent++
	switch {
	case l.imp.Down:
		l.stats.Lost++
		return
	case l.full():
		l.stats.Overflowed++ // before it takes any time of the line
		return
	}
	if l.imp.Rate > 0 {
		l.busy = max(l.busy, now) + falcon.Time(int64(len(frame))*8*1e9/l.imp.Rate)
		now = l.busy
	}
	if l.happens(index, drawLoss, l.imp.Loss) {
		l.stats.Lost++
		return
	}
	l.fly(now, index, drawJitter, frame)
	if l.happens(index, drawDuplicate, l.imp.Duplicate) {
		l.stats.Duplicated++
		l.fly(now, index, drawJitterCopy, frame)
	}
}

func (l *Link) fly(now falcon.Time, index, jitter uint64, frame []byte) {
	if l.full() { // possible for the copy of a frame
		l.stats.Overflowed++
		return
	}
	f := l.get()
	f.at = now + l.imp.Delay + falcon.Time(l.draw(index, jitter)*float64(l.imp.Jitter))
	if l.happens(index, drawReorder, l.imp.Reorder) {
		l.stats.Reordered++
		f.at += l.imp.ReorderDelay
	}
	f.order = l.order
	l.order++
	f.data = append(f.data[:0], frame...)
	if len(frame) > 0 && l.happens(index, drawCorrupt, l.imp.Corrupt) {
		l.stats.Corrupted++
		bit := int(l.draw(index, drawBit) * float64(len(frame)*8))
		f.data[bit/8] ^= 1 << (bit % 8)
	}
	f.ce = l.happens(index, drawMark, l.imp.Mark)
	if f.ce {
		l.stats.Marked++
	}
	heap.Push(&l.queue, f)
}

// full reports whether the maximum of frames is in flight.
func (l *Link) full() bool {
	limit := l.imp.Queue
	if limit == 0 {
		limit = 65536
	}
	return len(l.queue) >= limit
}

func (l *Link) get() *flight {
	if n := len(l.free); n > 0 {
		f := l.free[n-1]
		l.free = l.free[:n-1]
		return f
	}
	return new(flight)
}

// Deadline returns when the next frame arrives, math.MaxInt64 if none is in flight.
func (l *Link) Deadline() falcon.Time {
	if len(l.queue) == 0 {
		return math.MaxInt64
	}
	return l.queue[0].at
}

// Receive returns the next frame that has arrived, if there is one.
func (l *Link) Receive(now falcon.Time) (Frame, bool) {
	if l.last != nil {
		l.free = append(l.free, l.last)
		l.last = nil
	}
	if len(l.queue) == 0 || l.queue[0].at > now {
		return Frame{}, false
	}
	l.last = heap.Pop(&l.queue).(*flight)
	l.stats.Delivered++
	return Frame{Data: l.last.data, CE: l.last.ce}, true
}

// Purposes of draws. Every decision about a frame is independent of the others.
const (
	drawLoss uint64 = iota
	drawDuplicate
	drawJitter
	drawJitterCopy
	drawReorder
	drawCorrupt
	drawBit
	drawMark
	draws
)

// draw returns a number in [0,1) that depends only on the seed, the frame and the purpose.
func (l *Link) draw(index, purpose uint64) float64 { return draw(l.seed, index, purpose) }

func (l *Link) happens(index, purpose uint64, share float64) bool {
	return happens(l.seed, index, purpose, share)
}

// happens decides about a frame. It is true for the given share of frames.
func happens(seed, index, purpose uint64, share float64) bool {
	return draw(seed, index, purpose) < share
}

func draw(seed, index, purpose uint64) float64 { return unit(Mix(seed + Mix(index*draws+purpose))) }

// unit turns random bits into a number in [0,1).
func unit(x uint64) float64 { return float64(x>>11) / (1 << 53) }

// Mix is the splitmix64 finaliser, a bijection whose results look random.
func Mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// flights is a heap ordered by arrival, then by the order of sending.
type flights []*flight

func (q flights) Len() int { return len(q) }
func (q flights) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(q[i].at, q[j].at), cmp.Compare(q[i].order, q[j].order)) < 0
}
func (q flights) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *flights) Push(x any) { *q = append(*q, x.(*flight)) }

// Pop implements heap.Interface.
func (q *flights) Pop() any {
	old := *q
	f := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return f
}
