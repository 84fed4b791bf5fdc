package rue

import "fmt"

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
