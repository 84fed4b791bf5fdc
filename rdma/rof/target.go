package rof

import (
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// target is the half of a connection that serves the requests of the peer.
//
//	push ─▶ admit by SN ─▶ place data ─▶ acknowledge ─▶ retire in SN order ─▶ message complete
//	pull ─▶ admit by SN ─▶ check, run atomics ─▶ respond; the data of a READ is gathered when falcon sends it
//
// On an ordered connection packets arrive in SN order and are retired at once. On an unordered one
// data is placed as it arrives (weakly ordered mode, RDMA over Falcon §6.2). The arrivals wait in a
// ring for those before them, so that messages complete in the order of the requests.
type target struct {
	*end

	expected uint32 // SN of the next packet to retire
	message  uint32 // RMSN of the oldest unfinished message that takes a receive
	nextPull uint32 // RMSN of the next READ or atomic request

	failed   abi.WCStatus // of the current message: WCSuccess unless it completes in error
	class    messageClass // of the message that is partly retired
	bytes    uint64       // retired bytes of that message
	notReady bool         // the expected packet was answered receiver-not-ready

	arrivals []arrival // ring by SN; unordered connections only
	servedPulls
}

type messageClass uint8

const (
	classNone messageClass = iota
	classSend
	classWrite
	classPull
)

const (
	// reorderWindow limits how far ahead a packet's sequence number may be on an unordered
	// connection.
	reorderWindow = 1024
	// maxMessage is the longest message in bytes (InfiniBand: 2^31).
	maxMessage = 1 << 31
)

// arrival holds what is needed to retire a packet that was accepted.
type arrival struct {
	transport.Packet
	present bool
	class   messageClass
	failed  abi.WCStatus // the message completes in error
}

// begin prepares for a new connection.
func (t *target) begin() {
	t.expected, t.message, t.nextPull = 1, 1, 1
	if !t.ordered {
		t.arrivals = make([]arrival, reorderWindow)
	}
}

// admission is the verdict on a packet's sequence number.
type admission uint8

const (
	admitted admission = iota
	tooEarly           // behind a packet that was not ready, or too far ahead: deliver again
	misplaced
)

func (t *target) admit(sn uint32) admission {
	switch d := int32(sn - t.expected); {
	case d < 0:
		return misplaced
	case t.arrivals == nil && d == 0:
		return admitted
	case t.arrivals == nil && t.notReady:
		return tooEarly
	case t.arrivals == nil:
		return misplaced
	case d >= reorderWindow:
		return tooEarly
	case t.arrivals[sn%reorderWindow].present:
		return misplaced
	}
	return admitted
}

// legal checks a packet's place in its message. Call it for the next packet in SN order.
func (t *target) legal(a *arrival) bool {
	bytes := t.bytes
	if a.First {
		if t.class != classNone {
			return false
		}
		bytes = 0
	} else if t.class != a.class {
		return false
	}
	switch {
	case a.class == classPull:
		return a.Message == t.nextPull
	case a.TakesReceive() && a.Message != t.message,
		a.class == classSend && uint64(a.Offset) != bytes,
		bytes+uint64(a.Length) > maxMessage:
		return false
	}
	return true
}
