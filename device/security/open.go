package security

import (
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/psp"
)

// Opener opens, for one shard, the packets that peers sealed.
type Opener struct {
	psp    *psp.Opener
	opened Opened // of the last call of Open
}

// Window returns the shard that has the replay window of a packet's SA, if the packet is of the
// gateway class. ok is false for another class, and for an SPI that is not ours.
func (o *Opener) Window(sealed []byte) (shard int, ok bool) { return o.psp.Lane(sealed) }

// Open opens a packet in place. The result is valid until the next call.
func (o *Opener) Open(sealed []byte) (*Opened, Refusal) {
	hdr, _, clear, err := o.psp.Open(sealed)
	if err != nil {
		return nil, refusal(err)
	}
	o.opened = Opened{Use: useOf(hdr.Owner, cm.Class(hdr.Class)), hdr: hdr, sealed: sealed, clear: clear, by: o.psp}
	return &o.opened, None
}
