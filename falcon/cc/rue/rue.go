package rue

import (
	"fmt"

	"github.com/falcon-vnic/vnic/falcon/cc"
	"github.com/falcon-vnic/vnic/internal/ring"
)

// Config says how fast the RUE works and which events it gets. The zero value is invalid; see
// Immediate and Hardware.
type Config struct {
	Service int64 // ns of work per event
	Latency int64 // ns from the end of that work until the result is in force
	Policy
}

// Immediate returns the Config of a RUE that answers at once: software calls it, nothing is queued.
func Immediate() Config { return Config{Policy: defaultPolicy} }

// Hardware returns the Config of a RUE of 15 million events per second behind a pair of queues.
func Hardware() Config { return Config{Service: 66, Latency: 234, Policy: defaultPolicy} }

// AnswersAtOnce reports whether events are processed when they are raised.
func (c *Config) AnswersAtOnce() bool { return c.Service == 0 && c.Latency == 0 }

// Policy decides which events are raised (Falcon §10.6.1), by the occupancy of the event queue:
//
//	0 ───────── Threshold1 ───────── Threshold2 ───────── Threshold3 ───────── Size
//	 every event          P1 or P2             P1                   P1 and P2       none
//
// P1: more than Interval since the connection's last event. P2: more than Packets acknowledged
// since.
type Policy struct {
	Size                               int // of the event queue
	Threshold1, Threshold2, Threshold3 int
	Interval                           int64 // ns
	Packets                            uint16
}

// By default the thresholds equal the queue size, so no event is held back: the RUE is faster than
// the packets.
var defaultPolicy = Policy{
	Size: MaxQueue, Threshold1: MaxQueue, Threshold2: MaxQueue, Threshold3: MaxQueue,
	Interval: 131 * 1024, Packets: 512,
}

// Check returns an error that names the first invalid value.
func (c *Config) Check() error {
	switch {
	case c.Service < 0 || c.Latency < 0:
		return fmt.Errorf("rue: Service %d and Latency %d ns must not be negative: use 0 for a RUE that answers at once", c.Service, c.Latency)
	case c.Size < 1 || c.Size > MaxQueue:
		return fmt.Errorf("rue: event queue of %d entries: use 1 to %d", c.Size, MaxQueue)
	case c.Threshold1 < 0 || c.Threshold1 > c.Threshold2 || c.Threshold2 > c.Threshold3 || c.Threshold3 > c.Size:
		return fmt.Errorf("rue: thresholds %d, %d, %d: use rising values from 0 to the size %d", c.Threshold1, c.Threshold2, c.Threshold3, c.Size)
	case c.Interval < 0:
		return fmt.Errorf("rue: Interval %d ns is negative: use 0 or more", c.Interval)
	}
	return nil
}

// Admit decides whether to raise an event of a connection, since ns after its last event, with
// acked packets acknowledged since.
func (p *Policy) Admit(occupancy int, since int64, acked uint16) bool {
	if occupancy < p.Threshold1 {
		return true
	}
	p1, p2 := since > p.Interval, acked > p.Packets
	switch {
	case occupancy >= p.Size:
		return false
	case occupancy < p.Threshold2:
		return p1 || p2
	case occupancy < p.Threshold3:
		return p1
	default:
		return p1 && p2
	}
}

// NACK codes that the RUE distinguishes. Code 5 is reserved in 0.9; peers of older drafts send it
// for a drop beyond the window.
const (
	nackResource = 1
	nackWindow   = 5
)

// RUE computes results. It has no state except scratch memory; make one for each engine.
type RUE struct {
	alg cc.Algorithm
	ev  cc.Event // passed through an interface: on the stack it would be allocated for every event
}

// New returns a RUE with the given algorithm.
func New(alg cc.Algorithm) RUE { return RUE{alg: alg} }

// Process answers one event at time now, in Falcon units.
func (u *RUE) Process(e *Event, now uint32, r *Result) {
	r.Conn, r.Metadata, r.Opaque, r.State = e.Conn, e.Metadata, e.Opaque, e.State
	out := u.Update(e, &r.State, now)
	r.IPG, r.Repath = out.IPG, out.Repath
}

// Update answers an event whose state is in s instead of in the event, and changes s. It is for a
// RUE that answers at once.
func (u *RUE) Update(e *Event, s *cc.State, now uint32) cc.Result {
	u.ev = cc.Event{
		Hops: e.Hops, RxOccupancy: e.RxLevel, RetransmitCount: e.RetransmitCount, Acked: e.Acked, ECN: e.ECN,
		EackDrop: e.EackDrop, EackOwn: e.EackOwn, T1: e.T1, T2: e.T2, T3: e.T3, T4: e.T4, Now: now & cc.TimeMask,
	}
	switch e.Type {
	case TypeNack:
		u.ev.Kind = cc.Nack
		if e.NackCode == nackResource {
			u.ev.Kind = cc.NackResource
		}
		u.ev.EackDrop = e.NackCode == nackWindow
	case TypeRetransmit:
		u.ev.Kind = cc.Retransmit
	}
	return u.alg.Update(s, &u.ev)
}

// MaxQueue is the maximum of entries in a queue.
const MaxQueue = 65536

// Queue is a bounded FIFO of entries, like each of the two of Falcon §10.6.2. Memory grows with the
// number of entries actually queued. The zero value has no room; make a queue with NewQueue.
type Queue struct {
	limit   int
	entries ring.Queue[[EntryLen]byte]
	put     uint64 // number of entries put so far
}

// NewQueue returns a queue of limit entries.
func NewQueue(limit int) Queue { return Queue{limit: limit} }

// Len returns the number of entries in the queue.
func (q *Queue) Len() int { return q.entries.Len() }

// Gen returns the generation bit of the next entry. It alternates with every lap, so that a poller
// can recognise new entries.
func (q *Queue) Gen() bool { return q.put/uint64(q.limit)&1 == 0 }

// Put reserves the next entry and returns its memory to append to, nil if the queue is full.
func (q *Queue) Put() []byte {
	if q.Len() >= q.limit {
		return nil
	}
	q.put++
	return q.entries.Push()[:0]
}

// Take returns the oldest entry, nil if there is none. It is valid until the next Put.
func (q *Queue) Take() []byte {
	if q.entries.Len() == 0 {
		return nil
	}
	return q.entries.Pop()[:]
}
