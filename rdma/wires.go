package rdma

import (
	"github.com/falcon-vnic/vnic/rdma/iwarp"
	"github.com/falcon-vnic/vnic/rdma/local"
	"github.com/falcon-vnic/vnic/rdma/roce"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// Wires lists the kinds of wires. Each engine has one wire of each kind. A further one needs a
// package, a line here, and its name among the values of rdma.transport (device/config); all others
// ask this list, or the wires themselves.
var Wires = []*transport.Kind{&rof.Kind, &local.Kind, &roce.Kind, &iwarp.Kind}

// KindByName returns the kind of wire that is the only one of a function with this value of
// rdma.transport. It returns an empty kind if there are several (auto).
func KindByName(name string) *transport.Kind {
	for _, k := range Wires {
		if k.Name == name {
			return k
		}
	}
	return &transport.Kind{}
}

// Network is an engine's wire whose packets travel like the plain IP of the functions' ports.
type Network struct {
	Kind *transport.Kind
	transport.Network
}

// Networks returns the engine's networks, in the order of Wires.
func (e *Engine) Networks() (list []Network) {
	for i, w := range e.wires {
		if n, ok := w.(transport.Network); ok {
			list = append(list, Network{Wires[i], n})
		}
	}
	return list
}

// StreamWire is an engine's wire whose connections are streams of bytes.
type StreamWire struct {
	Kind *transport.Kind
	transport.Streams
}

// Streams returns the engine's wires of streams, in the order of Wires.
func (e *Engine) Streams() (list []StreamWire) {
	for i, w := range e.wires {
		if s, ok := w.(transport.Streams); ok {
			list = append(list, StreamWire{Wires[i], s})
		}
	}
	return list
}
