package gateway

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// EndpointConfig is what a function is in its tenant's network.
type EndpointConfig struct {
	Tenant    uint32
	MAC       MAC          // of the function: what its guest sends from and is sent to
	Addresses []netip.Addr // of the function in the tenant
	MTU       int          // bytes of IP packet
	Assign    bool         // tell the guest its addresses
	Trust     bool         // any source MAC
	Spoof     bool         // any source address, too
	USO       bool         // the port takes UDP datagrams that stand for several
}

// Endpoint is a function in its tenant's network, with the port its guest speaks through.
type Endpoint struct {
	EndpointConfig
	Name     string
	Function uint32
	Gateway  MAC  // what the guest sees in our place
	Owner    any  // the owner's
	Port     Port // nil: none
	Lost     bool // the port is gone
	Drops    [Reasons]uint64

	at       int      // in Gateway.ports
	network  *network // of the tenant
	followed epoch    // when it was found
	up       bool
	mac      MAC      // the function's, or that of a trusted guest, as heard last
	stations stations // of a trusted guest
	errors   bucket
	last     way                                                     // of the last packet from it
	roce     func(packet []byte, first, most int) (n int, more bool) // of the function; nil: it takes none (SetRoCE)
}

// Port is what carries an endpoint's frames to and from its guest: a TAP, for one.
type Port interface {
	// Read takes the next frame that the guest sent into b, 0 bytes if there is none. It may leave
	// its rest where it is, for which there is room in b. The port is gone with an error.
	Read(b []byte) (n int, rest Rest, off Offload, err error)
	// Write gives the guest a frame, whose parts follow each other; false: it does not take it now.
	Write(parts [][]byte, off Offload) bool
	// USO tells whether it takes UDP datagrams that stand for several.
	USO() bool
	// Takes tells whether the guest that is there now takes frames with that left to do.
	Takes(off Offload) bool
	// SetLink tells the guest whether there is a link. It may take its time.
	SetLink(up bool) error
	// Fault is why the guest has to begin anew before it works; "": it works, or there is no guest.
	Fault() string
	Stats() PortStats
}

// PortStats counts frames: Rx are those that the guest sent.
type PortStats struct {
	RxFrames, RxBytes, RxDropped uint64
	TxFrames, TxBytes, TxDropped uint64
}

// Up tells whether the endpoint takes part.
func (p *Endpoint) Up() bool { return p.up }

// TakesUSO tells whether its port takes UDP datagrams that stand for several.
func (p *Endpoint) TakesUSO() bool { return p.Port != nil && p.Port.USO() }

// at tells whether t leads to a port.
func (t *Target) at(p *Endpoint) bool { return t.Kind == ToPort && t.Function == p.Function }

// accepts tells whether the guest takes frames with that left to do.
func (p *Endpoint) accepts(off Offload) bool { return p.Port == nil || p.Port.Takes(off) }

// own tells whether a is an address of the port's function.
func (p *Endpoint) own(a netip.Addr) bool { return slices.Contains(p.Addresses, a) }

// maySend tells whether the port may send from a.
func (p *Endpoint) maySend(a netip.Addr) bool {
	return p.Spoof || p.leadsTo(a)
}

// leadsTo tells whether the endpoint has an address, or the way to it.
func (p *Endpoint) leadsTo(a netip.Addr) bool {
	_, ok := p.by(a)
	return ok
}

// epoch tells whether anything was changed that a way depends on.
type epoch struct{ routes, endpoints uint64 }

// way is where packets to an address go, as it was found in an epoch.
type way struct {
	epoch
	dst    netip.Addr
	to     Target
	port   *Endpoint // of this shard
	tunnel *Tunnel
}

// ethernet writes the header of a frame to a station behind the port.
func (p *Endpoint) ethernet(b []byte, to MAC, etherType uint16) {
	copy(b, to[:])
	copy(b[6:], p.Gateway[:])
	binary.BigEndian.PutUint16(b[12:], etherType)
}

// takes hands a packet to the endpoint's function, if that is who it is for. packet is the
// function's until it returns. A guest that speaks RoCEv2 itself through its port gets its packets
// as long as no driver has the function (SetRoCE), and at the port's other addresses always.
func (p *Endpoint) takes(packet []byte, h *header, off Offload) bool {
	if !p.wants(packet, h) {
		return false
	}
	packet = packet[:h.total]
	off.complete(packet, h.proto)
	p.roce(packet, 0, 1)
	return true
}

// wants tells whether a packet is for the endpoint's function. packet has all headers.
func (p *Endpoint) wants(packet []byte, h *header) bool {
	return p.roce != nil && h.roce(packet) && (h.dst.IsMulticast() || p.speaksFrom(h.dst))
}

// speaksFrom tells whether a is the address from which the endpoint's function speaks RoCEv2.
func (p *Endpoint) speaksFrom(a netip.Addr) bool { return len(p.Addresses) > 0 && a == p.Addresses[0] }

// roce tells whether a packet is one of RoCEv2, and whole.
func (h *header) roce(packet []byte) bool {
	return !h.fragment && h.toRoCE(packet)
}

// toRoCE tells whether a packet, or the beginning of one, goes to RoCEv2's UDP port.
func (h *header) toRoCE(packet []byte) bool {
	return h.proto == protoUDP && !h.later && h.total >= h.l4+udpLen && binary.BigEndian.Uint16(packet[h.l4+2:]) == rocePort
}

// rocePort is the UDP port of RoCEv2 (Annex A17.3.2.2).
const rocePort = 4791
