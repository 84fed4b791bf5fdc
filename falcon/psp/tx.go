package psp

import (
	"errors"
	"fmt"
)

// PacketLimit is the number of packets that one TxSA seals before it asks for a new key.
const PacketLimit = 1 << 36

// ivSpan is the largest distance between the first and the last IV of an SA, in picoseconds (106
// days). It is half of the IV's range, so that no nonce can repeat and the modulo comparison of the
// replay check stays correct.
const ivSpan = 1 << 63

// Errors of Seal.
var (
	ErrRekey  = errors.New("psp: security association used up, a new key is due")
	ErrBuffer = errors.New("psp: buffer too small for header, payload and ICV")
)

// TxSA seals the packets of one SPI. Its IV strictly increases: it is the sender's picosecond clock
// in the Falcon class, and a counter from 1 in the gateway class. One goroutine owns it.
type TxSA struct {
	seal    sealer
	hdr     Header // template for all fields but NextHeader and IV
	started bool
	first   uint64 // first IV used
	last    uint64 // last IV used
	floor   uint64 // last IV of the previous SA, if hasFloor
	packets uint64
	limit   uint64

	hasFloor bool
	counter  bool // gateway class
}

// NewTxSA returns the transmit SA of spi for tunnel mode, where every packet carries the
// virtualization cookie vc. cryptOffset counts 4-byte words from byte 16 of the PSP header, so it
// includes the cookie: 8 for Falcon in inner IPv4, 13 in inner IPv6.
func NewTxSA(version uint8, spi uint32, key []byte, vc uint64, cryptOffset uint8) (*TxSA, error) {
	return newTxSA(Header{Version: version, SPI: spi, CryptOffset: cryptOffset, HasVC: true, VC: vc}, key)
}

// NewGatewayTxSA returns a transmit SA of the gateway class. Its IVs are a counter, so that the
// receiver can detect replays without help from a transport above.
func NewGatewayTxSA(version uint8, spi uint32, key []byte, vc uint64, cryptOffset uint8) (*TxSA, error) {
	t, err := NewTxSA(version, spi, key, vc, cryptOffset)
	if err == nil {
		t.counter = true
	}
	return t, err
}

// NewTransportTxSA returns the transmit SA of spi for transport mode, without a cookie. Falcon's
// cryptOffset is 1.
func NewTransportTxSA(version uint8, spi uint32, key []byte, cryptOffset uint8) (*TxSA, error) {
	return newTxSA(Header{Version: version, SPI: spi, CryptOffset: cryptOffset}, key)
}

func newTxSA(hdr Header, key []byte) (*TxSA, error) {
	if !ValidSPI(hdr.SPI) {
		return nil, fmt.Errorf("psp: SPI %#x is reserved", hdr.SPI)
	}
	if hdr.CryptOffset > MaxCryptOffset {
		return nil, fmt.Errorf("psp: crypt offset %d is above %d words", hdr.CryptOffset, MaxCryptOffset)
	}
	seal, err := newSealer(hdr.Version, key)
	if err != nil {
		return nil, err
	}
	return &TxSA{seal: seal, hdr: hdr, limit: PacketLimit}, nil
}

// SPI returns the SA's security parameter index.
func (t *TxSA) SPI() uint32 { return t.hdr.SPI }

// HeaderLen returns the room Seal needs in front of the payload, bytes.
func (t *TxSA) HeaderLen() int { return t.hdr.Len() }

// Overhead returns the bytes a sealed packet has above its payload: header and ICV.
func (t *TxSA) Overhead() int { return t.hdr.Len() + ICVLen }

// SetPacketLimit lowers the number of packets after which Seal asks for a new key. Limits above
// PacketLimit are reduced to it.
func (t *TxSA) SetPacketLimit(n uint64) { t.limit = min(n, PacketLimit) }

// SetCryptOffset changes the crypt offset of later packets, in 4-byte words up to MaxCryptOffset,
// because inner headers differ in length.
func (t *TxSA) SetCryptOffset(words uint8) { t.hdr.CryptOffset = words & MaxCryptOffset }

// RekeyDue reports whether half of the packet limit or of the lifetime of the SA is used. Then it
// is time to ask the receiver for a new key, so that Seal never has to refuse.
func (t *TxSA) RekeyDue() bool { return t.packets >= t.limit/2 || t.last-t.first >= ivSpan/2 }

// Follow makes the IVs of t, which was not used yet, continue after those of old, which t replaces.
// The receiver's replay check compares across keys, and the clock may have gone back.
func (t *TxSA) Follow(old *TxSA) {
	if old.started {
		t.floor, t.hasFloor = old.last, true
	}
}

// Packets returns the number of packets sealed.
func (t *TxSA) Packets() uint64 { return t.packets }

// LastIV returns the IV of the last sealed packet.
func (t *TxSA) LastIV() uint64 { return t.last }

// Seal turns b[HeaderLen():HeaderLen()+payload] into a PSP packet in place. It writes the header
// into b[:HeaderLen()], encrypts and appends the ICV; b must have Overhead()+payload bytes. now is
// the sender's clock in nanoseconds. The IV is the next count or max(now in picoseconds, last IV +
// 1), where the last IV may be of an SA that t follows. Seal returns the packet's length, or
// ErrRekey, ErrBuffer, or a class ErrMalformed error if the crypt offset is beyond the payload.
// After an error no IV was used.
func (t *TxSA) Seal(now int64, next uint8, b []byte, payload int) (int, error) {
	n := t.hdr.Len() + payload
	if payload < 0 || len(b) < n+ICVLen {
		return 0, ErrBuffer
	}
	h, err := t.header(now, next)
	if err != nil {
		return 0, err
	}
	h.Append(b[:0])
	if err := t.seal.seal(&h, b, n); err != nil {
		return 0, err
	}
	t.used(h.IV)
	return n + ICVLen, nil
}

// SealFrom does what Seal does for a payload that lies elsewhere and is not changed. If all of it
// is encrypted, it is not copied first.
func (t *TxSA) SealFrom(now int64, next uint8, b, payload []byte) (int, error) {
	n := t.hdr.Len() + len(payload)
	if len(b) < n+ICVLen {
		return 0, ErrBuffer
	}
	h, err := t.header(now, next)
	if err != nil {
		return 0, err
	}
	h.Append(b[:0])
	if err := t.seal.sealFrom(&h, b, payload); err != nil {
		return 0, err
	}
	t.used(h.IV)
	return n + ICVLen, nil
}

// header returns the header of the next packet.
func (t *TxSA) header(now int64, next uint8) (Header, error) {
	iv := uint64(now) * 1000
	if t.counter {
		iv = t.last + 1
	}
	if t.hasFloor {
		iv = later(iv, t.floor+1)
	}
	if t.started {
		iv = later(iv, t.last+1) // the clock may not have moved, or may have gone back
		if t.packets >= t.limit || iv-t.first >= ivSpan {
			return Header{}, ErrRekey
		}
	}
	h := t.hdr
	h.NextHeader, h.IV = next, iv
	return h, nil
}

// used records that a packet was sealed with iv.
func (t *TxSA) used(iv uint64) {
	if !t.started {
		t.started, t.first = true, iv
	}
	t.last = iv
	t.packets++
}
