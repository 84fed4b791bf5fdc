package guestlib

import (
	"errors"
	"fmt"

	"github.com/falcon-vnic/vnic/guestlib/arena"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Errors to test for with errors.Is. A *StatusError from the device also matches the error here
// that belongs to its status.
var (
	// ErrClosed is returned by destroyed objects and by all objects of a closed device.
	ErrClosed = arena.ErrClosed
	// ErrExhausted means that the device memory is used up; the error is an *arena.ExhaustedError.
	// If memory cannot be made accessible to the device, the error is an *arena.PinError, which
	// says what helps.
	ErrExhausted = arena.ErrExhausted
	// ErrDeviceLost is matched by every error after the device has gone, failed or broken the
	// protocol; if it broke it in the memory of one queue, by the errors of that queue alone. Unless
	// the error matches ErrNeedsReset too, close the device and open it again.
	ErrDeviceLost = errors.New("device lost")
	// ErrNeedsReset means that the stream to the device ended, or that nothing arrived from it for
	// too long: perhaps the NIC was restarted. The error matches ErrDeviceLost too. The device
	// dials again by itself (Await), or with Reset.
	ErrNeedsReset = errors.New("needs reset")
	// ErrProtocol means that the device sent something that the ABI does not allow. The error
	// matches ErrDeviceLost too.
	ErrProtocol = errors.New("device broke the protocol")
	// ErrQueueFull says that a work queue has no room: poll completions first. Unsignaled sends
	// free their room only when a later signaled one completes.
	ErrQueueFull = errors.New("work queue full")
	// ErrState says that the object is not in a state that allows the call.
	ErrState = errors.New("wrong state")
	// ErrInvalid says that an argument is out of range or contradicts another.
	ErrInvalid = errors.New("invalid argument")
	// ErrBusy says that something is in use: an object by other objects, a function by another
	// driver, an address or service by another listener; or that completions were not polled yet.
	ErrBusy = errors.New("busy")
	// ErrNoResources says that a limit of the function or of the NIC is reached.
	ErrNoResources = errors.New("no resources")
	// ErrNotFound says that the device does not know the object.
	ErrNotFound = errors.New("not found")
	// ErrDenied says that the function has no permission for the operation.
	ErrDenied = errors.New("denied")
	// ErrUnsupported says that the device does not support the operation.
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

// StatusError is the error if the device refuses a command, a register access or an attach.
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

// FaultError is the reason why the device stopped the function.
type FaultError struct {
	Fault  abi.Fault
	Reason string
}

func (e *FaultError) Error() string {
	return fmt.Sprintf("function fault: %s: %s", e.Fault, e.Reason)
}

// RejectedError is the error if the peer rejects a connection request.
type RejectedError struct {
	Reason  uint32 // chosen by the peer's driver, or the abi.Status of its NIC
	Private []byte // of the peer
}

func (e *RejectedError) Error() string {
	text := fmt.Sprintf("connection rejected by the peer, reason %d", e.Reason)
	if len(e.Private) == 0 && abi.Status(e.Reason) == abi.StatusRefused { // the NIC's own rejection
		text += " (nobody listens for that service there)"
	}
	return text
}

// Unwrap returns ErrRefused.
func (e *RejectedError) Unwrap() error { return ErrRefused }

// WCError is the error of a failed work request.
type WCError struct {
	ID        uint64 // of the work request
	QPN       uint32
	Status    WCStatus
	VendorErr uint32
}

func (e *WCError) Error() string {
	return fmt.Sprintf("QP %d: work request %d: %s (vendor error %#x)", e.QPN, e.ID, e.Status, e.VendorErr)
}

// lost wraps err, which ended the use of the device, so that it matches ErrDeviceLost.
func lost(err error) error { return fmt.Errorf("%w: %w", ErrDeviceLost, err) }

// needsReset is lost for errors after which another try may help.
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
