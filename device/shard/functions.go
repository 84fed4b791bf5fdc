package shard

import (
	"fmt"
	"reflect"
	"sync/atomic"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// function is a PF or VF in the shard: its driver's side, its connections, and its settings.
type function struct {
	*guest.Function
	set   *functionSet
	cfg   config.Function // current settings, the shard's own copy
	conns *conn.Connections
}

// functionSet holds the functions of a shard. PFs always exist. A VF exists, and takes memory, from
// when it is enabled until it is disabled and no session has it; the settings of VFs that do not
// exist are kept in absent. The core decides which settings are allowed (device/functions).
type functionSet struct {
	*falconWire
	*tracer
	cfg    *config.Config
	core   VFs
	guests *guest.Set
	rdma   *rdma.Engine
	drops  *dropCounts
	ports  follower
	other  otherWire

	host   *credit.Node
	table  *pfvf.Table // enabled functions, by address
	byID   map[pfvf.ID]*function
	there  roster[function]
	count  atomic.Int32 // number of existing functions, for readers outside the shard
	vfs    [pfvf.MaxPF + 1]int
	absent map[pfvf.ID]config.Function

	changed map[pfvf.ID]bool // added or changed since the last call of View.NewGuests

	enabled [pfvf.MaxPF + 1]int       // enabled VFs of each PF, over all shards
	links   [pfvf.MaxPF + 1]pfvf.Link // link settings of the PFs
}

// follower keeps something in step with functions' settings: their ports.
type follower interface {
	// mark is called when a function is about to change.
	mark(id pfvf.ID)
	// follow is called after a function changed; with a PF its VFs follow too.
	follow(id pfvf.ID)
}

// maxFunctions is the most functions at one time: 16 PFs with 4095 VFs each.
const maxFunctions = (pfvf.MaxPF + 1) * (pfvf.MaxVF + 1)

// populate creates the functions of the configuration.
func (fs *functionSet) populate() error {
	fs.table, fs.byID, fs.absent = pfvf.NewTable(maxFunctions), map[pfvf.ID]*function{}, map[pfvf.ID]config.Function{}
	for i := range fs.vfs {
		fs.vfs[i] = -1
	}
	for i := range fs.cfg.Functions {
		pf := &fs.cfg.Functions[i]
		fs.vfs[pf.PF] = pf.VFCount
	}
	var err error
	fs.core.Functions(func(id pfvf.ID, here bool, is *config.Function) {
		switch {
		case !id.IsVF():
			fs.links[id.PF()] = is.Link
		case *is.Enabled:
			fs.enabled[id.PF()]++
		}
		if !here {
			return
		}
		fs.absent[id] = *is
		if err == nil && (!id.IsVF() || *is.Enabled) {
			_, err = fs.add(0, id)
		}
	})
	return err
}

// possible reports whether the NIC can have a function with this ID.
func (fs *functionSet) possible(id pfvf.ID) bool {
	return id.Host() == fs.cfg.NIC.Host && int(id.VF()) <= fs.vfs[id.PF()]
}

// settings returns the settings of a function, whether it exists or not.
func (fs *functionSet) settings(id pfvf.ID) config.Function {
	if f := fs.byID[id]; f != nil {
		return f.cfg
	}
	if c, ok := fs.absent[id]; ok {
		return c
	}
	return config.DefaultVF(id.Host(), id.PF(), id.VF())
}

// add creates a function. One that is not enabled is DISABLED.
func (fs *functionSet) add(now falcon.Time, id pfvf.ID) (*function, error) {
	c := fs.settings(id)
	f := &function{set: fs, cfg: c}
	f.Function = fs.guests.Add(&pfvf.Function{ID: id, Credits: credit.New(fs.host, c.Credits.Cost())}, f)
	f.conns = fs.conns.Add(conn.Owner{Function: f.Function.Function, Trace: fs.traces[id], Describe: f.Describe}, f)
	f.Connect(connections{f.conns, fs.falconWire, fs.other})
	f.adopt(now)
	if err := f.Credits.Guarantee(c.Guarantee.Cost()); err != nil {
		return nil, fmt.Errorf("function %s: guarantee: %w: lower it, or raise credits.host", id, err)
	}
	if *c.Enabled {
		if err := fs.table.Add(f.Function.Function); err != nil {
			f.Credits.Drop()
			return nil, err
		}
	} else {
		_ = f.Lifecycle.Apply(pfvf.Disable) // allowed in RESET
	}
	delete(fs.absent, id)
	fs.byID[id] = f
	fs.changed[id] = true
	fs.there.put(id, f)
	fs.count.Store(int32(fs.there.len()))
	fs.linkOf(now, f)
	return f, nil
}

// forget removes a VF that is disabled and not attached. Its settings are kept in absent, unless
// they are the defaults.
func (fs *functionSet) forget(now falcon.Time, f *function) {
	if !f.ID.IsVF() || f.Lifecycle.State() != abi.StateDisabled || f.Driver() != nil {
		return
	}
	f.Faults.End(now)
	f.Credits.Drop()
	fs.conns.Remove(f.conns)
	delete(fs.byID, f.ID)
	fs.there.remove(f.ID)
	fs.count.Store(int32(fs.there.len()))
	if !reflect.DeepEqual(f.cfg, config.DefaultVF(f.ID.Host(), f.ID.PF(), f.ID.VF())) {
		fs.absent[f.ID] = f.cfg
	}
}

// adopt applies the function's settings, except those that table and credit tree have to agree to.
func (f *function) adopt(now falcon.Time) {
	c := &f.cfg
	f.Tenant, f.Addr, f.MAC, f.Gateway = c.Tenant, c.Address, c.MAC, gatewayMAC(f.ID.Host(), f.ID.PF(), f.ID.VF())
	f.GuestCID = 0
	if c.Guest != nil {
		f.GuestCID = c.Guest.CID
	}
	f.Trust, f.SpoofCheck, f.Link = c.Trust, *c.SpoofCheck, c.Link
	limits := functionLimits(&c.Limits, f.set.cfg.RDMA.MTU)
	f.conns.SetLimits(&limits)
	f.set.falcon.SetWeight(uint32(f.ID), int(c.Weight))
	is := guest.Settings{Limits: limits, Weight: int(c.Weight), MaxTxRate: c.MaxTxRate, Addresses: c.Addresses()}
	if w := c.DMAWindow; w != nil {
		is.Window = queues.Window{Addr: uint64(w.Address), Size: uint64(w.Size)}
	}
	f.Adopt(now, is)
}

// linkChanged recomputes the links of a PF and its VFs and tells those whose link changed.
func (fs *functionSet) linkChanged(now falcon.Time, pf pfvf.ID) {
	for f := range fs.there.of(pf) {
		fs.linkOf(now, f)
	}
}

// linkOf recomputes the link of one function.
func (fs *functionSet) linkOf(now falcon.Time, f *function) {
	up := f.Link == pfvf.LinkEnable || f.Link == pfvf.LinkAuto && (!f.ID.IsVF() || fs.links[f.ID.PF()] != pfvf.LinkDisable)
	up = up && !f.Faults.LinkDown()
	if up == f.LinkUp {
		return
	}
	f.LinkUp = up
	f.TellLink()
	if !up {
		f.conns.EndLoopbacks(now)
	}
}

// takeVFsDown resets the VFs of a PF, lowest first.
func (fs *functionSet) takeVFsDown(now falcon.Time, pf pfvf.ID) {
	for f := range fs.there.of(pf) {
		if f.ID.IsVF() {
			f.TakeDown(now, fmt.Sprintf("its PF %s was reset", pf))
		}
	}
}

func functionLimits(l *config.Limits, mtu int) verbs.Limits {
	limits := verbs.Limits{
		MTU: mtu, QPEntries: int(l.QPEntries), CQEntries: int(l.CQEntries), ReadAtomic: int(l.ReadAtomic), PageListBytes: int(l.PageLists),
	}
	for k := range abi.NumObjects {
		limits.Objects[k] = int(*l.Quotas.Of(k))
	}
	return limits.WithDefaults()
}
