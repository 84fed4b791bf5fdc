package shard

import (
	"github.com/falcon-vnic/vnic/device/functions"
	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/falcon"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

var _ guest.Owner = (*function)(nil) // the calls of a driver's side to its function

// VF implements guest.Owner, for the VFs that the PF may have.
func (f *function) VF(_ falcon.Time, n uint16, later func() abi.Ticket) (abi.VFHandler, abi.Status) {
	id := f.ID | pfvf.ID(n)
	if n > pfvf.MaxVF || !id.IsVF() || !f.set.possible(id) {
		return nil, abi.StatusNotFound
	}
	return &vfCommands{core: f.set.core, id: id, later: later}, abi.StatusOK
}

// VFs implements guest.Owner.
func (f *function) VFs() (possible, enabled int) {
	if f.ID.IsVF() {
		return 0, 0
	}
	fs, pf := f.set, f.ID.PF()
	return fs.vfs[pf], fs.enabled[pf]
}

// TakeVFsDown implements guest.Owner: it resets the VFs one after the other, lowest first. A reset
// of the PF begins with this.
func (f *function) TakeVFsDown(now falcon.Time) {
	if f.ID.IsVF() {
		return
	}
	f.set.takeVFsDown(now, f.ID)
	f.set.core.ResetVFs(f.ID)
}

// QueryObjects implements guest.Owner.
func (f *function) QueryObjects(part abi.CreditPart) (abi.ObjectCounts, abi.Status) {
	return f.set.queryObjects(f.ID, part)
}

// Announce implements guest.Owner.
func (f *function) Announce(add, drop [16]byte, then func(abi.Status)) {
	f.set.core.Announce(f.ID, add, drop, func(err error) { then(functions.StatusOf(err)) })
}

// Withdraw implements guest.Owner.
func (f *function) Withdraw() { f.set.core.Withdraw(f.ID) }

// LinkMoved implements guest.Owner.
func (f *function) LinkMoved(now falcon.Time) { f.set.linkChanged(now, f.ID.Parent()) }

// CreditsChanged implements guest.Owner.
func (f *function) CreditsChanged() { f.set.falcon.CreditsChanged() }

// Left implements guest.Owner.
func (f *function) Left(now falcon.Time, untaken uint64) {
	f.set.drops[dropAsyncEvent] += untaken
	f.set.forget(now, f)
}

// disable disables the function. A VF without a session is removed and takes no memory.
func (f *function) disable(now falcon.Time) {
	f.Disable(now)
	f.set.forget(now, f)
}
