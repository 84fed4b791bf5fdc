package wire

import "strconv"

// Drop is the reason why a received packet, or what it asks for, was not accepted. Zero is
// accepted.
type Drop uint8

// Drop reasons. The first group is about bytes, the second is used by the engine.
const (
	DropNone       Drop = iota
	DropShort           // shorter than its format
	DropVersion         // version is not 1
	DropPacketType      // reserved packet type
	DropProtocol        // reserved protocol, or not the connection's
	DropLength          // Request Length and payload disagree, more payload than allowed, or trailing bytes
	DropResyncType      // Resync of something that has no window

	DropUnknownCID    // no such connection, or it is closed
	DropFunction      // Destination Function is not the connection's
	DropDuplicate     // received before
	DropBehindWindow  // PSN before the receive window: old duplicate
	DropBeyondWindow  // PSN after the receive window
	DropResource      // no receiver resources: NACKed
	DropStaleAck      // acknowledgement older than what is known
	DropImpossibleAck // acknowledges what was never sent
	DropNackCode      // reserved NACK code
	DropUnknownRSN    // Pull Data for no outstanding pull
	DropRSN           // RSN outside the target's window or already used by another PSN
	DropPullLength    // Pull Data larger than requested
	DropNackTarget    // NACK of a packet that is not outstanding
	DropNotReady      // NACKed: an earlier transaction waits for the receiver
	DropCount         // number of reasons
)

// String is a short lower-case phrase, usable as a counter label.
func (d Drop) String() string {
	switch d {
	case DropNone:
		return "accepted"
	case DropShort:
		return "short packet"
	case DropVersion:
		return "bad version"
	case DropPacketType:
		return "reserved packet type"
	case DropProtocol:
		return "bad protocol"
	case DropLength:
		return "length mismatch"
	case DropResyncType:
		return "bad resync type"
	case DropUnknownCID:
		return "unknown CID"
	case DropFunction:
		return "wrong function"
	case DropDuplicate:
		return "duplicate"
	case DropBehindWindow:
		return "behind window"
	case DropBeyondWindow:
		return "beyond window"
	case DropResource:
		return "no resources"
	case DropStaleAck:
		return "stale acknowledgement"
	case DropImpossibleAck:
		return "impossible acknowledgement"
	case DropNackCode:
		return "reserved NACK code"
	case DropUnknownRSN:
		return "unknown RSN"
	case DropRSN:
		return "RSN out of range"
	case DropPullLength:
		return "pull data too long"
	case DropNackTarget:
		return "NACK of nothing outstanding"
	case DropNotReady:
		return "receiver not ready"
	}
	return "drop " + strconv.Itoa(int(d))
}
