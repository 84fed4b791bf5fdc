package shard

import (
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/handover"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/rdma"
	rdmawire "github.com/falcon-vnic/vnic/rdma/rof/wire"
)

// The payload of a packet is the part that no decision of the shard depends on. A tape may
// leave it out (tape.Payload), so these functions tell where it begins.

// falconHead returns the length of a Falcon packet's headers and of RDMA's behind them.
func falconHead(packet []byte) int {
	ulp := wire.Payload(packet)
	if n, err := rdmawire.Length(ulp); err == nil {
		return len(packet) - len(ulp) + n
	}
	return len(packet)
}

// ipHead returns the length of the headers of a packet of plain IP, or of a network of rdma. checksumAt is the
// offset of the checksum that also covers the payload; 0: there is none. b is the beginning of the
// packet, which has total bytes.
func ipHead(b []byte, total int) (n, checksumAt int) {
	n, checksumAt, port := gateway.Head(b, total)
	if port != 0 {
		for _, k := range rdma.Wires {
			if k.Head != nil && k.Takes.Port == port {
				n += k.Head(b[n:])
			}
		}
	}
	return n, checksumAt
}

// packetHead returns the length of the headers of a whole packet of plain IP.
func packetHead(b []byte) int {
	n, _ := ipHead(b, len(b))
	return n
}

// frameHead does what ipHead does, for an Ethernet frame.
func frameHead(b []byte, total int) (n, checksumAt int) { return gateway.FrameHead(b, total, ipHead) }

// offeredHead does what frameHead does, for a frame whose checksum may be left to the NIC. A guest may ask for
// the checksum at a place among the headers, which then depend on the payload: of such a frame nothing counts
// as payload.
func offeredHead(b []byte, total int, off gateway.Offload) int {
	n, checksumAt := frameHead(b, total)
	if at := int(off.CsumStart) + int(off.CsumOffset); off.NeedsCsum && at < n && at != checksumAt {
		return len(b)
	}
	return n
}

// openedHead does what ipHead does, for what a packet held when it was opened.
func openedHead(o *security.Opened) int {
	b, falcon := o.Clear()
	if o.Use.Class != cm.ClassFalcon {
		n, _ := ipHead(b, len(b))
		return n
	}
	at := len(b) - falcon
	return at + falconHead(b[at:])
}

// unwritten returns how many bytes at the beginning of a frame that shards hand over are left for the other
// shard to write: the addresses of its Ethernet header, or all of that header.
func unwritten(k handover.Kind) int {
	switch k {
	case handover.Plain:
		return gateway.EthernetLen - 2
	case handover.Group:
		return gateway.EthernetLen
	}
	return 0
}

// handedHead does what frameHead does, for a frame that shards hand over.
func handedHead(k handover.Kind, b []byte) (n, checksumAt int) {
	switch k {
	case handover.Local:
		return falconHead(b), 0
	case handover.Group: // its Ethernet header is not written yet
		b = b[gateway.EthernetLen:]
		if n, checksumAt = ipHead(b, len(b)); checksumAt > 0 {
			checksumAt += gateway.EthernetLen
		}
		return gateway.EthernetLen + n, checksumAt
	}
	return frameHead(b, len(b))
}
