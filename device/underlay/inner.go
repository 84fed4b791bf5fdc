package underlay

import (
	"errors"
	"net/netip"
)

// Inner IPv4 header of PSP tunnel mode, directly in front of the Falcon header (there is no inner UDP).
const (
	InnerLen    = ipv4Len
	ProtoFalcon = 252 // IP protocol of Falcon
	innerTTL    = 64
)

// ErrInnerProtocol is returned by ParseInner for well-formed packets that do not carry Falcon.
var ErrInnerProtocol = errors.New("underlay: inner protocol is not Falcon")

// Inner is the inner IPv4 header: the tenant addresses of the two functions.
type Inner struct {
	Src, Dst netip.Addr // IPv4
	ECN      uint8      // 2 bits
}

// Append appends the 20-byte header of a packet with payload bytes behind the header. Src and Dst must be IPv4.
func (h *Inner) Append(b []byte, payload int) []byte {
	var hdr [ipv4Len]byte
	ip := ipv4{tos: h.ECN & ecnMask, ttl: innerTTL, protocol: ProtoFalcon, src: h.Src.As4(), dst: h.Dst.As4()}
	ip.put(hdr[:], ipv4Len+payload)
	return append(b, hdr[:]...)
}

// ParseInner decodes the inner packet b, which was authenticated, and returns its header and the Falcon packet behind it.
// The total length must be that of b: nothing may hide behind the packet.
func ParseInner(b []byte) (Inner, []byte, error) {
	ip, payload, err := parseIPv4(b)
	switch {
	case err != nil:
		return Inner{}, nil, err
	case ip.protocol != ProtoFalcon:
		return Inner{}, nil, ErrInnerProtocol
	case int(b[2])<<8|int(b[3]) != len(b):
		return Inner{}, nil, errIPShort
	}
	return Inner{Src: netip.AddrFrom4(ip.src), Dst: netip.AddrFrom4(ip.dst), ECN: ip.tos & ecnMask}, payload, nil
}
