package verbs

import (
	"errors"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// Faults lets a function go wrong on purpose, for drivers to be tested against. One in service has
// none, which costs nothing but the look. The methods are called in the middle of other work and
// must not call back.
type Faults interface {
	// Work is how a request read from a send queue ends, WCSuccess if it goes on as it should.
	Work(qpn uint32, op abi.Opcode) abi.WCStatus
	// Access says that the memory behind a region is found gone.
	Access() bool
	// Key says that the key of a request of the peer is taken for wrong.
	Key(qpn uint32) bool
	// Stuck says that the send queue of a queue pair is not looked at now.
	Stuck(qpn uint32) bool
	// Hold says that a completion waits, in its queue's order, for Release or one that does not.
	Hold(cqn uint32) bool
}

// Why memory is not there.
var (
	errGone     = errors.New("rdma: the region was deregistered")
	errInjected = errors.New("rdma: memory gone, by request of the operator")
)

// UseFaults sets what goes wrong from now on; nil is nothing.
func (o *Owner) UseFaults(x Faults) { o.faults = x }

// Faults is what goes wrong now, nil for nothing.
func (o *Owner) Faults() Faults { return o.faults }

// stuck reports whether the send queue of a queue pair is kept back.
func (o *Owner) stuck(qpn uint32) bool { return o.faults != nil && o.faults.Stuck(qpn) }
