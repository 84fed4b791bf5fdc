package gateway

import "encoding/binary"

// Bounds of what one Step has for the ports.
const (
	maxOut   = 2176 // frames: the packets of what is read from the uplink at once, and the replies
	maxLists = 64   // frames of several packets
	maxParts = 128  // packets in one
)

// PortFrame is a frame for a port: Parts are to be written one after the other.
type PortFrame struct {
	To    *Endpoint
	Parts [][]byte
	Rest  Rest // behind them, nil: nothing
	Offload

	one  [1][]byte
	list int // of output.lists; -1: none
	c    coalesced
}

// output collects frames for ports until they are taken. Their memory is that of what came in.
type output struct {
	frames []PortFrame
	lists  [maxLists][maxParts][]byte
	used   int            // lists
	recent [maxRecent]int // indices of frames that packets may still join, newest first; -1: none
	single singly
	copies []byte // of fragments
	stats  *Stats // the gateway's
	asks   *station
}

func (o *output) init(stats *Stats, asks *station) {
	o.stats, o.asks = stats, asks
	o.frames = make([]PortFrame, 0, maxOut)
	o.reset()
}

func (o *output) reset() {
	o.frames, o.used, o.copies = o.frames[:0], 0, o.copies[:0]
	for i := range o.recent {
		o.recent[i] = -1
	}
}

// add appends a frame of one part; false when there is no room.
func (o *output) add(p *Endpoint, frame []byte, off Offload) bool {
	if len(o.frames) == cap(o.frames) {
		return false
	}
	o.frames = o.frames[:len(o.frames)+1]
	f := &o.frames[len(o.frames)-1]
	f.To, f.Rest, f.Offload, f.list, f.one[0] = p, nil, off, -1, frame
	f.c.open = false
	f.Parts = f.one[:1]
	return true
}

// deliver puts a whole frame, whose Ethernet header is written here, before a port.
func (o *output) deliver(p *Endpoint, frame []byte, rest Rest, off Offload) Reason {
	p.ethernet(frame, o.asks.macOf(p, destination(frame)), binary.BigEndian.Uint16(frame[12:]))
	if !o.add(p, frame, off) {
		return DropPortFull
	}
	o.frames[len(o.frames)-1].Rest = rest
	return none
}

// coalesced is a frame that packets of one flow join (generic receive offload): their payloads
// follow the first's.
type coalesced struct {
	open    bool
	h       header
	headers int    // of the packet, up to the payload
	size    int    // payload of each packet but the last
	total   int    // length of the whole as a packet
	next    uint32 // TCP: sequence number that would follow
	id      uint16 // IPv4: identification that would follow
	push    bool
}

// maxRecent is how many flows may be joined at a time.
const maxRecent = 8

// write gives the guest a frame.
func (p *Endpoint) write(f *PortFrame) bool {
	if p.Port == nil || p.Lost {
		return false
	}
	if f.Rest == nil {
		return p.Port.Write(f.Parts, f.Offload)
	}
	if port, ok := p.Port.(Gatherer); ok {
		return port.WriteWith(f.Parts[0], f.Rest, f.Offload)
	}
	return f.Whole() && p.Port.Write(f.Parts, f.Offload)
}

// write gives a frame to its port, and counts it.
func (o *output) write(f *PortFrame, took func(*PortFrame)) {
	if !f.To.write(f) {
		o.refused(f)
		return
	}
	o.wrote(f)
	took(f)
}

// wrote counts a frame that a port took.
func (o *output) wrote(f *PortFrame) {
	o.stats.ToPorts++
	for _, b := range f.Parts {
		o.stats.ToPortBytes += uint64(len(b))
	}
	if f.Rest != nil {
		o.stats.ToPortBytes += uint64(f.Rest.Len())
	}
}

// refused counts a frame that a port did not take.
func (o *output) refused(f *PortFrame) { o.stats.drop(f.To, DropPortFull) }
