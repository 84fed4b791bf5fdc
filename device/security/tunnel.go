package security

import (
	"github.com/falcon-vnic/vnic/device/security/room"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon/psp"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

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
