package roce

import (
	"encoding/binary"

	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// response handles a response of the peer's responder.
func (s *requester) response(now transport.Time, h *wire.Headers, data []byte) {
	if wire.Opcodes[h.BTH.Opcode].Headers&ib.HasAETH != 0 && s.limit.credited(&h.AETH) {
		s.end.wake()
	}
	if s.end.user == nil || s.entries.Len() == 0 || h.BTH.PSN.Sub(s.ahead) > 0 {
		return // it does not refer to a packet that was sent
	}
	switch op := h.BTH.Opcode &^ ib.ServiceMask; op {
	case ib.Acknowledge:
		s.acknowledged(now, h.BTH.PSN, h.AETH.Syndrome)
	case ib.AtomicResponse:
		s.atomicResponse(now, h)
	default:
		s.readResponse(now, h, data)
	}
}

// acknowledged handles an ACK or NAK (IBA §9.7.5.1.2). Both acknowledge everything before their
// PSN.
func (s *requester) acknowledged(now transport.Time, psn wire.PSN, syndrome ib.Syndrome) {
	upTo := psn
	if syndrome.Acks() {
		upTo = psn.Add(1)
	}
	if upTo.Sub(s.entries.At(0).psn) < 0 || !s.arrived(now, upTo) || syndrome.Acks() {
		return
	}
	e := s.entries.At(0) // it has that PSN
	if timer, ok := syndrome.NotReady(); ok {
		s.peerNotReady(now, e, timer)
		return
	}
	switch syndrome {
	case ib.SynSequence:
		s.end.port.stats.Missing++
		s.end.e.congestion.Lost(&s.traffic, now)
		s.heard = now
		s.rewind()
	case ib.SynInvalid:
		s.fail(now, abi.WCRemInvReqErr, uint32(syndrome))
	case ib.SynAccess:
		s.fail(now, abi.WCRemAccessErr, uint32(syndrome))
	case ib.SynOperation:
		s.fail(now, abi.WCRemOpErr, uint32(syndrome))
	}
}

// arrived completes the packets with data before psn. A READ or atomic among them has lost its
// response. It returns false if nothing is left to do for the acknowledgement.
func (s *requester) arrived(now transport.Time, psn wire.PSN) (left bool) {
	n, lost := s.retireBefore(now, psn)
	if n > 0 {
		s.progress(now, psn, n)
	}
	if lost {
		s.missing(now)
		return false
	}
	return s.failFront(now)
}

// peerNotReady waits for as long as the peer asks.
func (s *requester) peerNotReady(now transport.Time, e *entry, timer uint8) {
	s.end.account.RNRRx++
	e.rnrs++
	s.rewind()
	s.park()
	s.notReady, s.heard, s.lastRNR = true, now, true
	s.end.arm(&s.timer, kindRetry, now+falconwire.RNRTimeout(timer))
	s.end.user.PeerNotReady(now, e.r, e.rnrs)
}

// pulled completes everything sent before the READ or atomic whose response arrived, and returns
// its entry. It returns nil if the response must be ignored.
func (s *requester) pulled(now transport.Time, psn wire.PSN) *entry {
	e := s.at(psn)
	if e == nil || !e.pulls() {
		return nil
	}
	if e != s.entries.At(0) && !s.arrived(now, e.psn) {
		return nil
	}
	return s.entries.At(0)
}

// atomicResponse handles the result of an atomic.
func (s *requester) atomicResponse(now transport.Time, h *wire.Headers) {
	e := s.pulled(now, h.BTH.PSN)
	if e == nil || e.read() {
		return
	}
	data := s.end.e.word[:]
	binary.LittleEndian.PutUint64(data, h.AtomicAck.Original) // the guest's byte order
	if s.end.user.Scatter(e.r, e.offset, data) != nil {
		s.fail(now, abi.WCLocProtErr, 0)
		return
	}
	s.end.account.BytesRx += uint64(len(data))
	end := e.end()
	s.retire(now, abi.WCSuccess, 0)
	s.progress(now, end, 1)
}

// readResponse handles one packet of the response to a READ.
func (s *requester) readResponse(now transport.Time, h *wire.Headers, data []byte) {
	e := s.pulled(now, h.BTH.PSN)
	if e == nil || !e.read() {
		return
	}
	switch d := h.BTH.PSN.Sub(e.next()); {
	case d < 0:
		return // a duplicate
	case d > 0:
		s.missing(now)
		return
	}
	offset := uint32(e.got * s.end.segment)
	want, last := min(e.length-offset, uint32(s.end.segment)), e.got+1 == e.packets
	if uint32(len(data)) != want || h.BTH.Opcode.Info().Last != last {
		s.fail(now, abi.WCBadRespErr, 0)
		return
	}
	if len(data) > 0 && s.end.user.Scatter(e.r, e.offset+offset, data) != nil {
		s.fail(now, abi.WCLocProtErr, 0)
		return
	}
	s.end.account.BytesRx += uint64(len(data))
	if last {
		s.retire(now, abi.WCSuccess, 0)
	} else {
		e.got++
		if s.sent > 0 {
			s.flying--
		}
		e.r.Pending--
		s.end.user.Done(now, e.r, abi.WCSuccess, 0)
	}
	s.progress(now, h.BTH.PSN.Add(1), 1)
}

// retire removes the first entry and tells the queue pair how it ended.
func (s *requester) retire(now transport.Time, st abi.WCStatus, vendor uint32) {
	s.returnCredits(s.entries.At(0))
	e := s.entries.Pop()
	if s.end.notes.On() && !s.end.terms.Unreliable && (st == abi.WCSuccess || vendor != 0) { // otherwise nobody answered it
		s.end.notes.Request(trace.Acked, e.r, serial(e.psn))
	}
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
	s.end.user.Done(now, r, st, vendor)
}

// retireBefore completes the packets with data before psn, up to a READ or atomic whose response is
// incomplete. lost reports whether there was one.
func (s *requester) retireBefore(now transport.Time, psn wire.PSN) (n int, lost bool) {
	for s.entries.Len() > 0 {
		e := s.entries.At(0)
		switch {
		case e.next().Sub(psn) >= 0:
			return n, false
		case e.pulls():
			return n, true
		}
		n++
		s.retire(now, abi.WCSuccess, 0)
	}
	return n, false
}

// fail ends the first entry with an error, after which the connection sends nothing more.
func (s *requester) fail(now transport.Time, st abi.WCStatus, vendor uint32) {
	s.end.stop(&s.timer)
	s.dead = !s.end.terms.Unreliable // its queue pair may go on (IBA §10.3.1.6)
	s.retire(now, st, vendor)
}

// failFront ends the first entry if its data could not be read. It reports whether the entry is
// still there.
func (s *requester) failFront(now transport.Time) bool {
	if s.entries.Len() == 0 {
		return false
	}
	e := s.entries.At(0)
	if e.failed == abi.WCSuccess {
		return true
	}
	s.fail(now, e.failed, 0)
	return false
}
