package underlay

import (
	"encoding/binary"
)

// Sealed returns the payload of a frame to PSP's port, for steering before Input. It makes only the
// checks needed to find the payload.
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

// Overhear learns from an ARP or neighbour discovery message that another stack with the same
// addresses received. That stack answers for all, so this one does not.
func (s *Stack) Overhear(now int64, frame []byte) {
	s.quiet = true
	s.input(now, frame)
	s.quiet = false
}
