package shard

import (
	"cmp"
	"fmt"
	"reflect"
	"sync/atomic"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/functions"
	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/device/settings"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/internal/tape"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// member is a PF or VF in the shard: its driver's side, its connections, and its settings.
type member struct {
	*guest.Device
	fs    *functionSet
	cfg   config.Function // current settings, the shard's own copy
	conns *conn.Connections
	mem   *queues.Memory // of its driver
}

// functionSet holds the functions of a shard. PFs always exist. A VF exists, and takes memory, from
// when it is enabled until it is disabled and no session has it; the settings of VFs that do not
// exist are kept in absent. The core decides which settings are allowed (device/functions).
type functionSet struct {
	falcon   *falconWire
	networks *networks
	plain    *plainIP
	trace    *tracer
	cfg      *config.Config
	core     Core
	guests   *guest.Set
	rdma     *rdma.Engine
	counters *shardCounts
	tape     *tape.Tape

	host    *credit.Node
	table   *pfvf.Table // enabled functions, by address
	members perFunction[member]
	count   atomic.Int32        // number of existing functions, for readers outside the shard
	vfs     [pfvf.MaxPF + 1]int // number that each PF can have; -1: there is no such PF
	absent  map[pfvf.ID]config.Function

	changed map[pfvf.ID]bool // added or changed since the last call of FunctionView.NewGuests
	signal  chan struct{}    // gets a value when settings of functions have changed

	enabled [pfvf.MaxPF + 1]int       // enabled VFs of each PF, over all shards
	links   [pfvf.MaxPF + 1]pfvf.Link // link settings of the PFs
}

// maxFunctions is the most functions at one time: 16 PFs with 4095 VFs each.
const maxFunctions = (pfvf.MaxPF + 1) * (pfvf.MaxVF + 1)

// populate creates the functions of the configuration, whose ports are there.
func (fs *functionSet) populate() (err error) {
	fs.members.host, fs.absent, fs.changed, fs.signal = fs.cfg.NIC.Host, map[pfvf.ID]config.Function{}, map[pfvf.ID]bool{}, make(chan struct{}, 1)
	for i := range fs.vfs {
		fs.vfs[i] = -1
	}
	for i := range fs.cfg.Functions {
		pf := &fs.cfg.Functions[i]
		fs.vfs[pf.PF] = pf.VFCount
	}
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
		fs.plain.mark(id) // its settings may have changed since
	})
	fs.syncAllPorts()
	return err
}

// possible reports whether the NIC can have a function with this ID.
func (fs *functionSet) possible(id pfvf.ID) bool {
	return id.Host() == fs.cfg.NIC.Host && int(id.VF()) <= fs.vfs[id.PF()]
}

// settings returns the settings of a function, whether it exists or not.
func (fs *functionSet) settings(id pfvf.ID) config.Function {
	if f := fs.members.get(id); f != nil {
		return f.cfg
	}
	if c, ok := fs.absent[id]; ok {
		return c
	}
	return fs.cfg.DefaultVF(id.PF(), id.VF())
}

// add creates a function. One that is not enabled is DISABLED.
func (fs *functionSet) add(now falcon.Time, id pfvf.ID) (*member, error) {
	c := fs.settings(id)
	f := &member{fs: fs, cfg: c}
	f.Device = fs.guests.Add(&pfvf.Function{ID: id, Credits: credit.New(fs.host, c.Credits.Cost())}, f)
	f.conns = fs.falcon.conns.Add(conn.Owner{Function: f.Device.Function, Trace: fs.trace.traces[id], Describe: f.Describe}, f)
	f.Connect(connections{f.conns, f})
	f.adopt(now)
	if err := f.Credits.Guarantee(c.Guarantee.Cost()); err != nil {
		return nil, fmt.Errorf("function %s: guarantee: %w: lower it, or raise credits.host", id, err)
	}
	if *c.Enabled {
		if err := fs.table.Add(f.Device.Function); err != nil {
			f.Credits.Drop()
			return nil, err
		}
	} else {
		_ = f.Lifecycle.Apply(pfvf.Disable) // allowed in RESET
	}
	delete(fs.absent, id)
	fs.changed[id] = true
	fs.members.put(id, f)
	fs.count.Store(int32(fs.members.len()))
	fs.updateLink(now, f)
	return f, nil
}

