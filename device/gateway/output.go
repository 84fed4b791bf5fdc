package gateway

import "encoding/binary"

// Bounds of one Step's output for the ports.
const (
	maxOut   = 2176 // frames: one batch of packets from the uplink, and the replies
	maxLists = 64   // frames of several packets
	maxParts = 128  // packets in one
)

// PortFrame is a frame for a port; Parts are consecutive.
type PortFrame struct {
	To    *Endpoint
	Parts [][]byte
	Rest  Rest // follows Parts; may be nil
	Offload

	one  [1][]byte
	list int // index in output.lists; -1: none
	c    coalesced
}

// output collects frames for ports until they are written. They use the memory of the input.
type output struct {
	frames []PortFrame
	lists  [maxLists][maxParts][]byte
	used   int            // number of lists in use
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

// add appends a frame of one part. It returns false if there is no room.
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

// deliver queues a whole frame for a port and writes its Ethernet header.
func (o *output) deliver(p *Endpoint, frame []byte, rest Rest, off Offload) Reason {
	p.ethernet(frame, o.asks.macOf(p, destination(frame)), binary.BigEndian.Uint16(frame[12:]))
	if !o.add(p, frame, off) {
		return DropPortFull
	}
	o.frames[len(o.frames)-1].Rest = rest
	return none
}

// coalesced describes a frame that packets of one flow join (generic receive offload). Their
// payloads follow the first packet's.
type coalesced struct {
	open    bool
	h       header
	headers int    // length of the headers in front of the payload
	size    int    // payload of each packet but the last
	total   int    // length of the whole as one IP packet
	next    uint32 // TCP: sequence number that would follow
	id      uint16 // IPv4: identification that would follow
	push    bool
}

// maxRecent is the number of flows that can be joined at the same time.
const maxRecent = 8

// write sends the guest a frame.
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

// write writes a frame to its port and counts it.
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
