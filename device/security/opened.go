package security

import (
	"errors"

	"github.com/falcon-vnic/vnic/falcon/psp"
)

// Refusal says why a packet is refused.
type Refusal uint8

// Refusals.
const (
	None        Refusal = iota
	Malformed           // not PSP in the form that the NIC uses
	UnknownSPI          // never issued, or forgotten
	BadSeal             // integrity check failed
	Replayed            // a counter seen before, or older than the replay margin allows
	OtherMode           // Falcon in the other psp.mode
	NotFalcon           // opened, but not Falcon
	WrongSPI            // SPI not of this connection
	WrongCookie         // cookie of another tenant
	Refusals
)

// Opened is a packet that passed the integrity check.
type Opened struct {
	Use Use // use of the key that it was sealed with

	hdr    psp.Header
	sealed []byte // the whole packet; clear is a part of it
	clear  []byte // the plaintext between PSP's header and the integrity check value
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

// Clear returns the plaintext.
func (o *Opened) Clear() []byte { return o.clear }

// T1 returns the sender's clock in Falcon's form: the IV in units of 131 ns.
func (o *Opened) T1() uint32 { return uint32(o.hdr.IV >> 17) }

// OwnCookie reports whether the packet has the cookie of its key's tenant.
func (o *Opened) OwnCookie() bool { return o.hdr.HasVC && o.hdr.VC == Cookie(o.Use.Tenant) }

// Plain returns the IP packet of the gateway class. ok is false if it is not an IP packet of the
// version that PSP's header says.
func (o *Opened) Plain() (packet []byte, ok bool) {
	p := o.clear
	return p, len(p) > 0 && (p[0]>>4 == 4 || p[0]>>4 == 6) && o.hdr.NextHeader == nextHeader(p[0]>>4 == 6)
}

// WithRoom returns the same bytes as Plain, with n bytes in front that overlap PSP's header.
func (o *Opened) WithRoom(n int) []byte {
	return o.sealed[len(o.sealed)-psp.ICVLen-len(o.clear)-n : len(o.sealed)-psp.ICVLen]
}
