package gateway

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
}

func (o *output) init() {
	o.frames = make([]PortFrame, 0, maxOut)
	o.reset()
}

func (o *output) reset() {
	o.frames, o.used = o.frames[:0], 0
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
	f.To, f.Offload, f.list, f.one[0] = p, off, -1, frame
	f.c.open = false
	f.Parts = f.one[:1]
	return true
}

// Output completes the frames for ports and returns them. They are good until Done, and until the
// memory of what came in is used again.
func (g *Gateway) Output() []PortFrame {
	g.replies.flush(&g.out)
	for i := range g.out.frames {
		f := &g.out.frames[i]
		if len(f.Parts) > 1 {
			f.finish()
		}
	}
	return g.out.frames
}

// Waiting tells whether there is output.
func (g *Gateway) Waiting() bool { return len(g.out.frames) > 0 || g.replies.count > 0 }

// Done says that the frames of Output were written; those that a port did not take are counted by
// Refused.
func (g *Gateway) Done() { g.out.reset() }

// Deliver gives the ports what there is for them. What a port does not take is dropped and counted,
// as any network interface does. took hears of each frame that one took.
func (g *Gateway) Deliver(took func(*PortFrame)) {
	if !g.Waiting() {
		return
	}
	frames := g.Output()
	for i := range frames {
		f := &frames[i]
		if !f.plain() && !f.To.accepts(f.Offload) {
			g.deliverSingly(f, took)
			continue
		}
		g.write(f, took)
	}
	g.Done()
}

func (g *Gateway) write(f *PortFrame, took func(*PortFrame)) {
	if !f.To.write(f) {
		g.Refused(f)
		return
	}
	g.Wrote(f)
	took(f)
}

// Wrote counts a frame that a port took.
func (g *Gateway) Wrote(f *PortFrame) {
	g.stats.ToPorts++
	for _, b := range f.Parts {
		g.stats.ToPortBytes += uint64(len(b))
	}
}

// Refused counts a frame that a port did not take.
func (g *Gateway) Refused(f *PortFrame) { g.drop(f.To, DropPortFull) }
