package psp

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Sizes and numbers of the encapsulation.
const (
	BaseLen = 16 // header without virtualization cookie, bytes
	VCLen   = 8  // virtualization cookie, bytes
	ICVLen  = 16 // integrity check value behind the payload, bytes

	NextHeaderIPv4   = 4
	NextHeaderIPv6   = 41
	NextHeaderFalcon = 252

	MaxCryptOffset = 0x3f // 4-byte words
)

// Versions, which select the cipher of an SA.
const (
	VersionGCM128  = 0
	VersionGCM256  = 1
	VersionGMAC128 = 2
	VersionGMAC256 = 3
)

// ErrMalformed is the class of errors for packets that this package does not accept as PSP. Test
// for it with errors.Is.
var ErrMalformed = errors.New("psp: malformed packet")

var (
	errShort     = fmt.Errorf("%w: shorter than its header and ICV", ErrMalformed)
	errExtLen    = fmt.Errorf("%w: header extension length does not match the V bit", ErrMalformed)
	errAlwaysOne = fmt.Errorf("%w: the always-one bit is zero", ErrMalformed)
	errVersion   = fmt.Errorf("%w: unknown version", ErrMalformed)
	errOffset    = fmt.Errorf("%w: crypt offset beyond the payload", ErrMalformed)
)

// Header is the PSP header:
//
//	byte 0  NextHeader
//	byte 1  header length in 8-byte units beyond the first 8: 1, or 2 with a virtualization cookie
//	byte 2  reserved(2) | CryptOffset(6)
//	byte 3  S(1) D(1) Version(4) V(1) 1(1)
//	4..7    SPI         8..15  IV         16..23  VC if V
type Header struct {
	NextHeader  uint8
	Version     uint8 // 0..3
	CryptOffset uint8 // 4-byte words in clear text after the first 16 bytes, 0..63; counts the VC
	Sample      bool  // S: sample at the receiver
	Drop        bool  // D: drop after sampling
	HasVC       bool
	SPI         uint32
	IV          uint64
	VC          uint64

	Class Class  // not on the wire: Opener.Open copies it from the SA
	Owner uint64 // not on the wire: the owner given to RxSADB.IssueTo
}

// Class says what an SA is for and what its IVs are. It alone decides how a packet is handled, not
// anything inside the packet.
type Class uint8

const (
	ClassFalcon  Class = iota // IV: the sender's picosecond clock; Guard detects replays
	ClassGateway              // IV: a counter; a window per SPI detects replays (RFC 6479)
)

// Len returns the encoded length, 16 or 24 bytes.
func (h *Header) Len() int {
	if h.HasVC {
		return BaseLen + VCLen
	}
	return BaseLen
}

// Append appends the encoded header to b.
func (h *Header) Append(b []byte) []byte {
	ext, flags := byte(1), h.Version&0xf<<2|1
	if h.HasVC {
		ext, flags = 2, flags|0x02
	}
	if h.Sample {
		flags |= 0x80
	}
	if h.Drop {
		flags |= 0x40
	}
	b = append(b, h.NextHeader, ext, h.CryptOffset&MaxCryptOffset, flags)
	b = binary.BigEndian.AppendUint32(b, h.SPI)
	b = binary.BigEndian.AppendUint64(b, h.IV)
	if h.HasVC {
		b = binary.BigEndian.AppendUint64(b, h.VC)
	}
	return b
}

// ParseHeader decodes the header at the start of b and returns it with its length. Before the
// packet is opened, a VC that the crypt offset does not cover is still cipher text. Errors are of
// class ErrMalformed. The reserved bits of byte 2 are ignored; they are authenticated like the
// rest.
func ParseHeader(b []byte) (h Header, n int, err error) {
	n, err = h.parse(b)
	if err != nil {
		return Header{}, 0, err
	}
	return h, n, nil
}

// parse does what ParseHeader does, in place. After an error h has no meaning.
func (h *Header) parse(b []byte) (n int, err error) {
	if len(b) < BaseLen {
		return 0, errShort
	}
	*h = Header{
		NextHeader:  b[0],
		CryptOffset: b[2] & MaxCryptOffset,
		Sample:      b[3]&0x80 != 0,
		Drop:        b[3]&0x40 != 0,
		Version:     b[3] >> 2 & 0xf,
		HasVC:       b[3]&0x02 != 0,
		SPI:         binary.BigEndian.Uint32(b[4:]),
		IV:          binary.BigEndian.Uint64(b[8:]),
	}
	switch {
	case b[3]&0x01 == 0:
		return 0, errAlwaysOne
	case h.Version > VersionGMAC256:
		return 0, errVersion
	case int(b[1])*8+8 != h.Len():
		return 0, errExtLen
	case len(b) < h.Len():
		return 0, errShort
	}
	if h.HasVC {
		h.VC = binary.BigEndian.Uint64(b[BaseLen:])
	}
	return h.Len(), nil
}
