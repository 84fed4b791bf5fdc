package functions

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/settings"
	"github.com/falcon-vnic/vnic/falcon/cm"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Refusal is the error for a change that is refused.
type Refusal struct {
	Status abi.Status
	Why    string
}

func (r *Refusal) Error() string { return fmt.Sprintf("%s: %s", r.Status, r.Why) }

// Refuse returns a Refusal.
func Refuse(st abi.Status, format string, args ...any) error {
	return &Refusal{st, fmt.Sprintf(format, args...)}
}

// StatusOf returns the status that a driver gets for an error.
func StatusOf(err error) abi.Status {
	var r *Refusal
	switch {
	case err == nil:
		return abi.StatusOK
	case errors.As(err, &r):
		return r.Status
	}
	return abi.StatusInvalidArgument
}

// Edit changes the settings to of a function. pf holds the settings of its PF, which may be the
// function itself.
type Edit func(pf, to *config.Function) error

// Registry holds the settings of every function of a NIC.
type Registry struct {
	cfg *config.Config
	vfs [pfvf.MaxPF + 1]int // number that each PF can have; -1: there is no such PF
	is  map[pfvf.ID]config.Function

	peers     []config.Peer // that are told of functions
	taken     *config.Taken // addresses and devices in use, also outside functions
	gids      gids
	enabled   [pfvf.MaxPF + 1]int // enabled VFs of each PF
	tenants   map[uint32]count
	guests    map[uint32]int             // functions of each guest, by its CID
	on        int                        // number of enabled functions
	guarantee map[pfvf.ID]config.Credits // of the functions that have one
}

// count is how much peers are told in one tenant.
type count struct{ functions, addresses int }

// New returns the registry of a checked configuration.
func New(cfg *config.Config) (*Registry, error) {
	r := &Registry{
		cfg: cfg, peers: cfg.Peers, is: map[pfvf.ID]config.Function{}, taken: cfg.Taken(), gids: newGIDs(), tenants: map[uint32]count{}, guests: map[uint32]int{}, guarantee: map[pfvf.ID]config.Credits{},
	}
	for i := range r.vfs {
		r.vfs[i] = -1
	}
	for i := range cfg.Functions {
		r.vfs[cfg.Functions[i].PF] = cfg.Functions[i].VFCount
	}
	for _, n := range cfg.AllFunctions() {
		id, err := pfvf.NewID(uint32(cfg.NIC.Host), uint32(n.PF), uint32(n.VF))
		if err != nil {
			return nil, err
		}
		r.put(id, n.Function)
	}
	return r, nil
}

// Clone returns a copy, on which changes can be tried.
func (r *Registry) Clone() *Registry {
	c := *r
	c.is, c.tenants, c.guests, c.guarantee = maps.Clone(r.is), maps.Clone(r.tenants), maps.Clone(r.guests), maps.Clone(r.guarantee)
	c.taken, c.gids = r.taken.Clone(), r.gids.clone()
	return &c
}

// Possible reports whether the NIC can have a function with this ID.
func (r *Registry) Possible(id pfvf.ID) bool {
	return id <= pfvf.MaxID && id.Host() == r.cfg.NIC.Host && int(id.VF()) <= r.vfs[id.PF()]
}

// Find returns the reason why there can be no function with this ID; nil: there can.
func (r *Registry) Find(id pfvf.ID) error {
	if r.Possible(id) {
		return nil
	}
	return Refuse(abi.StatusNotFound, "there is no function %s; %s", id, r.inReach(id))
}

// inReach says which functions are possible, as a remedy in an error.
func (r *Registry) inReach(id pfvf.ID) string {
	switch host := r.cfg.NIC.Host; {
	case id.Host() != host:
		return fmt.Sprintf("this NIC is host %d", host)
	case r.vfs[id.PF()] < 0:
		return fmt.Sprintf("add {pf: %d} under functions of the configuration", id.PF())
	}
	return fmt.Sprintf("VFs of pf%d go up to %d (its vf_count)", id.PF(), r.vfs[id.PF()])
}

// Settings returns the settings of a function.
func (r *Registry) Settings(id pfvf.ID) config.Function {
	if c, ok := r.is[id]; ok {
		return c
	}
	return r.cfg.DefaultVF(id.PF(), id.VF())
}

// Each calls f for each function that has settings, in order.
func (r *Registry) Each(f func(id pfvf.ID, is *config.Function)) {
	for _, id := range slices.Sorted(maps.Keys(r.is)) {
		is := r.is[id]
		f(id, &is)
	}
}

// Enabled returns how many VFs of a PF are enabled.
func (r *Registry) Enabled(pf uint8) int { return r.enabled[pf] }

// Change is an allowed change of a function.
type Change struct {
	ID      pfvf.ID
	Was, Is config.Function
}

