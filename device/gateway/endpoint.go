package gateway

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// EndpointConfig describes a function in its tenant's network.
type EndpointConfig struct {
	Tenant    uint32
	MAC       MAC          // of the function: the guest sends from it and receives at it
	Addresses []netip.Addr // of the function in the tenant
	MTU       int          // bytes of IP packet
	Assign    bool         // tell the guest its addresses (DHCP, router advertisement)
	Trust     bool         // any source MAC
	Spoof     bool         // any source address, too
	USO       bool         // the port takes frames that stand for several UDP datagrams
}

// Endpoint is a function in its tenant's network, with the port that its guest uses.
type Endpoint struct {
	EndpointConfig
	Name     string
	Function uint32
	Gateway  MAC    // the MAC by which the guest knows the gateway
	Owner    any    // for the owner's use
	Device   Device // what carries the port's frames; nil: none
	Lost     bool   // the device is gone
	Drops    [Reasons]uint64

	at         int      // index in Gateway.ports
	network    *network // of the tenant
	followed   epoch    // the epoch in which network was found
	up         bool
	mac        MAC           // the function's or, of a trusted guest, the last one learned
	neighbours neighbours    // of a trusted guest
	told       *TenantConfig // of which a guest with Assign knows by router advertisements
	again      int64         // when it is told again, ns
	errors     bucket
	last       way                                                     // of the last packet from it
	take       func(packet []byte, first, most int) (n int, more bool) // delivers to the function; nil: it takes nothing (SetFunction)
	claim      Claim                                                   // what take takes
}

// Device carries an endpoint's frames to and from its guest, for example a TAP device.
type Device interface {
	// Read reads the next frame that the guest sent into b, and returns n = 0 if there is none. It
	// may leave the frame's end in place (rest), for which b has room. After an error the device
	// is gone.
	Read(b []byte) (n int, rest Rest, off Offload, err error)
	// Write sends the guest a frame made of consecutive parts. It returns false if the device
	// cannot take it now.
	Write(parts [][]byte, off Offload) bool
	// USO reports whether the device takes frames that stand for several UDP datagrams.
	USO() bool
	// Takes reports whether the present guest takes frames with this offload work left to do.
	Takes(off Offload) bool
	// SetLink tells the guest whether the link is up. It may block.
	SetLink(up bool) error
	// Fault returns why the guest must restart the device before it works; "": it works, or there
	// is no guest.
	Fault() string
	Stats() PortStats
}

// PortStats counts frames. Rx counts those that the guest sent.
type PortStats struct {
	RxFrames, RxBytes, RxDropped uint64
	TxFrames, TxBytes, TxDropped uint64
}

// Up reports whether the endpoint takes part in the network.
func (p *Endpoint) Up() bool { return p.up }

// TakesUSO reports whether the port takes frames that stand for several UDP datagrams.
func (p *Endpoint) TakesUSO() bool { return p.Device != nil && p.Device.USO() }

// at reports whether t leads to p's port.
func (t *Target) at(p *Endpoint) bool { return t.Kind == ToPort && t.Function == p.Function }

// accepts reports whether the guest takes frames with this offload work left to do.
func (p *Endpoint) accepts(off Offload) bool { return p.Device == nil || p.Device.Takes(off) }

// own reports whether a is an address of the port's function.
func (p *Endpoint) own(a netip.Addr) bool { return slices.Contains(p.Addresses, a) }

// maySend reports whether the port may send from a.
func (p *Endpoint) maySend(a netip.Addr) bool {
	return p.Spoof || p.leadsTo(a)
}

// leadsTo reports whether a is an address of the endpoint, or is reached through one.
func (p *Endpoint) leadsTo(a netip.Addr) bool {
	_, ok := p.by(a)
	return ok
}

// ethernet writes the header of a frame to a host behind the port.
func (p *Endpoint) ethernet(b []byte, to MAC, etherType uint16) {
	*(*MAC)(b), *(*MAC)(b[6:]) = to, p.Gateway
	binary.BigEndian.PutUint16(b[12:], etherType)
}

// Gatherer is a Device that can send its guest a frame whose end is in another guest's memory, with a
// single copy.
type Gatherer interface {
	// WriteWith is like Write, for a frame that consists of head and rest.
	WriteWith(head []byte, rest Rest, off Offload) bool
}
