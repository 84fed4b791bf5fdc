package rdma

import (
	"github.com/falcon-vnic/vnic/rdma/local"
	"github.com/falcon-vnic/vnic/rdma/roce"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// wires makes the transports that each engine has. A further transport needs a package and a line
// here; one that also carries datagrams needs a place in destinations.go and function.go too.
var wires = []func(transport.Host) transport.Wire{
	func(transport.Host) transport.Wire { return rof.New() },
	func(h transport.Host) transport.Wire { return local.New(h) },
	func(h transport.Host) transport.Wire { return roce.New(h) },
}
