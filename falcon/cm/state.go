package cm

import "fmt"

// State is the state of a connection.
type State uint8

// States. A function owns a connection until it leaves StateEstablished. In StateDreqSent and
// StateTimeWait only its CID and its IDs remain.
const (
	StateClosed      State = iota // not in the table
	StateReqSent                  // active: waiting for REP
	StateReqReceived              // passive: waiting for Accept
	StateRepSent                  // passive: waiting for RTU
	StateEstablished
	StateDreqSent // waiting for DREP
	StateTimeWait // waiting until no packet is in flight any more
	numStates
)

func (s State) String() string {
	names := [...]string{"CLOSED", "REQ-SENT", "REQ-RECEIVED", "REP-SENT", "ESTABLISHED", "DREQ-SENT", "TIME-WAIT"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// owned reports whether the function still owns the connection.
func (s State) owned() bool { return s >= StateReqSent && s <= StateEstablished }

type event uint8

const (
	evREP          event = iota // a valid REP for this connection
	evBadREP                    // a REP with values that this side cannot use
	evREJ                       //
	evRTU                       //
	evDREQ                      //
	evDREP                      //
	evDuplicateREQ              //
	evAccept                    // by the function
	evReject                    // by the function
	evDisconnect                // by the function
	evFunctionGone              //
	evRetry                     // a timer expired, tries are left
	evGiveUp                    // a timer expired, no tries are left
	evPeerDown                  //
	evPeerRestart               //
	numEvents
)

func (e event) String() string {
	names := [...]string{
		"REP", "bad REP", "REJ", "RTU", "DREQ", "DREP", "duplicate REQ", "accept", "reject",
		"disconnect", "function gone", "retry", "give up", "peer down", "peer restart",
	}
	if int(e) < len(names) {
		return names[e]
	}
	return fmt.Sprintf("event(%d)", uint8(e))
}
