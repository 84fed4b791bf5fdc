package underlay

import (
	"bytes"
	"encoding/binary"
)

const (
	arpLen      = 28
	arpFrameLen = ethLen + arpLen
	arpRequest  = 1
	arpReply    = 2
)

// arp is an ARP packet for IPv4 over Ethernet (RFC 826).
type arp struct {
	op                 uint16
	senderMAC          MAC
	senderIP, targetIP [4]byte
	targetMAC          MAC
}

// The fixed part: hardware Ethernet, protocol IPv4, their address lengths.
var arpPrefix = [6]byte{0, 1, 8, 0, 6, 4}

func (a *arp) put(b []byte) {
	_ = b[arpLen-1]
	copy(b, arpPrefix[:])
	binary.BigEndian.PutUint16(b[6:], a.op)
	copy(b[8:], a.senderMAC[:])
	copy(b[14:], a.senderIP[:])
	copy(b[18:], a.targetMAC[:])
	copy(b[24:], a.targetIP[:])
}

func parseARP(b []byte) (a arp, ok bool) {
	if len(b) < arpLen || !bytes.Equal(b[:6], arpPrefix[:]) {
		return a, false
	}
	a = arp{
		op:        binary.BigEndian.Uint16(b[6:]),
		senderMAC: MAC(b[8:14]), senderIP: [4]byte(b[14:18]),
		targetMAC: MAC(b[18:24]), targetIP: [4]byte(b[24:28]),
	}
	return a, a.op == arpRequest || a.op == arpReply
}
