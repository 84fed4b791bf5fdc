package device

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
func (s *Shard) change(now falcon.Time, id pfvf.ID, edit func(*config.Function) error) error {
	if !s.funcs.possible(id) {
		return &refusal{abi.StatusNotFound, fmt.Sprintf("function %s: there is none; %s", id, s.funcs.inReach(id))}
	}
	was := s.funcs.settings(id)
	is := was
	if err := edit(&is); err != nil {
		return invalid(err)
	}
	if p := is.Port; p != nil && is.MAC != was.MAC && p.MAC == was.MAC { // a direct port has the function's
		port := *p
		port.MAC = is.MAC
		is.Port = &port
	}
	if err := s.cfg.CheckFunction(id.String(), &is); err != nil {
		return invalid(err)
	}
	if err := s.funcs.unique(id, &is); err != nil {
		return err
	}
	if err := s.canAnnounce(id, &is); err != nil {
		return &refusal{abi.StatusNoResources, fmt.Sprintf("%s: %v; disable another function, or share fewer tenants (peers[].tenants)", id, err)}
	}
	f := s.funcs.byID[id]
	if f == nil {
		s.funcs.shelf[id] = is
		if !*is.Enabled {
			return nil
		}
		if _, err := s.funcs.add(now, id); err != nil {
			s.funcs.shelf[id] = was
			return &refusal{abi.StatusNoResources, err.Error()}
		}
		return s.reannounce()
	}
	if err := f.setCredits(&was, &is); err != nil {
		return err
	}
	s.falcon.CreditsChanged()
	another := settings.Another(&was, &is)
	if another || *was.Enabled != *is.Enabled {
		if *was.Enabled {
			if *is.Enabled {
				f.TakeDown(now, "its settings changed")
			}
			s.funcs.table.Remove(id)
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
		if err := s.funcs.table.Add(f.Function.Function); err != nil { // unique has looked
			return &refusal{abi.StatusAddressInUse, err.Error()}
		}
		if !*was.Enabled {
			_ = f.Lifecycle.Apply(pfvf.Allow)
			f.TellState("enabled")
		}
	case *was.Enabled && !*is.Enabled:
		f.disable(now)
	}
	s.funcs.linkChanged(now, id.Parent())
	if v := f.Verbs(); v != nil {
		s.rdma.RateChanged(now, v)
	}
	return s.reannounce()
}

// canAnnounce says whether peers can be told of all functions, and of all addresses of ports, once
// one has new settings.
func (s *Shard) canAnnounce(id pfvf.ID, is *config.Function) error {
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
	for _, f := range s.funcs.all {
		if f.ID != id {
			add(f.ID, &f.cfg)
		}
	}
	add(id, is)
	return errors.Join(s.cm.CheckEndpoints(functions), s.cm.CheckPorts(ports))
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
func (s *Shard) reannounce() error {
	select {
	case s.changed <- struct{}{}:
	default:
	}
	if err := s.announce(); err != nil {
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
