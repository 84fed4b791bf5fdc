package falcon

// cell holds the payload of one received packet that waits for its turn.
type cell struct {
	next    *cell
	conn    *Conn
	request bool // payload of a peer's request
	buf     []byte
}

// cellPool counts and recycles cells. Memory is allocated when first needed and kept. Requests of peers are limited
// here; pull data is limited by the transactions its initiator was granted, so that it always finds a place
// (Falcon §8.4.3.2).
type cellPool struct {
	free     *cell
	inUse    int
	requests int // of inUse
	limit    int // of requests
	size     int // bytes of a cell
}

// copyRequest stores the payload of a push for c; nil when the pool or the connection's share is used up.
func (p *cellPool) copyRequest(c *Conn, payload []byte, share int) *cell {
	if p.requests >= p.limit || int(c.cells) >= share || len(payload) > p.size {
		return nil
	}
	k := p.copyData(c, payload)
	k.request = true
	p.requests++
	return k
}

// copyData stores pull data.
func (p *cellPool) copyData(c *Conn, payload []byte) *cell {
	k := p.free
	if k != nil {
		p.free = k.next
	} else {
		k = &cell{buf: make([]byte, 0, p.size)}
	}
	p.inUse++
	c.cells++
	k.next, k.conn, k.request = nil, c, false
	k.buf = append(k.buf[:0], payload...)
	return k
}

func (p *cellPool) put(k *cell) {
	if k.request {
		p.requests--
	}
	p.inUse--
	k.conn.cells--
	k.conn = nil
	k.next, p.free = p.free, k
}
