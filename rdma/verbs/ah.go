package verbs

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// AH is an address handle: where the datagrams of a work request go.
type AH struct {
	number   uint32
	pd       *PD
	gid      [16]byte
	path     Path
	carriers [2]Carrier // unordered, ordered
}

// Carrier carries the datagrams of the address handles that name it.
type Carrier interface {
	// Leave says that a handle does not name it any more.
	Leave(now vtime.Time)
}

// To is where datagrams go.
func (a *AH) To() (gid [16]byte, path *Path) { return a.gid, &a.path }

// PD is the protection domain of the handle.
func (a *AH) PD() *PD { return a.pd }

// Carrier is where to keep what carries the datagrams of strongly ordered queue pairs, or of others.
func (a *AH) Carrier(ordered bool) *Carrier {
	if ordered {
		return &a.carriers[1]
	}
	return &a.carriers[0]
}

// AHs are the address handles of a function.
type AHs struct {
	owner *Owner
	pds   *PDs
	table Table[AH]
}

// AH returns the address handle called ahn, nil when there is none.
func (t *AHs) AH(ahn uint32) *AH { return t.table.Get(ahn) }

// CreateAH makes an address handle. It waits for nothing: whether there is anybody at the address
// shows when datagrams arrive there, or do not. The MAC address says nothing here, where no
// Ethernet header travels; multicast is not carried.
func (t *AHs) CreateAH(c *abi.CreateAH) (ahn uint32, st abi.Status) {
	pd := t.pds.PD(c.PDN)
	path, st := PathOf(c.FlowLabel, c.TrafficClass, c.HopLimit, c.SL, c.VLAN)
	switch {
	case !t.owner.Working():
		return 0, abi.StatusBadState
	case pd == nil:
		return 0, abi.StatusNotFound
	case isMulticast(c.DGID):
		return 0, abi.StatusUnsupported
	case st != abi.StatusOK:
		return 0, st
	case c.DGID == [16]byte{} || c.SGIDIndex != 0:
		return 0, abi.StatusInvalidArgument
	case t.table.Full():
		return 0, abi.StatusNoResources
	}
	a := &AH{pd: pd, gid: c.DGID, path: path}
	a.number, _ = t.table.Add(a)
	pd.users++
	return a.number, abi.StatusOK
}

// DestroyAH destroys an address handle. Sends that use it go on.
func (t *AHs) DestroyAH(now vtime.Time, ahn uint32) abi.Status {
	a := t.table.Get(ahn)
	if a == nil {
		return abi.StatusNotFound
	}
	t.table.Remove(ahn)
	a.pd.users--
	for _, c := range a.carriers {
		if c != nil {
			c.Leave(now)
		}
	}
	return abi.StatusOK
}

func (t *AHs) count() int        { return t.table.InUse() }
func (t *AHs) setLimit(most int) { t.table.SetLimit(most) }
func (t *AHs) closeAll()         { t.table.Each(func(a *AH) { t.table.Remove(a.number) }) }
