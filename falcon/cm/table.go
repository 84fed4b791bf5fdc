package cm

import (
	"fmt"
	"maps"
	"slices"

	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/timer"
)

// table holds all connections.
type table struct {
	res       Resources
	backlog   int // Config.Backlog
	byID      map[uint32]*conn
	passive   map[passiveKey]*conn
	functions map[uint32]*usage
	timers    timer.Wheel[*conn]
	lastID    uint32
}

type passiveKey struct {
	host HostID
	id   uint32 // the peer's ID
}

// usage holds the connections of a function.
type usage struct {
	conns   map[uint32]*conn
	backlog Shares[source]  // requests that it has not answered
	waiting list.List[conn] // in StateTimeWait, the oldest first
}

func newTable(c *Config, res Resources, lastID uint32) *table {
	return &table{
		res: res, backlog: c.Backlog, lastID: lastID,
		byID: make(map[uint32]*conn), passive: make(map[passiveKey]*conn), functions: make(map[uint32]*usage),
	}
}

func (t *table) usage(fn uint32) *usage {
	u := t.functions[fn]
	if u == nil {
		u = &usage{conns: make(map[uint32]*conn), backlog: Shares[source]{Size: t.backlog, Multiple: 1}}
		t.functions[fn] = u
	}
	return u
}

// listens reports whether a function can take one more request of a source.
func (t *table) listens(fn uint32, s source) bool {
	u := t.functions[fn]
	return u == nil || u.backlog.Room(s)
}

// add adds a connection to the tables under a new ID.
func (t *table) add(now Time, c *conn) {
	for {
		t.lastID++
		if _, used := t.byID[t.lastID]; t.lastID != 0 && !used {
			break
		}
	}
	c.id, c.created = t.lastID, now
	c.par.ID = c.id
	t.byID[c.id] = c
	if c.passive {
		t.passive[passiveKey{c.peer.Host, c.remoteID}] = c
		c.peer.sources.Take(c.par.PeerFunction)
	}
	c.peer.conns++
	t.usage(c.par.Function).conns[c.id] = c
}

// remove removes a connection from the tables and frees its CID.
func (t *table) remove(c *conn) {
	t.timers.Stop(&c.timer)
	delete(t.byID, c.id)
	if c.passive {
		delete(t.passive, passiveKey{c.peer.Host, c.remoteID})
		c.peer.sources.Give(c.par.PeerFunction)
	}
	c.peer.conns--
	u := t.functions[c.par.Function]
	if delete(u.conns, c.id); len(u.conns) == 0 {
		delete(t.functions, c.par.Function)
	}
	if c.hasCID {
		c.hasCID = false
		t.res.FreeCID(c.par.LocalCID)
	}
}

// sorted returns the connections that match, in order of their IDs, so that a run can be replayed.
func (t *table) sorted(match func(*conn) bool) []*conn {
	var s []*conn
	for _, c := range t.byID {
		if match(c) {
			s = append(s, c)
		}
	}
	return inOrder(s)
}

// of returns the connections of a function in order of their IDs.
func (t *table) of(fn uint32) (s []*conn) {
	if u := t.functions[fn]; u != nil {
		s = slices.Collect(maps.Values(u.conns))
	}
	return inOrder(s)
}

func inOrder(s []*conn) []*conn {
	slices.SortFunc(s, func(a, b *conn) int { return int(int64(a.id) - int64(b.id)) })
	return s
}

// established returns the established connections with a peer.
func (t *table) established(p *peer) []*conn {
	return t.sorted(func(c *conn) bool { return c.peer == p && c.state == StateEstablished })
}

// find returns the connection with both IDs, or nil.
func (t *table) find(p *peer, id, remoteID uint32) *conn {
	if c := t.byID[id]; c != nil && c.peer == p && c.remoteID == remoteID {
		return c
	}
	return nil
}

// owned returns a connection that its function still owns.
func (t *table) owned(fn, id uint32) (*conn, error) {
	c := t.byID[id]
	if c == nil || c.par.Function != fn || !c.state.owned() {
		return nil, fmt.Errorf("cm: function %#06x, connection %d: %w", fn, id, ErrNotFound)
	}
	return c, nil
}
