package shard

import (
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/falcon"
)

// plainOut sends plain IP to peers: it seals and queues the gateway's packets.
type plainOut struct {
	*uplink
	reading
	gw *gateway.Gateway
}

// leastPlain is the least number of bytes that a packet counts for in a burst.
const leastPlain = 512

// transmit seals packets from the ports, as far as the tx queue has room and burst (bytes) allows;
// the rest stays in the gateway. It reports whether more could be sent at once.
func (o *plainOut) transmit(now falcon.Time, burst int) (more bool) {
	for bytes := 0; bytes < burst; {
		f := o.gw.Outgoing(now)
		if f == nil {
			return false
		}
		b := o.tx.Slot()
		if b == nil {
			return false
		}
		packet := o.next(now, f)
		if packet == nil {
			o.gw.EndFrame()
			continue
		}
		o.seal(now, b, f, packet)
		bytes += max(len(packet), leastPlain)
	}
	return o.gw.Busy()
}

// next cuts the next packet from the current frame.
func (o *plainOut) next(now falcon.Time, f *gateway.Forward) []byte {
	defer o.survive(now, "a frame of a port", f.Packet)
	return f.Next()
}

// seal seals one packet of a port and queues the frame.
func (o *plainOut) seal(now falcon.Time, b []byte, f *gateway.Forward, packet []byte) {
	if !o.gw.Tunnels.HasKey(f.Tunnel) {
		return
	}
	o.capture.plain(o.gw, captureOut, now, f.Tunnel, packet)
	sealed, err := o.gw.Tunnels.Seal(now, f.Tunnel, b[o.underlay.Headroom():], packet)
	if err != nil {
		o.drops.count(dropTxSeal)
		return
	}
	if o.send(now, outer{f.Tunnel.Underlay, firstPort + uint16(f.Flow%paths), f.Class}, b, 0, sealed) {
		o.tx.Patient = true
	}
}
