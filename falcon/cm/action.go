package cm

// args are an event's details; which are set depends on the event.
type args struct {
	rep      *REP
	reason   Reason // told to our function
	tell     Reason // told to the peer; ReasonNone: nothing is sent
	consumer uint32
	private  []byte
}

func (m *Manager) emit(o Output) { m.out = append(m.out, o) }

// send passes a message to the link. While it is down the message is dropped:
// what matters is said again when it is up.
func (m *Manager) send(p *peer, msg []byte) {
	if !p.up {
		m.stats.SendDropped++
		return
	}
	m.stats.Sent++
	m.emit(Output{Kind: OutSend, Peer: p.Host, Msg: msg})
}

func (m *Manager) ignore(Time, *conn, *args) {}

func (m *Manager) resend(_ Time, c *conn, _ *args) { m.send(c.peer, c.msg) }

// finish gives the function the one output that ends a connection.
func (m *Manager) finish(kind OutputKind, c *conn, a *args) {
	m.close(c, a.reason)
	m.emit(Output{Kind: kind, ID: c.id, Function: c.par.Function, Reason: a.reason, Consumer: a.consumer, Private: a.private})
}

// open hands out the parameters; close is its counterpart. The key is the
// newest the peer gave us, which need not be that of its offer.
func (m *Manager) open(c *conn) {
	c.opened = true
	sa := c.peer.keys[c.txUse()]
	c.par.TxVersion, c.par.TxSPI = sa.Version, sa.SPI
	par := c.par
	par.TxKey = sa.Key
	m.emit(Output{Kind: OutOpen, ID: c.id, Function: par.Function, Params: &par})
}

func (m *Manager) close(c *conn, reason Reason) {
	if c.opened {
		c.opened = false
		m.emit(Output{Kind: OutClose, ID: c.id, Function: c.par.Function, Reason: reason})
	}
}

func (m *Manager) establishActive(_ Time, c *conn, a *args) {
	c.remoteID = a.rep.SenderID
	c.par.PeerQPN = a.rep.QPN
	m.takeOffer(c, &a.rep.Offer)
	c.par.MTU = int(a.rep.Offer.MTU)
	m.stats.Established++
	m.open(c)
	m.emit(Output{Kind: OutEstablished, ID: c.id, Function: c.par.Function, Private: a.rep.Private})
	m.confirm(0, c, a)
}

// openPassive sends REP. The connection is opened first: the peer may use it as
// soon as it has the REP.
func (m *Manager) openPassive(_ Time, c *conn, _ *args) {
	m.open(c)
	m.send(c.peer, c.msg)
}

func (m *Manager) establishPassive(_ Time, c *conn, _ *args) {
	m.stats.Established++
	m.emit(Output{Kind: OutEstablished, ID: c.id, Function: c.par.Function})
}

// confirm tells the peer that we hold the connection for established.
func (m *Manager) confirm(_ Time, c *conn, _ *args) {
	rtu := RTU{c.id, c.remoteID}
	m.send(c.peer, rtu.Append(nil))
}

// rejected ends a request the peer refused.
func (m *Manager) rejected(_ Time, c *conn, a *args) { m.finish(OutRejected, c, a) }

// fail ends a pending connection without a word to the peer.
func (m *Manager) fail(_ Time, c *conn, a *args) { m.finish(OutUnreachable, c, a) }

// lost ends an established connection the peer no longer has.
func (m *Manager) lost(_ Time, c *conn, a *args) {
	m.stats.Disconnected++
	m.finish(OutDisconnected, c, a)
}

// cancel ends a pending connection on our part and tells the peer.
func (m *Manager) cancel(now Time, c *conn, a *args) {
	m.cancelSilently(now, c, a)
	kind := OutUnreachable
	if a.reason == ReasonLocal {
		kind = OutDisconnected
	}
	m.finish(kind, c, a)
}

// cancelSilently is cancel with nothing to tell to the function.
func (m *Manager) cancelSilently(_ Time, c *conn, a *args) {
	m.close(c, a.reason)
	rej := REJ{SenderID: c.id, ReceiverID: c.remoteID, Reason: a.tell, Consumer: a.consumer, Private: a.private}
	m.send(c.peer, rej.Append(nil))
	a.private = nil
}

// disconnect ends an established connection on our part.
func (m *Manager) disconnect(now Time, c *conn, a *args) {
	m.disconnectSilently(now, c, a)
	m.finish(OutDisconnected, c, a)
}

func (m *Manager) disconnectSilently(_ Time, c *conn, a *args) {
	m.stats.Disconnected++
	m.close(c, a.reason)
	dreq := DREQ{c.id, c.remoteID, a.tell}
	c.msg = dreq.Append(nil)
	m.send(c.peer, c.msg)
}

// disconnected ends a connection on the peer's part.
func (m *Manager) disconnected(now Time, c *conn, a *args) {
	m.stats.Disconnected++
	m.answerDREQ(now, c, a)
	m.finish(OutDisconnected, c, a)
}

func (m *Manager) answerDREQ(_ Time, c *conn, _ *args) {
	drep := DREP{c.id, c.remoteID}
	m.send(c.peer, drep.Append(nil))
}

func (m *Manager) answerStale(_ Time, c *conn, a *args) {
	rej := REJ{SenderID: c.id, ReceiverID: c.remoteID, Reason: ReasonStale}
	if a.rep != nil { // withdrawn before we learned the peer's name for it
		rej.ReceiverID = a.rep.SenderID
	}
	m.send(c.peer, rej.Append(nil))
}
