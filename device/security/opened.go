package security

import (
	"errors"

	"github.com/falcon-vnic/vnic/falcon/psp"
)

// Refusal says why a packet is not taken.
type Refusal uint8

// Refusals.
const (
	None        Refusal = iota
	Malformed           // not PSP as the NIC speaks it
	UnknownSPI          // never issued, or forgotten
	BadSeal             // integrity check failed
	Replayed            // a counter seen before, or older than the replay margin allows
	OtherMode           // Falcon in the psp.mode that is not ours
	NotFalcon           // opened, but not Falcon
	WrongSPI            // not of this connection
	WrongCookie         // another tenant's
	Refusals
)

// Opened is a packet whose seal is right.
type Opened struct {
	Use Use // whose key it was sealed with, and for what

	hdr    psp.Header
	sealed []byte // the whole, with clear in it
	clear  []byte // between PSP's header and the integrity check value
	by     psp.Generations
}

func refusal(err error) Refusal {
	switch {
	case errors.Is(err, psp.ErrUnknownSPI), errors.Is(err, psp.ErrVersion):
		return UnknownSPI
	case errors.Is(err, psp.ErrAuth):
		return BadSeal
	case errors.Is(err, psp.ErrReplay):
		return Replayed
	case errors.Is(err, psp.ErrPCID):
		return WrongCookie
	case errors.Is(err, psp.ErrSPI):
		return WrongSPI
	}
	return Malformed
}

// Clear returns what was under the seal.
func (o *Opened) Clear() []byte { return o.clear }

// T1 is the sender's clock as Falcon takes it: the IV in units of 131 ns.
func (o *Opened) T1() uint32 { return uint32(o.hdr.IV >> 17) }

// OwnCookie tells whether the packet came under the cookie of the tenant that its key is for.
func (o *Opened) OwnCookie() bool { return o.hdr.HasVC && o.hdr.VC == Cookie(o.Use.Tenant) }

// Plain returns the IP packet of the gateway class, false if it is none or not of the kind that the
// header says.
func (o *Opened) Plain() (packet []byte, ok bool) {
	p := o.clear
	return p, len(p) > 0 && (p[0]>>4 == 4 || p[0]>>4 == 6) && o.hdr.NextHeader == nextHeader(p[0]>>4 == 6)
}

// WithRoom returns what Plain does with n bytes in front, over PSP's header.
func (o *Opened) WithRoom(n int) []byte {
	return o.sealed[len(o.sealed)-psp.ICVLen-len(o.clear)-n : len(o.sealed)-psp.ICVLen]
}
