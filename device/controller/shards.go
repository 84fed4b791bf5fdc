package controller

import (
	"context"
	"slices"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/internal/vtime"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/rdma/trace"
)

// Shard is one shard of a NIC.
type Shard interface {
	// Ask runs f on the shard's thread and returns when it is done. It fails, without f having run,
	// when the shard has stopped.
	Ask(f func(v View, now vtime.Time)) error
}

// View is what a shard answers, at the moment of an Ask.
type View interface {
	Functions
	Inside
	Sabotage
	Recording

	OtherModes(now vtime.Time) (hosts []uint8) // peers that seal in another psp.mode
	Paths(list []control.Connection)           // completes those of the shard
	Keys() []control.Key                       // that peers gave us
	Tunnels() []control.Route                  // to peers, and whether there is a key
	Counters() control.Counters

	Uplink() control.Uplink
	// InjectLink changes what the uplink does to packets, in both directions ("") or one.
	InjectLink(direction string, change func(config.Impairment) (config.Impairment, error)) error
}

// Functions is what a shard answers of its functions as they are set.
type Functions interface {
	Present() []pfvf.ID                // that are there, in order
	Absent() []pfvf.ID                 // that were configured or set and are not there
	Find(id pfvf.ID) error             // why it is not there; nil: it is
	Describe(pfvf.ID) control.Function // whether it is there or not
	Settings(pfvf.ID) config.Function
}

// Inside is what a shard answers of the objects of a function that is there.
type Inside interface {
	QPs(pfvf.ID) []control.QP
	Queues(pfvf.ID) []control.Queue
	Credits(pfvf.ID) []control.CreditNode
	Connections(vtime.Time, pfvf.ID) []control.Connection // over RoCEv2; the core knows Falcon's
	CreditRoots() []control.CreditNode                    // of the NIC and the host
	Violations(vtime.Time, pfvf.ID) []control.Violation   // the rules that drivers broke
	ClearViolations(pfvf.ID)
}

// Sabotage is what goes wrong on purpose.
type Sabotage interface {
	Faults(now vtime.Time) []control.Fault
	Mend(now vtime.Time) // all functions
	InjectFault(now vtime.Time, id pfvf.ID, c *control.FaultChange) ([]control.Fault, error)
}

// Recording is what a shard shows of what passes.
type Recording interface {
	Ports() []capture.NamedPort // of its functions
	// StartCapture has a capture fed with what passes here. offset is the wall clock less the
	// shard's, in ns.
	StartCapture(c *capture.Sink, offset int64) error
	EndCapture(*capture.Capture)
	// StartTrace notes what happens to a function's requests, or to those of one queue pair (0:
	// all).
	StartTrace(id pfvf.ID, qpn uint32) (*trace.Ring, error)
	EndTrace(pfvf.ID)
}

// Shards are all shards of a NIC.
type Shards struct {
	All []Shard
	Of  func(pf uint8, vf uint16) int // which of them has a function; nil: the first has all
}

// of is the shard that a function belongs to.
func (s Shards) of(id pfvf.ID) Shard {
	if s.Of == nil {
		return s.All[0]
	}
	return s.All[s.Of(id.PF(), id.VF())]
}

// Each asks one after the other.
func (s Shards) Each(f func(v View, now vtime.Time)) error {
	for _, one := range s.All {
		if err := one.Ask(f); err != nil {
			return err
		}
	}
	return nil
}

// functionsPerAsk bounds how long a shard is asked at one time.
const functionsPerAsk = 8

// EachFunction asks for every function that is there, few at a time.
func (s Shards) EachFunction(ctx context.Context, f func(v View, now vtime.Time, id pfvf.ID)) error {
	for _, one := range s.All {
		var ids []pfvf.ID
		if err := one.Ask(func(v View, _ vtime.Time) { ids = v.Present() }); err != nil {
			return err
		}
		for part := range slices.Chunk(ids, functionsPerAsk) {
			if err := ctx.Err(); err != nil {
				return err
			}
			err := one.Ask(func(v View, now vtime.Time) {
				for _, id := range part {
					if v.Find(id) == nil {
						f(v, now, id)
					}
				}
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}
