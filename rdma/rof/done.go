package rof

import (
	"encoding/binary"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// pushDone handles the completion of a push.
func (i *initiator) pushDone(now falcon.Time, ev *falcon.Event) {
	if s := i.tagged(ev.Tag); s != nil {
		syn := syndrome(ev.ULPCode)
		i.segmentDone(now, ev.Tag, s, completionStatus(ev.Code, syn), vendorErr(ev.Code, syn))
	}
}

// pullDone handles the response to a pull, or its failure.
func (i *initiator) pullDone(now falcon.Time, ev *falcon.Event) {
	s := i.tagged(ev.Tag)
	if s == nil {
		return
	}
	syn := syndrome(ev.ULPCode)
	st, vendor := completionStatus(ev.Code, syn), vendorErr(ev.Code, syn)
	if st == abi.WCSuccess {
		if st, vendor = i.takeResponse(s, ev.Data); st == notOurs {
			// The response is dropped silently (RDMA over Falcon §6.9). The QP continues; the
			// request counts as one whose answer never comes.
			i.account.CIDMismatches++
			i.user.Unanswered(now, s.r)
			return
		}
	}
	i.segmentDone(now, ev.Tag, s, st, vendor)
}

// notOurs is the result of takeResponse for a response to another QP than the connection's.
const notOurs abi.WCStatus = 0xff

// takeResponse checks a pull response and places its data.
func (i *initiator) takeResponse(s *segment, part []byte) (abi.WCStatus, uint32) {
	h := &i.e.headers
	n, err := h.Parse(part)
	if err != nil {
		return abi.WCBadRespErr, 0
	}
	want := wire.AtomicResponse
	if s.opcode == wire.ReadRequest { // any of the opcodes of a READ's responses is accepted
		want = min(max(h.RBTH.Opcode&^i.service, wire.ReadRespFirst), wire.ReadRespOnly)
	}
	switch {
	case h.RBTH.DestQP != i.terms.QPN:
		return notOurs, 0
	case h.RBTH.Opcode != want|i.service || h.RBTH.SN != s.sn:
		return abi.WCBadRespErr, 0
	}
	if h.RBTH.CE {
		syn := syndrome(h.RBTH.Syndrome)
		return syn.status(), vendorErr(falcon.CmplAck, syn)
	}
	data, ok := h.RBTH.Data(part, n)
	switch {
	case !ok, want != wire.AtomicResponse && len(data) != int(s.length):
		return abi.WCBadRespErr, 0
	case want == wire.AtomicResponse:
		data = i.e.word[:]
		binary.LittleEndian.PutUint64(data, h.AtomicAck.Original) // the guest's byte order
	}
	if i.user.Scatter(s.r, s.offset, data) != nil {
		return abi.WCLocProtErr, 0
	}
	i.account.BytesRx += uint64(len(data))
	return abi.WCSuccess, 0
}

// segmentDone completes segment s.
func (i *initiator) segmentDone(now falcon.Time, tag uint64, s *segment, st abi.WCStatus, vendor uint32) {
	if i.account.Trace != nil {
		i.noteAcked(s)
	}
	switch {
	case i.terms.Unreliable:
		st, vendor = s.status, 0 // the peer's answer does not matter
	case s.status != abi.WCSuccess:
		st = s.status // falcon reports a failure of Fill under its own code, or not at all if the request completes in error
	case st == abi.WCRetryExcErr && s.rnrs > 0:
		st = abi.WCRNRRetryExcErr // the peer answered until the end that it was not ready
	}
	if s.opcode.Info().Kind == wire.KindPullRequest {
		i.pulls--
	} else {
		i.pushes--
	}
	r := s.r
	i.done(uint16(tag))
	r.Pending--
	i.user.Done(now, r, st, vendor)
}

// peerNotReady counts a receiver-not-ready answer. Falcon sends the packet again by itself. On an
// ordered connection the packets behind the message that the receiver is not ready for get the same
// answer (Falcon §8.5.3.4); it does not count for them.
func (i *initiator) peerNotReady(now falcon.Time, tag uint64) {
	s := i.tagged(tag)
	if s == nil {
		return
	}
	i.account.RNRRx++
	if oldest := i.oldestPush(); i.ordered && (oldest == nil || s.r != oldest.r) {
		return
	}
	if s.rnrs < 255 {
		s.rnrs++
	}
	i.user.PeerNotReady(now, s.r, int(s.rnrs))
}

// oldestPush returns the oldest packet with data in flight, nil if there is none.
func (i *initiator) oldestPush() *segment {
	var oldest *segment
	for _, s := range i.segments {
		if s != nil && s.opcode.Info().Kind == wire.KindPushData && (oldest == nil || int32(s.sn-oldest.sn) < 0) {
			oldest = s
		}
	}
	return oldest
}
