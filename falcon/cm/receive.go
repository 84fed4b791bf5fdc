package cm

import (
	"errors"
	"fmt"
)

// Receive handles a message of a peer. An error says what was wrong with it; it has been counted
// and the connections are consistent, so the caller may log it but need not act. msg is not kept.
func (m *Manager) Receive(now Time, id PeerID, msg []byte) error {
	p := m.peers.of(id)
	if p == nil {
		return fmt.Errorf("cm: message of peer %d: %w", id, ErrNotFound)
	}
	m.out.stats.Received++
	err := m.receive(now, p, msg)
	if err != nil {
		m.out.stats.Malformed++
		err = fmt.Errorf("NIC %s: %w", p.Name, err)
	}
	return err
}

func (m *Manager) receive(now Time, p *peer, msg []byte) error {
	t, err := PeekType(msg)
	if other := (*VersionError)(nil); errors.As(err, &other) && p.up {
		m.otherVersion(now, p, other.Got)
	}
	if err != nil {
		return err
	}
	if !p.up || !p.ready && t != TypeHello {
		return fmt.Errorf("cm: %v: %w", t, ErrBeforeHello)
	}
	return handlers[t](m, now, p, msg)
}

// handler executes a message; an error says what was wrong with it.
type handler func(m *Manager, now Time, p *peer, msg []byte) error

var handlers = [...]handler{
	TypeHello:    taking(Parse[Hello], (*Manager).hello),
	TypeREQ:      taking(Parse[REQ], faultless((*Manager).req)),
	TypeREP:      taking(Parse[REP], faultless((*Manager).rep)),
	TypeRTU:      taking(Parse[RTU], (*Manager).rtu),
	TypeREJ:      taking(Parse[REJ], faultless((*Manager).rej)),
	TypeDREQ:     taking(Parse[DREQ], (*Manager).dreq),
	TypeDREP:     taking(Parse[DREP], (*Manager).drep),
	TypeREKEY:    taking(Parse[REKEY], faultless(func(m *Manager, now Time, p *peer, q *REKEY) { m.keys.taken(now, p, q) })),
	TypeREKEYACK: taking(Parse[REKEYACK], faultless(func(m *Manager, _ Time, p *peer, a *REKEYACK) { m.keys.acked(p, a) })),
	TypeREKEYREQ: taking(Parse[REKEYREQ], faultless(func(m *Manager, _ Time, p *peer, q *REKEYREQ) { m.keys.requested(p, q) })),
	TypeBYE:      taking(Parse[BYE], faultless(func(m *Manager, now Time, p *peer, _ *BYE) { m.ForgetPeer(now, p.ID) })),
	TypePORTS:    taking(Parse[PORTS], faultless(func(m *Manager, _ Time, p *peer, said *PORTS) { m.ports.learn(p, said.Ports) })),
}

// taking returns a handler that parses the message with parse and passes it to do.
func taking[M any](parse func([]byte) (M, error), do func(*Manager, Time, *peer, *M) error) handler {
	return func(m *Manager, now Time, p *peer, msg []byte) error {
		v, err := surviving(parse, msg)
		if err != nil {
			return err
		}
		return do(m, now, p, &v)
	}
}

// surviving parses a message. A panic in the parser, which keeps no state, becomes an error: no
// peer can crash the NIC with a message. The error does not contain the message, which may hold
// keys.
func surviving[M any](parse func([]byte) (M, error), msg []byte) (v M, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &MessageError{MessageType(msg[1]), fmt.Sprintf("fault in the program, please report it: %v, message of %d bytes", p, len(msg))}
		}
	}()
	return parse(msg)
}

// faultless adapts a function that accepts every message that could be parsed.
func faultless[M any](do func(*Manager, Time, *peer, *M)) func(*Manager, Time, *peer, *M) error {
	return func(m *Manager, now Time, p *peer, v *M) error {
		do(m, now, p, v)
		return nil
	}
}

func (m *Manager) rtu(now Time, p *peer, r *RTU) error {
	if c := m.conns.find(p, r.ReceiverID, r.SenderID); c != nil {
		return illegal(c, TypeRTU, m.shake.fire(now, c, evRTU, args{}))
	}
	m.shake.stale(p, r.ReceiverID, r.SenderID)
	return nil
}

func (m *Manager) dreq(now Time, p *peer, r *DREQ) error {
	if c := m.conns.find(p, r.ReceiverID, r.SenderID); c != nil {
		return illegal(c, TypeDREQ, m.shake.fire(now, c, evDREQ, args{reason: r.Reason}))
	}
	m.out.stats.UnknownConnection++
	drep := DREP{r.ReceiverID, r.SenderID}
	m.out.send(p, Encode(&drep))
	return nil
}

