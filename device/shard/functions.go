package shard

import (
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// functionSet holds the functions of a shard. PFs are always there. A VF is
// there, and takes memory, from its enabling until it is disabled and no session
// holds it any more; what was configured or set of it is kept on a shelf
// meanwhile. What it may be set to the core decides (device/functions).
type functionSet struct {
	shard *Shard
	host  *credit.Node
	table *pfvf.Table // enabled ones, by address
	byID  map[pfvf.ID]*function
	all   []*function  // in the order of IDs, so a PF before its VFs
	count atomic.Int32 // of all, for readers outside the shard
	vfs   [pfvf.MaxPF + 1]int
	shelf map[pfvf.ID]config.Function

	enabled [pfvf.MaxPF + 1]int       // VFs of each PF, of all shards
	links   [pfvf.MaxPF + 1]pfvf.Link // what those of PFs are set to
}

// maxFunctions is what there is at once: 16 PFs with 4095 VFs each.
const maxFunctions = (pfvf.MaxPF + 1) * (pfvf.MaxVF + 1)

func newFunctionSet(s *Shard, host *credit.Node) (*functionSet, error) {
	fs := &functionSet{
		shard: s, host: host, table: pfvf.NewTable(maxFunctions),
		byID: map[pfvf.ID]*function{}, shelf: map[pfvf.ID]config.Function{},
	}
	for i := range fs.vfs {
		fs.vfs[i] = -1
	}
	for i := range s.cfg.Functions {
		pf := &s.cfg.Functions[i]
		fs.vfs[pf.PF] = pf.VFCount
	}
	var err error
	s.core.Functions(func(id pfvf.ID, here bool, is *config.Function) {
		switch {
		case !id.IsVF():
			fs.links[id.PF()] = is.Link
		case *is.Enabled:
			fs.enabled[id.PF()]++
		}
		if !here {
			return
		}
		fs.shelf[id] = *is
		if err == nil && (!id.IsVF() || *is.Enabled) {
			_, err = fs.add(0, id)
		}
	})
	return fs, err
}

// possible says whether the NIC can have a function of that number.
func (fs *functionSet) possible(id pfvf.ID) bool {
	return id.Host() == fs.shard.cfg.NIC.Host && int(id.VF()) <= fs.vfs[id.PF()]
}

// settings returns what a function is set to, whether it is there or not.
func (fs *functionSet) settings(id pfvf.ID) config.Function {
	if f := fs.byID[id]; f != nil {
		return f.cfg
	}
	if c, ok := fs.shelf[id]; ok {
		return c
	}
	return config.DefaultVF(id.Host(), id.PF(), id.VF())
}

// add makes the function. One that is not to be enabled, or has no tenant yet,
// is DISABLED.
func (fs *functionSet) add(now falcon.Time, id pfvf.ID) (*function, error) {
	c := fs.settings(id)
	s := fs.shard
	f := &function{shard: s, cfg: c}
	f.Function = s.guests.Add(&pfvf.Function{ID: id, Credits: credit.New(fs.host, c.Credits.Cost())}, f)
	f.conns = s.conns.Add(conn.Owner{Function: f.Function.Function, Trace: s.traces[id], Describe: f.Describe}, f)
	f.Connect(connections{f.conns, s})
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
	delete(fs.shelf, id)
	fs.byID[id] = f
	i, _ := slices.BinarySearchFunc(fs.all, id, func(f *function, id pfvf.ID) int { return int(f.ID) - int(id) })
	fs.all = slices.Insert(fs.all, i, f)
	fs.count.Store(int32(len(fs.all)))
	fs.linkChanged(now, id.Parent())
	return f, nil
}

// forget gives up the memory of a VF that is disabled and not attached. What it
// was set to goes to the shelf, unless that is nothing.
func (fs *functionSet) forget(f *function) {
	if !f.ID.IsVF() || f.Lifecycle.State() != abi.StateDisabled || f.Driver() != nil {
		return
	}
	f.Faults.End(fs.shard.now)
	f.Credits.Drop()
	fs.shard.conns.Remove(f.conns)
	delete(fs.byID, f.ID)
	fs.all = slices.DeleteFunc(fs.all, func(g *function) bool { return g == f })
	fs.count.Store(int32(len(fs.all)))
	if !reflect.DeepEqual(f.cfg, config.DefaultVF(f.ID.Host(), f.ID.PF(), f.ID.VF())) {
		fs.shelf[f.ID] = f.cfg
	}
}

// ofPF returns a PF with its VFs that are there, in order.
func (fs *functionSet) ofPF(pf pfvf.ID) []*function {
	from, _ := slices.BinarySearchFunc(fs.all, pf, func(f *function, id pfvf.ID) int { return int(f.ID) - int(id) })
	to := from
	for to < len(fs.all) && fs.all[to].ID.Parent() == pf {
		to++
	}
	return fs.all[from:to]
}

// adopt takes over into the function what its settings say, but for what table
// and credit tree have to agree to.
func (f *function) adopt(now falcon.Time) {
	c := &f.cfg
	f.Tenant, f.Addr, f.MAC = c.Tenant, c.Address, c.MAC
	f.GuestCID = 0
	if c.Guest != nil {
		f.GuestCID = c.Guest.CID
	}
	f.Trust, f.SpoofCheck, f.Link = c.Trust, *c.SpoofCheck, c.Link
	limits := functionLimits(&c.Limits, f.shard.cfg.RDMA.MTU)
	f.conns.SetLimits(&limits)
	f.shard.falcon.SetWeight(uint32(f.ID), int(c.Weight))
	is := guest.Settings{Limits: limits, Weight: int(c.Weight), MaxTxRate: c.MaxTxRate}
	if w := c.DMAWindow; w != nil {
		is.Window = queues.Window{Addr: uint64(w.Address), Size: uint64(w.Size)}
	}
	f.Adopt(now, is)
}

// linkChanged works out the links of a PF and its VFs anew and tells those whose
// link moved.
func (fs *functionSet) linkChanged(now falcon.Time, pf pfvf.ID) {
	for _, f := range fs.ofPF(pf) {
		up := f.Link == pfvf.LinkEnable || f.Link == pfvf.LinkAuto && (!f.ID.IsVF() || fs.links[pf.PF()] != pfvf.LinkDisable)
		up = up && !f.Faults.LinkDown()
		if up != f.LinkUp {
			f.LinkUp = up
			f.TellLink()
			if !up {
				f.conns.EndLoopbacks(now)
			}
		}
	}
}
