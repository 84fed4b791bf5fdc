package security

import (
	"errors"

	"github.com/falcon-vnic/vnic/device/security/room"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/psp"
	"github.com/falcon-vnic/vnic/internal/tape"
)

// Opener opens, for one shard, the packets that peers sealed.
type Opener struct {
	psp    *psp.Opener
	encap  Encap
	opened Opened // of the last call of Open
	tape   *tape.Tape
	head   func(o *Opened) int
}

// ShardOf returns the shard that has the replay window of a packet's SA, if the packet is of the
// gateway class. ok is false for another class, and for an SPI that is not ours.
func (o *Opener) ShardOf(sealed []byte) (shard int, ok bool) { return o.psp.Shard(sealed) }

// Refusal says why a packet is refused.
type Refusal uint8

// Open opens a packet in place and, if it was sealed with a key of the Falcon class, finds the
// Falcon packet in it: the class decides, whatever is inside. The result is valid until the next
// call. A packet that is refused after its key was found to be right has its Use all the same.
func (o *Opener) Open(sealed []byte) (*Opened, Refusal) {
	if o.tape.Active() {
		return o.openTaped(sealed)
	}
	return o.open(sealed)
}

func (o *Opener) open(sealed []byte) (*Opened, Refusal) {
	hdr, _, clear, err := o.psp.Open(sealed)
	if err != nil {
		return nil, refusal(err)
	}
	p := &o.opened
	*p = Opened{Use: useOf(hdr.Owner, cm.Class(hdr.Class)), hdr: *hdr, sealed: sealed, clear: clear, by: o.psp}
	if p.Use.Class != cm.ClassFalcon {
		return p, None
	}
	return p, o.encap.unwrap(p)
}

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
	Use    Use    // use of the key that it was sealed with
	Packet Packet // the Falcon packet; none in the gateway class

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

// Clear returns the plaintext, whatever it is, and how much of its end is the Falcon packet in it.
func (o *Opened) Clear() (b []byte, falcon int) { return o.clear, len(o.Packet.Falcon) }

// WithRoom returns the same bytes as Plain, with n bytes in front that overlap PSP's header.
func (o *Opened) WithRoom(n int) []byte {
	return o.sealed[len(o.sealed)-psp.ICVLen-len(o.clear)-n : len(o.sealed)-psp.ICVLen]
}

// Session is the security of one connection: it checks received packets and seals sent ones. It
// belongs to the connection's shard and must be released when the connection ends.
type Session struct {
	Receive
	tx *TxSA
	v6 bool // the functions' addresses are IPv6
}

// NewSession returns the security of a new connection, which seals with tx.
func NewSession(r Receive, tx *TxSA, v6 bool) *Session { return &Session{Receive: r, tx: tx, v6: v6} }

// Check checks a packet of this connection. newest reports whether it was sealed later than every
// packet accepted before; within the replay margin, a replayed packet can be accepted again.
func (x *Session) Check(o *Opened) (newest bool, why Refusal) {
	if t := x.tx.owner.tape; t.Active() {
		return x.checkTaped(t, o)
	}
	return x.check(o)
}

func (x *Session) check(o *Opened) (newest bool, why Refusal) {
	newest = int64(o.hdr.IV-x.guard.RemoteTime()) > 0
	if err := x.guard.Check(&o.hdr, o.by); err != nil {
		return false, refusal(err)
	}
	return newest, None
}

// Wrap writes the inner IP header in front of the Falcon packet b[at:at+n] and returns the inner
// packet, for captures. In transport mode Seal overwrites the header.
func (x *Session) Wrap(inner *underlay.Inner, b []byte, at, n int) []byte {
	start := at - room.Inner(x.v6)
	inner.Append(b[start:start], n)
	return b[start : at+n]
}

// Seal seals what Wrap returned, in place. It returns the offset of the sealed packet in b and its
// length.
func (x *Session) Seal(now int64, b []byte, at, n int) (start, sealed int, err error) {
	start, sealed, err = x.tx.owner.encap.seal(now, x.tx, b, at, n, x.v6)
	if err == nil {
		x.tx.refresh()
	}
	return start, sealed, err
}

// SPIs returns the SPIs of the connection's sent and received packets.
func (x *Session) SPIs() (tx, rx uint32) {
	rx, _ = x.guard.SPI()
	return x.tx.SPI(), rx
}
