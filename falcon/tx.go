package falcon

import "github.com/falcon-vnic/vnic/falcon/wire"

// sendFresh sends a transaction's packet for the first time and assigns its PSN.
func (c *sender) sendFresh(now Time, t *txn, dst []byte) int {
	if t == nil {
		return 0
	}
	w := c.window(t.kind)
	t.psn = w.next
	last := t.place.Next() == nil && t.kind == TxnPush && c.busy&wantPull == 0
	n := c.build(t, c.ackRequest(t, last), dst)
	if n == 0 {
		return 0
	}
	t.unlink()
	c.assignPSN(w, t)
	switch t.kind {
	case TxnPush:
		w.outstanding++
		t.state = pushDataTx
	case TxnPull:
		w.outstanding++
		t.state = pullReqTx
	case TxnPullData:
		t.state = pullDataTx
	}
	c.e.stats.DataSent++
	c.sentTxn(now, t)
	return n
}

// sendAgain retransmits the next eligible packet with its old PSN.
func (c *sender) sendAgain(now Time, dst []byte) int {
	t := c.nextAgain()
	if t == nil {
		return 0
	}
	n := c.build(t, c.asksForAcks(), dst)
	if n == 0 {
		return 0
	}
	t.unlink()
	c.retransmits++
	c.dataFirst = t.kind != TxnPullData
	if t.kind != TxnPullData {
		c.window(t.kind).retransmitted++
		t.again = true
	}
	c.sentTxn(now, t)
	c.kick() // new packets may have waited for this one
	return n
}

// sentTxn updates a transaction whose packet was sent and starts the retransmission timer (Falcon
// §9.1.3).
func (c *sender) sentTxn(now Time, t *txn) {
	c.unpark(t)
	t.lastSent = now
	if t.firstSent < 0 {
		t.firstSent = now
	}
	if t.started < 0 {
		t.started = now
		c.timeTxn(now)
	}
	t.enlist(inFlight)
	if t == c.flight().First() { // otherwise an earlier packet is due first, and the timer runs for it
		c.timeFlight()
	}
	c.pace(now)
	c.piggybacked()
}

// build writes the packet of t and returns its length, 0 if dst is too small. If the ULP cannot
// supply the data, the packet becomes a Resync.
func (c *sender) build(t *txn, ackReq bool, dst []byte) int {
	var p wire.PushData // the other packets' headers begin with the same fields
	h := &p.Header
	h.CID, h.Function, h.Protocol, h.Type = c.remoteCID, c.remoteFunction, c.protocol, t.packetType()
	h.AckReq, h.DataBase, h.ReqBase, h.PSN, h.RSN = ackReq, c.dataRx.base, c.reqRx.base, t.psn, t.rsn
	if t.resync == 0 {
		header := headerLen(t.kind)
		end := header + int(t.length)
		if len(dst) < end {
			return 0
		}
		n, err := c.e.ulp.Fill(c.self(), t.kind, t.tag, dst[header:end:end])
		if err == nil && n >= 0 && n <= int(t.length) {
			switch t.kind {
			case TxnPush:
				p.RequestLength = uint16(n)
				p.Append(dst[:0])
			case TxnPull:
				r := wire.PullRequest{Header: *h, RequestLength: uint16(t.pullLength)}
				r.Append(dst[:0])
			case TxnPullData:
				h.Append(dst[:0])
			}
			return header + n
		}
		c.e.stats.FillErrors++
		t.makeResync(wire.ResyncLocalXLR, CmplLocalXlr)
	}
	if len(dst) < wire.ResyncLen {
		return 0
	}
	r := wire.Resync{Header: *h, Code: t.resync, Original: h.Type}
	r.Type = wire.TypeResync
	c.e.stats.ResyncsSent++
	return len(r.Append(dst[:0]))
}

func headerLen(kind TxnKind) int {
	switch kind {
	case TxnPush:
		return wire.PushDataLen
	case TxnPull:
		return wire.PullRequestLen
	default:
		return wire.PullDataLen
	}
}

// asksForAcks reports whether the profile uses the AR bit at all.
func (c *sender) asksForAcks() bool {
	p := &c.e.profile
	return p.ARBurst || p.ARPercent > 0 || p.ARFcwnd > 0
}

// ackRequest decides whether a new packet has the AR bit (Falcon §9.1.3.1): every packet while
// fcwnd is small, a share of the packets above that, and a packet with nothing waiting behind it.
func (c *sender) ackRequest(t *txn, last bool) bool {
	p := &c.e.profile
	if p.ARBurst && (last || t.last) {
		return true
	}
	if c.cc.Fcwnd <= p.ARFcwnd<<10 {
		return true
	}
	if p.ARPercent == 0 {
		return false
	}
	c.arSpacing--
	if c.arSpacing > 0 {
		return false
	}
	c.drawSpacing()
	return true
}
