package underlay

import (
	"errors"
	"net/netip"
)

// Inner IP header of PSP tunnel mode, directly in front of the Falcon header (there is no inner
// UDP).
const (
	InnerLen    = ipv4Len
	InnerLen6   = ipv6Len
	ProtoFalcon = 252 // IP protocol of Falcon
	innerTTL    = 64
)

// ErrInnerProtocol is returned by ParseInner for well-formed packets that do not carry Falcon.
var ErrInnerProtocol = errors.New("underlay: inner protocol is not Falcon")

// Inner is the inner IP header: the tenant addresses of the two functions.
type Inner struct {
	Src, Dst netip.Addr // both IPv4 or both IPv6
	ECN      uint8      // 2 bits
	Class    uint8      // the upper six bits of TOS or traffic class
	TTL      uint8      // or hop limit; 0 means the default
	Flow     uint32     // flow label, 20 bits; IPv6 only
}

// Len returns the header's length, 20 or 40 bytes.
func (h *Inner) Len() int {
	if h.Src.Is4() {
		return InnerLen
	}
	return InnerLen6
}

func (h *Inner) class() uint8 { return h.Class&^ecnMask | h.ECN&ecnMask }

func (h *Inner) ttl() uint8 {
	if h.TTL == 0 {
		return innerTTL
	}
	return h.TTL
}

// Append appends the header of a packet with payload bytes behind the header.
func (h *Inner) Append(b []byte, payload int) []byte {
	if !h.Src.Is4() {
		var hdr [ipv6Len]byte
		ip := ipv6{class: h.class(), flow: h.Flow, next: ProtoFalcon, hopLimit: h.ttl(), src: h.Src.As16(), dst: h.Dst.As16()}
		ip.put(hdr[:], payload)
		return append(b, hdr[:]...)
	}
	var hdr [ipv4Len]byte
	ip := ipv4{tos: h.class(), ttl: h.ttl(), protocol: ProtoFalcon, src: h.Src.As4(), dst: h.Dst.As4()}
	ip.put(hdr[:], ipv4Len+payload)
	return append(b, hdr[:]...)
}

// ParseInner decodes the inner packet b, which was authenticated, and returns its header and the
// Falcon packet behind it. Its total length must equal len(b), so that nothing can hide behind the
// packet.
func ParseInner(b []byte) (Inner, []byte, error) {
	if len(b) > 0 && b[0]>>4 == 6 {
		return parseInner6(b)
	}
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

func parseInner6(b []byte) (Inner, []byte, error) {
	ip, payload, err := parseIPv6(b)
	switch {
	case err != nil:
		return Inner{}, nil, err
	case ip.next != ProtoFalcon:
		return Inner{}, nil, ErrInnerProtocol
	case ipv6Len+len(payload) != len(b):
		return Inner{}, nil, errIP6Short
	}
	return Inner{Src: netip.AddrFrom16(ip.src), Dst: netip.AddrFrom16(ip.dst), ECN: ip.class & ecnMask}, payload, nil
}
