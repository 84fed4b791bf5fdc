package conn

import (
	"maps"
	"slices"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// Links tells which links of datagrams want a connection.
type Links interface {
	NextLink() *rof.Link
}

// Driver hears of its connections.
type Driver interface {
	// Notify sends an event, with private data.
	Notify(e *abi.AsyncEvent, private string)
	// Behind reports, and counts, that the driver does not take its events, so that it gets no
	// further connections.
	Behind() bool
}

// Memory is where a driver's private data are.
type Memory interface {
	Read(addr uint64, b []byte) error
}

// FunctionsConfig is what the functions of a shard work with.
type FunctionsConfig struct {
	MTU     int // largest path MTU
	Table   *Table
	Manager Requests
	Links   Links
	RDMA    *rof.Engine // makes connections of queue pairs and links
	Wires   OtherWires  // nil: Falcon is all there is
	Log     Log
}

// OtherWires are those beside Falcon that queue pairs may be connected by.
type OtherWires interface {
	// Wire connects a queue pair whose driver named its peer, if that is not reached over Falcon.
	Wire(now falcon.Time, f *Function, of *rdma.Function, q *verbs.QP) Way
}

// Way is how a peer is reached.
type Way uint8

// Ways.
const (
	OverFalcon Way = iota
	Connected      // over another wire; that is done
	Later          // over another wire, not yet
)

// Functions are those of a shard. They stand between their drivers and queue pairs, the connection
// manager, and the table.
type Functions struct {
	cfg       FunctionsConfig
	byID      map[uint32]*Function
	rewire    []*wiring // attempts to be made again, the next first
	epoch     uint32    // of the function that was put in service last
	questions map[uint64]question
	asked     uint64 // number of the last question
}

// NewFunctions returns a shard's, of which there are none yet.
func NewFunctions(c FunctionsConfig) *Functions {
	return &Functions{cfg: c, byID: map[uint32]*Function{}, questions: map[uint64]question{}}
}

// Function is what a function has of connections: those of its driver, and those that the NICs make
// for its queue pairs and datagrams.
type Function struct {
	Owner
	set    *Functions
	driver Driver

	// While it is in service:
	epoch   uint32 // which time it is; 0: it is not in service
	verbs   *rdma.Function
	mem     Memory
	conns   map[uint32]*connection // by connection manager's id
	ofQP    map[uint32][]uint32    // ids of the connections of a queue pair
	asking  map[uint32]*attempt    // by queue pair: requests without an answer
	wirings map[uint32]*wiring     // by queue pair: those that ask for a connection
	held    map[wireKey]held       // requests for queue pairs that are not in RTR yet
}

// connection is what a function knows of one of its connections.
type connection struct {
	qpn     uint32    // 0 until accepted
	peerQPN uint32    // once open
	ordered bool      // the peer's queue pair is strongly ordered, of one that is not accepted yet
	inError bool      // its requests complete in error, likewise
	wired   bool      // asked for by a NIC, not by a driver
	link    *rof.Link // then: it carries datagrams
}

// wiring is a queue pair in RTR or later whose connection is not there yet.
type wiring struct {
	f *Function
	wireKey
	id   uint32      // of the attempt under way; 0: none, or without an answer
	at   falcon.Time // of the next attempt
	gone bool        // wired, or the queue pair ended
}

// wireKey names both ends as a request does: ours first.
type wireKey struct {
	qpn, peer uint32
	own, gid  [16]byte
}

// held is a request for a queue pair that is not in RTR yet.
type held struct {
	id   uint32
	from uint32 // function that asks
}

func (f *Function) number() uint32 { return uint32(f.ID) }

// SetLimits follows what the function may have. Each queue pair has one connection and may have
// ended another that the peer has not confirmed; an address handle has one for each ordering; and
// there are those that other functions open to it for datagrams.
func (f *Function) SetLimits(l *verbs.Limits) {
	f.tell(Request{Kind: Quota, N: uint32(2*l.Objects[abi.ObjectQP] + 2*l.Objects[abi.ObjectAH] + l.Links)})
}

// IDs lists the connection manager's ids of the function's connections.
func (f *Function) IDs() []uint32 { return slices.Sorted(maps.Keys(f.conns)) }

// QPs counts the queue pairs that have a connection, or ask for one.
func (f *Function) QPs() int { return len(f.ofQP) }

// Waiting counts queue pairs that ask for a connection, and requests for others that are not ready
// to have one.
func (f *Function) Waiting() (wirings, held int) { return len(f.wirings), len(f.held) }

// bind makes a connection a queue pair's.
func (f *Function) bind(id, qpn uint32) {
	c := f.conns[id]
	if c.qpn == qpn {
		return
	}
	f.unbind(id)
	c.qpn = qpn
	f.ofQP[qpn] = append(f.ofQP[qpn], id)
}

// unbind makes a connection nobody's.
func (f *Function) unbind(id uint32) {
	c := f.conns[id]
	if c == nil {
		return
	}
	list := slices.DeleteFunc(f.ofQP[c.qpn], func(other uint32) bool { return other == id })
	if f.ofQP[c.qpn] = list; len(list) == 0 {
		delete(f.ofQP, c.qpn)
	}
}

// forget drops a connection that has ended.
func (f *Function) forget(id uint32) {
	f.unbind(id)
	delete(f.conns, id)
}

// pending says whether a queue pair is already being connected, or still has a connection.
func (f *Function) pending(qpn uint32) bool { return len(f.ofQP[qpn]) > 0 || f.asking[qpn] != nil }

// attempt is a queue pair's request for a connection that has no answer yet.
type attempt struct {
	f    *Function
	qpn  uint32
	over bool // the queue pair has ended meanwhile
}

func (f *Function) begin(qpn uint32) *attempt {
	a := &attempt{f: f, qpn: qpn}
	f.asking[qpn] = a
	return a
}

// answered notes that the answer is there. It reports whether anybody wants it still.
func (a *attempt) answered() (wanted bool) {
	if a.over {
		return false
	}
	delete(a.f.asking, a.qpn)
	return true
}

// begun takes the answer. A connection that nobody wants any more is ended, as it would have been
// had it been known.
func (a *attempt) begun(is *Answer, c *connection) {
	f, wanted := a.f, a.answered()
	if is.Err != nil {
		return
	}
	f.conns[is.ID] = c
	if !wanted {
		f.tell(Request{Kind: Disconnect, ID: is.ID})
		return
	}
	f.bind(is.ID, a.qpn)
}

// reserved tells that a connection is none of the driver's.
func (f *Function) reserved(id uint32) bool {
	c := f.conns[id]
	return c != nil && c.wired
}

// unwire gives up on a queue pair that has its connection, or has ended.
func (f *Function) unwire(qpn uint32) {
	if w := f.wirings[qpn]; w != nil {
		w.gone = true
		delete(f.wirings, qpn)
	}
}

// sgid is the address that a queue pair sends from: the function's own where its driver named none.
func (f *Function) sgid(q *verbs.QP) [16]byte {
	if gid := q.SGID(); gid != [16]byte{} {
		return gid
	}
	return f.GID()
}

// mtuOf is the path MTU that a queue pair's connection begins with.
func (s *Functions) mtuOf(q *verbs.QP) int {
	if n := q.PathMTU(); n != 0 {
		return min(n, s.cfg.MTU)
	}
	return s.cfg.MTU
}
