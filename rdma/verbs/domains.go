package verbs

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Domain groups other objects. It can be destroyed only when no object is in it.
type Domain struct {
	number uint32
	users  int // objects in it
}

type (
	// PD is a protection domain: a QP uses only memory regions of its own domain.
	PD = Domain
	// XRCD is an XRC domain: its target QPs deliver to its SRQs.
	XRCD = Domain
)

// domains holds the domains of one kind.
type domains struct {
	owner *Owner
	table Table[Domain]
}

// Use adds n to the count of objects in the domain.
func (d *Domain) Use(n int) {
	if d != nil {
		d.users += n
	}
}

// PDs holds the protection domains of a function.
type PDs struct{ domains }

// PD returns the protection domain with number pdn, nil if there is none.
func (d *PDs) PD(pdn uint32) *PD { return d.table.Get(pdn) }

// AllocPD makes a protection domain.
func (d *PDs) AllocPD() (pdn uint32, st abi.Status) { return d.open() }

// DeallocPD destroys a protection domain. It returns StatusBusy while objects use the domain.
func (d *PDs) DeallocPD(pdn uint32) abi.Status { return d.close(pdn) }

// XRCDs holds the XRC domains of a function.
type XRCDs struct{ domains }

// XRCD returns the XRC domain with number xrcdn, nil if there is none.
func (d *XRCDs) XRCD(xrcdn uint32) *XRCD { return d.table.Get(xrcdn) }

// OpenXRCD makes an XRC domain.
func (d *XRCDs) OpenXRCD() (xrcdn uint32, st abi.Status) { return d.open() }

// CloseXRCD destroys an XRC domain. It returns StatusBusy while the domain has QPs or SRQs.
func (d *XRCDs) CloseXRCD(xrcdn uint32) abi.Status { return d.close(xrcdn) }

func (d *domains) open() (number uint32, st abi.Status) {
	if !d.owner.Working() {
		return 0, abi.StatusBadState
	}
	x := &Domain{}
	n, ok := d.table.Add(x)
	if !ok {
		return 0, abi.StatusNoResources
	}
	x.number = n
	return n, abi.StatusOK
}

func (d *domains) close(number uint32) abi.Status {
	x := d.table.Get(number)
	switch {
	case x == nil:
		return abi.StatusNotFound
	case x.users > 0:
		return abi.StatusBusy
	}
	d.table.Remove(number)
	return abi.StatusOK
}

func (d *domains) count() int          { return d.table.InUse() }
func (d *domains) setLimit(most int)   { d.table.SetLimit(most) }
func (d *domains) closeAll(vtime.Time) { d.table.Each(func(x *Domain) { d.table.Remove(x.number) }) }
