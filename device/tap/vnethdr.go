package tap

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// vnetHeaderLen is the size of struct virtio_net_hdr_v1, which the kernel puts in front of each
// frame, in its own byte order.
const vnetHeaderLen = 12

// vnetHeader holds the used fields of that header. The header length in it is only a hint and
// cannot be trusted.
type vnetHeader struct {
	flags      uint8
	gsoType    uint8
	headerLen  uint16 // Ethernet, IP and UDP header
	gsoSize    uint16 // payload bytes of each segment
	csumStart  uint16 // where the checksummed part begins
	csumOffset uint16 // where in it the checksum goes
}

func (h *vnetHeader) put(b []byte) {
	_ = b[vnetHeaderLen-1]
	b[0], b[1] = h.flags, h.gsoType
	binary.NativeEndian.PutUint16(b[2:], h.headerLen)
	binary.NativeEndian.PutUint16(b[4:], h.gsoSize)
	binary.NativeEndian.PutUint16(b[6:], h.csumStart)
	binary.NativeEndian.PutUint16(b[8:], h.csumOffset)
	binary.NativeEndian.PutUint16(b[10:], 0)
}

func parseVnetHeader(b []byte) vnetHeader {
	_ = b[vnetHeaderLen-1]
	return vnetHeader{
		flags: b[0], gsoType: b[1], headerLen: binary.NativeEndian.Uint16(b[2:]), gsoSize: binary.NativeEndian.Uint16(b[4:]),
		csumStart: binary.NativeEndian.Uint16(b[6:]), csumOffset: binary.NativeEndian.Uint16(b[8:]),
	}
}

const (
	gsoNone  = unix.VIRTIO_NET_HDR_GSO_NONE
	gsoUDPL4 = unix.VIRTIO_NET_HDR_GSO_UDP_L4
)
