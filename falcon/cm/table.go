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
	peer PeerID
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
		t.passive[passiveKey{c.peer.ID, c.remoteID}] = c
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
		delete(t.passive, passiveKey{c.peer.ID, c.remoteID})
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

// room checks whether a function may have one more connection. If not, it first ends connections in
// TIME-WAIT.
func (h *handshake) room(now Time, fn uint32) error {
	for u := h.conns.functions[fn]; u != nil && len(u.conns) >= h.cfg.MaxPerFunction; {
		if !h.endOldest(now, fn) {
			return fmt.Errorf("cm: %d connections of function %#06x: %w", len(u.conns), fn, ErrLimit)
		}
	}
	return nil
}

// endOldest ends the function's oldest connection in TIME-WAIT, and reports whether there was one.
// TIME-WAIT only helps a peer that has missed the end of the connection. A function that makes
// connections faster than their TIME-WAIT passes must neither block others nor be refused itself.
func (h *handshake) endOldest(now Time, fn uint32) bool {
	u := h.conns.functions[fn]
	if u == nil || u.waiting.Empty() {
		return false
	}
	h.out.stats.CutShort++
	_ = h.fire(now, u.waiting.First(), evGiveUp, args{})
	return true
}

// end fires an event of which the peer may have to be told. If the link is down, the peer learns of
// it when the link is back.
func (h *handshake) end(now Time, c *conn, ev event, a args) error {
	err := h.fire(now, c, ev, a)
	if !c.peer.up && c.state != StateClosed {
		_ = h.fire(now, c, evPeerDown, args{reason: ReasonPeerDown})
	}
	return err
}

// stale tells the peer that a connection that it named does not exist here.
func (h *handshake) stale(p *peer, id, remoteID uint32) {
	h.out.stats.UnknownConnection++
	rej := REJ{SenderID: id, ReceiverID: remoteID, Reason: ReasonStale}
	h.out.send(p, Encode(&rej))
}

// illegal converts an event's error to one that says that a message is not allowed in the
// connection's state.
func illegal(c *conn, t MessageType, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("cm: %v for connection %d in state %v: %w", t, c.id, c.state, ErrProtocol)
}

// services holds the services that our functions listen on.
type services struct {
	most       int // limit of one function
	byFunction map[uint32]map[uint64]struct{}
}

func newServices(c *Config) *services {
	return &services{most: c.MaxListeners, byFunction: make(map[uint32]map[uint64]struct{})}
}

func (s *services) listen(fn uint32, service uint64) error {
	if s.has(fn, service) {
		return fmt.Errorf("cm: function %#06x, service %#x: %w", fn, service, ErrInUse)
	}
	if n := len(s.byFunction[fn]); n >= s.most {
		return fmt.Errorf("cm: function %#06x listens on %d services: %w", fn, n, ErrLimit)
	}
	if s.byFunction[fn] == nil {
		s.byFunction[fn] = make(map[uint64]struct{})
	}
	s.byFunction[fn][service] = struct{}{}
	return nil
}

func (s *services) unlisten(fn uint32, service uint64) error {
	if !s.has(fn, service) {
		return fmt.Errorf("cm: function %#06x does not listen on service %#x: %w", fn, service, ErrNotFound)
	}
	delete(s.byFunction[fn], service)
	if len(s.byFunction[fn]) == 0 {
		s.forget(fn)
	}
	return nil
}

func (s *services) has(fn uint32, service uint64) bool {
	_, has := s.byFunction[fn][service]
	return has
}

// forget removes all services of a function.
func (s *services) forget(fn uint32) { delete(s.byFunction, fn) }
