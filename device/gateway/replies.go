package gateway

// Bounds of what the gateway itself has to say.
const (
	maxReplies = 64
	replySize  = ethLen + 1280 // an ICMPv6 error of the minimum MTU (RFC 4443 §3.2)
)

// replies is a ring of frames for ports: answers of ARP, neighbour discovery and DHCP, and errors.
type replies struct {
	frames [maxReplies][replySize]byte
	lens   [maxReplies]int
	ports  [maxReplies]*Endpoint
	head   int
	count  int
}

// reply returns the memory of a frame of n bytes to the port's guest, with its Ethernet header, nil
// when the ring is full.
func (g *Gateway) reply(p *Endpoint, etherType uint16, n int) []byte {
	r := &g.replies
	if r.count == maxReplies {
		g.drop(p, DropReplyFull)
		return nil
	}
	i := (r.head + r.count) % maxReplies
	r.lens[i], r.ports[i] = n, p
	r.count++
	f := r.frames[i][:n]
	p.ethernet(f, etherType)
	return f
}

// flush hands the replies to the output, as far as it takes them. They stay where they are until
// the next reply.
func (r *replies) flush(o *output) {
	for r.count > 0 {
		if !o.add(r.ports[r.head], r.frames[r.head][:r.lens[r.head]], Offload{}) {
			return
		}
		r.ports[r.head] = nil
		r.head = (r.head + 1) % maxReplies
		r.count--
	}
}
