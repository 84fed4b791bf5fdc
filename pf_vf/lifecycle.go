package pfvf

import (
	"fmt"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// State is the lifecycle state of a function, as in RegState.
type State = abi.State

// Event is an event of a lifecycle.
type Event uint8

// Events of the lifecycle.
const (
	Enable  Event = iota // the driver writes ControlEnable
	Ready                // the device has started the queues
	Fault                // the device found a fault; use Lifecycle.Fail
	Reset                // the driver writes ControlReset, or detaches
	Disable              // the host or the PF switches the function off
	Allow                // the host or the PF ends Disable

	numEvents
)

// String returns the name used in errors and logs.
func (e Event) String() string {
	if e >= numEvents {
		return fmt.Sprintf("Event(%d)", uint8(e))
	}
	return [numEvents]string{"enable", "ready", "fault", "reset", "disable", "allow"}[e]
}

// illegal marks transitions that are not allowed.
const illegal = ^State(0)

// table holds the next state by state and event.
var table = [...][numEvents]State{
	//                    Enable          Ready             Fault              Reset            Disable             Allow
	abi.StateReset:    {abi.StateInit, illegal, abi.StateError, abi.StateReset, abi.StateDisabled, illegal},
	abi.StateInit:     {illegal, abi.StateReady, abi.StateError, abi.StateReset, abi.StateDisabled, illegal},
	abi.StateReady:    {illegal, illegal, abi.StateError, abi.StateReset, abi.StateDisabled, illegal},
	abi.StateError:    {illegal, illegal, abi.StateError, abi.StateReset, abi.StateDisabled, illegal},
	abi.StateDisabled: {illegal, illegal, abi.StateDisabled, illegal, abi.StateDisabled, abi.StateReset},
}

// TransitionError reports that an event is not allowed in a state.
type TransitionError struct {
	State State
	Event Event
}

// Error implements error.
func (e *TransitionError) Error() string {
	return fmt.Sprintf("pfvf: %s is not allowed in state %s", e.Event, e.State)
}

// Transition returns the state that follows from on ev. If the pair is not allowed, it returns from
// and a *TransitionError.
func Transition(from State, ev Event) (State, error) {
	if int(from) < len(table) && ev < numEvents {
		if to := table[from][ev]; to != illegal {
			return to, nil
		}
	}
	return from, &TransitionError{State: from, Event: ev}
}

// Lifecycle is the state of one function and the fault that stopped it. The
// zero value is in RESET.
type Lifecycle struct {
	state  State
	fault  abi.Fault
	reason string
	resets uint64
}

// State returns the current state.
func (l *Lifecycle) State() State { return l.state }

// Fault returns why the function is in ERROR, with a text. It returns FaultNone in every other
// state.
func (l *Lifecycle) Fault() (abi.Fault, string) { return l.fault, l.reason }

// Resets returns how often the function has entered RESET.
func (l *Lifecycle) Resets() uint64 { return l.resets }

// Apply applies an event other than Fault. If the event is not allowed, it changes nothing and
// returns a *TransitionError.
func (l *Lifecycle) Apply(ev Event) error {
	if ev == Fault {
		return &TransitionError{State: l.state, Event: ev} // a fault needs a code: use Fail
	}
	to, err := Transition(l.state, ev)
	if err != nil {
		return err
	}
	if to == abi.StateReset {
		l.resets++
	}
	l.state, l.fault, l.reason = to, abi.FaultNone, ""
	return nil
}

// Fail records a fault. It reports whether the function moved to ERROR because of it. In ERROR the
// first fault is kept, and in DISABLED a fault is ignored.
func (l *Lifecycle) Fail(code abi.Fault, reason string) bool {
	to, err := Transition(l.state, Fault)
	if err != nil || to == l.state {
		return false
	}
	l.state, l.fault, l.reason = to, code, reason
	return true
}
