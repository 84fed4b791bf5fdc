package security

import (
	"github.com/falcon-vnic/vnic/device/security/room"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon/psp"
)

// Bytes around what is sealed (package room).
const (
	// MaxHeadroom is the room for the longest headers in front of a Falcon packet. The transport
	// fills its packet before it is known whose it is.
	MaxHeadroom = room.Head
	// Trailer is the room behind it, for the integrity check value.
	Trailer = room.Trailer
	// PlainOverhead is what the gateway class adds to a packet.
	PlainOverhead = room.Plain
)

// Crypt offsets: what stays in clear text behind PSP's base header, in 4-byte words. For Falcon
// that is up to the word with the CID (Falcon §7.1).
const (
	offsetTransport = 1
	offsetTunnel    = psp.VCLen/4 + underlay.InnerLen/4 + 1
	offsetTunnel6   = psp.VCLen/4 + underlay.InnerLen6/4 + 1
	offsetPlain     = psp.VCLen / 4 // all of a plain packet is encrypted
)

// Encap is how Falcon's packets travel under a seal: psp.mode of the configuration.
type Encap interface {
	// Overhead is the bytes around a Falcon packet between functions with IPv4 or IPv6 addresses.
	Overhead(v6 bool) int
	// PeekCID reads the connection of a sealed packet, which is in clear text. It proves nothing.
	PeekCID(sealed []byte) (cid uint32, ok bool)
	// Open finds the Falcon packet in what was opened.
	Open(o *Opened) (Packet, Refusal)

	// seal seals the Falcon packet b[at:at+n], with what Session.Wrap put in front, and returns
	// where PSP's header begins and how long the whole is.
	seal(now int64, tx *TxSA, b []byte, at, n int, v6 bool) (start, sealed int, err error)
	newTxSA(u Use, version uint8, spi uint32, key []byte) (*psp.TxSA, error)
}

// Packet is a Falcon packet that was under a seal.
type Packet struct {
	Falcon []byte
	CID    uint32
	Inner  underlay.Inner // addresses of the functions; the zero Inner in transport mode
	Whole  []byte         // with the inner header; nil in transport mode
}
