package guest

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/falcon-vnic/vnic/device/fault"
	"github.com/falcon-vnic/vnic/falcon"
)

// injected returns what goes wrong in the function on purpose, made if there was nothing.
func (f *Function) injected() *injection {
	if f.faults == nil {
		f.faults = &injection{f: f, now: &f.set.now}
		f.set.faulty = append(f.set.faulty, f)
		if f.verbs != nil {
			f.verbs.UseFaults(f.faults)
		}
	}
	return f.faults
}

// InjectFault has a rule make things go wrong in the function.
func (f *Function) InjectFault(now falcon.Time, r fault.Rule) error {
	x := f.injected()
	if _, err := x.rules.Add(now, r); err != nil {
		f.mendIdle(now)
		return err
	}
	x.settle(now)
	return nil
}

// RemoveFault takes one rule back. It reports whether there was one.
func (f *Function) RemoveFault(now falcon.Time, id uint32) bool {
	if f.faults == nil || !f.faults.rules.Remove(id) {
		return false
	}
	f.faults.settle(now)
	f.mendIdle(now)
	return true
}

// UseProfile has the function do what no driver likes, by a seed.
func (f *Function) UseProfile(name string, seed uint64) error {
	if name != HostileProfile {
		return fmt.Errorf("profile %q: there are %s and none", name, HostileProfile)
	}
	f.injected().profile = newProfile(name, seed)
	f.split.Store(cmp.Or(seed, 1))
	return nil
}

// DropProfile has the function be as others are.
func (f *Function) DropProfile(now falcon.Time) {
	if f.faults == nil {
		return
	}
	f.faults.profile = nil
	f.split.Store(0)
	f.faults.settle(now)
	f.mendIdle(now)
}

// mendIdle mends the function if nothing can go wrong.
func (f *Function) mendIdle(now falcon.Time) {
	if f.faults.idle() {
		f.Mend(now)
	}
}

// Mend takes all faults off the function.
func (f *Function) Mend(now falcon.Time) {
	if f.faults == nil {
		return
	}
	f.faults.end(now)
	f.faults = nil
	f.split.Store(0)
	f.set.faulty = slices.DeleteFunc(f.set.faulty, func(g *Function) bool { return g == f })
	if f.verbs != nil {
		f.verbs.UseFaults(nil)
	}
}

// Profile names the profile in use, with its seed, and what it did; "": there is none.
func (f *Function) Profile() (name string, seed uint64, did Acts) {
	if f.faults == nil || f.faults.profile == nil {
		return "", 0, Acts{}
	}
	p := f.faults.profile
	return p.name, p.seed, p.did
}

// Faults are the rules by which something goes wrong in the function.
func (f *Function) Faults() []*fault.Active {
	if f.faults == nil {
		return nil
	}
	return f.faults.rules.Rules()
}

// LinkHeldDown is whether a fault holds the function's link down.
func (f *Function) LinkHeldDown() bool { return f.faults != nil && f.faults.down != 0 }

// resetByFault implements victim.
func (f *Function) resetByFault(now falcon.Time) {
	f.owner.TakeVFsDown(now)
	f.TakeDown(now, "an injected fault reset it")
}

// linkMoved implements victim.
func (f *Function) linkMoved(now falcon.Time) { f.owner.LinkMoved(now) }

// starve implements victim.
func (f *Function) starve(on bool) {
	f.Credits.Starve(on)
	f.owner.CreditsChanged()
}
