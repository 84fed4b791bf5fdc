package gateway

// Bounds of the gateway's own replies.
const (
	maxReplies = 64
	replySize  = ethLen + 1280 // an ICMPv6 error of the minimum MTU (RFC 4443 §3.2)
)

// replies is a ring of frames for ports: ARP, neighbour discovery, DHCP and echo answers, ARP
// requests and solicitations, and ICMP errors.
type replies struct {
	frames [maxReplies][replySize]byte
	lens   [maxReplies]int
	ports  [maxReplies]*Endpoint
	head   int
	count  int
}

// flush passes the replies to the output until it is full. Their memory is valid until the next
// reply.
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
