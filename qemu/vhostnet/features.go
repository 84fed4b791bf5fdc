package vhostnet

import (
	"encoding/binary"

	"github.com/falcon-vnic/vnic/qemu/vhostuser"
)

// Features of the device, Virtio §5.1.3 and §6.
const (
	featCsum      = 1 << 0  // the guest may send frames with partial checksums
	featGuestCsum = 1 << 1  // the guest accepts such frames
	featMTU       = 1 << 3  // QEMU may tell the guest the MTU
	featGuestTSO4 = 1 << 7  // the guest accepts GSO frames
	featGuestTSO6 = 1 << 8  //
	featGuestECN  = 1 << 9  //
	featHostTSO4  = 1 << 11 // the guest may send GSO frames
	featHostTSO6  = 1 << 12 //
	featHostECN   = 1 << 13 //
	featMerge     = 1 << 15 // frames may span several receive buffers
	featMQ        = 1 << 22 // several queue pairs
	featAnyLayout = 1 << 27 // headers need no descriptor of their own
	featIndirect  = 1 << 28
	featEventIdx  = 1 << 29
	featGuestUSO4 = 1 << 54
	featGuestUSO6 = 1 << 55
	featHostUSO   = 1 << 56

	offered = featCsum | featGuestCsum | featMTU | featGuestTSO4 | featGuestTSO6 | featGuestECN | featHostTSO4 | featHostTSO6 | featHostECN |
		featMerge | featMQ | featAnyLayout | featIndirect | featEventIdx | featGuestUSO4 | featGuestUSO6 | featHostUSO |
		vhostuser.FeatureVersion1 | vhostuser.FeaturePacked
)

// Features returns the features that a device with so many queue pairs offers. With one pair it
// does not offer MQ, since MQ requires a control queue (Virtio §5.1.3.1).
func Features(queues int) uint64 {
	if queues == 1 {
		return offered &^ featMQ
	}
	return offered
}

// MaxQueues is the largest number of queue pairs of a port.
const MaxQueues = 16

// Layout returns the rings and protocol features of a device with so many queue pairs. It does not
// offer CONFIG: QEMU's network device does not support it, and QEMU 7.2 exits if it is offered.
func Layout(queues int) vhostuser.Layout {
	return vhostuser.Layout{
		Rings: 2 * queues, Queues: uint64(queues),
		Protocol: vhostuser.ProtocolMQ | vhostuser.ProtocolReplyAck | vhostuser.ProtocolNetMTU |
			vhostuser.ProtocolBackendReq | vhostuser.ProtocolConfigureMemSlots,
	}
}

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
