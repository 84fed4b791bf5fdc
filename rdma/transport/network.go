package transport

import (
	"net/netip"

	"github.com/falcon-vnic/vnic/falcon/credit"
)

// Network is a wire whose packets travel like the plain IP of functions' ports. Each function that
// uses it has a Port.
//
//	queue pair ─▶ Conn ─▶ Transmit ─▶ gateway ─▶ a peer's tunnel, or a port of this NIC
//	queue pair ◀─ Conn ◀─ Share ◀──── gateway: what Kind.Takes names
type Network interface {
	Driven
	// NewPort makes a function's port. addr is the function's address, mtu the longest IP packet
	// that the network carries from there, owner is for the caller's use.
	NewPort(addr netip.Addr, mtu int, owner any) Port
	// Transmit writes the next IP packet into b, which has room for the longest one, and returns
	// its length and its port; 0 if there is none now. Ports share the bandwidth by their weights.
	Transmit(now Time, b []byte) (n int, from Port)
	// Waiting reports whether Transmit may have a packet.
	Waiting() bool
	// Stats sums the counters of all ports, closed ones included.
	Stats() PortStats
}

// Port is a function's place in a Network. A port that can connect queue pairs by their numbers is
// an Opener.
type Port interface {
	// Owner returns the owner, and Move gives the port another one, and another longest packet.
	Owner() any
	Move(owner any, mtu int)
	// Share takes an IP packet for the function. Of a packet to a group, at most most queue pairs
	// get a copy, from the one with index first on. It returns how many got one, and whether there
	// are more, from index first+n on. packet is the port's until Share returns.
	Share(now Time, packet []byte, first, most int) (n int, more bool)
	// NoteSent notes that the packet that Transmit wrote is sealed, or that it goes to a port of
	// this NIC as it is. ChargeCopy charges the port for one more copy of n bytes.
	NoteSent(sealed bool)
	ChargeCopy(n int)
	// Hold suspends the port's packets to groups, or resumes them.
	Hold(on bool)
	// SetWeight sets the port's share, relative to a port of weight 1; 0 means 1.
	SetWeight(weight int)
	// Conns lists the port's connections, in the order of their queue pairs.
	Conns() []PortConn
	Stats() PortStats
	// Close ends the port. Its queue pairs have gone.
	Close()
}

// Opener connects queue pairs whose drivers name the peer's number and address.
type Opener interface {
	// Open makes a connection, to be given to a queue pair. What it sends is charged to credits;
	// nil: to nobody.
	Open(now Time, w Way, credits *credit.Node) Conn
}

// Way describes how a connection's packets travel.
type Way struct {
	Peer      netip.Addr
	Class     uint8  // traffic class, without ECN
	Hops      uint8  // 0: the wire's default
	FlowLabel uint32 // 0: the wire chooses
}

// PortStats counts the packets of functions' ports.
type PortStats struct {
	Received uint64 // that were for somebody
	Sent     uint64
	Again    uint64 // requests sent again
	Timeouts uint64 // times that nothing was answered in time
	Missing  uint64 // times that the peer, or an answer, said that a packet was missing
	Refused  uint64 // requests of peers that were answered with an error
	Wrong    uint64 // no packets of the wire, or corrupted
	Strange  uint64 // for nobody: no such queue pair, other addresses, partition or service
	Marked   uint64 // with a mark of congestion
	CNPs     uint64 // congestion notifications received
	CNPsSent uint64
	Faults   uint64 // of what carries the packets
}

// Add adds o to s.
func (s *PortStats) Add(o *PortStats) {
	s.Received += o.Received
	s.Sent += o.Sent
	s.Again += o.Again
	s.Timeouts += o.Timeouts
	s.Missing += o.Missing
	s.Refused += o.Refused
	s.Wrong += o.Wrong
	s.Strange += o.Strange
	s.Marked += o.Marked
	s.CNPs += o.CNPs
	s.CNPsSent += o.CNPsSent
	s.Faults += o.Faults
}

// PortConn describes a connection over a port, for operators.
type PortConn struct {
	QPN, Peer uint32 // queue pairs
	At        netip.Addr
	State     string // "ESTABLISHED"; "FAILED": a request of either side was not survived; "PARTING": its queue pair has left
	MTU       int    // data bytes of a packet
	Again     uint64 // requests sent again
	Window    int    // packets that may be under way
	Trip      Time
	Opened    Time
}
