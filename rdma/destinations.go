package rdma

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// carrier is a port that carries datagrams. Its To returns nil for an address that it cannot reach.
type carrier interface {
	verbs.Destinations
	// Serve makes the port carry the datagrams of a function's queue pairs.
	Serve(of *verbs.Objects)
}

// UsePort gives the function a port of one of the engine's Networks. chosen reports whether an
// address is reached by the port now, and not over Falcon.
func (f *Function) UsePort(p transport.Port, chosen func(gid [16]byte) bool) {
	f.port = p
	p.SetWeight(f.sched.flow.Weight)
	if c, ok := p.(carrier); ok {
		c.Serve(&f.Objects)
		f.destinations.port, f.destinations.chosen = c, chosen
	}
}

// Port returns the function's port, nil if it has none.
func (f *Function) Port() transport.Port { return f.port }

// destinations chooses the wire for each datagram to an address: over which wire the address is
// reached may change while an address handle lasts.
type destinations struct {
	links  verbs.Destinations // over Falcon
	port   verbs.Destinations // nil: the function has no port that carries datagrams
	chosen func(gid [16]byte) bool
}

// To implements verbs.Destinations. Multicast is carried by ports only.
func (c *destinations) To(to *verbs.Address, ordered bool) verbs.Destination {
	switch {
	case c.port == nil && verbs.IsMulticast(to.GID):
		return nil
	case c.port == nil:
		return c.links.To(to, ordered)
	case verbs.IsMulticast(to.GID):
		return c.port.To(to, ordered)
	}
	return &choice{of: c, to: *to, ordered: ordered}
}

// choice carries the datagrams to one address over either wire.
type choice struct {
	of           *destinations
	to           verbs.Address
	ordered      bool
	link, byPort verbs.Destination // made when first needed
}

// now returns the destination that is right at the moment.
func (c *choice) now() verbs.Destination {
	if c.of.chosen(c.to.GID) {
		if c.byPort == nil {
			c.byPort = c.of.port.To(&c.to, c.ordered)
		}
		if c.byPort != nil {
			return c.byPort
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
