package shard

import (
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/functions"
	"github.com/falcon-vnic/vnic/device/settings"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// set applies settings to a function, for the operator and for PFs: all of them or, with an error,
// none. Quotas, rate, credits, trust, spoof check and link change under traffic. A new MAC, tenant,
// address or DMA window makes it another function, so an enabled one is reset; a new guest ends the
// session of the old one.
func (fs *functionSet) set(now falcon.Time, id pfvf.ID, is config.Function) error {
	was := fs.settings(id)
	fs.ports.mark(id)
	fs.changed[id] = true
	f := fs.byID[id]
	if f == nil {
		fs.absent[id] = is
		if !*is.Enabled {
			return nil
		}
		if _, err := fs.add(now, id); err != nil {
			fs.absent[id] = was
			return functions.Refuse(abi.StatusNoResources, "%v", err)
		}
		fs.ports.follow(id)
		return nil
	}
	if err := f.setCredits(&was, &is); err != nil {
		return err
	}
	fs.falcon.CreditsChanged()
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
		if err := fs.table.Add(f.Function.Function); err != nil { // the registry has checked it
			return functions.Refuse(abi.StatusAddressInUse, "%v", err)
		}
		if !*was.Enabled {
			_ = f.Lifecycle.Apply(pfvf.Allow)
			f.TellState("enabled")
		}
	case *was.Enabled && !*is.Enabled:
		f.disable(now)
	}
	if !id.IsVF() {
		fs.links[id.PF()] = is.Link
	}
	fs.linkChanged(now, id.Parent())
	if v := f.Verbs(); v != nil {
		fs.rdma.RateChanged(now, v)
	}
	fs.ports.follow(id)
	return nil
}

// setCredits changes the function's part of the credit tree. A limit below the current use takes
// nothing back: new work waits until enough is returned.
func (f *function) setCredits(was, is *config.Function) error {
	guarantee := is.Guarantee.Cost()
	if !*is.Enabled {
		guarantee = credit.Cost{}
	}
	if is.Credits == was.Credits && guarantee == f.Credits.Guaranteed() {
		return nil
	}
	before := f.Credits.Limit()
	f.Credits.SetLimit(is.Credits.Cost())
	if err := f.Credits.Guarantee(guarantee); err != nil {
		f.Credits.SetLimit(before)
		return functions.Refuse(abi.StatusNoResources, "%s: %v; lower it, or raise credits.host in the configuration", f.ID, err)
	}
	return nil
}

func same[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }
