package falcon

import (
	"sort"

	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/pool"
)

// contexts holds the memory for transactions, requests of peers and payload. It counts them, limits
// them by Config and recycles them.
type contexts struct {
	txnLimit  int // Config.TxContexts: transactions of initiators
	txnFree   pool.Pool[txn]
	txns      int // in use
	responses int // of txns: pull responses
	parked    int // of txns: wait for a peer that is not ready, limited by credit.Node.Park

	requestLimit int // Config.RxContexts
	requestsFree pool.Pool[request]
	requests     int // in use
	requestLevel poolLevel

	cells     cellPool
	cellLevel poolLevel // of cells with requests
}

func newContexts(cfg *Config) contexts {
	return contexts{
		txnLimit: cfg.TxContexts, requestLimit: cfg.RxContexts, requestLevel: newPoolLevel(&cfg.Profile.RxPackets, cfg.RxContexts),
		cells: cellPool{limit: cfg.RxCells, bytes: cfg.CellBytes}, cellLevel: newPoolLevel(&cfg.Profile.RxBuffers, cfg.RxCells),
	}
}

// room reports whether another transaction of an initiator can begin. Pull responses have contexts
// of their own (ULP Data of Falcon §8.2.2, CR rule 2); their number is limited by how many requests
// of peers were admitted. Parked transactions, which wait for a peer that is not ready, do not
// count either.
func (x *contexts) room() bool { return x.txns-x.responses-x.parked < x.txnLimit }

// requestRoom returns how many more requests of peers fit.
func (x *contexts) requestRoom() int { return x.requestLimit - x.requests }

// occupancy returns the level of the fuller of the two pools for requests from the network.
func (x *contexts) occupancy() uint8 { return max(x.requestLevel.quantised(), x.cellLevel.quantised()) }

func (x *contexts) newTxn(c *Conn, kind TxnKind) *txn {
	t := x.txnFree.Get()
	x.txns++
	if kind == TxnPullData {
		x.responses++
	}
	t.conn, t.kind, t.firstSent, t.bypassed = c, kind, -1, -1 // putTxn zeroed the rest
	return t
}

// putTxn releases a transaction that is in no list, ring or timer.
func (c *Conn) putTxn(t *txn) {
	x := &c.e.contexts
	if t.parked {
		c.credits.node.Forget(&t.cost)
		c.initiator.unparked(t)
	} else {
		c.credits.release(&t.cost)
	}
	x.txns--
	if t.kind == TxnPullData {
		x.responses--
	}
	*t = txn{}
	x.txnFree.Put(t)
	c.e.waiting.recheck = true
}

func (x *contexts) newRequest(c *Conn) *request {
	req := x.requestsFree.Get()
	x.requests++
	x.requestLevel.update(x.requests)
	req.conn = c
	return req
}

// putRequest releases a request context that is in no ring.
func (c *Conn) putRequest(req *request) {
	c.e.wheel.Stop(&req.timer)
	req.dropPayload()
	c.credits.returnOne(credit.NetPktRx)
	x := &c.e.contexts
	x.requests--
	x.requestLevel.update(x.requests)
	req.gen++
	req.conn, req.state, req.ackReq, req.push = nil, requestDone, false, false
	x.requestsFree.Put(req)
}

func (c *Conn) putCell(k *cell) {
	x := &c.e.contexts
	if k.request {
		c.credits.returnCells(k.size)
	}
	x.cells.put(k)
	x.cellLevel.update(x.cells.requests)
}

// dropPayload releases the payload.
func (req *request) dropPayload() {
	if req.cell != nil {
		req.conn.putCell(req.cell)
	}
	req.cell, req.data = nil, nil
}

// cell holds the payload of one received packet that waits for its turn. It is worth one cell of the
// pool, or several if the payload is longer than one.
type cell struct {
	age     list.Node[cell] // in cellAges
	conn    *Conn
	req     *request // the waiting push that this payload belongs to, else nil
	request bool     // payload of a peer's request
	size    int      // in cells of the pool
	buf     []byte
}

