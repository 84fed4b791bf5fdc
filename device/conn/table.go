package conn

import (
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/wire"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/rdma/local"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/trace"
)

// KeyStore holds the keys of connections to other NICs.
type KeyStore interface {
	// Protect creates the security of a connection from the keys that were issued for it. If it
	// succeeds, releasing the returned Keys also releases issued; if not, the caller must release
	// issued.
	Protect(p *cm.Params, issued Receiving) (Keys, error)
}

// Log writes a log line that a guest or a peer can cause.
type Log func(now falcon.Time, level slog.Level, msg string, args ...any)

// TableConfig is the configuration of a Table.
type TableConfig struct {
	Shard     int
	Slots     int // at most MaxSlots
	Transport *falcon.Engine
	Loopbacks *local.Engine
	Keys      KeyStore
	Credits   credit.Cost // the limit of one connection (NewCredits)
	Log       Log
}

// Table holds the connections of a shard. It opens those that the connection managers agreed on,
// finds them for packets, and ends them in order.
type Table struct {
	cfg      TableConfig
	slots    []Slot
	byID     map[uint32]uint32 // CIDs, by the connection manager's ids
	limits   map[cm.PeerID]int // the most RDMA data in one packet that the network carries, where that is known
	drains   drains
	partings partings
	ended    []Ended
}

// NewTable returns a table without connections.
func NewTable(c TableConfig) *Table {
	return &Table{cfg: c, slots: make([]Slot, c.Slots), byID: map[uint32]uint32{}, limits: map[cm.PeerID]int{}}
}

// Find returns the slot of an open connection, or nil.
func (t *Table) Find(cid uint32) *Slot {
	i := indexOf(cid)
	if int(i) >= len(t.slots) {
		return nil
	}
	s := &t.slots[i]
	if s.CID != cid || !s.open() {
		return nil
	}
	return s
}

// FindSealed returns the slot of an open connection with another NIC, or nil.
func (t *Table) FindSealed(cid uint32) *Slot {
	s := t.carried(cid)
	if s == nil || s.Keys == nil {
		return nil
	}
	return s
}

// FindLocal returns the slot of an open connection with another shard of this NIC, or nil.
func (t *Table) FindLocal(cid uint32) *Slot {
	s := t.carried(cid)
	if s == nil || s.Keys != nil {
		return nil
	}
	return s
}

// carried returns the slot of an open connection of the transport, or nil.
func (t *Table) carried(cid uint32) *Slot {
	i := indexOf(cid)
	if int(i) >= len(t.slots) {
		return nil
	}
	s := &t.slots[i]
	if s.CID != cid || s.Conn == nil {
		return nil
	}
	return s
}

// Of returns the slot of a transport connection, or nil if the connection is closed.
func (t *Table) Of(c *falcon.Conn) *Slot {
	s := t.carried(c.LocalCID())
	if s == nil || s.Conn != c {
		return nil
	}
	return s
}

// ByID returns the slot of the open connection with this id of the connection manager, or nil.
func (t *Table) ByID(id uint32) *Slot {
	s := t.Find(t.byID[id])
	if s == nil || s.ID != id {
		return nil
	}
	return s
}

// Named returns the number of connections that the connection manager has not closed.
func (t *Table) Named() int { return len(t.byID) }

// Each calls f for each open connection.
func (t *Table) Each(f func(*Slot)) {
	for i := range t.slots {
		if s := &t.slots[i]; s.open() {
			f(s)
		}
	}
}

// place returns the slot in which a connection with this CID can be opened, or nil if it is in use.
func (t *Table) place(now falcon.Time, cid uint32) *Slot {
	if ShardOf(cid) != t.cfg.Shard || int(indexOf(cid)) >= len(t.slots) {
		return nil
	}
	s := &t.slots[indexOf(cid)]
	if s.parting && s.CID != cid { // the connection manager freed its CID early
		s.Conn.Abort(now, falcon.CloseLocal)
		s.clear()
	}
	if s.open() {
		return nil
	}
	return s
}

// Owner holds what connections and their packets need to know of their function.
type Owner struct {
	*pfvf.Function
	Trace    *trace.Ring   // records events of its requests; nil: no trace
	Describe func() string // describes it and its driver, for logs
}

// Keys protects the packets of one connection. The code that seals and opens packets knows the
// concrete type.
type Keys interface {
	Release() // called when the connection ends
}

