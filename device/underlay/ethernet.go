package underlay

import "encoding/binary"

const (
	ethLen     = 14
	typeIPv4   = 0x0800
	typeARP    = 0x0806
	typeVLAN   = 0x8100
	udpLen     = 8
	initialTTL = 255 // receivers compute the hop count from it
)

// MAC is an Ethernet address.
type MAC = [6]byte

var broadcast = MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

func putEthernet(b []byte, dst, src MAC, etherType uint16) {
	_ = b[ethLen-1]
	copy(b, dst[:])
	copy(b[6:], src[:])
	binary.BigEndian.PutUint16(b[12:], etherType)
}

// Untag removes a priority tag from a frame: a frame whose VLAN identifier is 0 belongs to no VLAN
// (IEEE 802.1Q §9.6). Switches and NICs may add such a tag on the path.
func Untag(frame []byte) []byte {
	const tag = 4
	if len(frame) < ethLen+tag || binary.BigEndian.Uint16(frame[12:]) != typeVLAN || binary.BigEndian.Uint16(frame[14:])&0xfff != 0 {
		return frame
	}
	copy(frame[tag:], frame[:12])
	return frame[tag:]
}

// unicast reports whether m may be the address of one station.
func unicast(m MAC) bool { return m[0]&1 == 0 && m != MAC{} }
