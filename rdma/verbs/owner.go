package verbs

import (
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// Notifier takes what a function has to tell its driver. The methods are called in the middle of
// other work: they must only append to a bounded queue and not call back into the engine.
type Notifier interface {
	// CQEvent says that an armed completion queue has news.
	CQEvent(cqn uint32)
	// AsyncEvent reports what happened to the QP, CQ or SRQ called number; status is an
	// abi.WCStatus where one tells why.
	AsyncEvent(typ abi.EventType, number, status uint32, reason string)
	// Violation says which clause of docs/abi the driver broke, and how. It keeps v. Of an admin
	// command that the call is part of it has no index, and may have no bytes.
	Violation(v *abi.Violation)
	// Mistake says what is wrong with a work request that will fail. It keeps a copy.
	Mistake(m *Mistake)
}

// Owner is the function that objects belong to, as far as they know it: its memory and limits, what
// was agreed with its driver and how that is told what happens, and whether it still works.
type Owner struct {
	mem    *queues.Memory
	limits Limits
	out    Notifier

	eventIndex bool // the driver rings only when the event index asks for it
	armWord    bool // the driver arms completion queues in their headers
	extended   bool // the driver knows abi.FeatureExtendedVerbs
	sourceMAC  bool // the driver knows abi.FeatureSourceMAC
	gids       gids
	gateway    [6]byte // on the function's link
	strict     bool    // look for what is wrong but harms nobody
	faults     Faults  // nil: in service

	closed bool
	dirty  bool // Unsettled

	Stats             Stats
	transport.Account // of its connections
}

// Limits returns the limits in force.
func (o *Owner) Limits() *Limits { return &o.limits }

// UseFeatures says which features are in use. Without abi.FeatureEventIndex every doorbell is a
// record, and queues are looked at when one comes; without abi.FeatureArmWord completion queues are
// armed by records only; without abi.FeatureExtendedVerbs the driver hears of failures by
// EventQPFatal alone, and of nothing that is no failure.
func (o *Owner) UseFeatures(bits uint64) {
	o.eventIndex = bits&abi.FeatureEventIndex != 0
	o.armWord = bits&abi.FeatureArmWord != 0
	o.extended = bits&abi.FeatureExtendedVerbs != 0
	o.sourceMAC = bits&abi.FeatureSourceMAC != 0
}

// UseGateway says which address others have on the function's link: all that comes is its
// gateway's.
func (o *Owner) UseGateway(mac [6]byte) { o.gateway = mac }

// Extended reports whether the driver knows abi.FeatureExtendedVerbs.
func (o *Owner) Extended() bool { return o.extended }

// Working reports whether commands and doorbells are taken: the function has not ended.
func (o *Owner) Working() bool { return !o.closed }

// Unsettled reports, once, that queue pairs have to move to ERR because a queue of theirs broke.
// Doing so at once would change queues under the feet of the caller.
func (o *Owner) Unsettled() bool {
	if !o.dirty {
		return false
	}
	o.dirty = false
	return true
}

// Event sends an asynchronous event in the words the driver knows.
func (o *Owner) Event(typ abi.EventType, number, status uint32, reason string) {
	if !o.extended {
		switch typ {
		case abi.EventQPReqErr, abi.EventQPAccessErr:
			typ = abi.EventQPFatal
		case abi.EventQPFatal, abi.EventCQError:
		default:
			return
		}
	}
	o.out.AsyncEvent(typ, number, status, reason)
}
