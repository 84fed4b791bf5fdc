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
func (f *function) VF(now falcon.Time, n uint16, _ func() abi.Ticket) (abi.VFHandler, abi.Status) {
	id := f.ID | pfvf.ID(n)
	if n > pfvf.MaxVF || !id.IsVF() || !f.shard.funcs.possible(id) {
		return nil, abi.StatusNotFound
	}
	return &vfCommands{pf: f, id: id, now: now}, abi.StatusOK
}

// VFs implements guest.Owner.
func (f *function) VFs() (possible, enabled int) {
	if f.ID.IsVF() {
		return 0, 0
	}
	for _, vf := range f.shard.funcs.ofPF(f.ID)[1:] {
		if vf.Lifecycle.State() != abi.StateDisabled {
			enabled++
		}
	}
	return f.shard.funcs.vfs[f.ID.PF()], enabled
}

// TakeVFsDown implements guest.Owner: the VFs are reset one after the other, lowest first, which is
// what a reset of the PF begins with.
func (f *function) TakeVFsDown(now falcon.Time) {
	if f.ID.IsVF() {
		return
	}
	for _, vf := range f.shard.funcs.ofPF(f.ID)[1:] {
		vf.TakeDown(now, fmt.Sprintf("its PF %s was reset", f.ID))
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
