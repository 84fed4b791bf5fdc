package rof

import (
	"encoding/binary"
	"errors"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/rof/wire"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

const (
	maxPushes = 128 // pushes of a connection in flight with falcon
	maxPulls  = 64  // pulls of a connection in flight with falcon
)

// initiator is the half of a connection that sends requests.
//
//	issue ─▶ a segment in a slot, a transaction of the pipe ─▶ fill, each time it is sent ─▶ done
//
// The tag of a transaction consists of the segment's slot and the epoch, which is incremented when
// the requests are dropped. Segments come from the engine's pool.
type initiator struct {
	end *end

	segments      []*segment // by slot, nil if it is free
	free          []uint16   // slots
	epoch         uint32
	pushes, pulls int    // segments with the pipe
	reads         int    // limit of pulls
	sn            uint32 // RBTH sequence number of the next request
	rmsn          uint32 // of the next SEND or WRITE with immediate
	pullRMSN      uint32 // of the next READ or atomic request
}

// segment is one request packet that the pipe has.
type segment struct {
	r      *transport.Request
	rnrs   uint8        // receiver-not-ready answers
	status abi.WCStatus // set by Fill if the data cannot be read
	opcode ib.Opcode    // without the service
	sn     uint32
	rmsn   uint32
	offset uint32 // of the data in the message
	length uint32
}

// begin starts the numbering of a new connection at 1 (RDMA over Falcon §8.2, §8.3.2).
func (i *initiator) begin(reads int) {
	i.segments = make([]*segment, maxPushes+maxPulls)
	i.free = make([]uint16, 0, len(i.segments))
	i.reads = reads
	i.sn, i.rmsn, i.pullRMSN = 1, 1, 1
	i.forget()
}

// forget drops the requests in progress. The pipe's answers to them are ignored from now on.
func (i *initiator) forget() {
	i.epoch++
	i.pushes, i.pulls = 0, 0
	i.free = i.free[:0]
	for n, s := range i.segments {
		if s != nil {
			i.segments[n] = nil
			i.release(s)
		}
		i.free = append(i.free, uint16(len(i.segments)-1-n))
	}
}

// nextTag returns the tag for the slot that keep will use. A slot must be free.
func (i *initiator) nextTag() uint64 { return uint64(i.epoch)<<32 | uint64(i.free[len(i.free)-1]) }

// keep copies s into a segment of the pool and stores that in the next free slot.
func (i *initiator) keep(s *segment) *segment {
	kept := i.end.e.segments.Get()
	*kept = *s
	i.segments[i.free[len(i.free)-1]] = kept
	i.free = i.free[:len(i.free)-1]
	return kept
}

// tagged returns the segment of a tag, nil if it was dropped.
func (i *initiator) tagged(tag uint64) *segment {
	if uint32(tag>>32) != i.epoch {
		return nil
	}
	return i.segments[uint32(tag)]
}

// remove frees a segment and its slot.
func (i *initiator) remove(slot uint16) {
	i.release(i.segments[slot])
	i.segments[slot] = nil
	i.free = append(i.free, slot)
}

func (i *initiator) release(s *segment) {
	s.r = nil // the pool must not keep requests alive
	i.end.e.segments.Put(s)
}

// issue implements transport.Conn.Issue.
func (i *initiator) issue(now falcon.Time, r *transport.Request) (n int, err error) {
	pulls := r.Pulls()
	if !r.Begun {
		r.Begun = true
		if r.TakesReceive() {
			r.Number = i.rmsn
			i.rmsn++
		}
	}
	if len(i.free) == 0 || pulls && i.pulls >= i.reads || !pulls && i.pushes >= maxPushes {
		return 0, transport.ErrWindow
	}
	opcode := ib.Operation(r.WQE.Opcode, r.Offset == 0, r.Length-r.Offset <= i.most(r))
	s := segment{r: r, opcode: opcode, sn: i.sn, rmsn: r.Number, offset: r.Offset, length: i.segmentLength(r)}
	if pulls {
		s.rmsn = i.pullRMSN
	}
	if err := i.hand(now, &s, i.nextTag()); err != nil {
		return 0, i.refused(r, err)
	}
	i.issued(i.keep(&s), pulls)
	return int(s.length), nil
}

// most returns the most data that one segment of r may have. A message that must be one packet (§6.4)
// goes as it is when the network carries shorter ones only: the connection ends with that reason.
func (i *initiator) most(r *transport.Request) uint32 {
	if i.end.terms.Unordered && r.TakesReceive() {
		return uint32(i.end.segment)
	}
	return uint32(i.end.fits)
}

// segmentLength returns the data length of r's next segment: at most the segment size of the
// connection, and for a READ within one element of its scatter list (RDMA over Falcon §6.7).
func (i *initiator) segmentLength(r *transport.Request) uint32 {
	n := min(r.Length-r.Offset, i.most(r))
	if r.Reads() {
		_, _, left := i.end.user.Element(r, r.Offset)
		n = min(n, left)
	}
	return n
}

// hand passes a segment to the pipe.
func (i *initiator) hand(now falcon.Time, s *segment, tag uint64) error {
	op := s.opcode | i.end.service
	info, length := op.Info(), wire.Opcodes[op].Len
	switch {
	case info.Kind == ib.KindPull:
		return i.end.pipe.Pull(now, tag, length, wire.PullLength(op, int(s.length)))
	case info.Last:
		return i.end.pipe.PushLast(now, tag, length+ib.Padded(int(s.length))) // the message waits for this acknowledgement
	}
	return i.end.pipe.Push(now, tag, length+ib.Padded(int(s.length)))
}

// refused translates the error of a pipe that did not take a segment of r.
func (i *initiator) refused(r *transport.Request, err error) error {
	switch {
	case errors.Is(err, falcon.ErrXoff):
		i.end.account.CreditWaits++
		return transport.ErrBlocked
	case errors.Is(err, falcon.ErrDraining), i.end.terms.Unreliable && errors.Is(err, falcon.ErrClosed):
		return transport.ErrEnding
	}
	// The connection is closed and its event follows, or falcon does not accept the length.
	r.Status, r.Vendor, r.Issued = abi.WCGeneralErr, vendorErr(falcon.CmplLocalRsrc, synNone), true
	if errors.Is(err, falcon.ErrClosed) {
		r.Status = abi.WCRetryExcErr
	}
	return transport.ErrFailed
}

// issued counts a segment that the pipe took.
func (i *initiator) issued(s *segment, pulls bool) {
	r, account := s.r, i.end.account
	if s.offset == 0 && i.end.notes.On() {
		i.end.notes.Request(trace.Issued, r, s.sn)
	}
	i.sn++
	r.Pending++
	if pulls {
		i.pulls++
		i.pullRMSN++
		account.PullsTx++
	} else {
		i.pushes++
		account.PushesTx++
		account.BytesTx += uint64(s.length)
	}
	r.Offset += s.length
	r.Issued = r.Offset == r.Length
}

// fillRequest writes one request packet, for its first and every later transmission.
func (i *initiator) fillRequest(tag uint64, dst []byte) (int, error) {
	s := i.tagged(tag)
	if s == nil {
		return 0, errGone
	}
	if i.end.notes.On() {
		i.end.notes.Request(trace.Scheduled, s.r, s.sn)
	}
	n, err := i.fill(s, dst)
	if err != nil && i.end.account.Trace != nil {
		i.end.account.Trace.Unfilled()
	}
	return n, err
}

// fill writes the headers and data of a segment.
func (i *initiator) fill(s *segment, dst []byte) (int, error) {
	r, h := s.r, &i.end.e.headers
	info := s.opcode.Info()
	*h = wire.Headers{} // field by field: a composite literal would be built elsewhere and copied
	h.RBTH.Opcode, h.RBTH.DestQP, h.RBTH.SN = s.opcode|i.end.service, i.end.terms.Peer, s.sn
	h.SetRequest(&r.WQE, r.Masks)
	h.RETH.VA, h.RETH.Length = r.WQE.RemoteAddr+uint64(s.offset), s.length
	h.SETH.RMSN = s.rmsn
	h.OETH.Offset = s.offset
	data := 0
	if info.Kind == ib.KindData {
		data = int(s.length)
		h.RBTH.Pad = uint8(ib.PadLen(data))
		h.RBTH.Solicited = r.TakesReceive() && info.Last && r.WQE.Flags&abi.SendSolicited != 0
	} else if s.length > 0 {
		h.STETH.VA, h.STETH.LKey, _ = i.end.user.Element(r, s.offset)
	}
	if len(dst) < wire.Opcodes[h.RBTH.Opcode].Len+ib.Padded(data) {
		return 0, errGone
	}
	n := len(h.Append(dst[:0]))
	if data == 0 {
		return n, nil
	}
	if !r.Spoiled {
		if err := i.end.user.Gather(r, s.offset, dst[n:n+data]); err != nil {
			s.status = abi.WCLocProtErr
			if !i.end.terms.InError {
				return 0, err
			}
			r.Spoiled = true
		}
	}
	if r.Spoiled {
		// The peer is informed by this packet, which has no valid data, and by all later packets of
		// the message (RDMA over Falcon §8.2).
		h.RBTH.CE = true
		h.Append(dst[:0])
		clear(dst[n : n+data])
	}
	n += data
	for range h.RBTH.Pad {
		dst[n] = 0
		n++
	}
	return n, nil
}

// pushDone handles the completion of a push.
func (i *initiator) pushDone(now falcon.Time, ev *falcon.Event) {
	if s := i.tagged(ev.Tag); s != nil {
		syn := ib.Syndrome(ev.ULPCode)
		i.done(now, ev.Tag, s, completionStatus(ev.Code, syn), vendorErr(ev.Code, syn))
	}
}

// pullDone handles the response to a pull, or its failure.
func (i *initiator) pullDone(now falcon.Time, ev *falcon.Event) {
	s := i.tagged(ev.Tag)
	if s == nil {
		return
	}
	syn := ib.Syndrome(ev.ULPCode)
	st, vendor := completionStatus(ev.Code, syn), vendorErr(ev.Code, syn)
	if st == abi.WCSuccess {
		if st, vendor = i.takeResponse(s, ev.Data); st == notOurs {
			// The response is dropped silently (RDMA over Falcon §6.9). The QP continues; the
			// request counts as one whose answer never comes.
			i.end.account.CIDMismatches++
			i.end.user.Unanswered(now, s.r)
			return
		}
	}
	i.done(now, ev.Tag, s, st, vendor)
}

// notOurs is the result of takeResponse for a response to another QP than the connection's.
const notOurs abi.WCStatus = 0xff

// takeResponse checks a pull response and places its data.
func (i *initiator) takeResponse(s *segment, part []byte) (abi.WCStatus, uint32) {
	h := &i.end.e.headers
	n, err := h.Parse(part)
	if err != nil {
		return abi.WCBadRespErr, 0
	}
	want := ib.AtomicResponse
	if s.opcode == ib.ReadRequest { // any of the opcodes of a READ's responses is accepted
		want = min(max(h.RBTH.Opcode&^i.end.service, ib.ReadRespFirst), ib.ReadRespOnly)
	}
	switch {
	case h.RBTH.DestQP != i.end.terms.QPN:
		return notOurs, 0
	case h.RBTH.Opcode != want|i.end.service || h.RBTH.SN != s.sn:
		return abi.WCBadRespErr, 0
	}
	if h.RBTH.CE {
		syn := ib.Syndrome(h.RBTH.Syndrome)
		return statusOf(syn), vendorErr(falcon.CmplAck, syn)
	}
	data, ok := h.RBTH.Data(part, n)
	switch {
	case !ok, want != ib.AtomicResponse && len(data) != int(s.length):
		return abi.WCBadRespErr, 0
	case want == ib.AtomicResponse:
		data = i.end.e.word[:]
		binary.LittleEndian.PutUint64(data, h.AtomicAck.Original) // the guest's byte order
	}
	if i.end.user.Scatter(s.r, s.offset, data) != nil {
		return abi.WCLocProtErr, 0
	}
	i.end.account.BytesRx += uint64(len(data))
	return abi.WCSuccess, 0
}

// done completes segment s.
func (i *initiator) done(now falcon.Time, tag uint64, s *segment, st abi.WCStatus, vendor uint32) {
	if i.end.notes.On() {
		i.end.notes.Request(trace.Acked, s.r, s.sn)
	}
	switch {
	case i.end.terms.Unreliable:
		st, vendor = s.status, 0 // the peer's answer does not matter
	case s.status != abi.WCSuccess:
		st = s.status // falcon reports a failure of Fill under its own code, or not at all if the request completes in error
	case st == abi.WCRetryExcErr && s.rnrs > 0:
		st = abi.WCRNRRetryExcErr // the peer answered until the end that it was not ready
	}
	if s.opcode.Info().Kind == ib.KindPull {
		i.pulls--
	} else {
		i.pushes--
	}
	r := s.r
	i.remove(uint16(tag))
	r.Pending--
	i.end.user.Done(now, r, st, vendor)
}

// peerNotReady counts a receiver-not-ready answer. Falcon sends the packet again by itself. On an
// ordered connection the packets behind the message that the receiver is not ready for get the same
// answer (Falcon §8.5.3.4); it does not count for them.
func (i *initiator) peerNotReady(now falcon.Time, tag uint64) {
	s := i.tagged(tag)
	if s == nil {
		return
	}
	i.end.account.RNRRx++
	if oldest := i.oldestPush(); i.end.ordered && (oldest == nil || s.r != oldest.r) {
		return
	}
	if s.rnrs < 255 {
		s.rnrs++
	}
	i.end.user.PeerNotReady(now, s.r, int(s.rnrs))
}

// oldestPush returns the oldest packet with data in flight, nil if there is none.
func (i *initiator) oldestPush() *segment {
	var oldest *segment
	for _, s := range i.segments {
		if s != nil && s.opcode.Info().Kind == ib.KindData && (oldest == nil || int32(s.sn-oldest.sn) < 0) {
			oldest = s
		}
	}
	return oldest
}
