package device

import (
	"context"
	"fmt"

	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/fault"
	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/falcon"
)

// InjectFault gives a function a rule or a profile, or takes them back, and
// returns what there is of it then. It implements control.Provider.
func (n *NIC) InjectFault(_ context.Context, c control.FaultChange) (list []control.Fault, err error) {
	stopped := n.shard.do(func(now falcon.Time) {
		if c.Function == "" { // all of them
			for _, f := range n.shard.guests.Faulty() {
				f.Mend(now)
			}
			return
		}
		var f *function
		if f, err = n.present(c.Function); err != nil {
			return
		}
		if err = changeFaults(now, f.Function, &c); err == nil {
			list = listFaults(now, f.Function)
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

// changeFaults carries out a change.
func changeFaults(now falcon.Time, f *guest.Function, c *control.FaultChange) error {
	switch {
	case c.Add != nil:
		if err := f.InjectFault(now, *c.Add); err != nil {
			return fmt.Errorf("%s: %w", f.ID, err)
		}
	case c.Profile == "none":
		f.DropProfile(now)
	case c.Profile != "":
		return f.UseProfile(c.Profile, c.Seed)
	case c.Clear && c.ID == 0:
		f.Mend(now)
	case c.Clear:
		if !f.RemoveFault(now, c.ID) {
			return fmt.Errorf("%s: there is no rule %d; see vnic inject list", f.ID, c.ID)
		}
	default:
		return fmt.Errorf("%s: nothing to change: give a rule or a profile, or clear", f.ID)
	}
	return nil
}

// Faults lists what goes wrong on purpose. It implements control.Provider.
func (n *NIC) Faults(context.Context) (list []control.Fault, err error) {
	err = n.shard.do(func(now falcon.Time) {
		for _, f := range n.shard.guests.Faulty() {
			list = append(list, listFaults(now, f)...)
		}
	})
	return list, err
}

func listFaults(now falcon.Time, f *guest.Function) (list []control.Fault) {
	if name, seed, did := f.Profile(); name != "" {
		list = append(list, control.Fault{Function: f.ID.String(), Rule: fault.Rule{Kind: fault.Kind("profile " + name), Seed: seed}, Seen: did.Sum(), Hits: did.Sum()})
	}
	for _, a := range f.Faults() {
		list = append(list, control.Fault{
			Function: f.ID.String(), ID: a.ID, Rule: a.Rule, Seen: a.Seen, Hits: a.Hits, Over: a.Over(now), AgeMS: (now - a.Since()) / 1e6, RemainsMS: a.Remains(now) / 1e6,
		})
	}
	return list
}
