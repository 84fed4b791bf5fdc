package rdma

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/rdma/roce"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// destinations chooses the wire for each datagram to an address: over which wire the address is
// reached may change while an address handle lasts.
type destinations struct {
	links verbs.Destinations // over Falcon
	port  *roce.Port         // nil: Falcon only
	roce  func(gid [16]byte) bool
}

// UseRoCE gives the function a port to a RoCEv2 network. chosen reports whether an address is
// reached over RoCEv2 now, and not over Falcon.
func (f *Function) UseRoCE(p *roce.Port, chosen func(gid [16]byte) bool) {
	f.destinations.port, f.destinations.roce = p, chosen
	p.SetWeight(f.sched.flow.Weight)
	p.Serve(&f.Objects)
}

// RoCE returns the function's port to a RoCEv2 network, nil if it has none.
func (f *Function) RoCE() *roce.Port { return f.destinations.port }

// To implements verbs.Destinations. Multicast is carried over RoCEv2 only.
func (c *destinations) To(to *verbs.Address, ordered bool) verbs.Destination {
	if verbs.IsMulticast(to.GID) {
		if c.port != nil {
			if d := c.port.To(to); d != nil {
				return d
			}
		}
		return nil // over Falcon there is no multicast
	}
	if c.port == nil {
		return c.links.To(to, ordered)
	}
	return &choice{of: c, to: *to, ordered: ordered}
}

// choice carries the datagrams to one address over either wire.
type choice struct {
	of      *destinations
	to      verbs.Address
	ordered bool
	link    verbs.Destination // made when first needed
	roce    *roce.Destination
}

// now returns the destination that is right at the moment.
func (c *choice) now() verbs.Destination {
	if c.of.roce(c.to.GID) {
		if c.roce == nil {
			c.roce = c.of.port.To(&c.to)
		}
		if c.roce != nil {
			return c.roce
		}
	}
	if c.link == nil {
		c.link = c.of.links.To(&c.to, c.ordered)
	}
	return c.link
}

// Want implements verbs.Destination.
func (c *choice) Want(now vtime.Time) { c.now().Want(now) }

// Send implements verbs.Destination.
func (c *choice) Send(now vtime.Time, d *verbs.Datagram) verbs.Sent { return c.now().Send(now, d) }

// Leave implements verbs.Destination.
func (c *choice) Leave(now vtime.Time) {
	if c.link != nil {
		c.link.Leave(now)
	}
}
