package virtqueue

import (
	"errors"
	"fmt"
)

// ErrRing is wrapped by every error that a driver can cause.
var ErrRing = errors.New("virtqueue broken by its driver")

// MaxSize is the largest ring, Virtio §2.7 and §2.8.10.1.
const MaxSize = 32768

// Config places a ring. Addresses are guest-physical.
type Config struct {
	Size     uint16
	Desc     uint64 // descriptors
	Driver   uint64 // available ring, or the driver's event suppression
	Device   uint64 // used ring, or the device's event suppression
	Packed   bool
	Indirect bool   // indirect descriptors were negotiated
	EventIdx bool   // event indices were negotiated
	Base     uint32 // next available entry; of a packed ring with its wrap counter in bit 15
	Ledger   Ledger // of a packed ring; nil: nobody is to go on after this process
}

// Ring is one virtqueue, as its device uses it. See the package comment.
type Ring interface {
	// Take takes the next available chain, which is good until the next Take; nil: there is none.
	Take() (*Chain, error)
	// Mark is where taking stands. Back gives the chains back that were taken since.
	Mark() Mark
	Back(m Mark)
	// Done completes the oldest chain that was taken and is not done, with the number of bytes
	// written to it. The driver sees it after Publish.
	Done(written int)
	// Publish shows the driver what is done, and reports whether it wants to be told.
	Publish() (notify bool)
	// Quiet asks the driver for no kicks, as far as that can be asked.
	Quiet()
	// Arm asks the driver for a kick with the next chain, and reports true if there is one already.
	Arm() (waiting bool)
	// Base is where to go on, as Config.Base: at the oldest chain that is not done.
	Base() uint32
	// Rebind goes on in other memory, or elsewhere in it.
	Rebind(mem *RAM, cfg Config) error
}

// Mark is a place in a ring.
type Mark struct {
	index  uint16
	wrap   bool
	chains int
}

// New runs a ring from its base on.
func New(mem *RAM, cfg Config) (Ring, error) {
	if cfg.Size == 0 || cfg.Size > MaxSize || !cfg.Packed && cfg.Size&(cfg.Size-1) != 0 {
		return nil, fmt.Errorf("%w: size %d is none that a ring can have", ErrRing, cfg.Size)
	}
	if cfg.Packed {
		return newPacked(mem, cfg)
	}
	return newSplit(mem, cfg)
}

// needEvent tells whether an index that somebody waits for was passed between old and new, Virtio
// §2.7.10.1.
func needEvent(event, new, old uint16) bool { return new-event-1 < new-old }
