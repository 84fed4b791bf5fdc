package sim

import "github.com/falcon-vnic/vnic/falcon/wire"

// tally counts the packets an endpoint sends that have a PSN, exactly: the network sees each of
// them end.
type tally struct {
	first    uint64 // sent for the first time
	again    uint64 // sent again
	spurious uint64 // of both, those the receiver had already when they ended
	lost     uint64 // of both, those the network dropped
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

// seenPSNs is how far back a PSN is remembered: more than a window.
const seenPSNs = 2 * 1024

// sent classifies a packet that leaves.
func (e *endpoint) sent(p *packet) {
	p.window = noWindow
	h, d := wire.ParseHeader(p.buf[:p.n])
	if d != wire.DropNone {
		return // an acknowledgement
	}
	p.window, p.psn = dataWindow, h.PSN
	// A Resync starts behind the base header with its code and the type of the packet it replaces.
	if h.Type == wire.TypePullRequest || h.Type == wire.TypeResync && wire.PacketType(p.buf[wire.BaseLen+1]>>4) == wire.TypePullRequest {
		p.window = requestWindow
	}
	if next := &e.highest[p.window]; int32(p.psn-*next) < 0 {
		e.tally.again++
	} else {
		*next = p.psn + 1
		e.tally.first++
	}
}

// received notes that the receiver accepted a packet.
func (e *endpoint) received(p *packet) {
	if p.window != noWindow {
		e.seen[p.window][p.psn%seenPSNs] = p.psn + 1
	}
}

// ended counts a packet that the network dropped or the receiver did not want.
func (e *endpoint) ended(p *packet, lost bool) {
	if p.window == noWindow || p.copied {
		return
	}
	if lost {
		e.tally.lost++
	}
	if e.seen[p.window][p.psn%seenPSNs] == p.psn+1 {
		e.tally.spurious++
	}
}
