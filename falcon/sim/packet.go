package sim

const (
	// MTU is the default of NetworkConfig.MTU, and MaxMTU its maximum.
	MTU, MaxMTU = 4096, 1 << 15
	// Overhead is what a frame contains besides the Falcon packet: preamble, gap and FCS 24,
	// Ethernet 14, IPv4 20, UDP 8, PSP 24, inner IPv4 20, ICV 16 bytes.
	Overhead = 126
	// hops is the forward hop count of every packet: one switch.
	hops = 1

	headers = 64 // of a Falcon packet, at most
	picos   = 1000
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
	buf     []byte
}

// packets holds packets that are free for use.
type packets struct {
	free   *packet
	length int // of a packet, at most
}

func (a *packets) get() *packet {
	p := a.free
	if p == nil {
		return &packet{buf: make([]byte, a.length)}
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
