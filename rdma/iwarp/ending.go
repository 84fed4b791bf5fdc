package iwarp

import (
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/iwarp/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// A stream ends in one of these ways, and both ends close it then:
//
//	this end finds an error     Terminate goes out as the last FPDU (RFC 5040 §4.8, RFC 7306 §8), then Finish
//	the peer finds an error     its Terminate says which request it refused
//	either end closes           Finish behind the last message, or PeerClosed
//	the stream is lost          Lost
//
// It is gone when both sides are closed, or patience with a peer that does not close ends.

// closing is the end of a connection.
type closing struct {
	why      string
	reset    bool
	last     [wire.MaxTerminateLen]byte // Terminate that is to be sent
	length   int                        // of last; 0: none
	finished bool                       // Finish was told
	heard    bool                       // the peer has closed
	timer    timer.Handle
}

// Patience with peers.
const (
	requestTime transport.Time = 10e9 // for a request frame
	replyTime   transport.Time = 60e9 // for a reply: a program decides about it
	closeTime   transport.Time = 5e9  // for the peer's end of the stream
)

// end ends the connection: it reads nothing more, and is finished when the last frame or FPDU that
// it has to send is written.
func (c *Conn) end(now transport.Time, why string) {
	c.state, c.closing.why = ending, why
	c.e.timers.Arm(&c.closing.timer, c, kindPatience, now+closeTime)
	c.e.timers.Stop(&c.responder.timer)
	c.e.timers.Stop(&c.out.prompt.timer)
	c.in.drop(c.e)
	c.finish(now)
}

// finish closes this end's side of the stream, if everything is written.
func (c *Conn) finish(now transport.Time) {
	d := &c.closing
	if d.length > 0 || len(c.out.frame) > 0 {
		c.wake()
		return
	}
	if !d.finished {
		d.finished = true
		c.e.tell(c, Finish)
	}
	if d.heard {
		c.vanish(now, d.why)
	}
}

// vanish ends the connection at once.
func (c *Conn) vanish(now transport.Time, why string) {
	if c.state == gone {
		return
	}
	c.closing.why, c.closing.reset = why, !c.closing.finished || !c.closing.heard
	c.state = gone
	c.e.timers.Stop(&c.closing.timer)
	c.e.timers.Stop(&c.responder.timer)
	c.e.timers.Stop(&c.out.prompt.timer)
	c.place.Remove()
	c.in.drop(c.e)
	c.e.stats.Conns--
	c.e.tell(c, Gone)
	c.closed(now, abi.WCRetryExcErr, why)
}

// PeerClosed reports that the peer has closed its side of the stream.
func (c *Conn) PeerClosed(now transport.Time) {
	c.closing.heard = true
	switch c.state {
	case gone:
	case ending:
		c.finish(now)
	case ready:
		why := "the peer has closed the stream"
		if len(c.in.part) > 0 {
			why = "the peer has closed the stream in the middle of an FPDU"
		}
		c.end(now, why)
		c.closed(now, abi.WCRetryExcErr, why)
	default:
		c.vanish(now, "the peer has closed the stream while it was set up")
	}
}

// Lost reports that there is no stream any more.
func (c *Conn) Lost(now transport.Time, why string) { c.vanish(now, why) }

// terminate ends the stream with a Terminate message. ulpdu is the segment in which the error was
// found, nil if there is none (RFC 7306 §8.1). An end that has answered the peer and not heard of it
// may send nothing (RFC 5044 §7.1.2), and just closes.
func (c *Conn) terminate(now transport.Time, cause wire.Cause, ulpdu []byte) {
	if c.state != ready {
		return
	}
	if !c.out.mute {
		c.e.stats.Refused++
		t := wire.Terminate{Cause: cause}
		if cause.Layer() != wire.LayerMPA {
			t.SetSegment(ulpdu)
		}
		c.closing.length = len(t.Append(c.closing.last[:0]))
	}
	c.end(now, cause.Error())
}

// refuse ends the stream because of a request of the peer, and tells the queue pair why.
func (c *Conn) refuse(now transport.Time, cause wire.Cause, ulpdu []byte, why transport.Refusal) {
	c.account.Refused++
	c.terminate(now, cause, ulpdu)
	if c.user != nil {
		c.user.Refused(now, why)
	}
}

// refuseAccess returns the cause of a refused access to memory: by DDP for a tagged segment, by RDMAP
// for what a request names (RFC 5041 §7.2, RFC 5040 §4.8).
func refuseAccess(r transport.Refusal, tagged bool) wire.Cause {
	switch {
	case r == transport.UnknownKey && tagged:
		return wire.TaggedInvalidSTag
	case r == transport.UnknownKey:
		return wire.InvalidSTag
	case r == transport.ForeignKey && tagged:
		return wire.TaggedSTagOfAnotherStream
	case r == transport.ForeignKey:
		return wire.STagOfAnotherStream
	case r == transport.OutOfBounds && tagged:
		return wire.TaggedOutOfBounds
	case r == transport.OutOfBounds:
		return wire.OutOfBounds
	}
	return wire.AccessViolation // DDP has no rights
}

// causeOf returns the cause of a refused request with that opcode.
func causeOf(r transport.Refusal, op wire.Opcode) wire.Cause {
	sends := !op.Info().Tagged && op.Info().Queue == wire.QueueSend
	switch {
	case r == transport.NotReady:
		return wire.NoBuffer
	case r.OfMemory() && sends:
		return wire.CannotInvalidate
	case r.OfMemory():
		return refuseAccess(r, op.Info().Tagged)
	case r == transport.Invalid && sends:
		return wire.MessageTooLong
	case r == transport.Invalid && op == wire.OpAtomicRequest: // it is not aligned (RFC 7306 §8.2)
		return wire.StreamCatastrophic
	case r == transport.Invalid:
		return wire.UnexpectedOpcode
	case r == transport.NotServing:
		return wire.LocalCatastrophic
	}
	return wire.OperationUnspecified
}

// statusOf returns the status of a request with that opcode that the peer refused with a cause.
func statusOf(cause wire.Cause, op wire.Opcode) abi.WCStatus {
	switch kind := cause &^ 0xff; {
	case cause == wire.NoBuffer && op != wire.OpReadRequest && op != wire.OpAtomicRequest:
		return abi.WCRNRRetryExcErr
	case cause == wire.TaggedVersion, kind == wire.InvalidQueue&^0xff, cause == wire.InvalidVersion, cause == wire.UnexpectedOpcode,
		cause == wire.StreamCatastrophic && op == wire.OpAtomicRequest:
		return abi.WCRemInvReqErr
	case kind == wire.InvalidSTag&^0xff, kind == wire.TaggedInvalidSTag&^0xff, cause == wire.OperationCannotInvalidate:
		return abi.WCRemAccessErr
	case kind == wire.LocalCatastrophic, kind == wire.DDPCatastrophic, cause.Layer() == wire.LayerMPA:
		return abi.WCRetryExcErr // the peer does not serve: as if nobody were there
	}
	return abi.WCRemOpErr
}

// terminated handles a Terminate of the peer, after which it sends nothing. The header in it says
// which request was refused. What was sent before that was carried out.
func (c *Conn) terminated(now transport.Time, message []byte) {
	c.e.stats.Terminated++
	t, err := wire.ParseTerminate(message)
	var h wire.Header
	if err == nil && len(t.DDP) > 0 {
		h, _, err = wire.ParseHeader(t.DDP)
	} else {
		h.Opcode = wire.OpTerminate
	}
	why := "the peer ended the stream: " + t.Cause.Error()
	if len(message) < 2 {
		why = "the peer ended the stream by a message that is cut off"
	}
	st := statusOf(t.Cause, h.Opcode)
	c.end(now, why)
	if c.user == nil {
		return
	}
	if err == nil && !c.forgot {
		c.requester.refused(now, &h, st, uint32(t.Cause))
	}
	c.closed(now, st, why)
}
