package iwarp

import (
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// protocolTCP is the IP protocol of the streams.
const protocolTCP = 6

// Kind is iWARP.
var Kind = transport.Kind{
	Name: Name,
	New: func(_ transport.Host, o transport.Options) transport.Wire {
		e := New()
		e.tape = o.Tape
		return e
	},
	Takes:     transport.Claim{Protocol: protocolTCP},
	Cut:       func() func([]byte) (n, head int) { return new(cutter).next },
	MaxPacket: 64 << 10,
	Features:  abi.FeatureIWARP,
	Without:   abi.FeatureDatagrams,
	RCOnly:    true,
	Counters: []transport.Counter{
		{Name: "faults", Help: "Faults of the NIC's TCP, each of which ended the connections of a shard's functions.", Of: func(s *transport.PortStats) uint64 { return s.Faults }},
		{Name: "lost", Help: "Packets of TCP, of one segment or several, lost because too many waited to be sent.", Of: func(s *transport.PortStats) uint64 { return s.Missing }},
		{Name: "received", Help: "TCP segments received for functions.", Of: func(s *transport.PortStats) uint64 { return s.Received }},
		{Name: "refused", Help: "Streams ended by a Terminate that was sent.", Of: func(s *transport.PortStats) uint64 { return s.Refused }},
		{Name: "sent", Help: "TCP segments sent.", Of: func(s *transport.PortStats) uint64 { return s.Sent }},
		{Name: "strange", Help: "Packets that were not a whole TCP segment for the function, or had a wrong checksum.", Of: func(s *transport.PortStats) uint64 { return s.Strange }},
		{Name: "wrong", Help: "Streams that were not iWARP, or corrupted.", Of: func(s *transport.PortStats) uint64 { return s.Wrong }},
	},
}

// Begin implements transport.Streams.
func (e *Engine) Begin(now transport.Time, mss int, s *Settings, owner any) transport.Stream {
	c := e.Connect(now, mss, s)
	c.Owner = owner
	return c
}

// BeginAnswer implements transport.Streams.
func (e *Engine) BeginAnswer(now transport.Time, mss int, owner any) transport.Stream {
	c := e.Answer(now, mss)
	c.Owner = owner
	return c
}

// Write implements transport.Streams.
func (e *Engine) Write(now transport.Time, b []byte) (n int, owner any) {
	n, c := e.Transmit(now, b)
	if n > 0 {
		owner = c.Owner
	}
	return n, owner
}

// NextEvent implements transport.Streams.
func (e *Engine) NextEvent() (owner any, what Event, ok bool) {
	c, what, ok := e.Next()
	if ok {
		owner = c.Owner
	}
	return owner, what, ok
}

// Count implements transport.Streams.
func (e *Engine) Count(to *transport.PortStats) {
	to.Refused += e.stats.Refused
	to.Wrong += e.stats.Wrong
}
