package security

import (
	"github.com/falcon-vnic/vnic/device/security/room"
	"github.com/falcon-vnic/vnic/falcon/psp"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

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

func (Transport) seal(now int64, tx *TxSA, b []byte, at, n int, _ bool) (start, sealed int, err error) {
	start = at - psp.BaseLen
	sealed, err = tx.sa.Seal(now, psp.NextHeaderFalcon, b[start:], n)
	return start, sealed, err
}

func (Transport) newTxSA(_ Use, version uint8, spi uint32, key []byte) (*psp.TxSA, error) {
	return psp.NewTransportTxSA(version, spi, key, offsetTransport)
}

var _, _ Encap = Tunnel{}, Transport{}
