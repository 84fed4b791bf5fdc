package verbs

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// Path holds what a driver requests of the path to its peer, as in ibv_ah_attr.
type Path struct {
	FlowLabel    uint32 // 20 bits; 0: the device picks a path
	TrafficClass uint8  // without the bits of ECN
	HopLimit     uint8  // 0: the device's default
	SL           uint8  // not carried
}

// ecnMask holds the bits of a traffic class that belong to the network.
const ecnMask = 3

// pathOf checks the path that a driver requests.
func pathOf(flowLabel uint32, class, hopLimit, sl uint8, vlan uint16) (Path, abi.Status) {
	switch {
	case flowLabel >= 1<<20 || sl > 15:
		return Path{}, abi.StatusInvalidArgument
	case vlan != 0 && vlan != abi.NoVLAN:
		return Path{}, abi.StatusUnsupported
	}
	return Path{FlowLabel: flowLabel, TrafficClass: class &^ ecnMask, HopLimit: hopLimit, SL: sl}, abi.StatusOK
}

// IsIPv4 reports whether a GID is an IPv4-mapped address.
func IsIPv4(gid [16]byte) bool {
	return [12]byte(gid[:12]) == [12]byte{10: 0xff, 11: 0xff}
}

// IsMulticast reports whether a GID is a multicast address.
func IsMulticast(gid [16]byte) bool {
	return gid[0] == 0xff || IsIPv4(gid) && gid[12]>>4 == 0xe
}

// Address is the destination, source and path of datagrams.
type Address struct {
	GID  [16]byte
	SGID [16]byte // one of the function's
	Path
}

// fits reports whether datagrams for queue pair qpn can go to the address: a multicast address
// needs the number of groups, any other address a queue pair's.
func (a *Address) fits(qpn uint32) bool {
	return a.valid() && IsMulticast(a.GID) == (qpn == abi.GroupQPN)
}

// valid reports whether the source and destination addresses fit a datagram.
func (a *Address) valid() bool {
	return a.GID != [16]byte{} && (IsMulticast(a.GID) || sameVersion(a.SGID, a.GID))
}

// AH is an address handle: the destination of the datagrams of a work request. The device also
// makes handles for requests that contain the address themselves; these have no number and no
// protection domain.
type AH struct {
	number       uint32
	pd           *PD
	to           Address
	destinations [2]Destination // unordered, ordered; made when first needed
	gone         bool           // destroyed: not to be used for further requests
}

// Destinations makes the destination of datagrams to an address, for strongly ordered queue pairs
// or for others. It returns nil if nothing carries datagrams to that multicast group.
type Destinations interface {
	To(to *Address, ordered bool) Destination
}

// Destination takes the datagrams of the address handles that name it and carries them there.
type Destination interface {
	// Want announces that datagrams will follow.
	Want(now vtime.Time)
	// Send copies a datagram, or returns why it did not.
	Send(now vtime.Time, d *Datagram) Sent
	// Leave reports that a handle no longer names the destination.
	Leave(now vtime.Time)
}

// Datagram is a datagram to be sent, with the location of its data.
type Datagram struct {
	transport.Datagram
	SGEs   SGL
	Inline []byte // instead of SGEs
	From   Waiter
}

// Waiter is a sender of datagrams that may have to wait for a destination.
type Waiter interface {
	// Wait reports that c has no room now; Resume follows. It returns whether the waiter did not
	// wait for c already.
	Wait(c Destination) (news bool)
	// Resume reports that c may have room again.
	Resume(c Destination)
}

// Sent is the result of sending a datagram.
type Sent uint8

// Results of sending a datagram.
const (
	Taken      Sent = iota
	Lost            // nobody receives at the address
	Full            // the sender must wait
	Unreadable      // its data cannot be read
)

// AHs holds the address handles of a function.
type AHs struct {
	owner        *Owner
	pds          *PDs
	destinations Destinations
	table        Table[AH]

	byAddress map[Address]*AH // handles made for requests that contain the address themselves
	recent    [recentAHs]*AH  // those handles, in the order they were made
	next      int             // index that the next such handle takes
}

// recentAHs is the number of addresses in requests that a function keeps handles for. If a program
// sends to more addresses in turn, each request costs a new handle, and perhaps a connection.
const recentAHs = 1024

// handleFor returns the device's own handle for an address, and makes it if there is none.
func (t *AHs) handleFor(now vtime.Time, to Address) *AH {
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

// leave tells the destinations of a handle that it is gone.
func (t *AHs) leave(now vtime.Time, a *AH) {
	a.gone = true
	for _, c := range a.destinations {
		if c != nil {
			c.Leave(now)
		}
	}
}

// AH returns the address handle with number ahn, nil if there is none.
func (t *AHs) AH(ahn uint32) *AH { return t.table.Get(ahn) }

// CreateAH makes an address handle. It does not wait for an answer from the address: whether
// datagrams arrive there shows only when they are sent. The MAC address is ignored, because no
// Ethernet header is sent.
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
	way := t.destination(a, true) // most queue pairs are strongly ordered
	if way == nil {
		return 0, abi.StatusUnsupported
	}
	a.number, _ = t.table.Add(a)
	pd.users++
	way.Want(now)
	return a.number, abi.StatusOK
}

// destination returns the destination of datagrams to a, for strongly ordered queue pairs or for
// others.
func (t *AHs) destination(a *AH, ordered bool) Destination {
	at := &a.destinations[0]
	if ordered {
		at = &a.destinations[1]
	}
	if *at == nil {
		*at = t.destinations.To(&a.to, ordered)
	}
	return *at
}

// DestroyAH destroys an address handle. Sends in progress that use it continue.
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
