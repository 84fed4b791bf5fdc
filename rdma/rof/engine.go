package rof

import (
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/internal/pool"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/verbs"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// Engine is what the connections of one shard share. It is the upper layer of the shard's
// falcon.Engine: falcon asks Fill for the bytes of each packet, the shard hands every falcon event
// to HandleEvent.
type Engine struct {
	falcon *falcon.Engine // nil: nothing leaves the NIC

	// Scratch memory of one call.
	headers  wire.Headers // of the packet at hand
	arrival  arrival
	atomic   transport.Atomic
	datagram transport.Datagram
	word     [8]byte

	grh  [verbs.GRHSize]byte
	came verbs.Arrival

	segments    pool.Pool[segment]
	datagrams   pool.Pool[datagram]
	linksWanted []*Link
}

var _ transport.Wire = (*Engine)(nil)

// New makes an engine without connections. UseFalcon must follow before it has any over Falcon.
func New() *Engine { return new(Engine) }

// UseFalcon names the falcon.Engine whose upper layer e is.
func (e *Engine) UseFalcon(fe *falcon.Engine) { e.falcon = fe }

// User is who a carrier delivers to and takes the bytes of packets from: a Conn or a Datagrams.
type User interface {
	Handle(now falcon.Time, ev *falcon.Event)
	Fill(kind falcon.TxnKind, tag uint64, dst []byte) (int, error)
	Explain(packet []byte, out bool) string
	NoteConcluded(rsn uint32)
}

// CreditsChanged implements transport.Wire.
func (e *Engine) CreditsChanged() {
	if e.falcon != nil {
		e.falcon.CreditsChanged()
	}
}
