package security

import (
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon/psp"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// Bytes around what is sealed.
const (
	cookieHeader = psp.BaseLen + psp.VCLen // PSP's header with the cookie

	// MaxHeadroom is the room for the longest headers in front of a Falcon packet. The transport
	// fills its packet before it is known whose it is.
	MaxHeadroom = cookieHeader + underlay.InnerLen6
	// Trailer is the room behind it, for the integrity check value.
	Trailer = psp.ICVLen
	// PlainOverhead is what the gateway class adds to a packet.
	PlainOverhead = cookieHeader + psp.ICVLen
)

// Crypt offsets: what stays in clear text behind PSP's base header, in 4-byte words. For Falcon that
// is up to the word with the CID (Falcon §7.1).
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

// Tunnel is Falcon in PSP's tunnel mode:
//
//	PSP, cookie | inner IP | Falcon … | ICV
type Tunnel struct{}

// Transport is Falcon in PSP's transport mode:
//
//	PSP | Falcon … | ICV
type Transport struct{}

var _, _ Encap = Tunnel{}, Transport{}

// Overhead implements Encap.
func (Tunnel) Overhead(v6 bool) int { return cookieHeader + innerLen(v6) + psp.ICVLen }

// Overhead implements Encap.
func (Transport) Overhead(bool) int { return psp.BaseLen + psp.ICVLen }

func innerLen(v6 bool) int {
	if v6 {
		return underlay.InnerLen6
	}
	return underlay.InnerLen
}

// PeekCID implements Encap.
func (Tunnel) PeekCID(sealed []byte) (cid uint32, ok bool) {
	at := cookieHeader + innerLen(len(sealed) > 0 && sealed[0] == psp.NextHeaderIPv6)
	return wire.PeekCID(sealed[min(at, len(sealed)):])
}

// PeekCID implements Encap.
func (Transport) PeekCID(sealed []byte) (cid uint32, ok bool) {
	return wire.PeekCID(sealed[min(psp.BaseLen, len(sealed)):])
}

// Open implements Encap.
func (Tunnel) Open(o *Opened) (p Packet, why Refusal) {
	if !o.hdr.HasVC {
		return p, OtherMode
	}
	inner, falcon, err := underlay.ParseInner(o.clear)
	if err != nil || o.hdr.NextHeader != nextHeader(inner.Src.Is6()) {
		return p, NotFalcon
	}
	cid, ok := wire.PeekCID(falcon)
	if !ok {
		return p, NotFalcon
	}
	return Packet{Falcon: falcon, CID: cid, Inner: inner, Whole: o.clear}, None
}

// Open implements Encap.
func (Transport) Open(o *Opened) (p Packet, why Refusal) {
	if o.hdr.HasVC {
		return p, OtherMode
	}
	cid, ok := wire.PeekCID(o.clear)
	if !ok || o.hdr.NextHeader != psp.NextHeaderFalcon {
		return p, NotFalcon
	}
	return Packet{Falcon: o.clear, CID: cid}, None
}

// nextHeader is what PSP calls an IP packet.
func nextHeader(v6 bool) uint8 {
	if v6 {
		return psp.NextHeaderIPv6
	}
	return psp.NextHeaderIPv4
}

func (Tunnel) seal(now int64, tx *TxSA, b []byte, at, n int, v6 bool) (start, sealed int, err error) {
	offset, inner := uint8(offsetTunnel), innerLen(v6)
	if v6 {
		offset = offsetTunnel6
	}
	start = at - inner - cookieHeader
	tx.sa.SetCryptOffset(offset)
	sealed, err = tx.sa.Seal(now, nextHeader(v6), b[start:], inner+n)
	return start, sealed, err
}

func (Transport) seal(now int64, tx *TxSA, b []byte, at, n int, _ bool) (start, sealed int, err error) {
	start = at - psp.BaseLen
	sealed, err = tx.sa.Seal(now, psp.NextHeaderFalcon, b[start:], n)
	return start, sealed, err
}

func (Tunnel) newTxSA(u Use, version uint8, spi uint32, key []byte) (*psp.TxSA, error) {
	return psp.NewTxSA(version, spi, key, Cookie(u.Tenant), offsetTunnel)
}

func (Transport) newTxSA(_ Use, version uint8, spi uint32, key []byte) (*psp.TxSA, error) {
	return psp.NewTransportTxSA(version, spi, key, offsetTransport)
}
