package rdma

import (
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// AH is an address handle: where the datagrams of a work request go.
type AH struct {
	f      *Function
	number uint32
	pd     *verbs.PD
	to     LinkKey
	flow   uint32   // flow label
	links  [2]*Link // unordered, ordered; made when they are wanted
}

// CreateAH makes an address handle. It waits for nothing: whether there is anybody at the address
// shows when datagrams arrive there, or do not. The MAC address says nothing here, where no
// Ethernet header travels; multicast is not carried.
func (f *Function) CreateAH(now falcon.Time, c *abi.CreateAH) (ahn uint32, st abi.Status) {
	pd := f.PD(c.PDN)
	path, st := pathOf(c.FlowLabel, c.TrafficClass, c.HopLimit, c.SL, c.VLAN)
	switch {
	case !f.Working():
		return 0, abi.StatusBadState
	case pd == nil:
		return 0, abi.StatusNotFound
	case isMulticast(c.DGID):
		return 0, abi.StatusUnsupported
	case st != abi.StatusOK:
		return 0, st
	case c.DGID == [16]byte{} || c.SGIDIndex != 0:
		return 0, abi.StatusInvalidArgument
	case f.ahs.Full():
		return 0, abi.StatusNoResources
	}
	a := &AH{f: f, pd: pd, to: LinkKey{GID: c.DGID, TrafficClass: path.TrafficClass, HopLimit: path.HopLimit}, flow: path.FlowLabel}
	a.number, _ = f.ahs.Add(a)
	pd.Use(1)
	a.link(true).want(now) // most queue pairs are strongly ordered
	return a.number, abi.StatusOK
}

// link returns the link for datagrams of strongly ordered queue pairs, or of others.
func (a *AH) link(ordered bool) *Link {
	at := &a.links[0]
	if ordered {
		at = &a.links[1]
	}
	if *at == nil {
		key := a.to
		key.Ordered = ordered
		l := a.f.link(key)
		if l.handles == 0 && l.conn == nil {
			l.flow = a.flow
		}
		if l.handles++; l.handles == 1 && l.state == linkOpen {
			a.f.e.shared.Timers.Stop(&l.timer)
		}
		*at = l
	}
	return *at
}

// DestroyAH destroys an address handle. Sends that use it go on.
func (f *Function) DestroyAH(now falcon.Time, ahn uint32) abi.Status {
	a := f.ahs.Get(ahn)
	if a == nil {
		return abi.StatusNotFound
	}
	f.ahs.Remove(ahn)
	a.pd.Use(-1)
	for _, l := range a.links {
		if l != nil {
			l.handles--
			f.leave(now, l)
		}
	}
	return abi.StatusOK
}

// leave keeps a link for a while that a handle no longer names, as another may soon. A function
// that makes and destroys handles faster than links go away by themselves keeps no more than a few.
func (f *Function) leave(now falcon.Time, l *Link) {
	const spare = 64
	if l.handles == 0 && !l.passive && len(f.links) > 2*f.ahs.InUse()+f.Limits().Links+spare {
		l.close(now)
		return
	}
	l.rest(now)
}

// ecnMask are the bits of a traffic class that are the network's.
const ecnMask = 3

// isIPv4 reports whether a GID is an IPv4-mapped address.
func isIPv4(gid [16]byte) bool {
	return [12]byte(gid[:12]) == [12]byte{10: 0xff, 11: 0xff}
}

// isMulticast reports whether a GID is the address of a group.
func isMulticast(gid [16]byte) bool {
	return gid[0] == 0xff || isIPv4(gid) && gid[12]>>4 == 0xe
}