// Change computes and checks the new settings of a function, without applying them. The error is a
// *Refusal.
func (r *Registry) Change(id pfvf.ID, edit Edit) (c Change, err error) {
	if err := r.Find(id); err != nil {
		return c, err
	}
	c = Change{ID: id, Was: r.Settings(id)}
	c.Is = c.Was
	pf := r.Settings(id.Parent())
	if err := edit(&pf, &c.Is); err != nil {
		return c, invalid(err)
	}
	if p := c.Is.Port; p != nil && c.Is.MAC != c.Was.MAC && p.MAC == c.Was.MAC { // a direct port has the function's MAC
		port := *p
		port.MAC = c.Is.MAC
		c.Is.Port = &port
	}
	if err := r.cfg.CheckFunction(id.String(), &c.Is, r.taken); err != nil {
		return c, invalid(err)
	}
	return c, r.checkChange(&c)
}

func invalid(err error) error {
	var r *Refusal
	if errors.As(err, &r) {
		return r
	}
	var problems config.Problems
	if errors.As(err, &problems) && problems[0].InUse {
		return &Refusal{abi.StatusAddressInUse, err.Error()}
	}
	return &Refusal{abi.StatusInvalidArgument, err.Error()}
}

// Commit records a change that its shard has applied. If the change makes it another function, or
// disables it, the addresses that its driver added are removed.
func (r *Registry) Commit(c *Change) {
	if settings.Another(&c.Was, &c.Is) || !*c.Is.Enabled {
		r.DelGIDs(c.ID)
	}
	r.take(c.ID)
	r.put(c.ID, &c.Is)
}

// put records the settings of a function.
func (r *Registry) put(id pfvf.ID, c *config.Function) {
	if id.IsVF() && reflect.DeepEqual(*c, r.cfg.DefaultVF(id.PF(), id.VF())) {
		return
	}
	r.is[id] = *c
	r.taken.Put(id.String(), c)
	r.guests[cidOf(c)]++
	r.told(id, c, 1)
}

// take removes the settings of a function.
func (r *Registry) take(id pfvf.ID) {
	c, ok := r.is[id]
	if !ok {
		return
	}
	delete(r.is, id)
	r.taken.Remove(id.String(), &c)
	if r.guests[cidOf(&c)]--; r.guests[cidOf(&c)] == 0 {
		delete(r.guests, cidOf(&c))
	}
	r.told(id, &c, -1)
}

// cidOf returns the context id of a function's guest; 0: it has none, or one without a CID.
func cidOf(c *config.Function) uint32 {
	if c.Guest == nil {
		return 0
	}
	return c.Guest.CID
}

// told adds (n 1) or removes (n -1) a function's part of the limited resources.
func (r *Registry) told(id pfvf.ID, c *config.Function, n int) {
	delete(r.guarantee, id)
	if !*c.Enabled {
		return
	}
	r.on += n
	if id.IsVF() {
		r.enabled[id.PF()] += n
	}
	t, has := r.tenants[c.Tenant], takes(c)
	t.functions, t.addresses = t.functions+n*has.functions, t.addresses+n*has.addresses
	if r.tenants[c.Tenant] = t; t == (count{}) {
		delete(r.tenants, c.Tenant)
	}
	if n > 0 && c.Guarantee != (config.Credits{}) {
		r.guarantee[id] = c.Guarantee
	}
}

// shared counts what is told to a peer that shares these tenants; further counts the GIDs that
// drivers added.
func (r *Registry) shared(tenants []uint32) (n count, further int) {
	for _, t := range tenants {
		n.functions, n.addresses = n.functions+r.tenants[t].functions, n.addresses+r.tenants[t].addresses
		further += r.gids.in[t]
	}
	return n, further
}

// takes counts what peers are told of a function.
func takes(c *config.Function) (n count) {
	if *c.Enabled {
		n.functions = 1
		if c.Port != nil {
			n.addresses = len(c.Addresses())
		}
	}
	return n
}

// DelGIDs removes all addresses that a function's driver added. It reports whether there were any.
func (r *Registry) DelGIDs(id pfvf.ID) bool {
	had := len(r.gids.of[id]) > 0
	r.gids.drop(id, func(address) bool { return true })
	return had
}

// checkChange refuses a change that needs an address that another function's driver added, or more than
// there is.
func (r *Registry) checkChange(c *Change) error {
	if err := r.unique(c.ID, &c.Is); err != nil {
		return err
	}
	if err := r.tellable(c); err != nil {
		return err
	}
	if err := r.windowed(c); err != nil {
		return err
	}
	return r.guaranteed(c)
}

