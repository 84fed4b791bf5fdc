package shard

import (
	"fmt"

	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/fault"
	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/falcon"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// FaultView shows and changes the injected faults of functions (guest.Faults). It implements
// controller.FaultView.
type FaultView struct{ fs *functionSet }

// Inject implements controller.FaultView.
func (v FaultView) Inject(now falcon.Time, id pfvf.ID, c *control.FaultChange) ([]control.Fault, error) {
	v.fs.operated(change{ID: id, Fault: c})
	f := v.fs.members.get(id).Device
	if err := changeFaults(now, f, c); err != nil {
		return nil, err
	}
	return listFaults(now, f), nil
}

// Clear implements controller.FaultView.
func (v FaultView) Clear(now falcon.Time) {
	v.fs.operated(change{ClearFaults: true})
	for _, f := range v.fs.guests.Injected() {
		f.Faults.End(now)
	}
}

// changeFaults carries out a change of a function's faults.
func changeFaults(now falcon.Time, f *guest.Device, c *control.FaultChange) error {
	switch {
	case c.Add != nil:
		if err := f.Faults.Inject(now, *c.Add); err != nil {
			return fmt.Errorf("%s: %w", f.ID, err)
		}
	case c.Profile == "none":
		f.Faults.DropProfile(now)
	case c.Profile != "":
		return f.Faults.UseProfile(c.Profile, c.Seed)
	case c.Clear && c.ID == 0:
		f.Faults.End(now)
	case c.Clear:
		if !f.Faults.Remove(now, c.ID) {
			return fmt.Errorf("%s: there is no rule %d; see vnic inject list", f.ID, c.ID)
		}
	default:
		return fmt.Errorf("%s: nothing to change: give a rule or a profile, or clear", f.ID)
	}
	return nil
}

// List implements controller.FaultView.
func (v FaultView) List(now falcon.Time) (list []control.Fault) {
	for _, f := range v.fs.guests.Injected() {
		list = append(list, listFaults(now, f)...)
	}
	return list
}

func listFaults(now falcon.Time, f *guest.Device) (list []control.Fault) {
	if name, seed, did := f.Faults.Profile(); name != "" {
		list = append(list, control.Fault{Function: f.ID.String(), Rule: fault.Rule{Kind: fault.Kind("profile " + name), Seed: seed}, Seen: did.Sum(), Hits: did.Sum()})
	}
	for _, a := range f.Faults.Rules() {
		list = append(list, control.Fault{
			Function: f.ID.String(), ID: a.ID, Rule: a.Rule, Seen: a.Seen, Hits: a.Hits, Over: a.Over(now), AgeMS: (now - a.Since()) / 1e6, RemainsMS: a.Remains(now) / 1e6,
		})
	}
	return list
}
