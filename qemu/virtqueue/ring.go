package virtqueue

import "fmt"

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
