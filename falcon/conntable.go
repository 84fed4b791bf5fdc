package falcon

// connTable finds connections by local CID. It is a hash table that chains connections. The low
// bits of the CID are a sufficient hash, because the owner of the engine allocates the CIDs,
// usually from a table of its own.
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
