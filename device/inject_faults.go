package device

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/fault"
	"github.com/falcon-vnic/vnic/falcon"
)

// InjectFault gives a function a rule or a profile, or takes them back, and
// returns what there is of it then. It implements control.Provider.
func (n *NIC) InjectFault(_ context.Context, c control.FaultChange) (list []control.Fault, err error) {
	stopped := n.shard.do(func(now falcon.Time) {
		if c.Function == "" { // all of them
			for _, f := range slices.Clone(n.shard.faulty) {
				n.shard.mend(now, f)
			}
			return
		}
		var f *function
		if f, err = n.present(c.Function); err != nil {
			return
		}
		if err = n.shard.sabotage(now, f, &c); err == nil {
			list = f.listFaults(now)
		}
	})
	if stopped != nil {
		return nil, stopped
	}
	if err != nil {
		err = control.BadRequest{Err: err}
	}
	return list, err
}

// present finds a function by its name.
func (n *NIC) present(name string) (*function, error) {
	id, err := n.functionID(name)
	if err != nil {
		return nil, err
	}
	f := n.shard.funcs.byID[id]
	switch {
	case f == nil && n.shard.funcs.possible(id):
		return nil, fmt.Errorf("function %s is disabled; enable it first (vnic vf enable)", id)
	case f == nil:
		return nil, fmt.Errorf("function %s: there is none; %s", id, n.shard.funcs.inReach(id))
	}
	return f, nil
}

// sabotage carries out a change.
func (s *Shard) sabotage(now falcon.Time, f *function, c *control.FaultChange) error {
	switch {
	case c.Add != nil:
		x := s.sabotaged(f)
		if _, err := x.rules.Add(now, *c.Add); err != nil {
			if len(x.rules.Rules()) == 0 && x.profile == nil {
				s.mend(now, f)
			}
			return fmt.Errorf("%s: %w", f.ID, err)
		}
		x.settle(now)
	case c.Profile == hostileProfile:
		x := s.sabotaged(f)
		x.profile = newProfile(c.Profile, c.Seed)
		f.split.Store(cmp.Or(c.Seed, 1))
	case c.Profile == "none":
		if f.faults != nil {
			f.faults.profile = nil
			f.split.Store(0)
			f.faults.settle(now)
		}
	case c.Profile != "":
		return fmt.Errorf("profile %q: there are %s and none", c.Profile, hostileProfile)
	case c.Clear && c.ID == 0:
		s.mend(now, f)
	case c.Clear:
		if f.faults == nil || !f.faults.rules.Remove(c.ID) {
			return fmt.Errorf("%s: there is no rule %d; see vnic inject list", f.ID, c.ID)
		}
		f.faults.settle(now)
	default:
		return fmt.Errorf("%s: nothing to change: give a rule or a profile, or clear", f.ID)
	}
	if x := f.faults; x != nil && len(x.rules.Rules()) == 0 && x.profile == nil {
		s.mend(now, f)
	}
	return nil
}

// Faults lists what goes wrong on purpose. It implements control.Provider.
func (n *NIC) Faults(context.Context) (list []control.Fault, err error) {
	err = n.shard.do(func(now falcon.Time) {
		for _, f := range n.shard.faulty {
			list = append(list, f.listFaults(now)...)
		}
	})
	return list, err
}

func (f *function) listFaults(now falcon.Time) (list []control.Fault) {
	x := f.faults
	if x == nil {
		return nil
	}
	if p := x.profile; p != nil {
		list = append(list, control.Fault{Function: f.ID.String(), Rule: fault.Rule{Kind: fault.Kind("profile " + p.name), Seed: p.seed}, Seen: p.acts(), Hits: p.acts()})
	}
	for _, a := range x.rules.Rules() {
		list = append(list, control.Fault{
			Function: f.ID.String(), ID: a.ID, Rule: a.Rule, Seen: a.Seen, Hits: a.Hits, Over: a.Over(now), AgeMS: (now - a.Since()) / 1e6, RemainsMS: a.Remains(now) / 1e6,
		})
	}
	return list
}
