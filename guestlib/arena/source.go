package arena

import (
	"errors"
	"fmt"
)

// PageSize is the granularity of allocations and of page lists, in bytes. The device's page lists
// use 4 KiB pages on every guest.
const PageSize = 4096

// Chunk is memory from a Source. It is contiguous in this process and scattered for the device.
type Chunk struct {
	Mem   []byte   // whole pages
	Addrs []uint64 // device address of each page of Mem
}

// Source provides memory that the device can access to a Pool.
type Source interface {
	// Grow returns a new chunk of at least n bytes. It returns an *ExhaustedError if there is no
	// more memory.
	Grow(n int) (Chunk, error)
	// Close unmaps and unpins every chunk.
	Close() error
}

// ErrExhausted is matched by every ExhaustedError.
var ErrExhausted = errors.New("device memory exhausted")

// ExhaustedError is the error if an allocation does not fit.
type ExhaustedError struct {
	Want, Limit int // bytes
}

func (e *ExhaustedError) Error() string {
	return fmt.Sprintf("device memory: no room for %d bytes in an arena limited to %d bytes; free buffers or open the device with a larger memory limit", e.Want, e.Limit)
}

func (e *ExhaustedError) Unwrap() error { return ErrExhausted }

// PinError says which step of making guest memory usable by the device failed, and what helps.
type PinError struct {
	Step   string // "mmap", "madvise", "populate", "pin", "pagemap"
	Remedy string
	Err    error
}

func (e *PinError) Error() string {
	return fmt.Sprintf("guest memory: %s: %v; %s", e.Step, e.Err, e.Remedy)
}

func (e *PinError) Unwrap() error { return e.Err }

// pages returns the number of pages for n bytes.
func pages(n int) int { return (n + PageSize - 1) / PageSize }
