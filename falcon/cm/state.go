package cm

import "fmt"

// State is the state of a connection.
type State uint8

// States. A connection is the function's until it leaves StateEstablished; in
// StateDreqSent and StateTimeWait only its CID and its names live on.
const (
	StateClosed      State = iota // not in the table
	StateReqSent                  // active: waiting for REP
	StateReqReceived              // passive: waiting for Accept
	StateRepSent                  // passive: waiting for RTU
	StateEstablished
	StateDreqSent // waiting for DREP
	StateTimeWait // waiting for the last packets to die
	numStates
)

func (s State) String() string {
	names := [...]string{"CLOSED", "REQ-SENT", "REQ-RECEIVED", "REP-SENT", "ESTABLISHED", "DREQ-SENT", "TIME-WAIT"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// owned says whether the function still knows the connection.
func (s State) owned() bool { return s >= StateReqSent && s <= StateEstablished }

type event uint8

const (
	evREP          event = iota // a valid REP for this connection
	evBadREP                    // a REP with values this side cannot use
	evREJ                       //
	evRTU                       //
	evDREQ                      //
	evDREP                      //
	evDuplicateREQ              //
	evAccept                    // by the function
	evReject                    // by the function
	evDisconnect                // by the function
	evFunctionGone              //
	evRetry                     // a timer ran out, tries are left
	evGiveUp                    // a timer ran out, none are left
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
