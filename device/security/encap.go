package security

import (
	"github.com/falcon-vnic/vnic/device/security/room"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon/psp"
)

// Bytes around the sealed data (package room).
const (
	// MaxHeadroom is the room for the longest headers in front of a Falcon packet. The transport
	// fills its packet before it is known which connection's headers it gets.
	MaxHeadroom = room.Head
	// Trailer is the room behind the packet, for the integrity check value.
	Trailer = room.Trailer
	// PlainOverhead is the number of bytes that the gateway class adds to a packet.
	PlainOverhead = room.Plain
)

// Crypt offsets: the length of the clear text behind PSP's base header, in 4-byte words. For Falcon
// it includes the word with the CID (Falcon §7.1).
const (
	offsetTransport = 1
	offsetTunnel    = psp.VCLen/4 + underlay.InnerLen/4 + 1
	offsetTunnel6   = psp.VCLen/4 + underlay.InnerLen6/4 + 1
	offsetPlain     = psp.VCLen / 4 // all of a plain packet is encrypted
)

// Encap is the encapsulation of sealed Falcon packets: psp.mode of the configuration.
type Encap interface {
	// Overhead returns the number of bytes added to a Falcon packet between functions with IPv4 or
	// IPv6 addresses.
	Overhead(v6 bool) int
	// PeekCID reads the CID of a sealed packet, which is in clear text. The CID is not yet
	// authenticated.
	PeekCID(sealed []byte) (cid uint32, ok bool)
	// Open returns the Falcon packet in an opened packet.
	Open(o *Opened) (Packet, Refusal)

	// seal seals the Falcon packet b[at:at+n] together with the header that Session.Wrap wrote in
	// front of it. It returns the offset of PSP's header in b and the total length.
	seal(now int64, tx *TxSA, b []byte, at, n int, v6 bool) (start, sealed int, err error)
	newTxSA(u Use, version uint8, spi uint32, key []byte) (*psp.TxSA, error)
}

// Packet is a Falcon packet that was sealed.
type Packet struct {
	Falcon []byte
	CID    uint32
	Inner  underlay.Inner // addresses of the functions; the zero Inner in transport mode
	Whole  []byte         // with the inner header; nil in transport mode
}
