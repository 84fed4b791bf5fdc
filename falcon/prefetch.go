package falcon

// Prefetch reads one word of each cache line of the connection that Push and Transmit need. The
// processor fetches these lines, and those of several connections, in parallel; without Prefetch
// each use would wait for its line, which is most of a packet's time when thousands of connections
// take turns. Call it for several connections before the first of them is used. (Prefetch
// instructions, which need assembly, measured no better.)
func (c *Conn) Prefetch() {
	c.e.prefetched += uint32(c.busy) + c.baseRSN + c.txns.Capacity() + c.arSpacing
}

// Prefetch does what Conn.Prefetch does, for the Receive of a packet to that local CID. Call it for
// all packets of a batch before the first is received. It leaves out the lines that only an
// acknowledgement needs, because those were used shortly before, when the acknowledged packet was
// sent.
func (e *Engine) Prefetch(cid CID) {
	if c := e.conns.find(cid); c != nil {
		e.prefetched += uint32(c.busy) + c.baseRSN + c.lastT1 + c.rxs.Capacity()
	}
}
