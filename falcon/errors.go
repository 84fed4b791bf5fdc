package falcon

import (
	"errors"
	"fmt"
)

// Errors of Push, Pull, RespondPull and Open.
var (
	// ErrXoff means no room now: EvCredit follows when there is.
	ErrXoff = errors.New("falcon: no credit, wait for EvCredit")
	// ErrClosed means the connection has ended.
	ErrClosed = errors.New("falcon: connection closed")
	// ErrDraining means the connection only finishes what is under way.
	ErrDraining = errors.New("falcon: connection is draining")
	// ErrTooLong means a length is negative, above the MTU of the connection or, for a response,
	// above what was asked.
	ErrTooLong = errors.New("falcon: length exceeds the limit")
	// ErrNoTransaction means no pull with that RSN waits for an answer.
	ErrNoTransaction = errors.New("falcon: no such transaction")
	// ErrTooManyConns means Config.MaxConns connections are open.
	ErrTooManyConns = errors.New("falcon: too many connections, raise MaxConns")
	// ErrCIDInUse means the local CID names an open connection.
	ErrCIDInUse = errors.New("falcon: local CID in use")
)

func configError(what string, value any, remedy string) error {
	return fmt.Errorf("falcon: %s is %v: %s", what, value, remedy)
}
