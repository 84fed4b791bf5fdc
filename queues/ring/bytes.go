package ring

import (
	"errors"
	"fmt"
)

// Errors of rings. Errors of Bytes are returned unchanged.
var (
	// ErrFull means that the queue has no free slot.
	ErrFull = errors.New("ring: queue full")
	// ErrIndex means that the other side wrote an impossible index.
	ErrIndex = errors.New("ring: index out of range")
	// ErrAhead is the ErrIndex of a doorbell that is ahead of its producer index.
	ErrAhead = fmt.Errorf("%w: doorbell ahead of the producer", ErrIndex)
	// ErrBounds means that an access is outside the memory of the queue.
	ErrBounds = errors.New("ring: access outside the queue's memory")
)

// Bytes is the memory of one queue, shared with the other side. Offsets count from the start of the
// queue's area. The 32- and 64-bit accesses are atomic, sequentially consistent and little-endian,
// and need natural alignment.
type Bytes interface {
	ReadAt(off uint64, dst []byte) error
	WriteAt(off uint64, src []byte) error
	Load32(off uint64) (uint32, error)
	Store32(off uint64, v uint32) error
	Load64(off uint64) (uint64, error)
	// Store64Release stores v after every earlier write became visible.
	Store64Release(off uint64, v uint64) error
}