// cellPool counts and recycles cells. Memory is allocated when first needed and then kept, but not
// beyond the limit. The pool limits only cells for the requests of peers. Cells for pull data are
// limited by the transactions that were granted to the initiator, so pull data always finds a cell
// (Falcon §8.4.3.2).
type cellPool struct {
	free     [][]*cell // by size: free[0] is of one cell
	memory   int       // cells that exist, in use or free
	inUse    int
	requests int // of inUse
	limit    int // of requests
	bytes    int // of a cell
	shares   []*share
}

// cellAges lists the payloads that a function's connections hold for requests, oldest first.
type cellAges struct {
	list.List[cell]
	n  int // cells
	at int // in cellPool.shares while n > 0
}

// of returns how many cells a payload takes.
func (p *cellPool) of(payload []byte) int { return max(1, (len(payload)+p.bytes-1)/p.bytes) }

// get returns memory of so many cells. If it has to be allocated, free memory of other sizes makes
// room for it.
func (p *cellPool) get(size int) *cell {
	for len(p.free) < size {
		p.free = append(p.free, nil)
	}
	if of := p.free[size-1]; len(of) > 0 {
		p.free[size-1] = of[:len(of)-1]
		return of[len(of)-1]
	}
	for i := range p.free {
		for of := &p.free[i]; len(*of) > 0 && p.memory+size > p.limit; *of = (*of)[:len(*of)-1] {
			(*of)[len(*of)-1] = nil
			p.memory -= i + 1
		}
	}
	p.memory += size
	return &cell{size: size, buf: make([]byte, 0, size*p.bytes)}
}

// copyData copies pull data into cells.
func (p *cellPool) copyData(c *Conn, payload []byte) *cell {
	k := p.get(p.of(payload))
	k.conn, k.buf = c, append(k.buf[:0], payload...)
	p.inUse += k.size
	c.cells += int32(k.size)
	return k
}

// copyRequest copies the payload of a push that waits into cells.
func (p *cellPool) copyRequest(c *Conn, payload []byte) *cell {
	k := p.copyData(c, payload)
	k.request = true
	p.requests += k.size
	c.requestCells += int32(k.size)
	s := c.share
	s.cells.PushBack(&k.age, k)
	if s.cells.n == 0 {
		s.cells.at = len(p.shares)
		p.shares = append(p.shares, s)
	}
	s.cells.n += k.size
	return k
}

func (p *cellPool) put(k *cell) {
	if k.request {
		p.requests -= k.size
		k.conn.requestCells -= int32(k.size)
		p.leave(k)
	}
	p.inUse -= k.size
	k.conn.cells -= int32(k.size)
	k.conn, k.req, k.request = nil, nil, false
	if p.memory > p.limit {
		p.memory -= k.size
		return
	}
	p.free[k.size-1] = append(p.free[k.size-1], k)
}

func (p *cellPool) leave(k *cell) {
	s := k.conn.share
	k.age.Remove()
	if s.cells.n -= k.size; s.cells.n > 0 {
		return
	}
	last := len(p.shares) - 1
	p.shares[s.cells.at] = p.shares[last]
	p.shares[s.cells.at].cells.at = s.cells.at
	p.shares[last] = nil
	p.shares = p.shares[:last]
}

// largest returns the share that holds the most cells. It returns s unless another share holds more
// cells than s would with n more.
func (p *cellPool) largest(s *share, n int) *share {
	for _, o := range p.shares {
		if o != s && o.cells.n > s.cells.n+n {
			s = o
		}
	}
	return s
}

// poolLevel is the exponential average of a pool's occupancy.
type poolLevel struct {
	ema    float64
	alpha  float64
	levels [OccupancyLevels]float64
}

func newPoolLevel(o *Occupancy, size int) poolLevel {
	p := poolLevel{alpha: o.Alpha}
	for i := range p.levels {
		p.levels[i] = float64(size) * float64(i+1) / (OccupancyLevels + 1)
		if len(o.Levels) != 0 {
			p.levels[i] = float64(o.Levels[i])
		}
	}
	return p
}

// update adds a new occupancy to the average.
func (p *poolLevel) update(inUse int) { p.ema += p.alpha * (float64(inUse) - p.ema) }

// quantised returns the number of thresholds reached. Its steps are half-open, where those of §10.2
// overlap.
func (p *poolLevel) quantised() uint8 {
	if p.ema < p.levels[0] {
		return 0
	}
	return uint8(sort.Search(OccupancyLevels, func(i int) bool { return p.levels[i] > p.ema }))
}
