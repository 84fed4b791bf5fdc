package conn

import (
	"maps"
	"slices"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// Driver hears of its connections.
type Driver interface {
	// Notify sends an event, with private data.
	Notify(e *abi.AsyncEvent, private string)
}

// Memory is where a driver's private data are.
type Memory interface {
	Read(addr uint64, b []byte) error
}

// Function is what a function has of connections: those of its driver, and those that the NICs make
// for its queue pairs and datagrams.
type Function struct {
	Owner
	set    *Functions
	driver Driver

	// While it is in service:
	verbs   *rdma.Function
	mem     Memory
	conns   map[uint32]*connection // by connection manager's id
	ofQP    map[uint32][]uint32    // ids of the connections of a queue pair
	wirings map[uint32]*wiring     // by queue pair: those that ask for a connection
	held    map[wireKey]uint32     // requests for queue pairs that are not in RTR yet
}

// connection is what a function knows of one of its connections.
type connection struct {
	qpn     uint32     // 0 until accepted
	peerQPN uint32     // once open
	ordered bool       // the peer's queue pair is strongly ordered, of one that is not accepted yet
	inError bool       // its requests complete in error, likewise
	wired   bool       // asked for by a NIC, not by a driver
	link    *rdma.Link // then: it carries datagrams
}

// SetLimits follows what the function may have. Each queue pair has one connection and may have
// ended another that the peer has not confirmed; an address handle has one for each ordering; and
// there are those that other functions open to it for datagrams.
func (f *Function) SetLimits(l *verbs.Limits) {
	f.set.cfg.CIDs.SetQuota(f.number(), 2*l.Objects[verbs.KindQP]+2*l.Objects[verbs.KindAH]+l.Links)
}

func (f *Function) number() uint32 { return uint32(f.ID) }

// Start puts the function in service: its driver has enabled it.
func (f *Function) Start(verbs *rdma.Function, mem Memory) {
	f.verbs, f.mem = verbs, mem
	f.conns, f.ofQP = map[uint32]*connection{}, map[uint32][]uint32{}
	f.wirings, f.held = map[uint32]*wiring{}, map[wireKey]uint32{}
	f.listenReserved()
}

// Stop ends all connections of the function, which its driver gives up. What they lead to is over
// when the owner has run the connection manager and taken the transport's events; then follows
// Forget.
func (f *Function) Stop(now falcon.Time) {
	f.set.cfg.Manager.FunctionGone(now, f.number())
	f.verbs, f.mem = nil, nil
}

// Forget drops what is left after Stop.
func (f *Function) Forget() {
	clear(f.conns)
	clear(f.ofQP)
	clear(f.held)
	for qpn := range f.wirings {
		f.unwire(qpn)
	}
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
	f.unbind(id, c)
	c.qpn = qpn
	f.ofQP[qpn] = append(f.ofQP[qpn], id)
}

func (f *Function) unbind(id uint32, c *connection) {
	list := slices.DeleteFunc(f.ofQP[c.qpn], func(other uint32) bool { return other == id })
	if len(list) == 0 {
		delete(f.ofQP, c.qpn)
		return
	}
	f.ofQP[c.qpn] = list
}

// forget drops a connection that has ended.
func (f *Function) forget(id uint32) {
	if c := f.conns[id]; c != nil {
		f.unbind(id, c)
		delete(f.conns, id)
	}
}

// pending says whether a queue pair is already being connected, or still has a connection.
func (f *Function) pending(qpn uint32) bool { return len(f.ofQP[qpn]) > 0 }

// EndQP disconnects what a queue pair had that is now reset, destroyed or in error by its driver's
// wish.
func (f *Function) EndQP(now falcon.Time, qpn uint32) {
	f.unwire(qpn)
	for _, id := range f.ofQP[qpn] {
		_ = f.set.cfg.Manager.Disconnect(now, f.number(), id) // it may have ended by itself already
	}
}

// EndLoopbacks disconnects the function from others of this NIC: on its link packets can be lost, in
// here nothing ever is.
func (f *Function) EndLoopbacks(now falcon.Time) {
	for _, id := range f.IDs() {
		if s := f.set.cfg.Table.ByID(id); s != nil && s.Loop != nil {
			_ = f.set.cfg.Manager.Disconnect(now, f.number(), id)
		}
	}
	f.set.cfg.Manager.Run(now)
}
