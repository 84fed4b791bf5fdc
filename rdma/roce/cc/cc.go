package cc

import (
	"slices"

	"github.com/falcon-vnic/vnic/internal/vtime"
)

// Bounds of the window, in packets.
const (
	FirstWindow = 32
	LeastWindow = 2   // one may be lost, and the other shows it
	MostWindow  = 128 // as in Linux's rdma_rxe
)

// State is the congestion state of a connection. Algorithm.Init fills it.
type State struct {
	Window int        // packets that may be in flight
	Rate   float64    // bytes per second that may be sent; 0: no limit
	Trip   vtime.Time // smoothed round trip, set by the connection; 0: not known

	slow  int // up to this window it grows with every answer
	acked int // packets since it grew

	measured float64 // recent bytes per second that were answered
	counted  int     // bytes since the measurement began
	since    vtime.Time

	target     float64 // rate to recover to
	alpha      float64 // estimate of congestion, 0 to 1
	alphaAt    vtime.Time
	raiseAt    vtime.Time
	sent       int // bytes since they last raised the rate
	byTime     int // raises by time since a notification
	byBytes    int
	notifiedAt vtime.Time
	cutAt      vtime.Time // last reduction of the rate
}

// Algorithm decides on Window and Rate.
type Algorithm interface {
	// Init begins a connection.
	Init(s *State)
	// Sent records that a packet of n bytes was sent. It is also called with 0 before a packet that
	// may have to wait.
	Sent(s *State, now vtime.Time, n int)
	// Answered records that packets with so many bytes arrived.
	Answered(s *State, now vtime.Time, packets, bytes int)
	// Lost records that a packet was lost, Collapsed that nothing was answered for a while.
	Lost(s *State, now vtime.Time)
	Collapsed(s *State, now vtime.Time)
	// Notified records that the peer saw congestion marks.
	Notified(s *State, now vtime.Time)
}

// Default is the algorithm that is used unless another one is named.
const Default = "dcqcn"

var algorithms = map[string]Algorithm{}

// register makes an algorithm known by its name.
func register(name string, a Algorithm) Algorithm {
	if algorithms[name] != nil {
		panic("rdma/roce/cc: algorithm " + name + " is registered twice")
	}
	algorithms[name] = a
	return a
}

// Lookup returns the algorithm with that name.
func Lookup(name string) (Algorithm, bool) {
	a, ok := algorithms[name]
	return a, ok
}

// Names returns the names of all algorithms, sorted.
func Names() (names []string) {
	for n := range algorithms {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}
