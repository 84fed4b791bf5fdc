package underlay

import "encoding/binary"

const (
	ethLen     = 14
	typeIPv4   = 0x0800
	typeARP    = 0x0806
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

// unicast tells whether m may be the address of one station.
func unicast(m MAC) bool { return m[0]&1 == 0 && m != MAC{} }
