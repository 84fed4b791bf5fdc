package controller

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/directory"
	"github.com/falcon-vnic/vnic/internal/vtime"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// Peers that a directory tells of stand beside those of the configuration. The directory's list is
// taken over as a whole; only a peer in it that does not fit this NIC and its own peers is left out,
// and one that the configuration or an operator gave stays as it is.

// Follow makes the peers of a directory those of a list. It returns why some were left out, by name.
func (a *API) Follow(list []config.Peer) (left map[string]error, err error) {
	a.changes.Lock()
	defer a.changes.Unlock()
	if err := a.c.Links.Open(); err != nil {
		return nil, err
	}
	stopped := a.c.Core.Do(func(now vtime.Time) { left, err = a.c.Core.Peers.follow(now, list) })
	if stopped != nil {
		err = stopped
	}
	return left, err
}

func (p *Peers) follow(now vtime.Time, list []config.Peer) (left map[string]error, err error) {
	left = map[string]error{}
	var all []config.Peer
	for i := range p.list {
		if !p.followed[p.list[i].Name] {
			all = append(all, p.list[i])
		}
	}
	own := len(all)
	for i := range list {
		c := list[i]
		c.Complete()
		if i := slices.IndexFunc(all[:own], func(o config.Peer) bool { return o.Name == c.Name }); i >= 0 {
			left[c.Name] = fmt.Errorf("`peers` in this NIC's configuration names %s, which takes precedence", c.Name)
			continue
		}
		if err := p.Check(append(all[:own:own], c)); err != nil { // one after the other: else one would keep all out
			left[c.Name] = err
			continue
		}
		all = append(all, c)
	}
	if slices.EqualFunc(all, p.list, func(a, b config.Peer) bool { return reflect.DeepEqual(a, b) }) {
		return left, nil
	}
	if err := p.Check(all); err != nil {
		return left, err
	}
	followed := map[string]bool{}
	for i := range all[own:] {
		followed[all[own+i].Name] = true
	}
	p.followed = followed
	p.set(now, all)
	return left, nil
}

// own makes peers this NIC's own: what a directory says of them counts no longer.
func (p *Peers) own(names ...string) {
	for _, name := range names {
		delete(p.followed, name)
	}
}

// Offered lists the functions of this NIC with all the addresses that peers may reach them by, and the
// addresses that its functions have, enabled or not.
func (a *API) Offered() (list []directory.Function, held []directory.Address, err error) {
	err = a.c.Core.Do(func(vtime.Time) {
		list = a.c.Core.offered()
		for _, h := range a.c.Core.held() {
			held = append(held, directory.Address{Tenant: h.Tenant, Addr: h.IP()})
		}
	})
	return list, held, err
}

// GiveUp takes tenant, addresses, port and guest from a function, and disables it: it was moved to
// another host.
func (a *API) GiveUp(function string) error {
	id, err := a.ID(function)
	if err != nil {
		return err
	}
	core := a.c.Core
	err = core.ask(func(then func(error)) {
		core.Change(id, func(_, to *config.Function) error {
			if id.IsVF() {
				*to = core.cfg.NIC.DefaultVF(id.PF(), id.VF())
			}
			to.Enabled, to.Tenant, to.Address, to.Port, to.Guest = new(bool), 0, netip.Addr{}, nil, nil
			return nil
		}, then)
	})
	if err == nil {
		err = a.c.Fitter.Fit()[id]
	}
	return err
}

func (k *Core) offered() []directory.Function {
	by := map[uint32]*directory.Function{}
	add := func(fn, tenant uint32, addr netip.Addr) {
		if f := by[fn]; f != nil && !slices.Contains(f.Addresses, addr) && f.Tenant == tenant {
			f.Addresses = append(f.Addresses, addr)
		}
	}
	k.Functions.Each(func(id pfvf.ID, is *config.Function) {
		if !*is.Enabled || is.Tenant == 0 {
			return
		}
		_, short, _ := strings.Cut(id.String(), ".")
		by[uint32(id)] = &directory.Function{Name: short, MAC: is.MAC.String(), Tenant: is.Tenant}
		for _, addr := range is.Addresses() {
			add(uint32(id), is.Tenant, addr)
		}
		k.Functions.GIDs(id, func(tenant uint32, gid [16]byte) {
			if addr := netip.AddrFrom16(gid).Unmap(); !addr.IsLinkLocalUnicast() {
				add(uint32(id), tenant, addr)
			}
		})
	})
	list := make([]directory.Function, 0, len(by))
	for _, fn := range slices.Sorted(maps.Keys(by)) {
		list = append(list, *by[fn])
	}
	return list
}
