package guest

import (
	"cmp"
	"fmt"
	"sync/atomic"

	"github.com/falcon-vnic/vnic/device/fault"
	"github.com/falcon-vnic/vnic/falcon"
)

// Faults are what goes wrong in a function because the operator wants it, by rules and by a
// profile.
type Faults struct {
	f       victim
	now     *falcon.Time  // of the Step in progress
	changed func(on bool) // something can go wrong from now on, or nothing any more
	in      *injection    // nil: in service
	split   atomic.Uint64 // not 0: a seed to cut messages to the driver in pieces with
}

// begin returns what goes wrong, made if there was nothing.
func (x *Faults) begin() *injection {
	if x.in == nil {
		x.in = &injection{f: x.f, now: x.now}
		x.changed(true)
		if v := x.f.Verbs(); v != nil {
			v.UseFaults(x.in)
		}
	}
	return x.in
}

// Inject has a rule make things go wrong.
func (x *Faults) Inject(now falcon.Time, r fault.Rule) error {
	in := x.begin()
	if _, err := in.rules.Add(now, r); err != nil {
		x.endIdle(now)
		return err
	}
	in.settle(now)
	return nil
}

// Remove takes one rule back. It reports whether there was one.
func (x *Faults) Remove(now falcon.Time, id uint32) bool {
	if x.in == nil || !x.in.rules.Remove(id) {
		return false
	}
	x.in.settle(now)
	x.endIdle(now)
	return true
}

// UseProfile has the function do what no driver likes, by a seed.
func (x *Faults) UseProfile(name string, seed uint64) error {
	if name != HostileProfile {
		return fmt.Errorf("profile %q: there are %s and none", name, HostileProfile)
	}
	x.begin().profile = newProfile(name, seed)
	x.split.Store(cmp.Or(seed, 1))
	return nil
}

// DropProfile has the function be as others are.
func (x *Faults) DropProfile(now falcon.Time) {
	if x.in == nil {
		return
	}
	x.in.profile = nil
	x.split.Store(0)
	x.in.settle(now)
	x.endIdle(now)
}

// endIdle ends everything if nothing can go wrong.
func (x *Faults) endIdle(now falcon.Time) {
	if x.in.idle() {
		x.End(now)
	}
}

// End takes all faults off the function.
func (x *Faults) End(now falcon.Time) {
	if x.in == nil {
		return
	}
	x.in.end(now)
	x.in = nil
	x.split.Store(0)
	x.changed(false)
	if v := x.f.Verbs(); v != nil {
		v.UseFaults(nil)
	}
}

// Profile names the profile in use, with its seed and what it did; "": there is none.
func (x *Faults) Profile() (name string, seed uint64, did Acts) {
	if x.in == nil || x.in.profile == nil {
		return "", 0, Acts{}
	}
	p := x.in.profile
	return p.name, p.seed, p.did
}

// Rules are those by which something goes wrong.
func (x *Faults) Rules() []*fault.Active {
	if x.in == nil {
		return nil
	}
	return x.in.rules.Rules()
}

// LinkDown is whether a fault holds the function's link down.
func (x *Faults) LinkDown() bool { return x.in != nil && x.in.down != 0 }
