package conn

import (
	"log/slog"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/rdma/local"
)

// Transport opens Falcon connections.
type Transport interface {
	Open(now falcon.Time, c falcon.ConnConfig) (*falcon.Conn, error)
}

// Loopbacks opens connections inside a shard, and returns those that ended in the RDMA engine.
type Loopbacks interface {
	Open(c falcon.ConnConfig) (*local.Conn, error)
	NextClosed() (cid uint32, ok bool)
}

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
	Transport Transport
	Loopbacks Loopbacks
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
	drains   drains
	partings partings
	ended    []Ended
}

// NewTable returns a table without connections.
func NewTable(c TableConfig) *Table {
	return &Table{cfg: c, slots: make([]Slot, c.Slots), byID: map[uint32]uint32{}}
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

// FindInside returns the slot of an open connection with another shard of this NIC, or nil.
func (t *Table) FindInside(cid uint32) *Slot {
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
