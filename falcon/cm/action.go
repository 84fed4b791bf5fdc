package cm

// args are an event's details; which are set depends on the event.
type args struct {
	rep      *REP
	reason   Reason // told to our function
	tell     Reason // told to the peer; ReasonNone: nothing is sent
	consumer uint32
	private  []byte
}

func (h *handshake) ignore(Time, *conn, *args) {}

func (h *handshake) resend(_ Time, c *conn, _ *args) { h.out.send(c.peer, c.msg) }

// finish gives the function the one output that ends a connection.
func (h *handshake) finish(kind OutputKind, c *conn, a *args) {
	h.close(c, a.reason)
	h.out.emit(Output{Kind: kind, ID: c.id, Function: c.par.Function, Reason: a.reason, Consumer: a.consumer, Private: a.private})
}

// open hands out the parameters; close is its counterpart. The key is the
// newest the peer gave us, which need not be that of its offer.
func (h *handshake) open(c *conn) {
	c.opened = true
	sa := c.peer.keys[c.txUse()]
	c.par.TxVersion, c.par.TxSPI = sa.Version, sa.SPI
	par := c.par
	par.TxKey = sa.Key
	h.out.emit(Output{Kind: OutOpen, ID: c.id, Function: par.Function, Params: &par})
}

func (h *handshake) close(c *conn, reason Reason) {
	if c.opened {
		c.opened = false
		h.out.emit(Output{Kind: OutClose, ID: c.id, Function: c.par.Function, Reason: reason})
	}
}

func (h *handshake) establishActive(_ Time, c *conn, a *args) {
	c.remoteID = a.rep.SenderID
	c.par.PeerQPN = a.rep.QPN
	h.takeOffer(c, &a.rep.Offer)
	c.par.MTU = int(a.rep.Offer.MTU)
	h.out.stats.Established++
	h.open(c)
	h.out.emit(Output{Kind: OutEstablished, ID: c.id, Function: c.par.Function, Private: a.rep.Private})
	h.confirm(0, c, a)
}

// openPassive sends REP. The connection is opened first: the peer may use it as
// soon as it has the REP.
func (h *handshake) openPassive(_ Time, c *conn, _ *args) {
	h.open(c)
	h.out.send(c.peer, c.msg)
}

func (h *handshake) establishPassive(_ Time, c *conn, _ *args) {
	h.out.stats.Established++
	h.out.emit(Output{Kind: OutEstablished, ID: c.id, Function: c.par.Function})
}

// confirm tells the peer that we hold the connection for established.
func (h *handshake) confirm(_ Time, c *conn, _ *args) {
	rtu := RTU{c.id, c.remoteID}
	h.out.send(c.peer, rtu.Append(nil))
}

// rejected ends a request the peer refused.
func (h *handshake) rejected(_ Time, c *conn, a *args) { h.finish(OutRejected, c, a) }

// fail ends a pending connection without a word to the peer.
func (h *handshake) fail(_ Time, c *conn, a *args) { h.finish(OutUnreachable, c, a) }

// lost ends an established connection the peer no longer has.
func (h *handshake) lost(_ Time, c *conn, a *args) {
	h.out.stats.Disconnected++
	h.finish(OutDisconnected, c, a)
}

// cancel ends a pending connection on our part and tells the peer.
func (h *handshake) cancel(now Time, c *conn, a *args) {
	h.cancelSilently(now, c, a)
	kind := OutUnreachable
	if a.reason == ReasonLocal {
		kind = OutDisconnected
	}
	h.finish(kind, c, a)
}

// cancelSilently is cancel with nothing to tell to the function.
func (h *handshake) cancelSilently(_ Time, c *conn, a *args) {
	h.close(c, a.reason)
	rej := REJ{SenderID: c.id, ReceiverID: c.remoteID, Reason: a.tell, Consumer: a.consumer, Private: a.private}
	h.out.send(c.peer, rej.Append(nil))
	a.private = nil
}

// disconnect ends an established connection on our part.
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

// disconnected ends a connection on the peer's part.
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
	if a.rep != nil { // withdrawn before we learned the peer's name for it
		rej.ReceiverID = a.rep.SenderID
	}
	h.out.send(c.peer, rej.Append(nil))
}