// Slot describes the open connection of a CID. Packet processing reads it; only the table changes
// it.
type Slot struct {
	CID   uint32
	ID    uint32       // the connection manager's id; 0: a queue pair connected with itself
	Conn  *falcon.Conn // the transport's end, or
	Loop  *local.Conn  // one end of a loopback in the shard
	Owner *Owner
	Keys  Keys // nil inside the NIC, within one shard or between two

	Peer     cm.PeerID
	PeerName string
	Underlay netip.AddrPort // where the peer receives
	Inner    underlay.Inner // inner header of sent packets; Src is the address of our function that the peer knows
	Credits  *credit.Node   // the connection's, below its function's

	user     User
	flow     uint32 // determines the first path
	draining bool   // its driver disconnected it
	parting  bool   // the connection manager knows that it has ended
	leaving  bool   // it parts, and its user still has it
}

// Ended is a connection that ended in this shard, which the connection manager does not know yet.
// With ID 0, only the CID is to be released.
type Ended struct {
	Function uint32
	ID       uint32
	CID      uint32
}

// ended identifies the connection for the connection manager.
func (s *Slot) ended() Ended { return Ended{Function: uint32(s.Owner.ID), ID: s.ID, CID: s.CID} }

// Path returns the connection's current path (docs/wire.md). When the transport repaths, it moves
// to the next path.
func (s *Slot) Path() uint32 { return s.flow + uint32(s.Conn.Path()) }

// pipe returns the transport or loopback end under the connection.
func (s *Slot) pipe() rof.Pipe {
	if s.Loop != nil {
		return s.Loop
	}
	return s.Conn
}

// Explain describes, for people, who owns an RDMA packet that the connection sent (out) or
// received.
func (s *Slot) Explain(rdmaPacket []byte, out bool) string {
	return s.user.Explain(rdmaPacket, out)
}

// Pair returns the numbers of the queue pairs at both ends; 0: the connection has none.
func (s *Slot) Pair() (qpn, peer uint32) { return s.user.Pair() }

// Config returns the parameters of the transport's end, or of the loopback.
func (s *Slot) Config() *falcon.ConnConfig { return s.pipe().Config() }

// Ends reports whether the connection is being ended.
func (s *Slot) Ends() bool { return s.draining || s.parting }

// open reports whether a connection is in the slot.
func (s *Slot) open() bool { return s.Conn != nil || s.Loop != nil }

// close ends the connection at once and clears its slot.
func (s *Slot) close(now falcon.Time) {
	s.pipe().Close(now)
	s.clear()
}

// clear releases the keys and clears the slot.
func (s *Slot) clear() {
	if s.Keys != nil {
		s.Keys.Release()
	}
	*s = Slot{}
}

// LongPathNote describes a path on which congestion control holds a connection to one packet per
// round trip, and the remedy.
func LongPathNote(i falcon.ConnInfo) string {
	return fmt.Sprintf("delay %v is above the target of %v with one packet in flight; raise falcon.cc.base_delay_target above the path's round trip",
		time.Duration(i.Delay).Round(time.Microsecond), time.Duration(i.DelayTarget).Round(time.Microsecond))
}

// Opening describes a connection that the connection managers have agreed on.
type Opening struct {
	Params   *cm.Params
	Owner    *Owner
	User     User
	Inner    underlay.Inner // inner header of packets that we send
	Underlay netip.AddrPort // where the peer receives; unset: the peer is this NIC

	Receiving Receiving // keys that we issued to the peer; only with another NIC
}

// Open opens a connection: its slot, keys, transport end and user. If it fails it leaves nothing
// behind.
func (t *Table) Open(now falcon.Time, o *Opening) error {
	s := t.place(now, o.Params.LocalCID)
	if s == nil {
		return fmt.Errorf("connection identifier %#x is not free", o.Params.LocalCID)
	}
	var err error
	switch {
	case o.Underlay.IsValid():
		err = t.openSealed(now, s, o)
	case ShardOf(o.Params.RemoteCID) != t.cfg.Shard:
		err = t.openTransport(now, s, o)
	default:
		err = t.openLoopback(s, o)
	}
	if err != nil {
		return err
	}
	if o.Params.ID != 0 {
		t.byID[o.Params.ID] = s.CID
	}
	s.user = o.User
	if err := o.User.Connect(now, s.pipe(), o.Params); err != nil {
		s.close(now)
		delete(t.byID, o.Params.ID)
		return err
	}
	if data, known := t.limits[s.Peer]; known && s.Keys != nil { // it may be news since the connection was agreed on
		s.Conn.Limit(data + headers)
	}
	return nil
}

// MovePeer says that a peer is at another underlay address.
func (t *Table) MovePeer(peer cm.PeerID, underlay netip.AddrPort) {
	t.Each(func(s *Slot) {
		if s.Peer == peer {
			s.Underlay = underlay
		}
	})
}

