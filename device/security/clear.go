package security

import (
	"github.com/falcon-vnic/vnic/falcon/psp"

	"github.com/falcon-vnic/vnic/device/security/room"
)

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
