package conn

import (
	"io"
	"log/slog"
	"net/netip"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
)

// Message is for the connection manager of another NIC. The receiver owns Data.
type Message struct {
	Peer cm.PeerID
	Data []byte
}

// PeerKeys holds the keys that were agreed with other NICs.
type PeerKeys interface {
	RxSA(u cm.Use) (cm.SA, error)
	ForgetSAs(peer cm.PeerID)
	Receive(p *cm.Params) (Receiving, error)  // for a connection that is about to be opened
	HandleKeys(now falcon.Time, o *cm.Output) // handles outputs of the kinds OutRekey, OutRekeyed and OutRekeyWanted
}

// Shards passes Answers and Decisions to the functions of each shard, in order: Connector.Answer and
// Connector.Decide.
type Shards interface {
	Answer(shard int, a Answer)
	Decide(shard int, d Decision)
}

// Decision is a decision of the connection manager for a function.
type Decision struct {
	cm.Output
	Epoch    uint32         // epoch of the function that it is for
	Underlay netip.AddrPort // where the NIC at the other end of a connection to be opened receives; unset: this NIC
	Keys     Receiving      // of a connection to be opened with another NIC
}

// Receiving is the receive side of a connection's keys, which this NIC has issued.
type Receiving interface {
	Release() // called when the connection ends or is not opened after all; may be called again
}

// ManagerConfig is the configuration of a Manager.
type ManagerConfig struct {
	Host    cm.HostID
	MTU     int                 // largest segment
	CIDs    []*CIDs             // of each shard
	ShardOf func(fn uint32) int // the shard that a function belongs to
	Shards  Shards
	Keys    PeerKeys
	Log     Log

	PortsChanged func(now falcon.Time, host cm.PeerID)    // the ports of a peer have changed
	Resolve      func(now falcon.Time, to netip.AddrPort) // packets to another NIC will probably follow
}

// Manager is the NIC's connection manager, with its knowledge of the peers. It decides. Shards
// carry out its Decisions and report back by Requests.
type Manager struct {
	CM     *cm.Manager // the protocol
	cfg    ManagerConfig
	epochs map[uint32]uint32              // by function that was put in service
	selves map[uint32]map[uint32]struct{} // by function: CIDs of queue pairs connected with themselves
	output cm.Output
	shares bool // Run distributes output
	send   []Message
}

// NewManager returns a connection manager without functions in service and without peers.
func NewManager(c ManagerConfig, rand io.Reader) (*Manager, error) {
	m := &Manager{cfg: c, epochs: map[uint32]uint32{}, selves: map[uint32]map[uint32]struct{}{}}
	var err error
	m.CM, err = cm.New(cm.Config{
		Host: c.Host, MTU: c.MTU + headers, MaxListeners: driverListeners + reservedListeners,
		MaxPerFunction: MaxSlots,                       // the CID quota bounds what it uses, the backlog what it has not answered
		MaxPerPeer:     MaxSlots * 7 / 8 * len(c.CIDs), // no peer can take the last ones
	}, resources{c.Keys, m}, rand)
	return m, err
}

// resources implements cm.Resources for the Manager: CIDs are its own, keys are PeerKeys'.
type resources struct {
	PeerKeys
	m *Manager
}

var _ cm.Resources = resources{}

// AllocCID implements cm.Resources.
func (r resources) AllocCID(fn uint32) (uint32, error) { return r.m.cids(fn).Alloc(fn) }

// FreeCID implements cm.Resources. If a connection still parts in the slot, Table.Open ends it when
// the slot's next CID is opened.
func (r resources) FreeCID(cid uint32) { r.m.cfg.CIDs[ShardOf(cid)].Free(cid) }

// Run distributes what was decided: messages, decisions for shards, changes of keys and ports.
func (m *Manager) Run(now falcon.Time) {
	for m.CM.Next(&m.output) {
		m.shares = true
		o := m.output // some outputs lead to another call of Next
		switch {
		case o.Kind == cm.OutSend && o.Peer == cm.Self: // to another function of this NIC
			if err := m.CM.Receive(now, o.Peer, o.Msg); err != nil {
				m.cfg.Log(now, slog.LevelWarn, "local connection message", "err", err)
			}
		case o.Kind == cm.OutSend:
			m.send = append(m.send, Message{Peer: o.Peer, Data: o.Msg})
			if p, _, ok := m.CM.PeerOf(o.Peer); ok {
				m.cfg.Resolve(now, p.Underlay)
			}
		case o.Kind == cm.OutRefused:
			m.cfg.Log(now, slog.LevelWarn, "a peer tells of addresses that it does not get", "peer", m.Name(o.Peer), "addresses", o.Refused.String())
		case o.Kind == cm.OutPorts:
			m.cfg.PortsChanged(now, o.Peer)
		case o.Kind >= cm.OutRekey:
			m.cfg.Keys.HandleKeys(now, &o)
		default:
			m.decide(now, &o)
		}
	}
	m.shares = false
}

