package rof

import (
	"errors"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/internal/pool"
	"github.com/falcon-vnic/vnic/rdma/rof/wire"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// Name is the wire's name for operators, Loopback that of connections inside the NIC.
const (
	Name     = "falcon"
	Loopback = "loopback"
)

// Kind is RDMA over Falcon. The shard gives its engine Falcon.
var Kind = transport.Kind{Name: Name, New: func(transport.Host, transport.Options) transport.Wire { return New() }}

// Numbers of the wires in traces.
var (
	overFalcon = trace.AddWire(&trace.Wire{Name: Name, Opcode: opcodeName, Conns: true})
	inside     = trace.AddWire(&trace.Wire{Name: Loopback, Opcode: opcodeName, Conns: true})
)

func opcodeName(op uint8) string { return wire.Opcodes[op].Name }

// traced returns the wire and the flags of a connection's trace events.
func traced(falcon bool) (wire, flags uint8) {
	if falcon {
		return overFalcon, 0
	}
	return inside, trace.Loopback
}

// Engine holds what the connections of one shard share. It is the upper layer of the shard's
// falcon.Engine: falcon calls Fill for the bytes of each packet, and the shard passes every falcon
// event to HandleEvent.
type Engine struct {
	falcon *falcon.Engine // nil: there are no connections over Falcon

	// Scratch memory of one call.
	headers  wire.Headers // of the current packet
	arrival  arrival      // the same packet, decoded
	atomic   transport.Atomic
	datagram transport.Datagram
	word     [8]byte

	grh       [verbs.GRHSize]byte
	delivered verbs.Arrival // the datagram, as its queue pair gets it

	segments    pool.Pool[segment]
	datagrams   pool.Pool[datagram]
	linksWanted []*Link
}

var _ transport.Wire = (*Engine)(nil)

// New makes an engine without connections. Call UseFalcon before it opens any over Falcon.
func New() *Engine { return new(Engine) }

// UseFalcon sets the falcon.Engine whose upper layer e is.
func (e *Engine) UseFalcon(fe *falcon.Engine) { e.falcon = fe }

// CreditsChanged implements transport.Wire.
func (e *Engine) CreditsChanged() {
	if e.falcon != nil {
		e.falcon.CreditsChanged()
	}
}

// HandleEvent handles one event of the falcon engine. Events of connections without a user are
// dropped.
func (e *Engine) HandleEvent(now falcon.Time, ev *falcon.Event) {
	switch u := ev.Conn.User().(type) { // by type: a call through User costs more
	case *Conn:
		u.Handle(now, ev)
	case *datagramConn:
		u.Handle(now, ev)
	}
}

// Fill writes the RDMA headers and data of one packet of c into dst; see falcon.ULP.
func (e *Engine) Fill(c *falcon.Conn, kind falcon.TxnKind, tag uint64, dst []byte) (int, error) {
	switch u := c.User().(type) {
	case *Conn:
		return u.Fill(kind, tag, dst)
	case *datagramConn:
		return u.Fill(kind, tag, dst)
	}
	return 0, errGone
}

// errGone tells the pipe that the data of a packet is no longer available.
var errGone = errors.New("the operation is over")
