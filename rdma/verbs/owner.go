package verbs

import (
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// Notifier receives the events that a function reports to its driver. The methods are called in the
// middle of other work: they must only append to a bounded queue and must not call back into the
// engine.
type Notifier interface {
	// CQEvent reports that an armed completion queue has new entries.
	CQEvent(cqn uint32)
	// AsyncEvent reports an event of the QP, CQ or SRQ with that number. status is an abi.WCStatus
	// if one gives the reason.
	AsyncEvent(typ abi.EventType, number, status uint32, reason string)
	// Violation reports which clause of docs/abi the driver broke, and how. The Notifier keeps v.
	// If the violation is part of an admin command, v has no index and may have no bytes.
	Violation(v *abi.Violation)
	// Mistake reports what is wrong with a work request that will fail. The Notifier keeps a copy.
	Mistake(m *Mistake)
}

// Owner is the function as its objects see it: its memory and limits, the features agreed with its
// driver, the way to notify the driver, and whether the function still works.
type Owner struct {
	mem      *queues.Memory
	limits   Limits
	notifier Notifier

	eventIndex bool // the driver rings only when the event index asks for it
	armWord    bool // the driver arms completion queues in their headers
	extended   bool // the driver knows abi.FeatureExtendedVerbs
	sourceMAC  bool // the driver knows abi.FeatureSourceMAC
	gids       gids
	gateway    [6]byte // MAC address of the gateway on the function's link
	strict     bool    // also check for mistakes that harm nobody
	faults     Faults  // nil: in service

	closed bool
	dirty  bool // see Unsettled

	Stats             Stats
	transport.Account // of its connections
}

// Limits returns the limits in force.
func (o *Owner) Limits() *Limits { return &o.limits }

// UseFeatures sets the features in use. Without abi.FeatureEventIndex every doorbell is a record,
// and a queue is read only when one comes. Without abi.FeatureArmWord completion queues are armed
// by records only. Without abi.FeatureExtendedVerbs the driver is told of failures by EventQPFatal
// alone, and gets no events that are not failures.
func (o *Owner) UseFeatures(bits uint64) {
	o.eventIndex = bits&abi.FeatureEventIndex != 0
	o.armWord = bits&abi.FeatureArmWord != 0
	o.extended = bits&abi.FeatureExtendedVerbs != 0
	o.sourceMAC = bits&abi.FeatureSourceMAC != 0
}

// UseGateway sets the MAC address of the gateway on the function's link, from which all packets
// arrive.
func (o *Owner) UseGateway(mac [6]byte) { o.gateway = mac }

// Extended reports whether the driver knows abi.FeatureExtendedVerbs.
func (o *Owner) Extended() bool { return o.extended }

// Working reports whether the function has not ended, so that commands and doorbells are accepted.
func (o *Owner) Working() bool { return !o.closed }

// Unsettled reports, once, that queue pairs must move to ERR because one of their queues broke.
// Moving them at once would change queues that the caller is working on.
func (o *Owner) Unsettled() bool {
	if !o.dirty {
		return false
	}
	o.dirty = false
	return true
}

// Event sends an asynchronous event, of a type that the driver knows.
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
	o.notifier.AsyncEvent(typ, number, status, reason)
}

// gids holds the addresses that the driver may send from, indexed like its GID table.
type gids struct {
	used uint64 // bit set of the entries that are in use
	at   [abi.GIDEntries][16]byte
}

// SetGID sets the address of an entry of the driver's GID table.
func (o *Owner) SetGID(index uint16, gid [16]byte) {
	o.gids.used |= 1 << index
	o.gids.at[index] = gid
}

// ClearGID empties an entry. Objects made with it keep its address.
func (o *Owner) ClearGID(index uint16) { o.gids.used &^= 1 << index }

// GID returns the address of an entry of the driver's GID table; ok is false if the entry is empty
// or past the table.
func (o *Owner) GID(index uint8) (gid [16]byte, ok bool) {
	if o.gids.used>>index&1 == 0 {
		return gid, false
	}
	return o.gids.at[index], true
}

// sameVersion reports whether both addresses are of one IP version, as those of a packet must be. A
// source that was not set fits every destination.
func sameVersion(src, dst [16]byte) bool { return src == [16]byte{} || IsIPv4(src) == IsIPv4(dst) }

// Events that a function records while its requests are traced. Callers first check whether there
// is a ring, which is all that tracing costs the data path while it is off.

// UseTrace makes the function record the events of its requests in r; nil stops it.
func (o *Owner) UseTrace(r *trace.Ring) { o.Trace = r }

// traces reports whether the requests of a QP are recorded.
func (o *Owner) traces(qpn uint32) bool { return o.Trace != nil && o.Trace.Wants(qpn) }

// Stats counts events of the objects of a function.
type Stats struct {
	Posted      uint64 // send work requests read
	Completed   uint64 // CQEs written
	Flushed     uint64 // of Completed: with WCWRFlushErr
	Errors      uint64 // of Completed: with any other error
	CQOverflows uint64 // completion queues that overflowed
	QPErrors    uint64 // QPs that moved to ERR because of a failure
	BadQKeys    uint64 // datagrams with the wrong Q_Key
	Doorbells   uint64 // doorbells received

	BadDoorbells uint64 // of Doorbells: name no queue
}

// Add adds x to s.
func (s *Stats) Add(x *Stats) {
	s.Posted += x.Posted
	s.Completed += x.Completed
	s.Flushed += x.Flushed
	s.Errors += x.Errors
	s.CQOverflows += x.CQOverflows
	s.QPErrors += x.QPErrors
	s.BadQKeys += x.BadQKeys
	s.Doorbells += x.Doorbells
	s.BadDoorbells += x.BadDoorbells
}
