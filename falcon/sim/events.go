package sim

import (
	"math"

	"github.com/falcon-vnic/vnic/falcon"
)

const never falcon.Time = math.MaxInt64

// eventKind is a kind of event in a Network.
type eventKind uint8

const (
	atSwitch   eventKind = iota // a packet arrives at the switch
	atHost                      // a packet arrives at a host
	uplinkIdle                  // a host's uplink can take the next packet
	timerDue                    // a timer of a host's engine
	holdOver                    // frames held back by a line have waited long enough
	arrival                     // an operation of a flow arrives
	warmedUp                    // the warm-up is over
	sampling                    // a sample is due
)

type event struct {
	at     falcon.Time
	order  uint64 // order of scheduling, for events at the same time
	packet *packet
	host   int32
	kind   eventKind
}

// events holds the scheduled events.
type events struct {
	heap  eventHeap
	order uint64 // of the event scheduled last
}

// at schedules an event. host is a line's index for holdOver, and a flow's index for arrival.
func (e *events) at(at falcon.Time, kind eventKind, host int, p *packet) {
	e.order++
	e.heap.push(event{at: at, order: e.order, kind: kind, host: int32(host), packet: p})
}

// due reports whether an event is due by the given time.
func (e *events) due(by falcon.Time) bool { return len(e.heap) > 0 && e.heap[0].at <= by }

func (e *events) pop() event { return e.heap.pop() }

// eventHeap is a binary heap ordered by time. container/heap would allocate for every event.
type eventHeap []event

func (a *event) before(b *event) bool { return a.at < b.at || a.at == b.at && a.order < b.order }

func (q *eventHeap) push(ev event) {
	h := append(*q, ev)
	i := len(h) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !ev.before(&h[parent]) {
			break
		}
		h[i] = h[parent]
		i = parent
	}
	h[i] = ev
	*q = h
}

func (q *eventHeap) pop() event {
	h := *q
	top, last := h[0], h[len(h)-1]
	h[len(h)-1] = event{}
	h = h[:len(h)-1]
	*q = h
	if len(h) == 0 {
		return top
	}
	i := 0
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if child+1 < len(h) && h[child+1].before(&h[child]) {
			child++
		}
		if !h[child].before(&last) {
			break
		}
		h[i] = h[child]
		i = child
	}
	h[i] = last
	return top
}
