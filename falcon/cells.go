package falcon

import (
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/pool"
)

// cell holds the payload of one received packet that waits for its turn.
type cell struct {
	age     list.Node[cell] // in cellAges
	conn    *Conn
	rx      *rxTxn // the waiting push that this payload belongs to, else nil
	request bool   // payload of a peer's request
	buf     []byte
}

// cellPool counts and recycles cells. Memory is allocated when first needed and then kept. The pool
// limits only cells for the requests of peers. Cells for pull data are limited by the transactions
// that were granted to the initiator, so pull data always finds a cell (Falcon §8.4.3.2).
type cellPool struct {
	free     pool.Pool[cell]
	inUse    int
	requests int // of inUse
	limit    int // of requests
	size     int // bytes of a cell
	shares   []*share
}

// cellAges lists the cells that a function's connections hold for requests, oldest first.
type cellAges struct {
	list.List[cell]
	n  int
	at int // in cellPool.shares while n > 0
}

// copyData copies pull data into a cell.
func (p *cellPool) copyData(c *Conn, payload []byte) *cell {
	k := p.free.Get()
	if k.buf == nil {
		k.buf = make([]byte, 0, p.size)
	}
	p.inUse++
	c.cells++
	*k = cell{conn: c, buf: append(k.buf[:0], payload...)}
	return k
}

// copyRequest copies the payload of a push that waits into a cell.
func (p *cellPool) copyRequest(c *Conn, payload []byte) *cell {
	k := p.copyData(c, payload)
	k.request = true
	p.requests++
	c.requestCells++
	s := c.share
	s.cells.PushBack(&k.age, k)
	if s.cells.n++; s.cells.n == 1 {
		s.cells.at = len(p.shares)
		p.shares = append(p.shares, s)
	}
	return k
}

func (p *cellPool) put(k *cell) {
	if k.request {
		p.requests--
		k.conn.requestCells--
		p.leave(k)
	}
	p.inUse--
	k.conn.cells--
	k.conn, k.rx = nil, nil
	p.free.Put(k)
}

func (p *cellPool) leave(k *cell) {
	s := k.conn.share
	k.age.Remove()
	if s.cells.n--; s.cells.n > 0 {
		return
	}
	last := len(p.shares) - 1
	p.shares[s.cells.at] = p.shares[last]
	p.shares[s.cells.at].cells.at = s.cells.at
	p.shares[last] = nil
	p.shares = p.shares[:last]
}

// largest returns the share that holds the most cells. It returns s unless another share holds more
// cells than s would with one more.
func (p *cellPool) largest(s *share) *share {
	for _, o := range p.shares {
		if o != s && o.cells.n > s.cells.n+1 {
			s = o
		}
	}
	return s
}
