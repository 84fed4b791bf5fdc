package underlay

import (
	"encoding/binary"
)

// Sealed returns what a frame carries to PSP's port, for those who steer it before Input has
// looked. It checks no more than it needs to find that.
func Sealed(frame []byte) (payload []byte, ok bool) {
	if len(frame) < Headroom {
		return nil, false
	}
	at := Headroom
	switch ip := frame[ethLen:]; binary.BigEndian.Uint16(frame[12:]) {
	case typeIPv4:
		ok = ip[0] == 0x45 && ip[9] == protoUDP
	case typeIPv6:
		at = HeadroomIPv6
		ok = len(frame) >= at && ip[6] == protoUDP
	}
	if !ok || binary.BigEndian.Uint16(frame[at-udpLen+2:]) != SealedPort {
		return nil, false
	}
	return frame[at:], true
}

// Overhear learns from a message of ARP or neighbour discovery that another owner of our addresses
// has got, and answers for all.
func (s *Stack) Overhear(now int64, frame []byte) {
	s.quiet = true
	s.input(now, frame)
	s.quiet = false
}
