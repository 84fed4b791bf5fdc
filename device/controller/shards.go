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

// View is a shard during an Ask, by subject.
type View struct {
	Functions FunctionView
	Objects   ObjectView
	Faults    FaultView
	Captures  CaptureView
	Traces    TraceView
	Peers     PeerView
	Uplink    UplinkView
	Counters  func() control.Counters // of the shard and its part of the uplink
}

// FunctionView shows the functions of a shard.
type FunctionView interface {
	Present() []pfvf.ID                // functions that exist, in order
	Absent() []pfvf.ID                 // functions that are configured or set but do not exist
	Find(id pfvf.ID) error             // why the function does not exist; nil: it does
	Describe(pfvf.ID) control.Function // also for one that does not exist
}

// ObjectView shows what an existing function has.
type ObjectView interface {
	QPs(pfvf.ID) []control.QP
	Queues(pfvf.ID) []control.Queue
	Connections(vtime.Time, pfvf.ID) []control.Connection // in the networks of ports; the core knows Falcon's
	Credits(pfvf.ID) []control.CreditNode
	CreditRoots() []control.CreditNode                  // of the NIC and the host
	Violations(vtime.Time, pfvf.ID) []control.Violation // the rules that its drivers broke
	ClearViolations(pfvf.ID)
}

// FaultView shows the faults that are injected into functions, and changes them.
type FaultView interface {
	List(now vtime.Time) []control.Fault
	Inject(now vtime.Time, id pfvf.ID, c *control.FaultChange) ([]control.Fault, error)
	Clear(now vtime.Time) // removes the faults of all functions
}

// CaptureView captures a shard's traffic.
type CaptureView interface {
	Ports() []capture.NamedPort // of its functions
	// Start feeds a capture with the shard's traffic. offset is the wall clock minus the shard's
	// clock, in ns.
	Start(c *capture.Sink, offset int64) error
	End(*capture.Capture)
}

// TraceView records requests.
type TraceView interface {
	// Start records the requests of a function, or of one of its queue pairs (qpn; 0: all).
	Start(id pfvf.ID, qpn uint32) (*trace.Ring, error)
	End(pfvf.ID)
}

// PeerView shows what a shard knows of other NICs.
type PeerView interface {
	OtherModes(now vtime.Time) (names []string) // peers that seal in another psp.mode
	Paths(list []control.Connection)            // adds the paths to the connections of this shard
	Keys() []control.Key                        // keys that peers gave us
	Tunnels() []control.Route                   // tunnels to peers, and whether there is a key
}

// UplinkView shows a shard's part of the uplink.
type UplinkView interface {
	Describe() control.Uplink
	// Impair changes the impairments in one direction, or both ("").
	Impair(direction string, change func(config.Impairment) (config.Impairment, error)) error
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
		if err := one.Ask(func(v View, _ vtime.Time) { ids = v.Functions.Present() }); err != nil {
			return err
		}
		for part := range slices.Chunk(ids, functionsPerAsk) {
			if err := ctx.Err(); err != nil {
				return err
			}
			err := one.Ask(func(v View, now vtime.Time) {
				for _, id := range part {
					if v.Functions.Find(id) == nil {
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
