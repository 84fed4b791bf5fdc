package security

import (
	"github.com/falcon-vnic/vnic/device/security/room"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon/psp"
	"github.com/falcon-vnic/vnic/falcon/wire"
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

	// unwrap finds the Falcon packet in a packet that was opened: it sets o.Packet.
	unwrap(o *Opened) Refusal
	// seal seals the Falcon packet b[at:at+n] together with the header that Session.Wrap wrote in
	// front of it. It returns the offset of PSP's header in b and the total length.
	seal(now int64, tx *TxSA, b []byte, at, n int, v6 bool) (start, sealed int, err error)
	newTxSA(u Use, version uint8, spi uint32, key []byte) (*psp.TxSA, error)
}

// EncapOf returns the encapsulation of a psp.mode.
func EncapOf(transport bool) Encap {
	if transport {
		return Transport{}
	}
	return Tunnel{}
}

// Packet is a Falcon packet that was sealed.
type Packet struct {
	Falcon []byte
	CID    uint32
	Inner  underlay.Inner // addresses of the functions; the zero Inner in transport mode
	Whole  []byte         // with the inner header; nil in transport mode
}

// Tunnel is Falcon in PSP's tunnel mode:
//
//	PSP, cookie | inner IP | Falcon … | ICV
type Tunnel struct{}

// Overhead implements Encap.
func (Tunnel) Overhead(v6 bool) int { return room.Tunnel(v6) }

// PeekCID implements Encap.
func (Tunnel) PeekCID(sealed []byte) (cid uint32, ok bool) {
	at := room.Cookie + room.Inner(len(sealed) > 0 && sealed[0] == psp.NextHeaderIPv6)
	return wire.PeekCID(sealed[min(at, len(sealed)):])
}

func (Tunnel) unwrap(o *Opened) Refusal {
	if !o.hdr.HasVC {
		return OtherMode
	}
	inner, falcon, err := underlay.ParseInner(o.clear)
	if err != nil || o.hdr.NextHeader != nextHeader(inner.Src.Is6()) {
		return NotFalcon
	}
	cid, ok := wire.PeekCID(falcon)
	if !ok {
		return NotFalcon
	}
	o.Packet = Packet{Falcon: falcon, CID: cid, Inner: inner, Whole: o.clear}
	return None
}

func (Tunnel) seal(now int64, tx *TxSA, b []byte, at, n int, v6 bool) (start, sealed int, err error) {
	offset, inner := uint8(offsetTunnel), room.Inner(v6)
	if v6 {
		offset = offsetTunnel6
	}
	start = at - inner - room.Cookie
	tx.sa.SetCryptOffset(offset)
	sealed, err = tx.sa.Seal(now, nextHeader(v6), b[start:], inner+n)
	return start, sealed, err
}

func (Tunnel) newTxSA(u Use, version uint8, spi uint32, key []byte) (*psp.TxSA, error) {
	return psp.NewTxSA(version, spi, key, Cookie(u.Tenant), offsetTunnel)
}

// Transport is Falcon in PSP's transport mode:
//
//	PSP | Falcon … | ICV
type Transport struct{}

// Overhead implements Encap.
func (Transport) Overhead(bool) int { return room.Transport }

// PeekCID implements Encap.
func (Transport) PeekCID(sealed []byte) (cid uint32, ok bool) {
	return wire.PeekCID(sealed[min(psp.BaseLen, len(sealed)):])
}

func (Transport) unwrap(o *Opened) Refusal {
	if o.hdr.HasVC {
		return OtherMode
	}
	cid, ok := wire.PeekCID(o.clear)
	if !ok || o.hdr.NextHeader != psp.NextHeaderFalcon {
		return NotFalcon
	}
	o.Packet = Packet{Falcon: o.clear, CID: cid}
	return None
}

func (Transport) seal(now int64, tx *TxSA, b []byte, at, n int, _ bool) (start, sealed int, err error) {
	start = at - psp.BaseLen
	sealed, err = tx.sa.Seal(now, psp.NextHeaderFalcon, b[start:], n)
	return start, sealed, err
}

func (Transport) newTxSA(_ Use, version uint8, spi uint32, key []byte) (*psp.TxSA, error) {
	return psp.NewTransportTxSA(version, spi, key, offsetTransport)
}

var _, _ Encap = Tunnel{}, Transport{}

// Clear describes which parts of a sealed packet are in clear text and identify its connection or
// key, as byte offsets from PSP's header on. Packet steering uses it before packets are opened.
type Clear struct {
	CryptOffset     int   // offset of its byte
	CryptOffsetMask uint8 // mask within that byte
	Plain           uint8 // crypt offset of packets of the gateway class, which have no CID
	SPI             int   // offset of its 4 bytes
	NextHeader      int   // offset of its byte
	V6              uint8 // next header of packets whose CID is at CID6
	CID, CID6       int   // offset of the 4 bytes with the CID in the lower 24 bits
}

// ClearOf returns the offsets for a psp.mode.
func ClearOf(transport bool) Clear {
	c := Clear{
		CryptOffset: 2, CryptOffsetMask: psp.MaxCryptOffset, Plain: offsetPlain, SPI: 4, V6: psp.NextHeaderIPv6,
		CID: room.Cookie + room.Inner(false), CID6: room.Cookie + room.Inner(true),
	}
	if transport {
		c.CID, c.CID6 = psp.BaseLen, psp.BaseLen
	}
	return c
}
