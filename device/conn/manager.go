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

// Outputs takes what is decided for functions: a shard's Functions.
type Outputs interface {
	Output(now falcon.Time, o *cm.Output, peer netip.Addr)
}

// ManagerConfig is what a connection manager works with.
type ManagerConfig struct {
	Host       cm.HostID
	MTU        int // largest path MTU
	Peers      []cm.Peer
	CIDs       *CIDs
	Keys       PeerKeys
	Ports      Ports
	Neighbours Neighbours
	Log        Log
}

// Manager is the NIC's connection manager with what it knows of the peers. It decides; shards carry
// out (Outputs), and say what became of it by requests (Requests).
type Manager struct {
	*cm.Manager
	cfg     ManagerConfig
	peers   map[cm.HostID]*peer
	outputs Outputs
	output  cm.Output
	send    []Message
}

var _ Requests = (*Manager)(nil)

// peer is another NIC.
type peer struct {
	underlay netip.Addr
	up       bool // the link to its connection manager
}

// NewManager returns a connection manager that serves no functions yet.
func NewManager(c ManagerConfig, rand io.Reader) (*Manager, error) {
	m := &Manager{cfg: c, peers: map[cm.HostID]*peer{}}
	for _, p := range c.Peers {
		m.peers[p.Host] = &peer{underlay: p.Underlay}
	}
	var err error
	m.Manager, err = cm.New(cm.Config{
		Host: c.Host, MTU: c.MTU + headers, Peers: c.Peers, MaxListeners: driverListeners + reservedListeners,
		MaxPerFunction: MaxSlots,         // its quota of CIDs bounds what it uses, the backlog what it has not answered
		MaxPerPeer:     MaxSlots * 7 / 8, // no peer takes the last ones
	}, resources{m}, rand)
	return m, err
}

// Serve has o carry out what is decided from now on.
func (m *Manager) Serve(o Outputs) { m.outputs = o }

// resources is what connections take, as the protocol's manager asks for it.
type resources struct{ m *Manager }

var _ cm.Resources = resources{}

func (r resources) AllocCID(fn uint32) (uint32, error) { return r.m.cfg.CIDs.Alloc(fn) }

// FreeCID implements cm.Resources. What still parts in its slot makes way when the CID's successor
// opens.
func (r resources) FreeCID(cid uint32) { r.m.cfg.CIDs.Free(cid) }

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
		case o.Kind == cm.OutPorts:
			m.cfg.Ports.PortsChanged(now, o.Peer)
		case o.Kind >= cm.OutRekey:
			m.cfg.Keys.HandleKeys(now, &o)
		default:
			m.outputs.Output(now, &o, m.underlayOf(&o))
		}
	}
}

// underlayOf is the address that an order to open a connection needs.
func (m *Manager) underlayOf(o *cm.Output) netip.Addr {
	if o.Params == nil || o.Params.Peer == m.cfg.Host {
		return netip.Addr{}
	}
	return m.peers[o.Params.Peer].underlay
}

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
func (m *Manager) CIDs(fn uint32) (n, quota int) { return m.cfg.CIDs.Held(fn) }

// CIDsInUse counts the connection identifiers that are given out.
func (m *Manager) CIDsInUse() int { return m.cfg.CIDs.InUse() }

// Disconnecting says whether a peer that can be reached has yet to confirm a disconnect.
func (m *Manager) Disconnecting() bool {
	for _, c := range m.Connections() {
		if c.State == cm.StateDreqSent && m.Reachable(c.Peer) {
			return true
		}
	}
	return false
}
