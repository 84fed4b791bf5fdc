package cc

import (
	"slices"

	"github.com/falcon-vnic/vnic/internal/vtime"
)

// Bounds of the window, in packets.
const (
	FirstWindow = 32
	LeastWindow = 2   // one may be lost, the other shows it
	MostWindow  = 128 // as Linux's rdma_rxe has it
)

// State is the congestion state of a connection. Algorithm.Init fills it.
type State struct {
	Window int        // packets that may be under way
	Rate   float64    // bytes per second that packets may leave at; 0: as they come
	Trip   vtime.Time // round trip, smoothed, which the connection says; 0: not known

	slow  int // up to there the window grows with every answer
	acked int // packets since it grew

	measured float64 // bytes per second that were answered lately
	counted  int     // bytes since the measurement began
	since    vtime.Time

	target     float64 // that the rate recovers to
	alpha      float64 // how congested it is, 0 to 1
	alphaAt    vtime.Time
	raiseAt    vtime.Time
	sent       int // bytes since the rate was raised by them
	byTime     int // raises since a notification
	byBytes    int
	notifiedAt vtime.Time
	cutAt      vtime.Time // last reduction of the rate
}

// Algorithm decides on Window and Rate.
type Algorithm interface {
	// Init begins a connection.
	Init(s *State)
	// Sent notes that a packet of n bytes left. It is called before packets that wait for their
	// time too, with 0.
	Sent(s *State, now vtime.Time, n int)
	// Answered notes that packets arrived, with so many bytes.
	Answered(s *State, now vtime.Time, packets, bytes int)
	// Lost notes that a packet did not, Collapsed that nothing was answered for a while.
	Lost(s *State, now vtime.Time)
	Collapsed(s *State, now vtime.Time)
	// Notified notes that the peer saw marks of congestion.
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

// Lookup finds an algorithm by name.
func Lookup(name string) (Algorithm, bool) {
	a, ok := algorithms[name]
	return a, ok
}

// Names are those of all algorithms, sorted.
func Names() (names []string) {
	for n := range algorithms {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}
