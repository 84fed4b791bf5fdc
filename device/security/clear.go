package security

import (
	"github.com/falcon-vnic/vnic/falcon/psp"

	"github.com/falcon-vnic/vnic/device/security/room"
)

// Clear says what of a sealed packet is in clear text and tells whose it is, by the place of bytes
// from PSP's header on: for those who steer packets before they are opened.
type Clear struct {
	CryptOffset     int   // of the byte that has it
	CryptOffsetMask uint8 // in that byte
	Plain           uint8 // crypt offset of packets of the gateway class, which have no CID
	SPI             int   // of 4 bytes
	NextHeader      int   // of the byte that has it
	V6              uint8 // next header of packets whose CID is at CID6
	CID, CID6       int   // of the 4 bytes with the CID in the lower 24 bits
}

// ClearOf tells it for a psp.mode.
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
