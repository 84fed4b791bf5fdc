package pathmtu

import (
	"encoding/binary"

	"github.com/falcon-vnic/vnic/internal/checksum"
)

// Length is the number of bytes of a Probe's header, and the length of an answer.
const Length = 32

// A probe is an IPv4 packet of the gateway class, from 0.0.0.0 to 0.0.0.0, with the protocol number
// that RFC 3692 sets aside for experiments. No guest's packet has these addresses: the gateway
// carries only those that have a route.
//
//	IPv4 header 20 | "vnic" | kind 8 | 0 8 | size 16 | round 32 | zeros …
//
// A request is filled up with zeros to its size; an answer ends behind the round, and repeats the
// size and round of the request. A sign of life has neither.
const (
	protocol = 253
	ttl      = 1
	magic    = 0x766e6963 // "vnic"
)

// Kind tells requests and answers apart.
type Kind uint8

// The kinds of probes.
const (
	Request Kind = 1
	Answer  Kind = 2
	Here    Kind = 3 // a sign of life, which keeps the mappings of NATs; nobody answers it
)

// Probe is a request for an answer, which has a certain length, or that answer.
type Probe struct {
	Kind  Kind
	Size  uint16 // of the request, in bytes of outer IP packet
	Round uint32
}

// Append appends the probe as an IPv4 packet of length bytes, at least Length.
func (p *Probe) Append(b []byte, length int) []byte {
	at := len(b)
	b = append(b, make([]byte, length)...)
	h := b[at:]
	h[0] = 0x45
	binary.BigEndian.PutUint16(h[2:], uint16(length))
	h[6] = 0x40 // may not be fragmented
	h[8], h[9] = ttl, protocol
	binary.BigEndian.PutUint16(h[10:], ^checksum.Sum(h[:20])) // RFC 791 §3.1
	binary.BigEndian.PutUint32(h[20:], magic)
	h[24] = byte(p.Kind)
	binary.BigEndian.PutUint16(h[26:], p.Size)
	binary.BigEndian.PutUint32(h[28:], p.Round)
	return b
}

// IsProbe reports whether an opened packet of the gateway class is a probe, and not a guest's: it
// may still be one that Parse refuses.
func IsProbe(b []byte) bool {
	return len(b) >= 20 && b[0] == 0x45 && b[9] == protocol && binary.BigEndian.Uint64(b[12:]) == 0
}

// Parse reads a probe. ok is false for any other packet. What fills a request up is not looked at.
func Parse(b []byte) (p Probe, ok bool) {
	if !IsProbe(b) || len(b) < Length || int(binary.BigEndian.Uint16(b[2:])) != len(b) || checksum.Sum(b[:20]) != 0xffff ||
		binary.BigEndian.Uint32(b[20:]) != magic {
		return p, false
	}
	p = Probe{Kind: Kind(b[24]), Size: binary.BigEndian.Uint16(b[26:]), Round: binary.BigEndian.Uint32(b[28:])}
	return p, p.Kind == Request || (p.Kind == Answer || p.Kind == Here) && len(b) == Length
}
