package queues

import "fmt"

// Reasons of a FaultError.
const (
	WhyUnmapped   = "not in the memory of the function"
	WhyBroken     = "mapping broken: the memory behind it is gone"
	WhyMisaligned = "misaligned atomic access"
	WhyContended  = "memory keeps changing under an atomic operation"
	WhyOutside    = "outside the queue's area"
)

// FaultError reports that an access to guest memory failed. The access had no effect, unless Why is
// WhyBroken: then part of a copy may have been done.
type FaultError struct {
	Addr uint64 // device address; offset in the area for WhyOutside
	Len  uint64 // bytes
	Why  string
}

// Error implements error.
func (e *FaultError) Error() string {
	return fmt.Sprintf("queues: access to %d bytes at device address %#x: %s", e.Len, e.Addr, e.Why)
}

func fault(addr uint64, n int, why string) error {
	return &FaultError{Addr: addr, Len: uint64(n), Why: why}
}
