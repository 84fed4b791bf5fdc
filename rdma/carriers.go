package rdma

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/rdma/roce"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// carriers choose the wire that the datagrams to an address go over, one by one: who is there may
// change while an address handle lasts.
type carriers struct {
	links verbs.Carriers // over Falcon
	port  *roce.Port     // nil: Falcon is all there is
	roce  func(gid [16]byte) bool
}

// UseRoCE gives the function its place in a network where RoCEv2 is spoken. chosen tells whether an
// address is reached so now, and not over Falcon.
func (f *Function) UseRoCE(p *roce.Port, chosen func(gid [16]byte) bool) {
	f.carriers.port, f.carriers.roce = p, chosen
	p.SetWeight(f.sched.flow.Weight)
	p.Serve(&f.Objects)
}

// RoCE is the function's place in such a network; nil: it has none.
func (f *Function) RoCE() *roce.Port { return f.carriers.port }

// Carrier implements verbs.Carriers. Multicast is RoCEv2's.
func (c *carriers) Carrier(to *verbs.Address, ordered bool) verbs.Carrier {
	if verbs.IsMulticast(to.GID) {
		if c.port != nil {
			if d := c.port.To(to); d != nil {
				return d
			}
		}
		return nil // Falcon has connections only
	}
	if c.port == nil {
		return c.links.Carrier(to, ordered)
	}
	return &choice{of: c, to: *to, ordered: ordered}
}

// choice is what carries the datagrams to an address, over either wire.
type choice struct {
	of      *carriers
	to      verbs.Address
	ordered bool
	link    verbs.Carrier // made when it is wanted
	roce    *roce.Destination
}

// now is the carrier at the moment.
func (c *choice) now() verbs.Carrier {
	if c.of.roce(c.to.GID) {
		if c.roce == nil {
			c.roce = c.of.port.To(&c.to)
		}
		if c.roce != nil {
			return c.roce
		}
	}
	if c.link == nil {
		c.link = c.of.links.Carrier(&c.to, c.ordered)
	}
	return c.link
}

// Want implements verbs.Carrier.
func (c *choice) Want(now vtime.Time) { c.now().Want(now) }

// Send implements verbs.Carrier.
func (c *choice) Send(now vtime.Time, d *verbs.Datagram) verbs.Sent { return c.now().Send(now, d) }

// Leave implements verbs.Carrier.
func (c *choice) Leave(now vtime.Time) {
	if c.link != nil {
		c.link.Leave(now)
	}
}
