package shard

import (
	"fmt"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/falcon"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// function is a PF or VF as the shard runs it: what its driver sees of it, its connections, and what
// it is set to.
type function struct {
	*guest.Function
	shard *Shard
	cfg   config.Function // as it is now; the shard's own copy
	conns *conn.Function
}

var _ guest.Owner = (*function)(nil)

// VF implements guest.Owner, for the VFs that the PF may have.
func (f *function) VF(_ falcon.Time, n uint16, later func() abi.Ticket) (abi.VFHandler, abi.Status) {
	id := f.ID | pfvf.ID(n)
	if n > pfvf.MaxVF || !id.IsVF() || !f.shard.funcs.possible(id) {
		return nil, abi.StatusNotFound
	}
	return &vfCommands{core: f.shard.core, id: id, later: later}, abi.StatusOK
}

// VFs implements guest.Owner.
func (f *function) VFs() (possible, enabled int) {
	if f.ID.IsVF() {
		return 0, 0
	}
	fs, pf := f.shard.funcs, f.ID.PF()
	return fs.vfs[pf], fs.enabled[pf]
}

// TakeVFsDown implements guest.Owner: the VFs are reset one after the other, lowest first, which is
// what a reset of the PF begins with.
func (f *function) TakeVFsDown(now falcon.Time) {
	if f.ID.IsVF() {
		return
	}
	f.shard.funcs.takeVFsDown(now, f.ID)
	f.shard.core.ResetVFs(f.ID)
}

func (fs *functionSet) takeVFsDown(now falcon.Time, pf pfvf.ID) {
	for _, f := range fs.ofPF(pf) {
		if f.ID.IsVF() {
			f.TakeDown(now, fmt.Sprintf("its PF %s was reset", pf))
		}
	}
}

// QueryObjects implements guest.Owner.
func (f *function) QueryObjects(part abi.CreditPart) (abi.ObjectCounts, abi.Status) {
	return f.shard.funcs.queryObjects(f.ID, part)
}

// LinkMoved implements guest.Owner.
func (f *function) LinkMoved(now falcon.Time) { f.shard.funcs.linkChanged(now, f.ID.Parent()) }

// CreditsChanged implements guest.Owner.
func (f *function) CreditsChanged() { f.shard.falcon.CreditsChanged() }

// Left implements guest.Owner.
func (f *function) Left(untaken uint64) {
	f.shard.drops[dropAsyncEvent] += untaken
	f.shard.funcs.forget(f)
}

// disable switches the function off. A VF without a session takes no memory any more.
func (f *function) disable(now falcon.Time) {
	f.Disable(now)
	f.shard.funcs.forget(f)
}

// connections are a function's for its driver's side.
type connections struct {
	*conn.Function
	s *Shard
}

var _ guest.Connections = connections{}

// Commands implements guest.Connections.
func (c connections) Commands(now falcon.Time, later func() abi.Ticket) abi.ConnectionHandler {
	return c.Function.Commands(now, later)
}

// Start implements guest.Connections.
func (c connections) Start(v *rdma.Function, mem *queues.Memory) {
	v.UseTrace(c.Trace)
	c.s.roce.start(&c.Owner, v)
	c.Function.Start(v, mem)
}

// Stopped implements guest.Connections.
func (c connections) Stopped(now falcon.Time) {
	c.s.roce.stop(&c.Owner)
	c.Close(now)
	c.s.table.EndPartingsOf(now, &c.Owner)
	c.s.drainFalcon(now)
	c.Forget()
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