// forget removes a VF that is disabled and not attached. Its settings are kept in absent, unless
// they are the defaults.
func (fs *functionSet) forget(now falcon.Time, f *member) {
	if !f.ID.IsVF() || f.Lifecycle.State() != abi.StateDisabled || f.Driver() != nil {
		return
	}
	f.Faults.End(now)
	f.Credits.Drop()
	fs.falcon.conns.Remove(f.conns)
	fs.members.remove(f.ID)
	fs.count.Store(int32(fs.members.len()))
	if !reflect.DeepEqual(f.cfg, f.fs.cfg.DefaultVF(f.ID.PF(), f.ID.VF())) {
		fs.absent[f.ID] = f.cfg
	}
}

// set applies settings to a function, for the operator and for PFs: all of them or, with an error,
// none. Quotas, rate, credits, trust, spoof check and link change under traffic. A new MAC, tenant,
// address or DMA window makes it another function, so an enabled one is reset; a new guest ends the
// session of the old one.
func (fs *functionSet) set(now falcon.Time, id pfvf.ID, is config.Function) error {
	was := fs.settings(id)
	fs.plain.mark(id)
	fs.changed[id] = true
	f := fs.members.get(id)
	if f == nil {
		fs.absent[id] = is
		if !*is.Enabled {
			return nil
		}
		if _, err := fs.add(now, id); err != nil {
			fs.absent[id] = was
			return functions.Refuse(abi.StatusNoResources, "%v", err)
		}
		fs.followPort(id)
		return nil
	}
	if err := f.setCredits(&was, &is); err != nil {
		return err
	}
	fs.falcon.engine.CreditsChanged()
	another := settings.Another(&was, &is)
	goesDown, comesUp := *was.Enabled && (another || !*is.Enabled), *is.Enabled && (another || !*was.Enabled)
	if goesDown {
		if comesUp {
			f.TakeDown(now, "its settings changed")
		}
		fs.table.Remove(id)
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
	case comesUp:
		if err := fs.table.Add(f.Device.Function); err != nil { // the registry has checked it
			return functions.Refuse(abi.StatusAddressInUse, "%v", err)
		}
		if !goesDown {
			_ = f.Lifecycle.Apply(pfvf.Allow)
			f.TellState("enabled")
		}
	case goesDown:
		f.disable(now)
	}
	if !id.IsVF() {
		fs.links[id.PF()] = is.Link
	}
	fs.updateLinks(now, id.Parent())
	if v := f.Verbs(); v != nil {
		fs.rdma.RateChanged(now, v)
	}
	fs.followPort(id)
	return nil
}

