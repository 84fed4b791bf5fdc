package security

import (
	"sync/atomic"

	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/psp"
)

// rxSA is what we issued for a peer to seal with.
type rxSA struct {
	use        Use
	sa         cm.SA
	generation uint32
	previous   uint32 // SPI that sa replaced, still accepted; 0: none
	dropAt     int64  // when it is not any more; never until the peer has confirmed sa

	accepted *psp.Association // what its connections accept
	sessions atomic.Int32     // connections
}

// Receive is the part of a connection's security that the owner of the Keys has: what is accepted.
// Whoever has it releases it.
type Receive struct {
	rx    *rxSA
	guard psp.Guard
}

// Use is what its peer seals.
func (r *Receive) Use() Use { return r.rx.use }

// Release ends it. It may be called again.
func (r *Receive) Release() {
	if r.rx != nil {
		r.rx.sessions.Add(-1)
	}
	*r = Receive{}
}
