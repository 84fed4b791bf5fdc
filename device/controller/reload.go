package controller

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/functions"
	"github.com/falcon-vnic/vnic/device/settings"
	"github.com/falcon-vnic/vnic/internal/vtime"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// A configuration that is read again takes effect as a whole or not at all:
//
//	Compare  what differs from the file as it was; keys that cannot change while the NIC runs
//	         are named, and refuse all
//	plan     tries the rest on a copy of the registry, function by function, in an order in which
//	         each change is allowed
//	apply    the same with the NIC itself; if a shard or a port's device refuses its part even so,
//	         what was applied before is taken back
//
// What an operator has changed at run time stays, unless the file says something else about it than
// it said before.

// Reload is the difference between a configuration and the one before.
type Reload struct {
	Fixed []string // keys that cannot change while the NIC runs

	functions   map[pfvf.ID]*functionReload
	was, is     []config.Peer
	rotateEvery *time.Duration // nil: as before
	impair      *config.Impair // of the uplink; nil: as before
}

// functionReload is a function whose configuration has changed.
type functionReload struct {
	id   pfvf.ID
	keys []string // of settings
	is   config.Function
	back functions.Edit // undoes it, when it was applied
}

// keyEnabled stands for functions[].enabled, which is no setting: operators enable and disable.
const keyEnabled = "enabled"

// Compare finds what is different in a configuration.
func Compare(was, is *config.Config) *Reload {
	r := &Reload{was: was.Peers, is: is.Peers, functions: map[pfvf.ID]*functionReload{}}
	a, b := *was, *is
	for _, c := range []*config.Config{&a, &b} {
		c.Peers, c.Functions, c.Log.Level, c.PSP.RotateEvery = nil, nil, "", nil
		c.Uplink.Impair, c.Metrics, c.Web = config.Impair{}, config.Metrics{}, config.Web{} // the last two are the NIC's part
	}
	r.Fixed = config.Differences(&a, &b)
	if *was.PSP.RotateEvery != *is.PSP.RotateEvery {
		r.rotateEvery = is.PSP.RotateEvery
	}
	if !reflect.DeepEqual(was.Uplink.Impair, is.Uplink.Impair) {
		r.impair = &is.Uplink.Impair
	}
	r.compareFunctions(was, is)
	return r
}

func (r *Reload) compareFunctions(was, is *config.Config) {
	before, after := map[uint8]int{}, map[uint8]int{}
	for i := range was.Functions {
		before[was.Functions[i].PF] = was.Functions[i].VFCount
	}
	for i := range is.Functions {
		after[is.Functions[i].PF] = is.Functions[i].VFCount
	}
	if !maps.Equal(before, after) {
		r.Fixed = append(r.Fixed, "functions[] (the list of PFs, and their vf_count)")
		return
	}
	host := is.NIC.Host
	listed := func(c *config.Config) map[pfvf.ID]config.Function {
		all := map[pfvf.ID]config.Function{}
		for _, f := range c.AllFunctions() {
			id, _ := pfvf.NewID(uint32(host), uint32(f.PF), uint32(f.VF))
			all[id] = *f.Function
		}
		return all
	}
	old, now := listed(was), listed(is)
	ids := maps.Clone(old)
	maps.Copy(ids, now)
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		r.compareFunction(id, functionIn(was, old, id), functionIn(is, now, id))
	}
}

// functionIn returns the settings that a file gives a function.
func functionIn(c *config.Config, listed map[pfvf.ID]config.Function, id pfvf.ID) config.Function {
	if f, ok := listed[id]; ok {
		return f
	}
	return c.DefaultVF(id.PF(), id.VF())
}

func (r *Reload) compareFunction(id pfvf.ID, was, is config.Function) {
	f := &functionReload{id: id, is: is}
	for _, s := range settings.All() {
		if s.Text(&was) != s.Text(&is) {
			f.keys = append(f.keys, s.Key)
		}
	}
	if *was.Enabled != *is.Enabled {
		f.keys = append(f.keys, keyEnabled)
	}
	if err := f.edit(nil, &was); err != nil { // was is a copy
		r.Fixed = append(r.Fixed, fmt.Sprintf("%s (%v)", id, err))
		return
	}
	for _, key := range config.Differences(&was, &is) {
		r.Fixed = append(r.Fixed, fmt.Sprintf("%s.%s", id, key))
	}
	if len(f.keys) > 0 {
		r.functions[id] = f
	}
}

// edit sets what differs.
func (f *functionReload) edit(_, to *config.Function) error {
	for _, key := range f.keys {
		switch key {
		case keyEnabled:
			on := *f.is.Enabled
			to.Enabled = &on
		case "port":
			to.Port = f.is.Port
		default:
			s := settings.Find(key)
			if err := s.Set(to, s.Text(&f.is)); err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
		}
	}
	return nil
}

// merge applies to a list of peers what differs between two others.
func merge(list, was, is []config.Peer) (merged []config.Peer, changed []string) {
	find := func(in []config.Peer, name string) *config.Peer {
		if i := slices.IndexFunc(in, func(p config.Peer) bool { return p.Name == name }); i >= 0 {
			return &in[i]
		}
		return nil
	}
	for i := range list {
		p, name := list[i], list[i].Name
		before, after := find(was, name), find(is, name)
		switch {
		case after != nil && !reflect.DeepEqual(&p, after) && (before == nil || !reflect.DeepEqual(before, after)):
			merged, changed = append(merged, *after), append(changed, "peer "+name+" changed")
		case after == nil && before != nil:
			changed = append(changed, "peer "+name+" removed")
		default:
			merged = append(merged, p)
		}
	}
	for i := range is {
		name := is[i].Name
		if before := find(was, name); find(list, name) == nil && (before == nil || !reflect.DeepEqual(before, &is[i])) {
			merged, changed = append(merged, is[i]), append(changed, "peer "+name+" added")
		}
	}
	return merged, changed
}

