package capture

import (
	"encoding/binary"
	"fmt"
)

// Class is the kind of a frame on the fabric.
type Class uint8

// Classes.
const (
	Other  Class = iota
	PSP          // UDP to port 1000, in IPv4 or IPv6
	ARP          //
	ND           // neighbour discovery: ICMPv6 types 133 to 137
	ICMPv6       // any other ICMPv6, including MLD
)

func (c Class) String() string {
	return [...]string{"other", "PSP", "ARP", "ND", "ICMPv6"}[c]
}

const (
	etherIPv4 = 0x0800
	etherARP  = 0x0806
	etherIPv6 = 0x86dd
	protoUDP  = 17
	protoHBH  = 0 // IPv6 hop-by-hop options
	protoICMP = 58
	portPSP   = 1000

	// Minimum lengths at which a packet's class can be determined.
	leastIPv4 = 28 // with a UDP header
	leastIPv6 = 44 // with the beginning of an ICMPv6 message
	leastMLD  = 52 // with one behind hop-by-hop options
)

// Classify returns the class of an Ethernet frame. A fragment other than the first is Other, since
// it has no port.
func Classify(frame []byte) Class {
	if len(frame) < 14 {
		return Other
	}
	p := frame[14:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case etherARP:
		return ARP
	case etherIPv4:
		if len(p) < leastIPv4 || p[0]>>4 != 4 || p[0]&15 < 5 {
			return Other
		}
		if binary.BigEndian.Uint16(p[6:])&0x1fff != 0 {
			return Other
		}
		return transport(p[9], p, int(p[0]&15)*4)
	case etherIPv6:
		if len(p) < leastIPv6 || p[0]>>4 != 6 {
			return Other
		}
		next, at := p[6], 40
		if next == protoHBH && len(p) >= leastMLD { // used by MLD
			next, at = p[40], 48+8*int(p[41])
		}
		return transport(next, p, at)
	}
	return Other
}

// transport returns the class of a packet by its protocol, whose header begins at offset at.
func transport(proto uint8, packet []byte, at int) Class {
	switch {
	case proto == protoUDP && len(packet) >= at+8 && binary.BigEndian.Uint16(packet[at+2:]) == portPSP:
		return PSP
	case proto == protoICMP && len(packet) >= at+4:
		if typ := packet[at]; typ >= 133 && typ <= 137 {
			return ND
		}
		return ICMPv6
	}
	return Other
}

// describe describes an unexpected frame.
func describe(frame []byte) string {
	if len(frame) < 14 {
		return fmt.Sprintf("%d bytes", len(frame))
	}
	s := fmt.Sprintf("%d bytes, %x > %x, ethertype %#04x", len(frame), frame[6:12], frame[:6], binary.BigEndian.Uint16(frame[12:]))
	switch p := frame[14:]; {
	case binary.BigEndian.Uint16(frame[12:]) == etherIPv4 && len(p) >= 20:
		s += fmt.Sprintf(", IPv4 protocol %d", p[9])
	case binary.BigEndian.Uint16(frame[12:]) == etherIPv6 && len(p) >= 40:
		s += fmt.Sprintf(", IPv6 next header %d", p[6])
	}
	return s
}
