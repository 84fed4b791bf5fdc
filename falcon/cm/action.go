package cm

// args holds an event's details; which fields are set depends on the event.
type args struct {
	rep      *REP
	reason   Reason // reported to our function
	tell     Reason // sent to the peer; ReasonNone: nothing is sent
	consumer uint32
	private  []byte
}

func (h *handshake) ignore(Time, *conn, *args) {}

func (h *handshake) resend(_ Time, c *conn, _ *args) { h.out.send(c.peer, c.msg) }

// finish emits the one output that ends a connection for its function.
func (h *handshake) finish(kind OutputKind, c *conn, a *args) {
	h.close(c, a.reason)
	h.out.emit(Output{Kind: kind, ID: c.id, Function: c.par.Function, Peer: c.peer.Host, Reason: a.reason, Consumer: a.consumer, Private: a.private})
}

// open emits OutOpen with the parameters; close emits the matching OutClose. The key is the newest
// one that the peer gave, which need not be that of its offer.
func (h *handshake) open(c *conn) {
	c.opened = true
	sa := c.peer.keys[c.txUse()]
	c.par.TxVersion, c.par.TxSPI = sa.Version, sa.SPI
	par := c.par
	par.TxKey = sa.Key
	h.out.emit(Output{Kind: OutOpen, ID: c.id, Function: par.Function, Peer: c.peer.Host, Params: &par})
}

func (h *handshake) close(c *conn, reason Reason) {
	if c.opened {
		c.opened = false
		h.out.emit(Output{Kind: OutClose, ID: c.id, Function: c.par.Function, Peer: c.peer.Host, Reason: reason})
	}
}

func (h *handshake) establishActive(_ Time, c *conn, a *args) {
	c.remoteID = a.rep.SenderID
	c.par.PeerQPN = a.rep.QPN
	h.takeOffer(c, &a.rep.Offer)
	c.par.MTU = int(a.rep.Offer.MTU)
	h.out.stats.Established++
	h.open(c)
	h.out.emit(Output{Kind: OutEstablished, ID: c.id, Function: c.par.Function, Peer: c.peer.Host, Private: a.rep.Private})
	h.confirm(0, c, a)
}

// openPassive sends REP. It opens the connection first, since the peer may use it as soon as it has
// the REP.
func (h *handshake) openPassive(_ Time, c *conn, _ *args) {
	h.open(c)
	h.out.send(c.peer, c.msg)
}

func (h *handshake) establishPassive(_ Time, c *conn, _ *args) {
	h.out.stats.Established++
	h.out.emit(Output{Kind: OutEstablished, ID: c.id, Function: c.par.Function, Peer: c.peer.Host})
}

// confirm tells the peer that this side considers the connection established.
func (h *handshake) confirm(_ Time, c *conn, _ *args) {
	rtu := RTU{c.id, c.remoteID}
	h.out.send(c.peer, rtu.Append(nil))
}

// rejected ends a request that the peer refused.
func (h *handshake) rejected(_ Time, c *conn, a *args) { h.finish(OutRejected, c, a) }

// fail ends a pending connection without telling the peer.
func (h *handshake) fail(_ Time, c *conn, a *args) { h.finish(OutUnreachable, c, a) }

// lost ends an established connection that the peer no longer has.
func (h *handshake) lost(_ Time, c *conn, a *args) {
	h.out.stats.Disconnected++
	h.finish(OutDisconnected, c, a)
}

// cancel ends a pending connection on behalf of this side and tells the peer.
func (h *handshake) cancel(now Time, c *conn, a *args) {
	h.cancelSilently(now, c, a)
	kind := OutUnreachable
	if a.reason == ReasonLocal {
		kind = OutDisconnected
	}
	h.finish(kind, c, a)
}

// cancelSilently is cancel without an output to the function.
func (h *handshake) cancelSilently(_ Time, c *conn, a *args) {
	h.close(c, a.reason)
	rej := REJ{SenderID: c.id, ReceiverID: c.remoteID, Reason: a.tell, Consumer: a.consumer, Private: a.private}
	h.out.send(c.peer, rej.Append(nil))
	a.private = nil
}

// disconnect ends an established connection on behalf of this side.
func (h *handshake) disconnect(now Time, c *conn, a *args) {
	h.disconnectSilently(now, c, a)
	h.finish(OutDisconnected, c, a)
}

func (h *handshake) disconnectSilently(_ Time, c *conn, a *args) {
	h.out.stats.Disconnected++
	h.close(c, a.reason)
	dreq := DREQ{c.id, c.remoteID, a.tell}
	c.msg = dreq.Append(nil)
	h.out.send(c.peer, c.msg)
}

// disconnected ends a connection that the peer has ended.
func (h *handshake) disconnected(now Time, c *conn, a *args) {
	h.out.stats.Disconnected++
	h.answerDREQ(now, c, a)
	h.finish(OutDisconnected, c, a)
}

func (h *handshake) answerDREQ(_ Time, c *conn, _ *args) {
	drep := DREP{c.id, c.remoteID}
	h.out.send(c.peer, drep.Append(nil))
}

func (h *handshake) answerStale(_ Time, c *conn, a *args) {
	rej := REJ{SenderID: c.id, ReceiverID: c.remoteID, Reason: ReasonStale}
	if a.rep != nil { // withdrawn before the peer's ID was known
		rej.ReceiverID = a.rep.SenderID
	}
	h.out.send(c.peer, rej.Append(nil))
}