// names lists the peers of which a file says something else than before.
func (r *Reload) names() (list []string) {
	_, changed := merge(r.was, r.was, r.is)
	for _, text := range changed {
		list = append(list, strings.Fields(text)[1])
	}
	return list
}

// planned is a reload that was checked.
type planned struct {
	*Reload
	order   []*functionReload
	peers   []config.Peer
	before  []config.Peer // peers of the NIC
	changed []string      // for people
}

// plan checks a reload against the NIC as it is.
func (k *Core) plan(r *Reload) (*planned, error) {
	p := &planned{Reload: r, before: k.Peers.List()}
	p.peers, p.changed = merge(p.before, r.was, r.is)
	if err := k.cfg.NIC.CheckPeers(p.peers); err != nil {
		return nil, err
	}
	try := k.Functions.Clone()
	try.SetPeers(p.peers)
	left := slices.Sorted(maps.Keys(r.functions))
	var refused []error
	for progress := true; progress && len(left) > 0; { // one function may need what another gives up
		progress, refused = false, nil
		left = slices.DeleteFunc(left, func(id pfvf.ID) bool {
			f := r.functions[id]
			c, err := try.Change(id, f.edit)
			if err != nil {
				var no *functions.Refusal
				if errors.As(err, &no) {
					err = errors.New(no.Why)
				}
				refused = append(refused, err)
				return false
			}
			try.Commit(&c)
			p.order = append(p.order, f)
			p.changed = append(p.changed, fmt.Sprintf("%s: %s", id, strings.Join(f.keys, ", ")))
			progress = true
			return true
		})
	}
	if len(left) > 0 {
		return nil, errors.Join(refused...)
	}
	if r.rotateEvery != nil {
		p.changed = append(p.changed, "psp.rotate_every")
	}
	if r.impair != nil {
		p.changed = append(p.changed, "uplink.impair")
	}
	return p, try.CheckPeers(p.peers)
}

// Apply makes a difference between configurations take effect: all of it or, with an error, none. It
// returns what has changed, for people.
func (a *API) Apply(r *Reload) (changed []string, err error) {
	if len(r.Fixed) > 0 {
		how := "with vnic upgrade"
		if a.c.Supervisor == nil {
			how = "when vnic run is stopped and started"
		}
		return nil, fmt.Errorf("these take effect %s: %s", how, strings.Join(r.Fixed, ", "))
	}
	a.changes.Lock()
	defer a.changes.Unlock()
	core := a.c.Core
	var p *planned
	if stopped := core.Do(func(vtime.Time) { p, err = core.plan(r) }); stopped != nil || err != nil {
		return nil, errors.Join(stopped, err)
	}
	if len(p.peers) > 0 {
		if err := a.c.Links.Open(); err != nil {
			return nil, err
		}
	}
	if err := a.applyReload(p); err != nil {
		return nil, err
	}
	err = core.Do(func(now vtime.Time) {
		core.Peers.set(now, p.peers)
		core.Peers.own(r.names()...)
		if r.rotateEvery != nil {
			core.Keys.RotateEvery(now, *r.rotateEvery)
		}
	})
	if r.impair != nil {
		err = errors.Join(err, a.c.Shards.Each(func(v View, _ vtime.Time) {
			for direction, to := range map[string]config.Impairment{"rx": r.impair.RX, "tx": r.impair.TX} {
				_ = v.Uplink.Impair(direction, func(config.Impairment) (config.Impairment, error) { return to, nil }) // it was checked with the file
			}
		}))
	}
	for id, f := range r.functions {
		err = errors.Join(err, a.c.Settings.Forget(id, f.keys))
	}
	return p.changed, errors.Join(err, a.c.PeerMemory.Forget(r.names()...))
}

// applyReload changes the functions, or takes all of it back.
func (a *API) applyReload(p *planned) (err error) {
	core := a.c.Core
	back := func(n int, why error) error {
		for _, f := range slices.Backward(p.order[:n]) {
			_ = core.ask(func(then func(error)) { core.Change(f.id, f.back, then) })
		}
		_ = core.Do(func(vtime.Time) { core.Functions.SetPeers(p.before) })
		a.c.Fitter.Fit()
		return why
	}
	if err := core.Do(func(vtime.Time) { core.Functions.SetPeers(p.peers) }); err != nil {
		return err
	}
	for n, f := range p.order {
		err := core.ask(func(then func(error)) {
			was := core.Functions.Settings(f.id)
			f.back = func(_, to *config.Function) error { *to = was; return nil }
			core.Change(f.id, f.edit, then)
		})
		if err != nil {
			return back(n, fmt.Errorf("%s: %w", f.id, err))
		}
	}
	failed := a.c.Fitter.Fit()
	for _, f := range p.order {
		if err := failed[f.id]; err != nil {
			return back(len(p.order), err)
		}
	}
	return nil
}
