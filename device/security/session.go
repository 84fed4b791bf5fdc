package security

import (
	"github.com/falcon-vnic/vnic/device/underlay"

	"github.com/falcon-vnic/vnic/device/security/room"
)

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
