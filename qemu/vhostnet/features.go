package vhostnet

import "github.com/falcon-vnic/vnic/qemu/vhostuser"

// Features of the device, Virtio §5.1.3 and §6.
const (
	featCsum      = 1 << 0  // the guest may leave checksums open
	featGuestCsum = 1 << 1  // it takes frames with one open
	featMTU       = 1 << 3  // QEMU may tell it the MTU
	featGuestTSO4 = 1 << 7  // it takes frames that stand for many
	featGuestTSO6 = 1 << 8  //
	featGuestECN  = 1 << 9  //
	featHostTSO4  = 1 << 11 // it may send such
	featHostTSO6  = 1 << 12 //
	featHostECN   = 1 << 13 //
	featMerge     = 1 << 15 // frames may span several receive buffers
	featMQ        = 1 << 22 // several pairs of queues
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

// Features are what a device with so many pairs of queues offers. A driver of one pair would miss
// the control queue that it needs for more (Virtio §5.1.3.1).
func Features(queues int) uint64 {
	if queues == 1 {
		return offered &^ featMQ
	}
	return offered
}

// MaxQueues is how many pairs of queues a port may have.
const MaxQueues = 16

// Layout is what a device with so many pairs of queues has of the protocol. CONFIG is not offered:
// QEMU's network device does not take it, and QEMU 7.2 ends when it says so.
func Layout(queues int) vhostuser.Layout {
	return vhostuser.Layout{
		Rings: 2 * queues, Queues: uint64(queues),
		Protocol: vhostuser.ProtocolMQ | vhostuser.ProtocolReplyAck | vhostuser.ProtocolNetMTU |
			vhostuser.ProtocolBackendReq | vhostuser.ProtocolConfigureMemSlots,
	}
}
