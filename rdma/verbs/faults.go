package verbs

import (
	"errors"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// Faults injects failures into a function, so that drivers can be tested against them. A function
// in service has none, which costs only a nil check. The methods are called in the middle of other
// work and must not call back.
type Faults interface {
	// Work returns the status that a request read from a send queue fails with, WCSuccess if it
	// does not fail.
	Work(qpn uint32, op abi.Opcode) abi.WCStatus
	// Access reports whether the memory behind a region counts as gone.
	Access() bool
	// Key reports whether the key in a request of the peer counts as invalid.
	Key(qpn uint32) bool
	// Stuck reports whether the send queue of a queue pair is ignored for now.
	Stuck(qpn uint32) bool
	// Hold reports whether a completion waits, in its queue's order, for Release or for a later
	// completion that does not wait.
	Hold(cqn uint32) bool
}

// Reasons why memory cannot be accessed.
var (
	errGone     = errors.New("rdma: the region was deregistered")
	errInjected = errors.New("rdma: memory gone, by request of the operator")
)

// UseFaults sets the failures to inject from now on; nil injects none.
func (o *Owner) UseFaults(x Faults) { o.faults = x }

// Faults returns the failures to inject, nil for none.
func (o *Owner) Faults() Faults { return o.faults }

// stuck reports whether Faults hold back the send queue of a queue pair.
func (o *Owner) stuck(qpn uint32) bool { return o.faults != nil && o.faults.Stuck(qpn) }