// windowed checks that a guest that gets another function has room for its window.
func (r *Registry) windowed(c *Change) error {
	cid := cidOf(&c.Is)
	if cid == 0 || cid == cidOf(&c.Was) || r.guests[cid] < config.MaxWindows || !r.cfg.GivesWindows(cid) {
		return nil
	}
	return Refuse(abi.StatusNoResources, "%s: guest %d has %d functions already, and room for as many windows; give it fewer functions or no windows", c.ID, cid, r.guests[cid])
}

// unique checks that no other function's driver has added one of the addresses.
func (r *Registry) unique(id pfvf.ID, c *config.Function) error {
	for _, a := range c.Addresses() {
		if other, taken := r.gids.owner[address{c.Tenant, a}]; taken && other != id {
			return Refuse(abi.StatusAddressInUse, "%s: address %s of tenant %d is a GID that the driver of %s added; give it another, or have that driver remove it", id, a, c.Tenant, other)
		}
	}
	return nil
}

// tellable checks that there is room to tell each peer all functions and port addresses in the
// tenants shared with it.
func (r *Registry) tellable(c *Change) error {
	was, is := takes(&c.Was), takes(&c.Is)
	if c.Was.Tenant == c.Is.Tenant && is.functions <= was.functions && is.addresses <= was.addresses {
		return nil // no more than before
	}
	for i := range r.peers {
		p := &r.peers[i]
		n, further := r.shared(p.Tenants)
		if slices.Contains(p.Tenants, c.Was.Tenant) {
			n.functions, n.addresses = n.functions-was.functions, n.addresses-was.addresses
		}
		if slices.Contains(p.Tenants, c.Is.Tenant) {
			n.functions, n.addresses = n.functions+is.functions, n.addresses+is.addresses
		}
		switch {
		case n.functions+further > cm.MaxEndpoints:
			return Refuse(abi.StatusNoResources, "%s: %s", c.ID, tooMany(p, n, further))
		case n.addresses > cm.MaxPorts:
			return Refuse(abi.StatusNoResources, "%s: %s", c.ID, tooManyPorts(p, n))
		}
	}
	return nil
}

func tooMany(p *config.Peer, n count, further int) string {
	return fmt.Sprintf("%d functions and %d GIDs added to them in the tenants shared with NIC %s, at most %d; %s", n.functions, further, p.Name, cm.MaxEndpoints, tellLess)
}

func tooManyPorts(p *config.Peer, n count) string {
	return fmt.Sprintf("%d addresses of ports in the tenants shared with NIC %s, at most %d; %s", n.addresses, p.Name, cm.MaxPorts, tellLess)
}

const tellLess = "disable another function, or share fewer tenants (peers[].tenants)"

// CheckPeers returns an error if the NIC's functions and another list of peers do not go together: a
// function has an address that is listed for a peer, or there are too many functions to tell one.
func (r *Registry) CheckPeers(list []config.Peer) error {
	for i := range list {
		p := &list[i]
		if err := r.taken.CheckPeer(p); err != nil {
			return err
		}
		for _, f := range p.Functions {
			if by, added := r.gids.owner[address{f.Tenant, f.Address}]; added {
				return fmt.Errorf("peer %s: functions: %s of tenant %d is a GID that the driver of %s added", p.Name, f.Address, f.Tenant, by)
			}
		}
		switch n, further := r.shared(p.Tenants); {
		case n.functions+further > cm.MaxEndpoints:
			return errors.New(tooMany(p, n, further))
		case n.addresses > cm.MaxPorts:
			return errors.New(tooManyPorts(p, n))
		}
	}
	return nil
}

// SetPeers replaces the peers that are told of functions.
func (r *Registry) SetPeers(list []config.Peer) {
	for i := range r.peers {
		r.taken.RemovePeer(&r.peers[i])
	}
	r.peers = list
	for i := range list {
		r.taken.PutPeer(&list[i])
	}
}

// guaranteed checks that every function could still send a packet.
func (r *Registry) guaranteed(c *Change) error {
	if *c.Was.Enabled == *c.Is.Enabled && c.Was.Guarantee == c.Is.Guarantee {
		return nil
	}
	if len(r.guarantee) == 0 && c.Is.Guarantee == (config.Credits{}) {
		return nil
	}
	others := maps.Clone(r.guarantee)
	delete(others, c.ID)
	list := slices.Collect(maps.Values(others))
	if *c.Is.Enabled {
		list = append(list, c.Is.Guarantee)
	}
	without := r.on - len(r.guarantee)
	if *c.Was.Enabled && c.Was.Guarantee == (config.Credits{}) {
		without-- // the function itself is in list, with its new settings
	}
	if without > 0 {
		list = append(list, config.Credits{})
	}
	if err := r.cfg.CheckGuarantees(list); err != nil {
		return Refuse(abi.StatusNoResources, "%s: %v", c.ID, err)
	}
	return nil
}
