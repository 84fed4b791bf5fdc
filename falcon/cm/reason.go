package cm

import "fmt"

// Reason says why a connection was refused or ended. Reasons below 32 are sent in REJ and DREQ; the
// others are determined locally.
type Reason uint16

// Reasons.
const (
	ReasonNone          Reason = 0
	ReasonConsumer      Reason = 1 // the listener rejected
	ReasonNoListener    Reason = 2
	ReasonTenant        Reason = 3 // tenant not shared with this peer
	ReasonGID           Reason = 4 // GID unknown, or not of the named function
	ReasonNoResources   Reason = 5
	ReasonTimeout       Reason = 6
	ReasonStale         Reason = 7 // the other side does not know the connection
	ReasonCanceled      Reason = 8
	ReasonFunctionGone  Reason = 9
	ReasonInvalid       Reason = 10 // a value out of range
	ReasonDisconnect    Reason = 11 // requested by the peer's function
	reasonWireEnd       Reason = 12
	ReasonPeerDown      Reason = 32
	ReasonPeerRestarted Reason = 33
	ReasonLocal         Reason = 34 // requested by our function
)

var reasonText = map[Reason]string{
	ReasonNone:          "none",
	ReasonConsumer:      "rejected by the listener",
	ReasonNoListener:    "nobody listens on this service",
	ReasonTenant:        "tenant not shared with this NIC",
	ReasonGID:           "GID unknown or not of this function",
	ReasonNoResources:   "no resources",
	ReasonTimeout:       "timed out",
	ReasonStale:         "connection unknown to the peer",
	ReasonCanceled:      "canceled by the peer",
	ReasonFunctionGone:  "function gone",
	ReasonInvalid:       "invalid value",
	ReasonDisconnect:    "disconnected by the peer",
	ReasonPeerDown:      "link to the peer NIC is down",
	ReasonPeerRestarted: "peer NIC restarted",
	ReasonLocal:         "closed locally",
}

func (r Reason) String() string {
	if s, ok := reasonText[r]; ok {
		return s
	}
	return fmt.Sprintf("reason(%d)", uint16(r))
}

// onWire reports whether the reason may be in a message.
func (r Reason) onWire() bool { return r > ReasonNone && r < reasonWireEnd }
