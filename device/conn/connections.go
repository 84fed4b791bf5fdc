package conn

import (
	"maps"
	"slices"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/internal/tape"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// Driver receives the events of its connections.
type Driver interface {
	// Notify sends an event, with private data.
	Notify(e *abi.AsyncEvent, private string)
	// Behind reports whether the driver is behind with its events and gets no further connections.
	// It counts the cases in which it is.
	Behind() bool
}

// ConnectorConfig is the configuration of a Connector.
type ConnectorConfig struct {
	MTU     int // largest segment
	Table   *Table
	Manager Requests
	RDMA    *rof.Engine // creates the RDMA side of connections, for queue pairs and links, which it asks for
	Tape    *tape.Tape  // passes the numbers of epochs, nil: there is none
	Log     Log
	// Elsewhere connects a queue pair whose driver named its peer, if the peer is not reached over
	// Falcon; nil: all peers are.
	Elsewhere func(now falcon.Time, f *Connections, of *rdma.Function, q *verbs.QP) Way
}

// Way says how a peer is reached.
type Way uint8

// Ways.
const (
	OverFalcon Way = iota
	Connected      // connected over another transport
	Later          // over another transport, but not yet possible
)

// Connector connects the drivers and queue pairs of a shard's functions with the connection manager
// and the table.
type Connector struct {
	cfg       ConnectorConfig
	byID      map[uint32]*Connections
	rewire    []*wiring // attempts to be made again, in order of time
	questions map[Question]question
	begun     map[uint32]uint32 // the last epoch of each function. It is the same whatever other functions do
}

// NewConnector returns a Connector without functions.
func NewConnector(c ConnectorConfig) *Connector {
	return &Connector{cfg: c, byID: map[uint32]*Connections{}, questions: map[Question]question{}, begun: map[uint32]uint32{}}
}

// Connections holds the connections of a function: those of its driver, and those that the NICs
// make for its queue pairs and datagrams.
type Connections struct {
	Owner
	connector *Connector
	driver    Driver

	// While it is in service:
	epoch   uint32 // number of this period in service; 0: not in service
	asked   uint32 // questions so far
	verbs   *rdma.Function
	mem     *queues.Memory         // of its driver
	conns   map[uint32]*connection // by the connection manager's id
	ofQP    map[uint32][]uint32    // ids of the connections of a queue pair
	asking  map[uint32]*attempt    // by queue pair: requests that have no answer yet
	wirings map[uint32]*wiring     // by queue pair: those that need a connection
	held    map[wireKey]held       // requests for queue pairs that are not in RTR yet
}

// connection is a function's record of one of its connections.
type connection struct {
	qpn     uint32    // 0 until accepted
	peerQPN uint32    // once open
	ordered bool      // not yet accepted: the peer's queue pair is strongly ordered
	inError bool      // not yet accepted: the peer's requests complete in error
	wired   bool      // asked for by a NIC, not by a driver
	link    *rof.Link // if wired: the link whose datagrams it carries
	over    bool      // its queue pair has ended: it is disconnected, and not opened any more
}

// wiring is a queue pair in RTR or a later state that has no connection yet.
type wiring struct {
	f *Connections
	wireKey
	id   uint32      // of the attempt under way; 0: none, or not answered yet
	at   falcon.Time // of the next attempt
	gone bool        // it has a connection, or the queue pair ended
}

// wireKey identifies both ends as a request does, the local end first.
type wireKey struct {
	qpn, peer uint32
	own, gid  [16]byte
}

// held is a request for a queue pair that is not in RTR yet.
type held struct {
	id   uint32
	from uint32 // the requesting function
}

func (f *Connections) number() uint32 { return uint32(f.ID) }

// SetLimits sets the function's CID quota from its limits. Each queue pair has one connection, and
// may have ended another that the peer has not confirmed. An address handle has one for each
// ordering. Other functions open connections to it for datagrams.
func (f *Connections) SetLimits(l *verbs.Limits) {
	f.tell(Request{Kind: Quota, N: uint32(2*l.Objects[abi.ObjectQP] + 2*l.Objects[abi.ObjectAH] + l.Links)})
}

// IDs lists the connection manager's ids of the function's connections.
func (f *Connections) IDs() []uint32 { return slices.Sorted(maps.Keys(f.conns)) }

// QPs returns the number of queue pairs that have a connection, or one that is being made.
func (f *Connections) QPs() int { return len(f.ofQP) }

// Waiting returns the number of queue pairs that need a connection, and of held requests for queue
// pairs that are not ready for one.
func (f *Connections) Waiting() (wirings, held int) { return len(f.wirings), len(f.held) }

// bind assigns a connection to a queue pair.
func (f *Connections) bind(id, qpn uint32) {
	c := f.conns[id]
	if c.qpn == qpn {
		return
	}
	f.unbind(id)
	c.qpn = qpn
	f.ofQP[qpn] = append(f.ofQP[qpn], id)
}

// unbind separates a connection from its queue pair.
func (f *Connections) unbind(id uint32) {
	c := f.conns[id]
	if c == nil {
		return
	}
	list := slices.DeleteFunc(f.ofQP[c.qpn], func(other uint32) bool { return other == id })
	if f.ofQP[c.qpn] = list; len(list) == 0 {
		delete(f.ofQP, c.qpn)
	}
}

// forget removes a connection that has ended.
func (f *Connections) forget(id uint32) {
	f.unbind(id)
	delete(f.conns, id)
}

// pending reports whether a queue pair is being connected, or still has a connection.
func (f *Connections) pending(qpn uint32) bool { return len(f.ofQP[qpn]) > 0 || f.asking[qpn] != nil }

// attempt is a queue pair's request for a connection that has no answer yet.
type attempt struct {
	f    *Connections
	qpn  uint32
	over bool // the queue pair has ended meanwhile
}

func (f *Connections) begin(qpn uint32) *attempt {
	a := &attempt{f: f, qpn: qpn}
	f.asking[qpn] = a
	return a
}

// answered records that the answer has come. It reports whether the queue pair still wants it.
func (a *attempt) answered() (wanted bool) {
	if a.over {
		return false
	}
	delete(a.f.asking, a.qpn)
	return true
}

// begun handles the answer. If the queue pair no longer wants the connection, it is disconnected.
func (a *attempt) begun(is *Answer, c *connection) {
	f, wanted := a.f, a.answered()
	if is.Err != nil {
		return
	}
	f.conns[is.ID] = c
	if !wanted {
		c.over = true
		f.tell(Request{Kind: Disconnect, ID: is.ID})
		return
	}
	f.bind(is.ID, a.qpn)
}

// reserved reports whether a connection belongs to the NIC, not to the driver.
func (f *Connections) reserved(id uint32) bool {
	c := f.conns[id]
	return c != nil && c.wired
}

// unwire stops connecting a queue pair that has its connection, or has ended.
func (f *Connections) unwire(qpn uint32) {
	if w := f.wirings[qpn]; w != nil {
		w.gone = true
		delete(f.wirings, qpn)
	}
}

// sgid returns the address that a queue pair sends from: the function's own if its driver named
// none.
func (f *Connections) sgid(q *verbs.QP) [16]byte {
	if gid := q.SGID(); gid != [16]byte{} {
		return gid
	}
	return f.GID()
}

// segmentOf returns the segment to ask for in a queue pair's connection. Drivers know path MTUs of up
// to 4096 bytes: one that names the largest of its function leaves it to the NIC.
func (s *Connector) segmentOf(q *verbs.QP) int {
	if n := q.PathMTU(); n != 0 && n < abi.PathMTUFor(s.cfg.MTU).Bytes() {
		return n
	}
	return s.cfg.MTU
}

// Add adds a function, which is not in service yet.
func (s *Connector) Add(o Owner, d Driver) *Connections {
	f := &Connections{Owner: o, connector: s, driver: d}
	s.byID[f.number()] = f
	return f
}

// Remove removes a function, which must be out of service.
func (s *Connector) Remove(f *Connections) {
	f.tell(Request{Kind: Quota})
	delete(s.byID, f.number())
}

// Start puts the function in service: its driver has enabled it.
func (f *Connections) Start(verbs *rdma.Function, mem *queues.Memory) {
	f.verbs, f.mem = verbs, mem
	f.conns, f.ofQP, f.asking = map[uint32]*connection{}, map[uint32][]uint32{}, map[uint32]*attempt{}
	f.wirings, f.held = map[uint32]*wiring{}, map[wireKey]held{}
	c := f.connector
	c.cfg.Tape.Place(f.number(), 0, 0)
	f.epoch, f.asked = uint32(c.cfg.Tape.Number(tape.Epoch, uint64(c.begun[f.number()]+1))), 0
	c.begun[f.number()] = f.epoch
	f.tell(Request{Kind: Begin, Epoch: f.epoch})
}

// Stop takes the function out of service, when its driver releases it. Later Decisions and Answers for
// this epoch are ignored. The owner closes the function's objects; then Close and Forget must
// follow.
func (f *Connections) Stop() {
	if f.epoch != 0 {
		f.tell(Request{Kind: Gone})
	}
	f.epoch = 0
	f.verbs, f.mem = nil, nil
}

// Close closes the open connections, after Stop. They have ended when the owner has handled the
// transport's events.
func (f *Connections) Close(now falcon.Time) {
	for _, id := range f.IDs() {
		f.connector.cfg.Table.Close(now, id, cm.ReasonFunctionGone)
	}
}

// Forget clears the remaining state after Close.
func (f *Connections) Forget() {
	clear(f.conns)
	clear(f.ofQP)
	clear(f.asking)
	clear(f.held)
	for qpn := range f.wirings {
		f.unwire(qpn)
	}
}

// EndQP disconnects a queue pair that its driver has reset, destroyed or moved to the error state.
func (f *Connections) EndQP(now falcon.Time, qpn uint32) {
	f.unwire(qpn)
	if a := f.asking[qpn]; a != nil {
		a.over = true
		delete(f.asking, qpn)
	}
	for _, id := range f.ofQP[qpn] {
		f.end(now, id)
	}
}

// end closes a connection at once and then tells the connection manager, whose decision to open it
// may be on its way. It may have ended by itself.
func (f *Connections) end(now falcon.Time, id uint32) {
	f.conns[id].over = true
	f.connector.cfg.Table.Close(now, id, cm.ReasonLocal)
	f.tell(Request{Kind: Disconnect, ID: id})
}

// EndLoopbacks disconnects the function from other functions of this NIC, when its link goes
// down. Connections to other NICs end because their packets are lost then; inside the NIC no
// packet ever is.
func (f *Connections) EndLoopbacks(now falcon.Time) {
	for _, id := range f.IDs() {
		if s := f.connector.cfg.Table.ByID(id); s != nil && s.Keys == nil {
			f.end(now, id)
		}
	}
}

// HandleEvent handles a transport event of a connection.
func (s *Connector) HandleEvent(now falcon.Time, ev *falcon.Event) {
	s.cfg.Table.HandleEvent(now, ev)
	if ev.Kind == falcon.EvClosed {
		s.Ended()
	}
}

// Ended tells the connection manager, and through it the peer, of connections that ended in this
// shard.
func (s *Connector) Ended() {
	for e, ok := s.cfg.Table.NextEnded(); ok; e, ok = s.cfg.Table.NextEnded() {
		if e.ID == 0 { // a queue pair connected with itself (wireSelf)
			s.cfg.Manager.Ask(Request{Kind: GiveCID, Function: e.Function, N: e.CID})
			continue
		}
		s.cfg.Manager.Ask(Request{Kind: Disconnect, Function: e.Function, ID: e.ID})
	}
}

// Deadline returns when the functions, or their table, next have something to do.
func (s *Connector) Deadline() falcon.Time {
	at := vtime.Never
	if len(s.rewire) > 0 {
		at = s.rewire[0].at
	}
	return min(at, s.cfg.Table.Deadline())
}
