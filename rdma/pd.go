package rdma

import "github.com/falcon-vnic/vnic/queues/abi"

// domain is what holds others together. It goes when nothing is in it any more.
type domain struct {
	number uint32
	users  int // objects in it
}

type (
	// PD is a protection domain: a QP uses only memory regions of its own.
	PD = domain
	// XRCD is an XRC domain: its target QPs deliver to its SRQs.
	XRCD = domain
)

// AllocPD makes a protection domain.
func (f *Function) AllocPD() (pdn uint32, st abi.Status) { return f.openDomain(&f.pds) }

// DeallocPD destroys a protection domain; StatusBusy while it has MRs or QPs.
func (f *Function) DeallocPD(pdn uint32) abi.Status { return closeDomain(&f.pds, pdn) }

// OpenXRCD makes an XRC domain.
func (f *Function) OpenXRCD() (xrcdn uint32, st abi.Status) { return f.openDomain(&f.xrcds) }

// CloseXRCD destroys an XRC domain; StatusBusy while it has QPs or SRQs.
func (f *Function) CloseXRCD(xrcdn uint32) abi.Status { return closeDomain(&f.xrcds, xrcdn) }

func (f *Function) openDomain(t *table[domain]) (number uint32, st abi.Status) {
	if !f.working() {
		return 0, abi.StatusBadState
	}
	d := &domain{}
	n, ok := t.add(d)
	if !ok {
		return 0, abi.StatusNoResources
	}
	d.number = n
	return n, abi.StatusOK
}

func closeDomain(t *table[domain], number uint32) abi.Status {
	d := t.get(number)
	switch {
	case d == nil:
		return abi.StatusNotFound
	case d.users > 0:
		return abi.StatusBusy
	}
	t.remove(number)
	return abi.StatusOK
}
