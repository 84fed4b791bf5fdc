package virtqueue

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// ErrRing is wrapped by every error that a driver can cause.
var ErrRing = errors.New("virtqueue broken by its driver")

// orSpent returns err, or nil if err is errSpent: the chain is not broken but waits for the next
// turn.
func orSpent(err error) error {
	if err == errSpent {
		return nil
	}
	return err
}

// Guard calls f and returns an error if f faults in guest memory (the file behind it was
// truncated). It also turns any other panic into an error, so that no guest can end the process by
// a ring.
func Guard(f func()) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { err = Recovered(recover()) }()
	f()
	return nil
}

// Recovered returns the error for a recovered panic, or nil if r is nil.
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
