package falcon

import (
	"errors"
	"fmt"
)

// Errors of Push, Pull, RespondPull and Open.
var (
	// ErrXoff means that there is no room now. EvCredit follows when there is.
	ErrXoff = errors.New("falcon: no credit, wait for EvCredit")
	// ErrClosed means the connection has ended.
	ErrClosed = errors.New("falcon: connection closed")
	// ErrDraining means that the connection only finishes the transactions in progress.
	ErrDraining = errors.New("falcon: connection is draining")
	// ErrTooLong means that a length is negative, above the MTU of the connection or, for a
	// response, above what was requested.
	ErrTooLong = errors.New("falcon: length exceeds the limit")
	// ErrNoTransaction means that no pull with that RSN waits for an answer.
	ErrNoTransaction = errors.New("falcon: no such transaction")
	// ErrTooManyConns means that Config.MaxConns connections are open.
	ErrTooManyConns = errors.New("falcon: too many connections, raise MaxConns")
	// ErrCIDInUse means that the local CID belongs to an open connection.
	ErrCIDInUse = errors.New("falcon: local CID in use")
)

func configError(what string, value any, remedy string) error {
	return fmt.Errorf("falcon: %s is %v: %s", what, value, remedy)
}
