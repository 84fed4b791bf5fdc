package security

import (
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/psp"
)

// Opener opens what peers sealed, for one shard.
type Opener struct {
	psp    *psp.Opener
	opened Opened // last
}

// Window is the shard that a packet of the gateway class must come to, because the replay window of
// its SA is there; false: it is of another class, or of no key of ours.
func (o *Opener) Window(sealed []byte) (shard int, ok bool) { return o.psp.Lane(sealed) }

// Open opens a packet in place. What it returns is good until the next.
func (o *Opener) Open(sealed []byte) (*Opened, Refusal) {
	hdr, _, clear, err := o.psp.Open(sealed)
	if err != nil {
		return nil, refusal(err)
	}
	o.opened = Opened{Use: useOf(hdr.Owner, cm.Class(hdr.Class)), hdr: hdr, sealed: sealed, clear: clear, by: o.psp}
	return &o.opened, None
}