// Blame returns the other NIC whose messages led to a panic in Take (of r), Advance (nil) or Run
// (nil). It returns false if that was no other NIC.
func (m *Manager) Blame(r *Request) (peer cm.PeerID, ok bool) {
	switch {
	case m.shares:
		peer, ok, m.shares = m.output.Peer, true, false
	case r == nil:
		peer, ok = m.CM.Expiring()
	case r.Connect != nil:
		peer, ok = m.CM.Offered(r.Connect.Tenant, r.Connect.DGID)
	default:
		for _, c := range m.CM.Connections() {
			if c.Function == r.Function && c.ID == r.ID {
				peer, ok = c.Peer, true
			}
		}
	}
	return peer, ok && peer != cm.Self
}

// decide passes an output to the shard of its function.
func (m *Manager) decide(now falcon.Time, o *cm.Output) {
	d := Decision{Output: *o, Epoch: m.epochs[o.Function]}
	if p := o.Params; p != nil && p.Peer != cm.Self {
		peer, _, ok := m.CM.PeerOf(p.Peer)
		if !ok {
			return // it was removed meanwhile, and its connections with it
		}
		d.Underlay = peer.Underlay
		var err error
		if d.Keys, err = m.cfg.Keys.Receive(p); err != nil {
			m.cfg.Log(now, slog.LevelWarn, "connection not opened", "function", p.Function, "peer", peer.Name, "err", err)
			_ = m.CM.Disconnect(now, p.Function, p.ID)
			return
		}
	}
	m.cfg.Shards.Decide(m.cfg.ShardOf(o.Function), d)
}

// Take executes a shard's request.
func (m *Manager) Take(now falcon.Time, r *Request) {
	a := Answer{Question: r.Question}
	a.ID, a.Err = m.carryOut(now, r)
	if a.Question != (Question{}) {
		m.cfg.Shards.Answer(m.cfg.ShardOf(r.Function), a)
	}
	m.Run(now)
}

func (m *Manager) carryOut(now falcon.Time, r *Request) (id uint32, err error) {
	fn := r.Function
	switch r.Kind {
	case Begin:
		m.begin(fn, r.Epoch)
	case Gone:
		m.CM.FunctionGone(now, fn)
		for cid := range m.selves[fn] {
			m.giveCID(fn, cid)
		}
	case Quota:
		m.cids(fn).SetQuota(fn, int(r.N))
	case Listen:
		err = m.CM.Listen(fn, r.Service)
	case Unlisten:
		err = m.CM.Unlisten(fn, r.Service)
	case Connect:
		id, err = m.CM.Connect(now, *r.Connect)
	case Accept:
		err = m.CM.Accept(now, fn, r.ID, r.N, r.IRD, r.Private)
	case Reject:
		err = m.CM.Reject(now, fn, r.ID, r.N, r.Private)
	case Disconnect:
		err = m.CM.Disconnect(now, fn, r.ID)
	case TakeCID:
		id, err = m.takeCID(fn)
	case GiveCID:
		m.giveCID(fn, r.N)
	}
	return id, err
}

// begin makes a function reachable for other NICs' own requests.
func (m *Manager) begin(fn, epoch uint32) {
	m.epochs[fn] = epoch
	for _, service := range []uint64{serviceWire, serviceUD} {
		_ = m.CM.Listen(fn, service) // there is always room
	}
}

// takeCID allocates a CID for a queue pair that is connected with itself. No peer has to agree, so
// the protocol's manager does not know of it.
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

// giveCID releases such a CID, unless the end of the function already did.
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

// cids returns the CIDs of the function's shard.
func (m *Manager) cids(fn uint32) *CIDs { return m.cfg.CIDs[m.cfg.ShardOf(fn)] }

// Messages removes and returns the messages for other NICs. The caller may use the list until the
// next call of Run.
func (m *Manager) Messages() []Message {
	list := m.send
	m.send = m.send[:0]
	return list
}

// Name returns the name of a peer, for people.
func (m *Manager) Name(peer cm.PeerID) string {
	p, _, _ := m.CM.PeerOf(peer)
	return p.Name
}

// Reachable reports whether the link to a peer is up.
func (m *Manager) Reachable(peer cm.PeerID) bool {
	_, up, _ := m.CM.PeerOf(peer)
	return up
}

// CIDs returns how many CIDs a function holds, and its quota.
func (m *Manager) CIDs(fn uint32) (n, quota int) { return m.cids(fn).Held(fn) }

// CIDsInUse returns the number of allocated CIDs.
func (m *Manager) CIDsInUse() (n int) {
	for _, c := range m.cfg.CIDs {
		n += c.InUse()
	}
	return n
}

// Disconnecting reports whether a reachable peer has yet to confirm a disconnect.
func (m *Manager) Disconnecting() bool {
	for _, c := range m.CM.Connections() {
		if c.State == cm.StateDreqSent && m.Reachable(c.Peer) {
			return true
		}
	}
	return false
}
