package sim

import "github.com/falcon-vnic/vnic/falcon/wire"

// tally counts the packets with a PSN that an endpoint sends. The counts are exact, because the
// network sees the end of each packet.
type tally struct {
	first    uint64 // sent for the first time
	again    uint64 // sent again
	spurious uint64 // of both: packets that the receiver already had when they ended
	lost     uint64 // of both: packets that the network dropped
}

func (t *tally) add(o tally) {
	t.first += o.first
	t.again += o.again
	t.spurious += o.spurious
	t.lost += o.lost
}

// since returns what was counted after an earlier reading.
func (t tally) since(o tally) tally {
	return tally{t.first - o.first, t.again - o.again, t.spurious - o.spurious, t.lost - o.lost}
}

const (
	requestWindow int8 = iota
	dataWindow
	noWindow int8 = -1
)

// seenPSNs is how far back PSNs are remembered: more than a window.
const seenPSNs = 2 * 1024

// history holds what the network knows about the packets that an endpoint sent.
type history struct {
	highest [2]uint32           // PSN after the highest sent, by window
	seen    [2][seenPSNs]uint32 // by window and PSN: PSN+1 of what the receiver has
	tally   tally
}

// sent classifies a packet that is sent.
func (h *history) sent(p *packet) {
	p.window = noWindow
	hdr, d := wire.ParseHeader(p.buf[:p.n])
	if d != wire.DropNone {
		return // an acknowledgement
	}
	p.window, p.psn = dataWindow, hdr.PSN
	// A Resync starts behind the base header with its code and the type of the packet it replaces.
	if hdr.Type == wire.TypePullRequest || hdr.Type == wire.TypeResync && wire.PacketType(p.buf[wire.BaseLen+1]>>4) == wire.TypePullRequest {
		p.window = requestWindow
	}
	if next := &h.highest[p.window]; int32(p.psn-*next) < 0 {
		h.tally.again++
	} else {
		*next = p.psn + 1
		h.tally.first++
	}
}

// received records that the receiver accepted a packet.
func (h *history) received(p *packet) {
	if p.window != noWindow {
		h.seen[p.window][p.psn%seenPSNs] = p.psn + 1
	}
}

// ended counts a packet that the network dropped or the receiver refused.
func (h *history) ended(p *packet, lost bool) {
	if p.window == noWindow || p.copied {
		return
	}
	if lost {
		h.tally.lost++
	}
	if h.seen[p.window][p.psn%seenPSNs] == p.psn+1 {
		h.tally.spurious++
	}
}