// LimitPath says how many bytes of RDMA data the network carries in one packet to a peer.
func (t *Table) LimitPath(peer cm.PeerID, data int) {
	t.limits[peer] = data
	t.Each(func(s *Slot) {
		if s.Peer == peer && s.Keys != nil {
			s.Conn.Limit(data + headers)
		}
	})
}

// ForgetPeer drops what is known of a peer that is gone.
func (t *Table) ForgetPeer(peer cm.PeerID) { delete(t.limits, peer) }

// openSealed opens a connection with another NIC.
func (t *Table) openSealed(now falcon.Time, s *Slot, o *Opening) error {
	keys, err := t.cfg.Keys.Protect(o.Params, o.Receiving)
	if err != nil {
		return err
	}
	if err := t.openTransport(now, s, o); err != nil {
		keys.Release()
		return err
	}
	s.Keys = keys
	return nil
}

// openTransport opens the transport's end of a connection, without keys. A connection between two
// shards of this NIC never gets keys: its packets are handed over in clear text.
func (t *Table) openTransport(now falcon.Time, s *Slot, o *Opening) error {
	p := o.Params
	credits := NewCredits(o.Owner.Credits, t.cfg.Credits)
	c, err := t.cfg.Transport.Open(now, falcon.ConnConfig{
		LocalCID: p.LocalCID, RemoteCID: p.RemoteCID,
		LocalFunction: p.Function, RemoteFunction: p.PeerFunction,
		Protocol: wire.ProtocolRDMA, Ordered: p.Ordered, MTU: p.MTU,
		TxDataPSN: p.TxDataPSN, TxReqPSN: p.TxReqPSN, TxRSN: p.TxRSN,
		RxDataPSN: p.RxDataPSN, RxReqPSN: p.RxReqPSN, RxRSN: p.RxRSN,
		Credits: credits, GiveUp: o.User.GiveUp(),
	})
	if err != nil {
		return err
	}
	*s = Slot{
		CID: p.LocalCID, ID: p.ID, Conn: c, Owner: o.Owner, Peer: p.Peer, PeerName: p.PeerName, Underlay: o.Underlay, Inner: o.Inner,
		Credits: credits, flow: FirstPath(o.Inner.Flow, p.RemoteCID),
	}
	return nil
}

// FirstPath returns the path that a connection starts on: derived from the driver's flow label if
// there is one, else from the remote CID.
func FirstPath(flowLabel, remoteCID uint32) uint32 {
	if flowLabel == 0 {
		return remoteCID
	}
	return (flowLabel * 0x9e3779b1) >> 16 // spreads neighbouring labels over distant paths
}

// openLoopback opens one end of a connection between two functions of this shard, or between two
// queue pairs of one function. It needs no keys and no transport: its traffic never leaves the
// shard.
func (t *Table) openLoopback(s *Slot, o *Opening) error {
	p := o.Params
	var credits *credit.Node
	if p.ID != 0 {
		credits = NewCredits(o.Owner.Credits, t.cfg.Credits)
	}
	l, err := t.cfg.Loopbacks.Open(falcon.ConnConfig{
		LocalCID: p.LocalCID, RemoteCID: p.RemoteCID, LocalFunction: p.Function, RemoteFunction: p.PeerFunction,
		Protocol: wire.ProtocolRDMA, Ordered: p.Ordered, MTU: p.MTU, Credits: credits,
	})
	if err != nil {
		return err
	}
	*s = Slot{CID: p.LocalCID, ID: p.ID, Loop: l, Owner: o.Owner, Peer: p.Peer, Inner: o.Inner, Credits: credits}
	return nil
}

// The default credit limit of a connection, where the configuration sets none: a quarter of its
// function's limit, so that a peer that answers late, or never, cannot take all of it; but at least
// 64 packets of 4 KiB, as many requests as a connection sends by default before the first is
// acknowledged (falcon.req_tx_window). Credits for requests from the network are not divided: those
// pools are small, and the first request of each connection is always accepted.
const (
	quarter      = 4
	leastPackets = 64
	leastCells   = leastPackets * 4096 / credit.DefaultCell
)

// NewCredits returns a connection's node of the credit tree, below its function's node. most is the
// limit; credit.Unlimited means the default limit.
func NewCredits(function *credit.Node, most credit.Cost) *credit.Node {
	all := function.Limit()
	for i := range credit.NetPktRx {
		if most[i] == credit.Unlimited && all[i] != credit.Unlimited {
			most[i] = max(all[i]/quarter, leastOf(i))
		}
	}
	return credit.New(function, most)
}

func leastOf(i credit.Counter) uint32 {
	switch i {
	case credit.ReqBufTx, credit.ReqBufRx, credit.DataBufTx:
		return leastCells
	}
	return leastPackets
}
