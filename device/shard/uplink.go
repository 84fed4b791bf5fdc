package shard

import (
	"fmt"
	"net/netip"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/wire"
	rdmawire "github.com/falcon-vnic/vnic/rdma/wire"
)

// Bounds of one Step, so that input is looked at between them.
const (
	txSlots   = 128     // frames waiting for the uplink
	txQuantum = 64      // packets made per Step
	txShort   = 16_000  // the same while somebody may come who must not wait
	txBurst   = 60_000  // bytes, about a superframe: it leaves while it is still in the processor's cache
	txPlain   = 120_000 // the same of plain IP, whose packets are smaller
)

// falconAt is where the Falcon packet begins in a buffer: behind the longest
// headers. The transport fills it before it is known whose packet it is; a
// frame with shorter ones begins later in the buffer.
const falconAt = underlay.HeadroomIPv6 + security.MaxHeadroom

// firstPort begins the range of outer UDP source ports; the path is added
// (docs/wire.md).
const (
	firstPort = 0xC000
	paths     = 8
)

// sealedTTL is what sealed packets leave with, so that a receiver can count
// the hops (docs/wire.md).
const sealedTTL = 255

// uplink is a shard's end of the uplink: the underlay's stack, the frames that wait to leave, and
// the captures that see what passes.
type uplink struct {
	underlay *underlay.Stack
	tx       *tap.Queue
	capture  tapPoint
}

func newUplink(cfg *config.Config) (*uplink, error) {
	c := underlay.Config{MAC: cfg.Uplink.MAC, Addr: cfg.Uplink.Address, Gateway: cfg.Uplink.Gateway, MTU: cfg.Uplink.MTU}
	for _, n := range cfg.Uplink.Neighbours {
		c.Neighbours = append(c.Neighbours, underlay.Neighbour{Addr: n.Address, MAC: underlay.MAC(n.MAC)})
	}
	stack, err := underlay.New(c)
	if err != nil {
		return nil, fmt.Errorf("uplink: %w", err)
	}
	return &uplink{underlay: stack, tx: tap.NewQueue(txSlots, txBufferSize(cfg))}, nil
}

// txBufferSize is the room of one frame: what the uplink takes, and what the
// transport asks for while it fills a packet.
func txBufferSize(cfg *config.Config) int {
	return max(falconAt+cfg.Uplink.MTU+tap.FrameOverhead, falconAt+wire.MaxHeaderLen+cfg.RDMA.MTU+rdmawire.MaxDataHeaderLen+security.Trailer)
}

// speak queues what the underlay has to say, and reports whether there is room for more.
func (u *uplink) speak(now falcon.Time) bool {
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
		u.tx.Commit(n)
	}
}

// outer is what the outer headers of a sealed packet say.
type outer struct {
	to    netip.Addr
	port  uint16 // of the UDP source
	class uint8  // TOS or traffic class
}

// send queues the frame that begins at b[at] with room for its headers, and the sealed bytes behind
// it. It reports false for one that is not sent now: the underlay keeps it until the neighbour
// answers, or has counted it.
func (u *uplink) send(now falcon.Time, o outer, b []byte, at, sealed int) bool {
	total, ok := u.underlay.OutputClass(now, o.to, o.port, o.class, b[at:], sealed)
	if !ok {
		return false
	}
	u.capture.sealed(captureOut, now, b[at:at+total])
	u.tx.CommitAt(at, total)
	return true
}
