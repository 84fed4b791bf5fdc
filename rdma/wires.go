package rdma

import (
	"github.com/falcon-vnic/vnic/rdma/local"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// wires are the transports that each engine has. A further one is a folder and a line here.
var wires = []func(transport.Host) transport.Wire{
	func(transport.Host) transport.Wire { return rof.New() },
	func(h transport.Host) transport.Wire { return local.New(h) },
}

// Wire is the engine's wire of type W, for who opens connections on it.
func Wire[W transport.Wire](e *Engine) W {
	var none W
	for _, w := range e.wires {
		if w, ok := w.(W); ok {
			return w
		}
	}
	return none
}

// CreditsChanged implements transport.Host: credit may be had that could not.
func (e *Engine) CreditsChanged() {
	for _, w := range e.wires {
		w.CreditsChanged()
	}
}
