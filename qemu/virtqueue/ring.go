package virtqueue

import "fmt"

// Ring is one virtqueue, as its device uses it. See the package comment.
type Ring interface {
	// Take takes the next available chain, which is good until the next Take; nil: there is none, or
	// nothing is left of the work that may be done for it, and it waits for its guest's next turn.
	Take(w *Work) (*Chain, error)
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
