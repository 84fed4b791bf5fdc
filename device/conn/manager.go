package conn

import (
	"io"
	"log/slog"
	"net/netip"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
)

// Message goes to the connection manager of another NIC. Data is the reader's.
type Message struct {
	Host cm.HostID
	Data []byte
}

// PeerKeys has the keys that are agreed with other NICs.
type PeerKeys interface {
	RxSA(u cm.Use) (cm.SA, error)
	ForgetSAs(peer cm.HostID)
	Receive(p *cm.Params) (Receiving, error)  // for a connection that is about to be opened
	HandleKeys(now falcon.Time, o *cm.Output) // an output of the kinds OutRekey, OutRekeyed and OutRekeyWanted
}

// Ports is told when a peer has other ports than before.
type Ports interface {
	PortsChanged(now falcon.Time, host cm.HostID)
}

// Neighbours finds the way to an underlay address in time.
type Neighbours interface {
	Resolve(now falcon.Time, addr netip.Addr)
}

// Shards takes what is for the functions of each shard, in order: Functions.Answer and
// Functions.Order.
type Shards interface {
	Answer(shard int, a Answer)
	Order(shard int, o Order)
}

// Order is what is decided for a function.
type Order struct {
	cm.Output
	Epoch    uint32     // in which the function was in service
	Underlay netip.Addr // of the NIC at the other end of a connection to be opened; none: this one
	Keys     Receiving  // of such a connection with another NIC
}

// Receiving is what is accepted on one connection: the part of its keys that this NIC has issued.
type Receiving interface {
	Release() // the connection is over, or not opened after all; it may be called again
}

// ManagerConfig is what a connection manager works with.
type ManagerConfig struct {
	Host       cm.HostID
	MTU        int // largest path MTU
	Peers      []cm.Peer
	CIDs       []*CIDs             // of each shard
	Home       func(fn uint32) int // the shard that a function belongs to
	Shards     Shards
	Keys       PeerKeys
	Ports      Ports
	Neighbours Neighbours
	Log        Log
}

// Manager is the NIC's connection manager with what it knows of the peers. It decides; shards carry
// out (Orders), and say what became of it by Requests.
type Manager struct {
	*cm.Manager
	cfg    ManagerConfig
	peers  map[cm.HostID]*peer
	epochs map[uint32]uint32              // of functions that were in service
	selves map[uint32]map[uint32]struct{} // CIDs of queue pairs connected with themselves, by function
	output cm.Output
	send   []Message
}

// peer is another NIC.
type peer struct {
	underlay netip.Addr
	up       bool // the link to its connection manager
}

// NewManager returns a connection manager that serves no functions yet.
func NewManager(c ManagerConfig, rand io.Reader) (*Manager, error) {
	m := &Manager{cfg: c, peers: map[cm.HostID]*peer{}, epochs: map[uint32]uint32{}, selves: map[uint32]map[uint32]struct{}{}}
	for _, p := range c.Peers {
		m.peers[p.Host] = &peer{underlay: p.Underlay}
	}
	var err error
	m.Manager, err = cm.New(cm.Config{
		Host: c.Host, MTU: c.MTU + headers, Peers: c.Peers, MaxListeners: driverListeners + reservedListeners,
		MaxPerFunction: MaxSlots,                       // its quota of CIDs bounds what it uses, the backlog what it has not answered
		MaxPerPeer:     MaxSlots * 7 / 8 * len(c.CIDs), // no peer takes the last ones
	}, resources{m}, rand)
	return m, err
}

// resources is what connections take, as the protocol's manager asks for it.
type resources struct{ m *Manager }

var _ cm.Resources = resources{}

func (r resources) AllocCID(fn uint32) (uint32, error) { return r.m.cids(fn).Alloc(fn) }

// FreeCID implements cm.Resources. What still parts in its slot makes way when the CID's successor
// opens.
func (r resources) FreeCID(cid uint32) { r.m.cfg.CIDs[ShardOf(cid)].Free(cid) }

func (r resources) RxSA(u cm.Use) (cm.SA, error) {
	return r.m.cfg.Keys.RxSA(u)
}

func (r resources) ForgetSAs(peer cm.HostID) { r.m.cfg.Keys.ForgetSAs(peer) }

// Run gives out what was decided: messages, orders for shards, news of keys and ports.
func (m *Manager) Run(now falcon.Time) {
	for m.Next(&m.output) {
		o := m.output // Next is called again in the middle of some
		switch {
		case o.Kind == cm.OutSend && o.Peer == m.cfg.Host: // to another of our functions
			if err := m.Receive(now, o.Peer, o.Msg); err != nil {
				m.cfg.Log(now, slog.LevelWarn, "local connection message", "err", err)
			}
		case o.Kind == cm.OutSend:
			m.send = append(m.send, Message{Host: o.Peer, Data: o.Msg})
			m.cfg.Neighbours.Resolve(now, m.peers[o.Peer].underlay) // packets are likely to follow
		case o.Kind == cm.OutRefused:
			m.cfg.Log(now, slog.LevelWarn, "a peer tells of addresses that it does not get", "peer", o.Peer, "addresses", o.Refused.String())
		case o.Kind == cm.OutPorts:
			m.cfg.Ports.PortsChanged(now, o.Peer)
		case o.Kind >= cm.OutRekey:
			m.cfg.Keys.HandleKeys(now, &o)
		default:
			m.order(now, &o)
		}
	}
}

