package shard

import (
	"errors"
	"fmt"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/settings"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/credit"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// refusal is a change that is not made.
type refusal struct {
	status abi.Status
	why    string
}

func (r *refusal) Error() string { return fmt.Sprintf("%s: %s", r.status, r.why) }

// change sets a function anew while the NIC runs, for the operator and for PFs:
// edit changes a copy of its settings, and either all of that comes into force
// or nothing. Quotas, rate, credits, trust, spoof check and link change under
// traffic. A new MAC, tenant, address or DMA window makes the function another
// one, so an enabled one is reset; a new guest ends the session of the old. The
// error is a *refusal.
func (fs *functionSet) change(now falcon.Time, id pfvf.ID, edit func(*config.Function) error) error {
	if !fs.possible(id) {
		return &refusal{abi.StatusNotFound, fmt.Sprintf("function %s: there is none; %s", id, fs.inReach(id))}
	}
	was := fs.settings(id)
	is := was
	if err := edit(&is); err != nil {
		return invalid(err)
	}
	if p := is.Port; p != nil && is.MAC != was.MAC && p.MAC == was.MAC { // a direct port has the function's
		port := *p
		port.MAC = is.MAC
		is.Port = &port
	}
	if err := fs.shard.cfg.CheckFunction(id.String(), &is); err != nil {
		return invalid(err)
	}
	if err := fs.unique(id, &is); err != nil {
		return err
	}
	if err := fs.canAnnounce(id, &is); err != nil {
		return &refusal{abi.StatusNoResources, fmt.Sprintf("%s: %v; disable another function, or share fewer tenants (peers[].tenants)", id, err)}
	}
	f := fs.byID[id]
	if f == nil {
		fs.shelf[id] = is
		if !*is.Enabled {
			return nil
		}
		if _, err := fs.add(now, id); err != nil {
			fs.shelf[id] = was
			return &refusal{abi.StatusNoResources, err.Error()}
		}
		return fs.reannounce(id)
	}
	if err := f.setCredits(&was, &is); err != nil {
		return err
	}
	fs.shard.falcon.CreditsChanged()
	another := settings.Another(&was, &is)
	if another || *was.Enabled != *is.Enabled {
		if *was.Enabled {
			if *is.Enabled {
				f.TakeDown(now, "its settings changed")
			}
			fs.table.Remove(id)
		}
	}
	f.cfg = is
	f.adopt(now)
	if !same(was.DMAWindow, is.DMAWindow) && f.Driver() != nil {
		f.Driver().End() // its memory was mapped through the old window
	}
	if d := f.Driver(); d != nil && !f.assignedTo(d.Attached, d.Peer) {
		d.End()
	}
	switch {
	case *is.Enabled && (another || !*was.Enabled):
		if err := fs.table.Add(f.Function.Function); err != nil { // unique has looked
			return &refusal{abi.StatusAddressInUse, err.Error()}
		}
		if !*was.Enabled {
			_ = f.Lifecycle.Apply(pfvf.Allow)
			f.TellState("enabled")
		}
	case *was.Enabled && !*is.Enabled:
		f.disable(now)
	}
	fs.linkChanged(now, id.Parent())
	if v := f.Verbs(); v != nil {
		fs.shard.rdma.RateChanged(now, v)
	}
	return fs.reannounce(id)
}

// canAnnounce says whether peers can be told of all functions, and of all addresses of ports, once
// one has new settings.
func (fs *functionSet) canAnnounce(id pfvf.ID, is *config.Function) error {
	var functions []cm.Endpoint
	var ports []cm.Port
	add := func(id pfvf.ID, c *config.Function) {
		if !*c.Enabled {
			return
		}
		f := pfvf.Function{ID: id, Tenant: c.Tenant, Addr: c.Address}
		functions = append(functions, cm.Endpoint{Tenant: c.Tenant, GID: f.GID(), Function: uint32(id)})
		if c.Port == nil {
			return
		}
		for _, a := range c.Addresses() {
			ports = append(ports, cm.Port{Tenant: c.Tenant, Addr: a.As16(), Function: uint32(id)})
		}
	}
	for _, f := range fs.all {
		if f.ID != id {
			add(f.ID, &f.cfg)
		}
	}
	add(id, is)
	return fs.shard.core.Check(functions, ports)
}

// inReach says which functions there can be, as a remedy.
func (fs *functionSet) inReach(id pfvf.ID) string {
	switch host := fs.shard.cfg.NIC.Host; {
	case id.Host() != host:
		return fmt.Sprintf("this NIC is host %d", host)
	case fs.vfs[id.PF()] < 0:
		return fmt.Sprintf("add {pf: %d} under functions of the configuration", id.PF())
	}
	return fmt.Sprintf("VFs of pf%d go up to %d (its vf_count)", id.PF(), fs.vfs[id.PF()])
}

// unique sees that nobody else has the MAC or the address.
func (fs *functionSet) unique(id pfvf.ID, c *config.Function) error {
	taken := func(other pfvf.ID, o *config.Function) error {
		switch {
		case other == id:
		case o.MAC == c.MAC:
			return &refusal{abi.StatusAddressInUse, fmt.Sprintf("%s: mac %s is already that of %s; give each function its own", id, c.MAC, other)}
		case c.Port != nil && o.Port != nil && c.Port.Name == o.Port.Name && c.Port.Netns == o.Port.Netns:
			return &refusal{abi.StatusAddressInUse, fmt.Sprintf("%s: port %s is already that of %s; give each device its own name", id, c.Port.Name, other)}
		case c.Address.IsValid() && o.Tenant == c.Tenant && o.Address == c.Address:
			return &refusal{abi.StatusAddressInUse, fmt.Sprintf("%s: address %s of tenant %d is already that of %s; give each function its own", id, c.Address, c.Tenant, other)}
		}
		return nil
	}
	for _, f := range fs.all {
		if err := taken(f.ID, &f.cfg); err != nil {
			return err
		}
	}
	for other, o := range fs.shelf {
		if err := taken(other, &o); err != nil {
			return err
		}
	}
	return nil
}

// setCredits resizes the function's part of the credit tree. A limit below what
// is in use takes nothing away: new work waits until enough came back.
func (f *function) setCredits(was, is *config.Function) error {
	guarantee := is.Guarantee.Cost()
	if !*is.Enabled {
		guarantee = credit.Cost{}
	}
	if is.Credits == was.Credits && guarantee == f.Credits.Guaranteed() {
		return nil
	}
	if err := f.shard.funcs.checkGuarantees(f.ID, is); err != nil {
		return &refusal{abi.StatusNoResources, fmt.Sprintf("%s: %v", f.ID, err)}
	}
	before := f.Credits.Limit()
	f.Credits.SetLimit(is.Credits.Cost())
	if err := f.Credits.Guarantee(guarantee); err != nil {
		f.Credits.SetLimit(before)
		return &refusal{abi.StatusNoResources, fmt.Sprintf("%s: %v; lower it, or raise credits.host in the configuration", f.ID, err)}
	}
	return nil
}

// checkGuarantees says whether every function could still send a packet once one has new settings.
func (fs *functionSet) checkGuarantees(id pfvf.ID, is *config.Function) error {
	var list []config.Credits
	for _, f := range fs.all {
		if f.ID != id && *f.cfg.Enabled {
			list = append(list, f.cfg.Guarantee)
		}
	}
	if *is.Enabled {
		list = append(list, is.Guarantee)
	}
	return fs.shard.cfg.CheckGuarantees(list)
}

// reannounce tells the peers, and whoever gives functions what is not the shard's.
func (fs *functionSet) reannounce(changed pfvf.ID) error {
	fs.shard.syncPortOf(changed)
	select {
	case fs.shard.changed <- struct{}{}:
	default:
	}
	if err := fs.shard.announce(); err != nil {
		return &refusal{abi.StatusNoResources, err.Error()}
	}
	return nil
}

func invalid(err error) error {
	var r *refusal
	if errors.As(err, &r) {
		return r
	}
	return &refusal{abi.StatusInvalidArgument, err.Error()}
}

func same[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }
