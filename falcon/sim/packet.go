package sim

const (
	// MTU is the largest ULP part of a packet in a Network. Larger operations take several packets.
	MTU = 4096
	// Overhead is what a frame contains besides the Falcon packet: preamble, gap and FCS 24,
	// Ethernet 14, IPv4 20, UDP 8, PSP 24, inner IPv4 20, ICV 16 bytes.
	Overhead = 126
	// hops is the forward hop count of every packet: one switch.
	hops = 1

	maxPacket = 64 + MTU
	maxFrame  = maxPacket + Overhead
	picos     = 1000
)

// packet is a Falcon packet in the network.
type packet struct {
	next    *packet
	n       int      // bytes of the Falcon packet
	dst     int      // host
	from    *history // of the end that sent it
	t1      uint32
	ce      bool
	window  int8 // of the PSN: request, data, −1 for acknowledgements
	psn     uint32
	release uint64 // index of the frame after which a held packet is sent
	copied  bool   // this is a copy that the network made
	buf     [maxPacket]byte
}

// packets holds packets that are free for use.
type packets struct{ free *packet }

func (a *packets) get() *packet {
	p := a.free
	if p == nil {
		return new(packet)
	}
	a.free = p.next
	p.next, p.ce, p.copied = nil, false, false
	return p
}

// copy returns a copy of a packet.
func (a *packets) copy(p *packet) *packet {
	q := a.get()
	q.n, q.dst, q.from, q.t1, q.ce, q.window, q.psn, q.copied = p.n, p.dst, p.from, p.t1, p.ce, p.window, p.psn, true
	copy(q.buf[:q.n], p.buf[:p.n])
	return q
}

func (a *packets) put(p *packet) {
	p.next, p.from = a.free, nil
	a.free = p
}
