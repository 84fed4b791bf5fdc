package transport

import "net/netip"

// PortStats counts the packets of functions' ports, on a wire whose packets the network of the
// ports carries.
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
