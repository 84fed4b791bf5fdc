package guestlib

import (
	"errors"
	"fmt"

	"github.com/falcon-vnic/vnic/guestlib/arena"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Errors to test for with errors.Is. What the device answered to a command is a *StatusError and
// matches its abi.Status' sentinel too.
var (
	// ErrClosed is returned by objects that were destroyed and by everything of a closed device.
	ErrClosed = arena.ErrClosed
	// ErrExhausted says that the device memory is used up. It is an *arena.ExhaustedError; memory
	// that cannot be made visible to the device is an *arena.PinError, which says what helps.
	ErrExhausted = arena.ErrExhausted
	// ErrDeviceLost is behind every error after the device went away, failed or broke the protocol.
	// Unless it is ErrNeedsReset too, close the device and open it again.
	ErrDeviceLost = errors.New("device lost")
	// ErrNeedsReset says that the stream to the device ended or nothing came from it for too long:
	// the NIC was restarted, perhaps, and may be back. It is also ErrDeviceLost. The device dials
	// again by itself (Await), or by Reset.
	ErrNeedsReset = errors.New("needs reset")
	// ErrProtocol says that the device sent something the ABI does not allow. It is also
	// ErrDeviceLost.
	ErrProtocol = errors.New("device broke the protocol")
	// ErrQueueFull says that a work queue has no room: poll completions first. Unsignaled sends
	// free their room only when a later signaled one completes.
	ErrQueueFull = errors.New("work queue full")
	// ErrState says that the object is not in a state that allows the call.
	ErrState = errors.New("wrong state")
	// ErrInvalid says that an argument is out of range or contradicts another.
	ErrInvalid = errors.New("invalid argument")
	// ErrBusy says that the object is used by others.
	ErrBusy = errors.New("busy")
	// ErrNoResources says that a limit of the function or of the NIC is reached.
	ErrNoResources = errors.New("no resources")
	// ErrNotFound says that the device does not know the object.
	ErrNotFound = errors.New("not found")
	// ErrDenied says that the function may not do that.
	ErrDenied = errors.New("denied")
	// ErrUnsupported says that the device cannot do that.
	ErrUnsupported = errors.New("unsupported")
	// ErrUnreachable says that no NIC is known for a GID, or that it did not answer.
	ErrUnreachable = errors.New("unreachable")
	// ErrRefused says that the peer has no listener or rejected the request.
	ErrRefused = errors.New("connection refused")
	// ErrTimeout says that an answer took too long.
	ErrTimeout = errors.New("timed out")
)

var sentinels = map[abi.Status]error{
	abi.StatusInvalidArgument: ErrInvalid,
	abi.StatusTooLarge:        ErrInvalid,
	abi.StatusMemoryFault:     ErrInvalid,
	abi.StatusNoResources:     ErrNoResources,
	abi.StatusNotFound:        ErrNotFound,
	abi.StatusBusy:            ErrBusy,
	abi.StatusAddressInUse:    ErrBusy,
	abi.StatusBadState:        ErrState,
	abi.StatusDenied:          ErrDenied,
	abi.StatusUnsupported:     ErrUnsupported,
	abi.StatusUnknownCommand:  ErrUnsupported,
	abi.StatusVersionMismatch: ErrUnsupported,
	abi.StatusTimeout:         ErrTimeout,
	abi.StatusUnreachable:     ErrUnreachable,
	abi.StatusRefused:         ErrRefused,
}

// StatusError is the device's refusal of a command, a register access or an attach.
type StatusError struct {
	Op     string // "RegMR", "hello", "read of register 0x18", …
	Status abi.Status
	Reason string // in the device's words; empty if it gave none
}

func (e *StatusError) Error() string {
	s := fmt.Sprintf("%s: device says %s", e.Op, e.Status)
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	return s
}

// Unwrap returns the sentinel for the status, or nil.
func (e *StatusError) Unwrap() error { return sentinels[e.Status] }

// FaultError says why the device stopped the function.
type FaultError struct {
	Fault  abi.Fault
	Reason string
}

func (e *FaultError) Error() string {
	return fmt.Sprintf("function fault: %s: %s", e.Fault, e.Reason)
}

// RejectedError is the peer's answer to a connection request it did not want.
type RejectedError struct {
	Reason  uint32 // chosen by the peer's driver, or the abi.Status of its NIC
	Private []byte // of the peer
}

func (e *RejectedError) Error() string {
	text := fmt.Sprintf("connection rejected by the peer, reason %d", e.Reason)
	if len(e.Private) == 0 && abi.Status(e.Reason) == abi.StatusRefused { // what a NIC says for its driver
		text += " (nobody listens for that service there)"
	}
	return text
}

// Unwrap returns ErrRefused.
func (e *RejectedError) Unwrap() error { return ErrRefused }

// WCError is a work request that failed.
type WCError struct {
	ID        uint64 // of the work request
	QPN       uint32
	Status    WCStatus
	VendorErr uint32
}

func (e *WCError) Error() string {
	return fmt.Sprintf("QP %d: work request %d: %s (vendor error %#x)", e.QPN, e.ID, e.Status, e.VendorErr)
}

// lost makes err, which ended the use of the device, match ErrDeviceLost.
func lost(err error) error { return fmt.Errorf("%w: %w", ErrDeviceLost, err) }

// needsReset is lost where another try may help.
func needsReset(format string, args ...any) error {
	return lost(fmt.Errorf("%w: %w", ErrNeedsReset, fmt.Errorf(format, args...)))
}

func protocolError(format string, args ...any) error {
	return lost(fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...)))
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

func stateError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrState, fmt.Sprintf(format, args...))
}