// setCredits changes the function's part of the credit tree. A limit below the current use takes
// nothing back: new work waits until enough is returned.
func (f *member) setCredits(was, is *config.Function) error {
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

// adopt applies the function's settings, except those that table and credit tree have to agree to.
func (f *member) adopt(now falcon.Time) {
	c := &f.cfg
	f.Tenant, f.Addr, f.MAC, f.Gateway = c.Tenant, c.Address, c.MAC, gatewayMAC(c.MAC)
	f.GuestCID = 0
	if c.Guest != nil {
		f.GuestCID = c.Guest.CID
	}
	f.Trust, f.SpoofCheck, f.Link = c.Trust, *c.SpoofCheck, c.Link
	limits, wire := functionLimits(&c.Limits, pathMTU(f.fs.cfg)), rdma.KindByName(f.wireName())
	limits.RCOnly = wire.RCOnly
	f.conns.SetLimits(&limits)
	f.fs.falcon.engine.SetWeight(uint32(f.ID), int(c.Weight))
	is := guest.Settings{Limits: limits, Weight: int(c.Weight), MaxTxRate: c.MaxTxRate, Addresses: c.Addresses(), WireKind: wire}
	if w := c.DMAWindow; w != nil {
		is.Window = queues.Window{Addr: uint64(w.Address), Size: uint64(w.Size)}
	}
	f.Adopt(now, is)
}

// wireName returns rdma.transport of the function.
func (f *member) wireName() string { return cmp.Or(f.cfg.Transport, f.fs.cfg.RDMA.Transport) }

// pathMTU returns the largest path MTU that drivers are told of. Connections over Falcon may carry more
// in a packet (rdma.mtu), but verbs know no larger one than 4096 bytes.
func pathMTU(cfg *config.Config) int { return abi.PathMTUFor(cfg.RDMA.MTU).Bytes() }

func functionLimits(l *config.Limits, mtu int) verbs.Limits {
	limits := verbs.Limits{
		MTU: mtu, QPEntries: int(l.QPEntries), CQEntries: int(l.CQEntries), ReadAtomic: int(l.ReadAtomic), PageListBytes: int(l.PageLists),
	}
	for k := range abi.NumObjects {
		limits.Objects[k] = int(*l.Quotas.Of(k))
	}
	return limits.WithDefaults()
}

// updateLinks recomputes the links of a PF and its VFs and tells those whose link changed.
func (fs *functionSet) updateLinks(now falcon.Time, pf pfvf.ID) {
	for f := range fs.members.of(pf) {
		fs.updateLink(now, f)
	}
}

// updateLink recomputes the link of one function.
func (fs *functionSet) updateLink(now falcon.Time, f *member) {
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
	for f := range fs.members.of(pf) {
		if f.ID.IsVF() {
			f.TakeDown(now, fmt.Sprintf("its PF %s was reset", pf))
		}
	}
}

var _ guest.Owner = (*member)(nil) // the calls of a driver's side to its function

// VF implements guest.Owner, for the VFs that the PF may have.
func (f *member) VF(_ falcon.Time, n uint16, later func() abi.Ticket) (abi.VFHandler, abi.Status) {
	id := f.ID | pfvf.ID(n)
	if n > pfvf.MaxVF || !id.IsVF() || !f.fs.possible(id) {
		return nil, abi.StatusNotFound
	}
	return &vfCommands{core: f.fs.core, id: id, later: later}, abi.StatusOK
}

// VFs implements guest.Owner.
func (f *member) VFs() (possible, enabled int) {
	if f.ID.IsVF() {
		return 0, 0
	}
	fs, pf := f.fs, f.ID.PF()
	return fs.vfs[pf], fs.enabled[pf]
}

// TakeVFsDown implements guest.Owner: it resets the VFs one after the other, lowest first. A reset
// of the PF begins with this.
func (f *member) TakeVFsDown(now falcon.Time) {
	if f.ID.IsVF() {
		return
	}
	f.fs.takeVFsDown(now, f.ID)
	f.fs.core.ResetVFs(f.ID)
}

// QueryObjects implements guest.Owner.
func (f *member) QueryObjects(part abi.CreditPart) (abi.ObjectCounts, abi.Status) {
	return f.fs.queryObjects(f.ID, part)
}

// Announce implements guest.Owner.
func (f *member) Announce(add, drop [16]byte, then func(abi.Status)) {
	f.fs.core.Announce(f.ID, add, drop, func(err error) { then(functions.StatusOf(err)) })
}

// Withdraw implements guest.Owner.
func (f *member) Withdraw() { f.fs.core.Withdraw(f.ID) }

// LinkChanged implements guest.Owner.
func (f *member) LinkChanged(now falcon.Time) { f.fs.updateLinks(now, f.ID.Parent()) }

// CreditsChanged implements guest.Owner.
func (f *member) CreditsChanged() { f.fs.falcon.engine.CreditsChanged() }

// Left implements guest.Owner.
func (f *member) Left(now falcon.Time, untaken uint64) {
	f.fs.counters.refusedBehindDriver += untaken
	f.fs.forget(now, f)
}

// disable disables the function. A VF without a session is removed and takes no memory.
func (f *member) disable(now falcon.Time) {
	f.Disable(now)
	f.fs.forget(now, f)
}