// order gives an output to the shard that its function belongs to.
func (m *Manager) order(now falcon.Time, o *cm.Output) {
	order := Order{Output: *o, Epoch: m.epochs[o.Function]}
	if p := o.Params; p != nil && p.Peer != m.cfg.Host {
		order.Underlay = m.peers[p.Peer].underlay
		var err error
		if order.Keys, err = m.cfg.Keys.Receive(p); err != nil {
			m.cfg.Log(now, slog.LevelWarn, "connection not opened", "function", p.Function, "peer", p.Peer, "err", err)
			_ = m.Disconnect(now, p.Function, p.ID)
			return
		}
	}
	m.cfg.Shards.Order(m.cfg.Home(o.Function), order)
}

// Take carries out what a shard asks.
func (m *Manager) Take(now falcon.Time, r *Request) {
	a := Answer{Question: r.Question}
	a.ID, a.Err = m.carryOut(now, r)
	if a.Question != 0 {
		m.cfg.Shards.Answer(m.cfg.Home(r.Function), a)
	}
	m.Run(now)
}

func (m *Manager) carryOut(now falcon.Time, r *Request) (id uint32, err error) {
	fn := r.Function
	switch r.Kind {
	case Begin:
		m.begin(fn, r.Epoch)
	case Gone:
		m.FunctionGone(now, fn)
		for cid := range m.selves[fn] {
			m.giveCID(fn, cid)
		}
	case Quota:
		m.cids(fn).SetQuota(fn, int(r.N))
	case Listen:
		err = m.Listen(fn, r.Service)
	case Unlisten:
		err = m.Unlisten(fn, r.Service)
	case Connect:
		id, err = m.Connect(now, *r.Connect)
	case Accept:
		err = m.Accept(now, fn, r.ID, r.N, r.IRD, r.Private)
	case Reject:
		err = m.Reject(now, fn, r.ID, r.N, r.Private)
	case Disconnect:
		err = m.Disconnect(now, fn, r.ID)
	case TakeCID:
		id, err = m.takeCID(fn)
	case GiveCID:
		m.giveCID(fn, r.N)
	}
	return id, err
}

// begin makes a function known to other NICs for their own requests.
func (m *Manager) begin(fn, epoch uint32) {
	m.epochs[fn] = epoch
	for _, service := range []uint64{serviceWire, serviceUD} {
		_ = m.Listen(fn, service) // there is always room
	}
}

// takeCID gives out a CID for a queue pair that is connected with itself. There is nobody to agree
// with, so the protocol's manager does not know of it.
func (m *Manager) takeCID(fn uint32) (uint32, error) {
	cid, err := m.cids(fn).Alloc(fn)
	if err != nil {
		return 0, err
	}
	if m.selves[fn] == nil {
		m.selves[fn] = map[uint32]struct{}{}
	}
	m.selves[fn][cid] = struct{}{}
	return cid, nil
}

// giveCID takes it back, unless the function's end did before.
func (m *Manager) giveCID(fn, cid uint32) {
	if _, has := m.selves[fn][cid]; !has {
		return
	}
	delete(m.selves[fn], cid)
	if len(m.selves[fn]) == 0 {
		delete(m.selves, fn)
	}
	m.cids(fn).Free(cid)
}

// cids are those of the shard that a function belongs to.
func (m *Manager) cids(fn uint32) *CIDs { return m.cfg.CIDs[m.cfg.Home(fn)] }

// Messages takes the messages for other NICs, which are the caller's until the next call of Run.
func (m *Manager) Messages() []Message {
	list := m.send
	m.send = m.send[:0]
	return list
}

// PeerUp says that the link to a peer is up.
func (m *Manager) PeerUp(now falcon.Time, host cm.HostID) {
	m.link(host, true)
	m.Manager.PeerUp(now, host)
}

// PeerDown says that the link to a peer is down and what was in flight on it lost.
func (m *Manager) PeerDown(now falcon.Time, host cm.HostID) {
	m.link(host, false)
	m.Manager.PeerDown(now, host)
}

// PeerRevoked says that a peer is not to be trusted any more.
func (m *Manager) PeerRevoked(now falcon.Time, host cm.HostID) {
	m.link(host, false)
	m.Manager.PeerRevoked(now, host)
}

func (m *Manager) link(host cm.HostID, up bool) {
	if p := m.peers[host]; p != nil {
		p.up = up
	}
}

// Reachable says whether the link to a peer is up.
func (m *Manager) Reachable(host cm.HostID) bool {
	p := m.peers[host]
	return p != nil && p.up
}

// CIDs says how many connection identifiers a function has, and how many it may have.
func (m *Manager) CIDs(fn uint32) (n, quota int) { return m.cids(fn).Held(fn) }

// CIDsInUse counts the connection identifiers that are given out.
func (m *Manager) CIDsInUse() (n int) {
	for _, c := range m.cfg.CIDs {
		n += c.InUse()
	}
	return n
}

// Disconnecting says whether a peer that can be reached has yet to confirm a disconnect.
func (m *Manager) Disconnecting() bool {
	for _, c := range m.Connections() {
		if c.State == cm.StateDreqSent && m.Reachable(c.Peer) {
			return true
		}
	}
	return false
}
