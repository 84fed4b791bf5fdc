package cm

import (
	"encoding/binary"
	"fmt"

	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/timer"
)

// conn is one entry of the connection table.
type conn struct {
	id       uint32 // our name for it
	remoteID uint32 // the peer's; 0 until REP
	state    State
	peer     *peer
	passive  bool
	par      Params
	opened   bool // OutOpen without OutClose
	hasCID   bool
	msg      []byte // REQ, REP or DREQ to repeat
	tries    int
	created  Time

	timer   timer.Handle
	waiting list.Node[conn] // of its function's usage, in StateTimeWait
}

// txUse is what our side of c seals with.
func (c *conn) txUse() Use { return Use{Peer: c.peer.Host, Shard: c.par.Shard, Tenant: c.par.Tenant} }

// takeOffer fills in what the peer decides.
func (m *Manager) takeOffer(c *conn, o *Offer) {
	if c.peer != m.self {
		m.newKey(c.peer, c.txUse(), o.SA)
	}
	c.par.RemoteCID, c.par.PeerIRD = o.CID, o.IRD
	c.par.RxDataPSN, c.par.RxReqPSN, c.par.RxRSN = o.DataPSN, o.ReqPSN, o.RSN
	c.par.RemoteTime = o.Time
}

// offer takes a CID and gathers what this side decides. On error nothing is
// kept.
func (m *Manager) offer(now Time, c *conn) (Offer, error) {
	var r [12]byte
	if err := m.random(r[:]); err != nil {
		return Offer{}, err
	}
	sa, err := m.rxSA(c)
	if err != nil {
		return Offer{}, fmt.Errorf("cm: receive SA for host %d, tenant %d: %w", c.peer.Host, c.par.Tenant, err)
	}
	cid, err := m.res.AllocCID(c.par.Function)
	for err != nil && m.endOldest(now, c.par.Function) {
		cid, err = m.res.AllocCID(c.par.Function)
	}
	if err != nil {
		return Offer{}, fmt.Errorf("cm: CID for function %#06x: %w", c.par.Function, err)
	}
	c.hasCID = true
	c.par.LocalCID = cid
	if c.peer != m.self {
		c.par.RxSPI = sa.SPI
	}
	c.par.TxDataPSN = binary.BigEndian.Uint32(r[0:])
	c.par.TxReqPSN = binary.BigEndian.Uint32(r[4:])
	c.par.TxRSN = binary.BigEndian.Uint32(r[8:])
	return Offer{
		Shard: c.par.PeerShard, CID: cid, DataPSN: c.par.TxDataPSN, ReqPSN: c.par.TxReqPSN, RSN: c.par.TxRSN,
		MTU: uint16(c.par.MTU), Ordered: c.par.Ordered, IRD: c.par.IRD, SA: sa, Time: pspTime(now),
		CompleteInError: c.par.CompleteInError,
	}, nil
}

// unsealed stands in the offers of local connections, which have no keys.
var unsealed = SA{SPI: 1, Key: make([]byte, keyLen(0))}

// rxSA is what the other end of c is to seal with.
func (m *Manager) rxSA(c *conn) (SA, error) {
	if c.peer == m.self {
		return unsealed, nil
	}
	sa, err := m.res.RxSA(Use{Peer: c.peer.Host, Shard: c.par.PeerShard, Tenant: c.par.Tenant})
	if err == nil {
		err = sa.check()
	}
	return sa, err
}

// pspTime is the PSP clock (ps) at an engine time; it wraps as the IV does.
func pspTime(now Time) uint64 { return uint64(now) * 1000 }

// usage counts what a function has in the tables.
type usage struct {
	conns     int
	backlog   Shares[source] // requests it has not answered
	listeners int
	waiting   list.List[conn] // in StateTimeWait, the oldest first
}

// source is who asks for connections: a function and its host.
type source struct {
	host     HostID
	function uint32
}

func (c *conn) source() source { return source{c.peer.Host, c.par.PeerFunction} }

func (m *Manager) usage(fn uint32) *usage {
	u := m.functions[fn]
	if u == nil {
		u = &usage{backlog: Shares[source]{Size: m.cfg.Backlog, Multiple: 1}}
		m.functions[fn] = u
	}
	return u
}

// room checks a function's limit for one more connection. Connections that only rest make way.
func (m *Manager) room(now Time, fn uint32) error {
	for u := m.functions[fn]; u != nil && u.conns >= m.cfg.MaxPerFunction; {
		if !m.endOldest(now, fn) {
			return fmt.Errorf("cm: %d connections of function %#06x: %w", u.conns, fn, ErrLimit)
		}
	}
	return nil
}

// endOldest ends the rest of the connection of a function that has rested longest, if one does. The
// rest is a courtesy to a peer that has missed the end; a function that makes connections faster
// than they rest may not keep others from making any, and is not refused any itself.
func (m *Manager) endOldest(now Time, fn uint32) bool {
	u := m.functions[fn]
	if u == nil || u.waiting.Empty() {
		return false
	}
	m.stats.CutShort++
	_ = m.fire(now, u.waiting.First(), evGiveUp, args{})
	return true
}

// add enters a connection into the tables under a new name.
func (m *Manager) add(now Time, c *conn) {
	for {
		m.lastID++
		if _, used := m.conns[m.lastID]; m.lastID != 0 && !used {
			break
		}
	}
	c.id, c.created = m.lastID, now
	c.par.ID = c.id
	m.conns[c.id] = c
	if c.passive {
		m.passive[passiveKey{c.peer.Host, c.remoteID}] = c
		c.peer.sources.Take(c.par.PeerFunction)
	}
	c.peer.conns++
	m.usage(c.par.Function).conns++
}

// remove takes a connection out of the tables and gives its CID back.
func (m *Manager) remove(c *conn) {
	m.timers.Stop(&c.timer)
	delete(m.conns, c.id)
	if c.passive {
		delete(m.passive, passiveKey{c.peer.Host, c.remoteID})
		c.peer.sources.Give(c.par.PeerFunction)
	}
	c.peer.conns--
	u := m.usage(c.par.Function)
	u.conns--
	m.tidy(c.par.Function, u)
	if c.hasCID {
		c.hasCID = false
		m.res.FreeCID(c.par.LocalCID)
	}
}

func (m *Manager) tidy(fn uint32, u *usage) {
	if u.conns == 0 && u.listeners == 0 {
		delete(m.functions, fn)
	}
}
