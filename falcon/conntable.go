package falcon

// connTable finds connections by local CID: a hash table with chains through the connections. The
// low bits are hash enough, since the owner of the engine gives out the CIDs, and from a table of
// its own as a rule.
type connTable struct {
	chains []*Conn // a power of two
	n      int
}

func (t *connTable) find(cid CID) *Conn {
	if len(t.chains) == 0 {
		return nil
	}
	c := t.chains[cid&CID(len(t.chains)-1)]
	for c != nil && c.localCID != cid {
		c = c.nextConn
	}
	return c
}

func (t *connTable) add(c *Conn) {
	if t.n == len(t.chains) {
		t.grow()
	}
	t.n++
	t.link(c)
}

func (t *connTable) link(c *Conn) {
	chain := &t.chains[c.localCID&CID(len(t.chains)-1)]
	c.nextConn, *chain = *chain, c
}

func (t *connTable) grow() {
	old := t.chains
	t.chains = make([]*Conn, max(2*len(old), 64))
	for _, c := range old {
		for c != nil {
			next := c.nextConn
			t.link(c)
			c = next
		}
	}
}

func (t *connTable) remove(c *Conn) {
	at := &t.chains[c.localCID&CID(len(t.chains)-1)]
	for *at != c {
		at = &(*at).nextConn
	}
	*at, c.nextConn = c.nextConn, nil
	t.n--
}