func (m *Manager) drep(now Time, p *peer, r *DREP) error {
	if c := m.conns.find(p, r.ReceiverID, r.SenderID); c != nil {
		return illegal(c, TypeDREP, m.shake.fire(now, c, evDREP, args{}))
	}
	m.out.stats.UnknownConnection++
	return nil
}

func (m *Manager) req(now Time, p *peer, q *REQ) {
	if c := m.conns.passive[passiveKey{p.ID, q.SenderID}]; c != nil {
		m.out.stats.DuplicateREQ++
		_ = m.shake.fire(now, c, evDuplicateREQ, args{})
		return
	}
	if why := m.admit(now, p, q); why != ReasonNone {
		rej := REJ{ReceiverID: q.SenderID, Reason: why}
		m.out.send(p, Encode(&rej))
		return
	}
	from, _ := m.dir.at(p, Address{q.Tenant, q.SGID})
	c := &conn{peer: p, passive: true, remoteID: q.SenderID, par: Params{
		Function: q.PeerFunction, Tenant: q.Tenant, Peer: p.ID, PeerName: p.Name, PeerFunction: q.Function, PeerQPN: q.QPN,
		Shard: q.Offer.Shard, PeerShard: from.shard,
		LocalGID: q.DGID, PeerGID: q.SGID, MTU: min(int(q.Offer.MTU), p.mtu), Ordered: q.Offer.Ordered,
		CompleteInError: q.Offer.CompleteInError,
	}}
	m.shake.takeOffer(c, &q.Offer)
	m.conns.add(now, c)
	m.shake.enter(now, c, StateReqReceived)
	m.out.emit(Output{
		Kind: OutRequest, ID: c.id, Function: c.par.Function, Peer: p.ID, Service: q.Service, Tenant: q.Tenant,
		LocalGID: q.DGID, PeerGID: q.SGID, PeerFunction: q.Function, PeerQPN: q.QPN, Ordered: q.Offer.Ordered, Private: q.Private,
		CompleteInError: q.Offer.CompleteInError,
	})
}

// admit checks a request; ReasonNone means that it is accepted.
func (m *Manager) admit(now Time, p *peer, q *REQ) Reason {
	if !p.tenants[q.Tenant] {
		m.out.stats.TenantRefused++
		return ReasonTenant
	}
	if at, ok := m.dir.at(p, Address{q.Tenant, q.SGID}); !ok || at.function != q.Function {
		m.out.stats.GIDRefused++
		return ReasonGID
	}
	// The key is for the shard that had the function in our last Hello.
	if at, ok := m.dir.local[Address{q.Tenant, q.DGID}]; !ok || at.function != q.PeerFunction || at.shard != q.Offer.Shard {
		m.out.stats.GIDRefused++
		return ReasonGID
	}
	if !m.services.has(q.PeerFunction, q.Service) {
		m.out.stats.NoListener++
		return ReasonNoListener
	}
	if !p.sources.Room(q.Function) || !m.conns.listens(q.PeerFunction, source{p.ID, q.Function}) || m.shake.room(now, q.PeerFunction) != nil {
		m.out.stats.LimitRefused++
		return ReasonNoResources
	}
	return ReasonNone
}

func (m *Manager) rep(now Time, p *peer, r *REP) {
	c := m.conns.byID[r.ReceiverID]
	if c == nil || c.peer != p || c.passive || c.remoteID != 0 && c.remoteID != r.SenderID {
		m.shake.stale(p, r.ReceiverID, r.SenderID)
		return
	}
	ev, a := evREP, args{rep: r}
	o := &r.Offer
	if int(o.MTU) > c.par.MTU || o.Shard != c.par.Shard || o.Ordered != c.par.Ordered || o.CompleteInError != c.par.CompleteInError {
		ev, a = evBadREP, args{rep: r, reason: ReasonInvalid, tell: ReasonInvalid}
		if c.state == StateReqSent {
			m.out.stats.BadREP++
			c.remoteID = r.SenderID
		}
	}
	_ = m.shake.fire(now, c, ev, a)
}

func (m *Manager) rej(now Time, p *peer, r *REJ) {
	var c *conn
	if r.ReceiverID == 0 { // the sender withdraws its REQ
		c = m.conns.passive[passiveKey{p.ID, r.SenderID}]
	} else if c = m.conns.byID[r.ReceiverID]; c != nil && c.remoteID != 0 && c.remoteID != r.SenderID {
		c = nil
	}
	if c == nil || c.peer != p {
		m.out.stats.UnknownConnection++
		return
	}
	_ = m.shake.fire(now, c, evREJ, args{reason: r.Reason, consumer: r.Consumer, private: r.Private})
}
