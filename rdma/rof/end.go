package rof

import (
	"errors"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// end holds what both halves of a connection need to know of this end.
type end struct {
	e       *Engine
	carrier Carrier
	falcon  *falcon.Conn // the carrier, unless the connection is inside the NIC
	ordered bool
	segment int // maximum of data bytes in one packet
	service wire.Opcode
	terms   transport.Terms
	user    transport.Endpoint // nil: the queue pair has detached
	account *transport.Account
}

// id returns the connection identifier.
func (x *end) id() uint32 { return x.carrier.Config().LocalCID }

// inside reports whether the connection is inside the NIC.
func (x *end) inside() bool { return x.falcon == nil }

// traced reports whether the queue pair's requests are traced.
func (x *end) traced() bool { return x.account.Trace != nil && x.account.Trace.Wants(x.terms.QPN) }

// filled records a packet that is sealed next, or that stays inside the NIC.
func (x *end) filled(e *trace.Event) {
	if x.inside() {
		e.Flags |= trace.Loopback
		x.account.Trace.Add(e)
		return
	}
	x.account.Trace.Filled(e)
}

// errGone tells the carrier that the data of a packet is no longer available.
var errGone = errors.New("rdma: the operation is over")
