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

// Viewer is access to one shard of a NIC, to look at it and to change it.
type Viewer interface {
	// Ask runs f on the shard's thread and returns when f has returned. If the shard has stopped,
	// it returns an error without calling f.
	Ask(f func(v View, now vtime.Time)) error
}

// View is the state of a shard during an Ask.
type View interface {
	// Functions and their settings:

	Present() []pfvf.ID                // functions that exist, in order
	Absent() []pfvf.ID                 // functions that are configured or set but do not exist
	Find(id pfvf.ID) error             // why the function does not exist; nil: it does
	Describe(pfvf.ID) control.Function // also for one that does not exist
	Settings(pfvf.ID) config.Function

	// The objects of an existing function:

	QPs(pfvf.ID) []control.QP
	Queues(pfvf.ID) []control.Queue
	Credits(pfvf.ID) []control.CreditNode
	Connections(vtime.Time, pfvf.ID) []control.Connection // in the networks of ports; the core knows Falcon's
	CreditRoots() []control.CreditNode                    // of the NIC and the host
	Violations(vtime.Time, pfvf.ID) []control.Violation   // the rules that drivers broke
	ClearViolations(pfvf.ID)

	// Injected faults:

	Faults(now vtime.Time) []control.Fault
	ClearFaults(now vtime.Time) // removes the faults of all functions
	InjectFault(now vtime.Time, id pfvf.ID, c *control.FaultChange) ([]control.Fault, error)

	// Captures and traces:

	Ports() []capture.NamedPort // of its functions
	// StartCapture feeds a capture with this shard's traffic. offset is the wall clock minus the
	// shard's clock, in ns.
	StartCapture(c *capture.Sink, offset int64) error
	EndCapture(*capture.Capture)
	// StartTrace records the requests of a function, or of one of its queue pairs (qpn; 0: all).
	StartTrace(id pfvf.ID, qpn uint32) (*trace.Ring, error)
	EndTrace(pfvf.ID)

	// Peers, counters and the uplink:

	OtherModes(now vtime.Time) (names []string) // peers that seal in another psp.mode
	Paths(list []control.Connection)            // adds the paths to the connections of this shard
	Keys() []control.Key                        // keys that peers gave us
	Tunnels() []control.Route                   // tunnels to peers, and whether there is a key
	Counters() control.Counters
	Uplink() control.Uplink
	// InjectLink changes the impairments of the uplink, in one direction or both ("").
	InjectLink(direction string, change func(config.Impairment) (config.Impairment, error)) error
}

// Shards holds all shards of a NIC.
type Shards struct {
	All []Viewer
	Of  func(pf uint8, vf uint16) int // shard that owns a function; nil: the first owns all
}

// of returns the shard that owns a function.
func (s Shards) of(id pfvf.ID) Viewer {
	if s.Of == nil {
		return s.All[0]
	}
	return s.All[s.Of(id.PF(), id.VF())]
}

// Each runs f on every shard, one after the other.
func (s Shards) Each(f func(v View, now vtime.Time)) error {
	for _, one := range s.All {
		if err := one.Ask(f); err != nil {
			return err
		}
	}
	return nil
}

// functionsPerAsk is the number of functions per Ask. It limits how long one Ask keeps a shard
// busy.
const functionsPerAsk = 8

// EachFunction calls f for every function that exists, a few per Ask.
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
