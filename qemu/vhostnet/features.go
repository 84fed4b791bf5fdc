package vhostnet

import "github.com/falcon-vnic/vnic/qemu/vhostuser"

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
