package virtqueue

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// Ring is the device side of one virtqueue. See the package comment.
type Ring interface {
	// Take takes and returns the next available chain, which is valid until the next Take. It
	// returns nil if there is none, or if the work is used up: the chain then waits for the guest's
	// next turn.
	Take(w *Work) (*Chain, error)
	// Mark returns the position of the next Take. Back goes back to it: the chains that were taken
	// since are available again.
	Mark() Mark
	Back(m Mark)
	// Done completes the oldest chain that was taken and is not done, with the number of bytes
	// written to it. The driver sees it after Publish.
	Done(written int)
	// Publish makes done chains visible to the driver. It reports whether the driver wants an
	// interrupt.
	Publish() (notify bool)
	// Quiet asks the driver for no kicks, if the ring has a way to ask.
	Quiet()
	// Arm asks the driver for a kick with the next chain. It returns true if a chain is available
	// already.
	Arm() (waiting bool)
	// Base returns the position of the oldest chain that is not done, as Config.Base.
	Base() uint32
	// Rebind continues the ring in other memory, or at another address.
	Rebind(mem *RAM, cfg Config) error
}

// New returns a ring that starts at cfg.Base.
func New(mem *RAM, cfg Config) (Ring, error) {
	if cfg.Size == 0 || cfg.Size > MaxSize || !cfg.Packed && cfg.Size&(cfg.Size-1) != 0 {
		return nil, fmt.Errorf("%w: size %d is none that a ring can have", ErrRing, cfg.Size)
	}
	if cfg.Packed {
		return newPacked(mem, cfg)
	}
	return newSplit(mem, cfg)
}

// MaxSize is the largest ring, Virtio §2.7 and §2.8.10.1.
const MaxSize = 32768

// Config describes a ring. Addresses are guest-physical.
type Config struct {
	Size     uint16
	Desc     uint64 // descriptors
	Driver   uint64 // available ring, or the driver's event suppression
	Device   uint64 // used ring, or the device's event suppression
	Packed   bool
	Indirect bool   // indirect descriptors were negotiated
	EventIdx bool   // event indices were negotiated
	Base     uint32 // next available entry; for a packed ring, bit 15 is the wrap counter
	Resume   bool   // ignore Base and continue where the previous device stopped
	Ledger   Ledger // of a packed ring; nil: no later process can resume the ring
}

// Mark is a position in a ring; see Ring.Mark.
type Mark struct {
	index  uint16
	wrap   bool
	chains int
}

// needEvent reports whether the index moved past the event index between old and new, Virtio
// §2.7.10.1.
func needEvent(event, new, old uint16) bool { return new-event-1 < new-old }

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
