package shard

import (
	"fmt"
	"net/netip"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/internal/tape"
	rdmawire "github.com/falcon-vnic/vnic/rdma/rof/wire"
)

// Limits of one Step, so that input is looked at in between.
const (
	txSlots   = 128     // frames waiting for the uplink
	txQuantum = 64      // packets made per Step
	txShort   = 16_000  // bytes; in place of txBurst and txPlain while a function with an unused guarantee may come
	txBurst   = 65_507  // bytes of sealed packets, as many as a superframe holds
	txBursts  = 2       // bursts of the transport: the peer wakes less often; with more, functions' weights would not hold
	txPlain   = 120_000 // bytes of plain IP, whose packets are smaller
)

// falconAt is the offset of the Falcon packet in a buffer: behind the longest possible headers. The
// transport fills in the packet before its connection is known; a frame with shorter headers begins
// later in the buffer.
const falconAt = underlay.HeadroomIPv6 + security.MaxHeadroom

// firstPort is the first outer UDP source port. Each shard of the peer has a range of paths ports
// (docs/wire.md).
const (
	firstPort = 0xC000
	paths     = 8
	probePort = firstPort + cm.MaxShards*paths // of probes, see probes.go
)

// sealedTTL is the TTL that sealed packets are sent with, so that a receiver can count the hops
// (docs/wire.md).
const sealedTTL = 255

// uplink is a shard's end of the uplink: the layer that knows the frames of its device, and the
// frames to be sent.
type uplink struct {
	underlay underlay.Layer
	tx       *tap.Queue
	capture  *captures
	tape     *tape.Tape
}

func newUplink(cfg *config.Config, capture *captures) (*uplink, error) {
	layer, err := newLayer(&cfg.Uplink)
	if err != nil {
		return nil, fmt.Errorf("uplink: %w", err)
	}
	return &uplink{underlay: layer, tx: tap.NewQueue(txSlots, txBufferSize(cfg)), capture: capture}, nil
}

func newLayer(u *config.Uplink) (underlay.Layer, error) {
	if u.Type == config.UplinkUDP {
		return underlay.NewSocket(u.Listen, u.MTU)
	}
	c := underlay.Config{MAC: u.MAC, Addr: u.Address, Gateway: u.Gateway, MTU: u.MTU}
	for _, n := range u.Neighbours {
		c.Neighbours = append(c.Neighbours, underlay.Neighbour{Addr: n.Address, MAC: underlay.MAC(n.MAC)})
	}
	return underlay.New(c)
}

// txBufferSize returns the room for one frame: the most that the uplink takes, or that the
// transport needs while it fills in a packet.
func txBufferSize(cfg *config.Config) int {
	return max(falconAt+cfg.Uplink.MTU+tap.FrameOverhead, falconAt+wire.MaxHeaderLen+cfg.RDMA.MTU+rdmawire.MaxDataHeaderLen+security.Trailer)
}

// sendOwn queues the underlay's own frames, and reports whether there is room for more.
func (u *uplink) sendOwn(now falcon.Time) bool {
	for {
		b := u.tx.Slot()
		if b == nil {
			return false
		}
		n := u.underlay.Next(b)
		if n == 0 {
			return true
		}
		u.capture.sealed(captureOut, now, b[:n])
		u.tapeFrame(b[:n])
		u.tx.Commit(n)
	}
}

// outer holds values for the outer headers of a sealed packet.
type outer struct {
	to      netip.AddrPort
	srcPort uint16 // UDP, see srcPort
	class   uint8  // TOS or traffic class
}

// send queues a sealed packet. The frame begins at b[at] with room for its headers; sealed bytes
// follow. It returns false if the frame is not sent now: the underlay keeps it until the neighbour
// answers, or has counted a drop.
func (u *uplink) send(now falcon.Time, o outer, b []byte, at, sealed int) bool {
	total, ok := u.underlay.Output(now, o.to, o.srcPort, o.class, b[at:], sealed)
	if !ok {
		return false
	}
	u.capture.sealed(captureOut, now, b[at:at+total])
	u.tapeFrame(b[at : at+total])
	u.tx.CommitAt(at, total)
	return true
}
