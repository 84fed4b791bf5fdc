package virtqueue

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// ErrRing is wrapped by every error that a driver can cause.
var ErrRing = errors.New("virtqueue broken by its driver")

// orSpent is the error of a chain that is broken; nil where it only has to wait.
func orSpent(err error) error {
	if err == errSpent {
		return nil
	}
	return err
}

// Guard calls f, and turns a fault in guest memory (a file behind it was cut short) into an error.
// So is any other panic: no guest is to end the process by a ring.
func Guard(f func()) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { err = Recovered(recover()) }()
	f()
	return nil
}

// Recovered is the error of a panic while guest memory was used; nil: there was none.
func Recovered(r any) error {
	switch r := r.(type) {
	case nil:
		return nil
	case interface{ Addr() uintptr }:
		return fmt.Errorf("%w: the guest's memory cannot be accessed: its file was cut short", ErrRing)
	default:
		return fmt.Errorf("%w: this program cannot take it: %v", ErrRing, r)
	}
}
