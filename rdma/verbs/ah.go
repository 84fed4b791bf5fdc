package verbs

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// AH is an address handle: where the datagrams of a work request go. One that the device made, for
// requests that have the address themselves, has no number and no protection domain.
type AH struct {
	number   uint32
	pd       *PD
	to       Address
	carriers [2]Carrier // unordered, ordered; made when they are wanted
	gone     bool       // forgotten: not to be used for further requests
}

// Address is where datagrams go, from where, and how.
type Address struct {
	GID  [16]byte
	SGID [16]byte // of the function's
	Path
}

// leads reports whether datagrams to a queue pair can go to the address: those to a group have its
// number instead.
func (a *Address) leads(qpn uint32) bool {
	return a.valid() && IsMulticast(a.GID) == (qpn == abi.GroupQPN)
}

// valid reports whether datagrams can have the addresses.
func (a *Address) valid() bool {
	return a.GID != [16]byte{} && (IsMulticast(a.GID) || joins(a.SGID, a.GID))
}

// Carriers makes what carries the datagrams to an address of strongly ordered queue pairs, or of
// others; nil: nothing carries those to that group.
type Carriers interface {
	Carrier(to *Address, ordered bool) Carrier
}

// Carrier carries the datagrams of the address handles that name it.
type Carrier interface {
	// Want says that datagrams will follow.
	Want(now vtime.Time)
	// Send copies a datagram, or says why not.
	Send(now vtime.Time, d *Datagram) Sent
	// Leave says that a handle does not name it any more.
	Leave(now vtime.Time)
}

// Datagram is one that is to be sent, with the place of its data.
type Datagram struct {
	transport.Datagram
	SGEs   SGL
	Inline []byte // instead of SGEs
	From   Waiter
}

// Waiter is who sends datagrams.
type Waiter interface {
	// Wait says that c has no place now; Resume follows. It reports whether that is news.
	Wait(c Carrier) (news bool)
	// Resume says that c may have a place.
	Resume(c Carrier)
}

// Sent is what became of a datagram.
type Sent uint8

// What becomes of datagrams.
const (
	Taken      Sent = iota
	Lost            // nobody is there
	Full            // the sender waits
	Unreadable      // its data is not to be had
)

// AHs are the address handles of a function.
type AHs struct {
	owner    *Owner
	pds      *PDs
	carriers Carriers
	table    Table[AH]

	byAddress map[Address]*AH // made for requests that have the address themselves
	recent    [recentAHs]*AH  // those, in the order they were made
	next      int             // whose place the next one takes
}

// recentAHs is how many addresses of requests a function has handles for. What is sent to more in
// turn costs a new handle each time, and perhaps a connection.
const recentAHs = 1024

// standing returns the handle that stands for an address.
func (t *AHs) standing(now vtime.Time, to Address) *AH {
	a := t.byAddress[to]
	if a != nil {
		return a
	}
	if t.byAddress == nil {
		t.byAddress = map[Address]*AH{}
	}
	if old := t.recent[t.next]; old != nil {
		delete(t.byAddress, old.to)
		t.leave(now, old)
	}
	a = &AH{to: to}
	t.byAddress[to], t.recent[t.next] = a, a
	t.next = (t.next + 1) % recentAHs
	return a
}

// leave says to the carriers that a handle is gone.
func (t *AHs) leave(now vtime.Time, a *AH) {
	a.gone = true
	for _, c := range a.carriers {
		if c != nil {
			c.Leave(now)
		}
	}
}

// AH returns the address handle called ahn, nil when there is none.
func (t *AHs) AH(ahn uint32) *AH { return t.table.Get(ahn) }

// CreateAH makes an address handle. It waits for nothing: whether there is anybody at the address
// shows when datagrams arrive there, or do not. The MAC address says nothing here, where no
// Ethernet header travels.
func (t *AHs) CreateAH(now vtime.Time, c *abi.CreateAH) (ahn uint32, st abi.Status) {
	pd := t.pds.PD(c.PDN)
	path, st := pathOf(c.FlowLabel, c.TrafficClass, c.HopLimit, c.SL, c.VLAN)
	sgid, has := t.owner.GID(c.SGIDIndex)
	to := Address{GID: c.DGID, SGID: sgid, Path: path}
	switch {
	case !t.owner.Working():
		return 0, abi.StatusBadState
	case pd == nil:
		return 0, abi.StatusNotFound
	case st != abi.StatusOK:
		return 0, st
	case !has || !to.valid():
		return 0, abi.StatusInvalidArgument
	case t.table.Full():
		return 0, abi.StatusNoResources
	}
	a := &AH{pd: pd, to: to}
	way := t.carrier(a, true) // most queue pairs are strongly ordered
	if way == nil {
		return 0, abi.StatusUnsupported
	}
	a.number, _ = t.table.Add(a)
	pd.users++
	way.Want(now)
	return a.number, abi.StatusOK
}

// carrier returns what carries the datagrams to a of strongly ordered queue pairs, or of others.
func (t *AHs) carrier(a *AH, ordered bool) Carrier {
	at := &a.carriers[0]
	if ordered {
		at = &a.carriers[1]
	}
	if *at == nil {
		*at = t.carriers.Carrier(&a.to, ordered)
	}
	return *at
}

// DestroyAH destroys an address handle. Sends that use it go on.
func (t *AHs) DestroyAH(now vtime.Time, ahn uint32) abi.Status {
	a := t.table.Get(ahn)
	if a == nil {
		return abi.StatusNotFound
	}
	t.table.Remove(ahn)
	a.pd.users--
	t.leave(now, a)
	return abi.StatusOK
}

func (t *AHs) count() int          { return t.table.InUse() }
func (t *AHs) setLimit(most int)   { t.table.SetLimit(most) }
func (t *AHs) closeAll(vtime.Time) { t.table.Each(func(a *AH) { t.table.Remove(a.number) }) }
