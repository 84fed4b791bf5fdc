package vhostnet

import "encoding/binary"

// Offload describes the work that a frame's sender left to the device: a checksum, segmentation.
// Offsets count from the Ethernet header.
type Offload struct {
	GSO        uint8  // segmentation type, 0: none (VIRTIO_NET_HDR_GSO_…)
	NeedsCsum  bool   // the checksum at CsumStart+CsumOffset holds the pseudo header's sum only
	Size       uint16 // of each segment's payload, with GSO
	CsumStart  uint16
	CsumOffset uint16
}

// Segmentation types (GSO), Virtio §5.1.6.
const (
	gsoTCP4 = 1
	gsoTCP6 = 4
	gsoUDP  = 5
	gsoECN  = 0x80
)

// Lengths of the header in front of each frame (struct virtio_net_hdr, Virtio §5.1.6). The header
// has no buffer count for a driver older than Virtio 1.0 that does not merge buffers.
const (
	headerLen      = 12
	shortHeaderLen = 10

	flagNeedsCsum = 1
)

// put writes the header of a frame that fills so many buffers. hint is an upper bound of the length
// of the frame's own headers.
func (o *Offload) put(b []byte, hint, buffers int) {
	clear(b)
	if o.NeedsCsum {
		b[0] = flagNeedsCsum
		binary.LittleEndian.PutUint16(b[6:], o.CsumStart)
		binary.LittleEndian.PutUint16(b[8:], o.CsumOffset)
	}
	if o.GSO != 0 {
		b[1] = o.GSO
		binary.LittleEndian.PutUint16(b[2:], uint16(min(hint, int(o.CsumStart)+60)))
		binary.LittleEndian.PutUint16(b[4:], o.Size)
	}
	if len(b) == headerLen {
		binary.LittleEndian.PutUint16(b[10:], uint16(buffers))
	}
}

// parseOffload parses a header, without the buffer count.
func parseOffload(b *[headerLen]byte) Offload {
	return Offload{
		GSO: b[1], NeedsCsum: b[0]&flagNeedsCsum != 0, Size: binary.LittleEndian.Uint16(b[4:]),
		CsumStart: binary.LittleEndian.Uint16(b[6:]), CsumOffset: binary.LittleEndian.Uint16(b[8:]),
	}
}
