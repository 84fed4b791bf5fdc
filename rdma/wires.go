package rdma

import (
	"github.com/falcon-vnic/vnic/rdma/local"
	"github.com/falcon-vnic/vnic/rdma/roce"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// wires makes the transports that each engine has. A further one needs a package and a line here. If
// the network of the functions' ports carries its packets, it is also in Networks; if it carries
// datagrams, in destinations.go.
var wires = []func(transport.Host) transport.Wire{
	func(transport.Host) transport.Wire { return rof.New() },
	func(h transport.Host) transport.Wire { return local.New(h) },
	func(h transport.Host) transport.Wire { return roce.New(h) },
}

// Networks lists the wires whose packets the network of the functions' ports carries.
var Networks = []string{roce.Name}

// PortStats sums the counters of the functions' ports, closed ones included, on one of the Networks.
func (e *Engine) PortStats(network string) (s transport.PortStats) {
	if network == roce.Name {
		s = Wire[*roce.Engine](e).Stats()
	}
	return s
}

// PortStats returns the counters of the function's port; zeros if it has none.
func (f *Function) PortStats() (s transport.PortStats) {
	if p := f.RoCE(); p != nil {
		s = p.Stats()
	}
	return s
}

// PortConns lists the connections over the function's port, and returns the name of its wire.
func (f *Function) PortConns() (network string, list []transport.PortConn) {
	if p := f.RoCE(); p != nil {
		list = p.Conns()
	}
	return roce.Name, list
}
