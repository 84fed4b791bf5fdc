package security

import (
	"sync/atomic"

	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/psp"
)

// rxSA is a key that was issued for a peer to seal with.
type rxSA struct {
	use        Use
	sa         cm.SA
	generation uint32
	previous   uint32 // SPI that sa replaced, still accepted; 0: none
	dropAt     int64  // when previous ends; never until the peer has confirmed sa

	accepted *psp.Association // what the connections with this key accept
	sessions atomic.Int32     // number of connections
}

// Receive is the part of a connection's security that belongs to the owner of the Keys: which
// packets are accepted. Its holder must release it.
type Receive struct {
	rx    *rxSA
	guard psp.Guard
}

// Use returns the use of its key.
func (r *Receive) Use() Use { return r.rx.use }

// Release ends it. It may be called again.
func (r *Receive) Release() {
	if r.rx != nil {
		r.rx.sessions.Add(-1)
	}
	*r = Receive{}
}
