package falcon

// Prefetch reads a word of each cache line of the connection that Push and Transmit need. The
// processor fetches them side by side, and those of several connections too, while one use after
// the other would wait for each: that is most of a packet's time when thousands of connections take
// turns. Call it for some connections before the first of them is used. (Prefetch instructions,
// which need assembly, measured no better.)
func (c *Conn) Prefetch() {
	c.e.prefetched += uint32(c.busy) + c.baseRSN + c.txns.Capacity() + c.arSpacing
}

// Prefetch is Conn.Prefetch for the Receive of a packet to that local CID: call it for all packets
// of a batch before the first is received. What only an acknowledgement needs is left out: it comes
// soon after its packet left.
func (e *Engine) Prefetch(cid CID) {
	if c := e.conns.find(cid); c != nil {
		e.prefetched += uint32(c.busy) + c.baseRSN + c.lastT1 + c.rxs.Capacity()
	}
}
