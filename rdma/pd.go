package rdma

import "github.com/falcon-vnic/vnic/queues/abi"

// PD is a protection domain: a QP uses only memory regions of its own.
type PD struct {
	number uint32
	users  int // MRs and QPs in it
}

// AllocPD makes a protection domain.
func (f *Function) AllocPD() (pdn uint32, st abi.Status) {
	if !f.working() {
		return 0, abi.StatusBadState
	}
	p := &PD{}
	n, ok := f.pds.add(p)
	if !ok {
		return 0, abi.StatusNoResources
	}
	p.number = n
	return n, abi.StatusOK
}

// DeallocPD destroys a protection domain; StatusBusy while it has MRs or QPs.
func (f *Function) DeallocPD(pdn uint32) abi.Status {
	p := f.pds.get(pdn)
	switch {
	case p == nil:
		return abi.StatusNotFound
	case p.users > 0:
		return abi.StatusBusy
	}
	f.pds.remove(pdn)
	return abi.StatusOK
}
