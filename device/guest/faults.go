package guest

import (
	"cmp"
	"fmt"
	"sync/atomic"

	"github.com/falcon-vnic/vnic/device/fault"
	"github.com/falcon-vnic/vnic/falcon"
)

// Faults holds the faults that the operator injects into a function, by rules and by a profile.
type Faults struct {
	f       victim
	now     *falcon.Time  // time of the current Step
	changed func(on bool) // called when faults begin and when they end
	in      *injection    // nil: no faults
	split   atomic.Uint64 // seed for cutting messages to the driver in pieces; 0: they are not cut
}

// begin returns the injection, which it creates if there is none.
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

// Inject adds a fault rule.
func (x *Faults) Inject(now falcon.Time, r fault.Rule) error {
	in := x.begin()
	if _, err := in.rules.Add(now, r); err != nil {
		x.endIdle(now)
		return err
	}
	in.settle(now)
	return nil
}

// Remove removes a rule. It reports whether there was one.
func (x *Faults) Remove(now falcon.Time, id uint32) bool {
	if x.in == nil || !x.in.rules.Remove(id) {
		return false
	}
	x.in.settle(now)
	x.endIdle(now)
	return true
}

// UseProfile makes the function behave in ways that are allowed but hard on drivers. seed makes the
// behaviour repeatable.
func (x *Faults) UseProfile(name string, seed uint64) error {
	if name != HostileProfile {
		return fmt.Errorf("profile %q: there are %s and none", name, HostileProfile)
	}
	x.begin().profile = newProfile(name, seed)
	x.split.Store(cmp.Or(seed, 1))
	return nil
}

// DropProfile ends the profile.
func (x *Faults) DropProfile(now falcon.Time) {
	if x.in == nil {
		return
	}
	x.in.profile = nil
	x.split.Store(0)
	x.in.settle(now)
	x.endIdle(now)
}

// endIdle ends the injection if it has no rule and no profile.
func (x *Faults) endIdle(now falcon.Time) {
	if x.in.idle() {
		x.End(now)
	}
}

// End removes all faults from the function.
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

// Profile returns the name of the profile in use, its seed and what it did; "": there is none.
func (x *Faults) Profile() (name string, seed uint64, did Acts) {
	if x.in == nil || x.in.profile == nil {
		return "", 0, Acts{}
	}
	p := x.in.profile
	return p.name, p.seed, p.did
}

// Rules returns the fault rules.
func (x *Faults) Rules() []*fault.Active {
	if x.in == nil {
		return nil
	}
	return x.in.rules.Rules()
}

// LinkDown reports whether a fault holds the function's link down.
func (x *Faults) LinkDown() bool { return x.in != nil && x.in.down != 0 }
