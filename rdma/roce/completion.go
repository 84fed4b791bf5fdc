package roce

import (
	"encoding/binary"

	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// response takes what the peer's responder says.
func (c *Conn) response(now transport.Time, h *wire.Headers, data []byte) {
	s := &c.requester
	if c.user == nil || s.entries.Len() == 0 || h.BTH.PSN.Sub(s.ahead) > 0 {
		return // it is about nothing that was sent
	}
	switch op := h.BTH.Opcode &^ wire.ServiceMask; op {
	case wire.Acknowledge:
		c.acknowledged(now, h.BTH.PSN, h.AETH.Syndrome)
	case wire.AtomicResponse:
		c.atomicResponse(now, h)
	default:
		c.readResponse(now, h, data)
	}
}

// acknowledged takes an ACK or NAK (IBA §9.7.5.1.2). Each says that what came before its PSN arrived.
func (c *Conn) acknowledged(now transport.Time, psn wire.PSN, syndrome wire.Syndrome) {
	upTo := psn
	if syndrome.Acks() {
		upTo = psn.Add(1)
	}
	if upTo.Sub(c.entries.At(0).psn) < 0 || !c.arrived(now, upTo) || syndrome.Acks() {
		return
	}
	e := c.entries.At(0)
	if psn.Sub(e.psn) < 0 || psn.Sub(e.end()) >= 0 {
		return // it is not about anything that is under way
	}
	if timer, ok := syndrome.NotReady(); ok {
		c.peerNotReady(now, e, timer)
		return
	}
	switch syndrome {
	case wire.SynSequence:
		c.port.stats.Missing++
		c.e.congestion.Lost(&c.traffic, now)
		c.heard = now
		c.rewind()
	case wire.SynInvalid:
		c.fail(now, abi.WCRemInvReqErr, uint32(syndrome))
	case wire.SynAccess:
		c.fail(now, abi.WCRemAccessErr, uint32(syndrome))
	case wire.SynOperation:
		c.fail(now, abi.WCRemOpErr, uint32(syndrome))
	}
}

// arrived ends the packets with data before psn. A READ or atomic among them has lost its response.
// It reports whether there is something left to say about.
func (c *Conn) arrived(now transport.Time, psn wire.PSN) (left bool) {
	epoch := c.epoch
	n, lost := c.retireBefore(now, psn)
	if c.epoch != epoch || c.user == nil {
		return false
	}
	if n > 0 {
		c.progress(now, psn, n)
	}
	if lost {
		c.missing(now)
		return false
	}
	return c.failFront(now)
}

// retireBefore ends the packets with data before psn, up to a READ or atomic that has no response.
func (c *Conn) retireBefore(now transport.Time, psn wire.PSN) (n int, lost bool) {
	s, epoch := &c.requester, c.epoch
	for s.epoch == epoch && s.entries.Len() > 0 {
		e := s.entries.At(0)
		switch {
		case e.psn.Sub(psn) >= 0:
			return n, false
		case e.pulls():
			return n, true
		}
		n++
		c.retire(now, abi.WCSuccess, 0)
	}
	return n, false
}

// retire takes the entry in front out and tells the queue pair how it ended.
func (c *Conn) retire(now transport.Time, st abi.WCStatus, vendor uint32) {
	s := &c.requester
	c.returnCredits(s.entries.At(0))
	e := s.entries.Pop()
	r, left := e.r, e.packets-e.got
	e.r = nil
	if s.sent > 0 {
		s.sent--
		s.flying -= left
	}
	if e.pulls() {
		s.pulls--
	} else {
		s.pushes--
	}
	r.Pending -= left
	c.user.Done(now, r, st, vendor)
}

// fail ends the entry in front with an error, which the connection does not survive.
func (c *Conn) fail(now transport.Time, st abi.WCStatus, vendor uint32) {
	c.e.timers.Stop(&c.timer)
	c.dead = true
	c.retire(now, st, vendor)
}

// failFront ends the entry in front if its data is not to be had. It reports whether it is still
// there.
func (c *Conn) failFront(now transport.Time) bool {
	if c.entries.Len() == 0 {
		return false
	}
	e := c.entries.At(0)
	if e.failed == abi.WCSuccess {
		return true
	}
	c.fail(now, e.failed, 0)
	return false
}

// peerNotReady waits as long as the peer asks for.
func (c *Conn) peerNotReady(now transport.Time, e *entry, timer uint8) {
	s, epoch := &c.requester, c.epoch
	c.account.RNRRx++
	e.rnrs++
	c.rewind()
	s.notReady, s.heard, s.lastRNR = true, now, true
	c.e.timers.Arm(&s.timer, c, kindRetry, now+falconwire.RNRTimeout(timer))
	c.user.PeerNotReady(now, e.r, e.rnrs)
	if s.epoch != epoch {
		s.notReady = false
	}
}

// pulled brings the READ or atomic whose response is at hand to the front: what was sent before it
// has arrived. nil: the response says nothing.
func (c *Conn) pulled(now transport.Time, psn wire.PSN) *entry {
	e, _ := c.at(psn)
	if e == nil || !e.pulls() {
		return nil
	}
	if first := e.psn; e != c.entries.At(0) && !c.arrived(now, first) || c.entries.Len() == 0 || c.entries.At(0).psn != first {
		return nil
	}
	return c.entries.At(0)
}

// atomicResponse takes the result of an atomic.
func (c *Conn) atomicResponse(now transport.Time, h *wire.Headers) {
	e := c.pulled(now, h.BTH.PSN)
	if e == nil || e.read() {
		return
	}
	data := c.e.word[:]
	binary.LittleEndian.PutUint64(data, h.AtomicAck.Original) // the guest's byte order
	if c.user.Scatter(e.r, e.offset, data) != nil {
		c.fail(now, abi.WCLocProtErr, 0)
		return
	}
	c.account.BytesRx += uint64(len(data))
	epoch, end := c.epoch, e.end()
	if c.retire(now, abi.WCSuccess, 0); c.epoch == epoch && c.user != nil {
		c.progress(now, end, 1)
	}
}

// readResponse takes a part of the response to a READ.
func (c *Conn) readResponse(now transport.Time, h *wire.Headers, data []byte) {
	e := c.pulled(now, h.BTH.PSN)
	if e == nil || !e.read() {
		return
	}
	switch d := h.BTH.PSN.Sub(e.psn.Add(e.got)); {
	case d < 0:
		return // came before
	case d > 0:
		c.missing(now)
		return
	}
	offset := uint32(e.got * c.segment)
	want, last := min(e.length-offset, uint32(c.segment)), e.got+1 == e.packets
	if uint32(len(data)) != want || h.BTH.Opcode.Info().Last != last {
		c.fail(now, abi.WCBadRespErr, 0)
		return
	}
	if len(data) > 0 && c.user.Scatter(e.r, e.offset+offset, data) != nil {
		c.fail(now, abi.WCLocProtErr, 0)
		return
	}
	c.account.BytesRx += uint64(len(data))
	epoch, next := c.epoch, h.BTH.PSN.Add(1)
	if last {
		c.retire(now, abi.WCSuccess, 0)
	} else {
		e.got++
		if c.sent > 0 {
			c.flying--
		}
		e.r.Pending--
		c.user.Done(now, e.r, abi.WCSuccess, 0)
	}
	if c.epoch == epoch && c.user != nil {
		c.progress(now, next, 1)
	}
}
