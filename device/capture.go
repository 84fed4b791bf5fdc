package device

import (
	"fmt"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
)

const (
	captureIn  = capture.In
	captureOut = capture.Out
)

// tapPoint feeds the capture with copies of what passes. The zero value
// captures nothing.
type tapPoint struct {
	to         *capture.Capture
	wantSealed bool
	wantClear  bool
	wallOffset int64 // wall clock less the shard's clock, ns
	scratch    []byte
}

func newTapPoint(to *capture.Capture, mode string, wallOffset int64) tapPoint {
	return tapPoint{
		to:         to,
		wantSealed: to != nil && (mode == config.CaptureSealed || mode == config.CaptureBoth),
		wantClear:  to != nil && (mode == config.CaptureClear || mode == config.CaptureBoth),
		wallOffset: wallOffset,
	}
}

// sealed takes an Ethernet frame as on the uplink.
func (t *tapPoint) sealed(dir capture.Direction, now falcon.Time, frame []byte) {
	if t.wantSealed {
		t.to.Packet(capture.Sealed, dir, now+t.wallOffset, frame, "")
	}
}

// received takes what came from the uplink, superframes with a remark: what
// decodes the capture sees only the first of their packets.
func (t *tapPoint) received(now falcon.Time, frame []byte, segment int) {
	switch {
	case !t.wantSealed:
	case segment <= 0:
		t.sealed(captureIn, now, frame)
	default:
		t.to.Packet(capture.Sealed, captureIn, now+t.wallOffset, frame, fmt.Sprintf("superframe: UDP datagrams of %d bytes one after the other", segment))
	}
}

// inside takes a packet of a connection inside the NIC, which is never sealed.
func (t *tapPoint) inside(now falcon.Time, packet []byte) {
	t.to.Packet(capture.Clear, captureOut, now+t.wallOffset, packet, "loopback: inside the NIC, not sealed")
}

// clear takes an inner IP packet outside its seal.
func (t *tapPoint) clear(dir capture.Direction, now falcon.Time, packet []byte) {
	if t.wantClear {
		t.to.Packet(capture.Clear, dir, now+t.wallOffset, packet, "")
	}
}

// falcon takes a Falcon packet that came without an inner header, with the one
// that tunnel mode would have given it.
func (t *tapPoint) falcon(dir capture.Direction, now falcon.Time, inner underlay.Inner, packet []byte) {
	if t.wantClear {
		t.scratch = append(inner.Append(t.scratch[:0], len(packet)), packet...)
		t.clear(dir, now, t.scratch)
	}
}
