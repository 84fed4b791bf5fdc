package rof

import (
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/internal/pool"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/verbs"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// Engine holds what the connections of one shard share. It is the upper layer of the shard's
// falcon.Engine: falcon calls Fill for the bytes of each packet, and the shard passes every falcon
// event to HandleEvent.
type Engine struct {
	falcon *falcon.Engine // nil: there are no connections over Falcon

	// Scratch memory of one call.
	headers  wire.Headers // of the current packet
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

// New makes an engine without connections. Call UseFalcon before it opens any over Falcon.
func New() *Engine { return new(Engine) }

// UseFalcon sets the falcon.Engine whose upper layer e is.
func (e *Engine) UseFalcon(fe *falcon.Engine) { e.falcon = fe }

// User receives the events of a carrier and writes its packets: a Conn or a Datagrams.
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
