package underlay

import (
	"encoding/binary"
	"net/netip"
)

// Layer carries sealed datagrams between NICs: it knows what the uplink's device needs around them.
// Stack does so on an Ethernet port, Socket on the host's UDP sockets. A Layer is sans-I/O and
// belongs to one shard.
type Layer interface {
	// Input finds the datagram in a frame that the device has received. With verdict Deliver, its
	// payload is part of frame. With any other verdict the frame is done.
	Input(now int64, frame []byte) (Datagram, Verdict)
	// CountSegment counts a datagram that came in one frame with others, of which Input counted one.
	CountSegment()
	// Peek returns the payload of a frame that Input has not seen yet. It makes only the checks
	// needed to find the payload.
	Peek(frame []byte) (sealed []byte, ok bool)
	// Authenticated must be called when the payload of a datagram was authenticated and is not a
	// replay: src and from are the datagram's.
	Authenticated(now int64, src netip.Addr, from MAC)

	// Output completes the frame around the payload frame[Headroom():Headroom()+n], to a peer, on one
	// of the paths to it (a UDP source port), with a TOS or traffic class. It returns the frame's
	// length and true when frame[:total] can be given to the device; false when the layer keeps it
	// or has dropped it (the reason is counted).
	Output(now int64, to netip.AddrPort, path uint16, class uint8, frame []byte, n int) (total int, ok bool)
	// Headroom returns the room Output needs in front of the payload, bytes.
	Headroom() int

	// Next writes the next frame that the layer itself must send into out, and returns its length,
	// or 0 if there is none. out must hold MTU+14 bytes.
	Next(out []byte) int
	// Resolve prepares the layer for packets to a peer, so that the first need not wait.
	Resolve(now int64, to netip.AddrPort)
	// Overhear learns from a frame of the layer's own protocols (ARP, neighbour discovery) that the
	// layer of another shard received.
	Overhear(now int64, frame []byte)
	// Deadline returns when Advance is due, math.MaxInt64 for never.
	Deadline() int64
	// Advance runs the layer's timers.
	Advance(now int64)

	// Stats returns the counters. The pointer stays valid and the counters move.
	Stats() *Stats
}

var _ Layer = (*Stack)(nil)

// Datagram is a received datagram of sealed packets.
type Datagram struct {
	Src     netip.Addr
	From    MAC // host that delivered it, on an Ethernet
	SrcPort uint16
	TTL     uint8 // or hop limit, as received: the hop count is 255 − TTL
	CE      bool  // ECN congestion experienced
	ECN     uint8 // the whole ECN field
	Payload []byte
}

// SealedPort is the UDP port of datagrams that carry a sealed packet (PSP Architecture
// Specification, "UDP Header").
const SealedPort = 1000

// Room that Output needs in front of the payload for the Ethernet, IP and UDP headers, bytes.
const (
	Headroom     = ethLen + ipv4Len + udpLen // IPv4 underlay
	HeadroomIPv6 = ethLen + ipv6Len + udpLen
)

// HeaderLen returns the length of the headers in front of the payload that count for the MTU, with
// addresses of a's family.
func HeaderLen(a netip.Addr) int {
	if a.Is6() {
		return HeadroomIPv6 - ethLen
	}
	return Headroom - ethLen
}

// MinMTU returns the least MTU of a link that carries packets of a's family (RFC 791, RFC 8200 §5).
func MinMTU(a netip.Addr) int {
	if a.Is4() {
		return 576
	}
	return 1280
}

// Outer is what the outer IP and UDP headers of a datagram say.
type Outer struct {
	Src, Dst netip.AddrPort // of one family
	Class    uint8          // TOS or traffic class
	TTL      uint8
}

// put writes the IP and UDP headers of a datagram with n bytes of payload into a frame.
func (o *Outer) put(frame []byte, n int) (etherType uint16) {
	at, src, dst := Headroom, o.Src.Addr(), o.Dst.Addr()
	if src.Is4() {
		etherType = typeIPv4
		ip := ipv4{tos: o.Class, ttl: o.TTL, protocol: protoUDP, src: src.As4(), dst: dst.As4()}
		ip.put(frame[ethLen:], ipv4Len+udpLen+n)
	} else {
		at, etherType = HeadroomIPv6, typeIPv6
		ip := ipv6{class: o.Class, flow: uint32(o.Src.Port()), next: protoUDP, hopLimit: o.TTL, src: src.As16(), dst: dst.As16()}
		ip.put(frame[ethLen:], udpLen+n)
	}
	udp := frame[at-udpLen:]
	binary.BigEndian.PutUint16(udp, o.Src.Port())
	binary.BigEndian.PutUint16(udp[2:], o.Dst.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(udpLen+n))
	binary.BigEndian.PutUint16(udp[6:], 0) // no checksum: PSP authenticates the payload (RFC 6935 for IPv6)
	return etherType
}

// inputUDP reads the header of a UDP datagram to a port, and completes d.
func inputUDP(d Datagram, udp []byte, port uint16) (Datagram, Verdict) {
	switch {
	case len(udp) < udpLen || int(binary.BigEndian.Uint16(udp[4:])) != len(udp):
		return Datagram{}, DropUDPLength
	case binary.BigEndian.Uint16(udp[2:]) != port:
		return Datagram{}, DropPort
	}
	d.SrcPort, d.Payload = binary.BigEndian.Uint16(udp), udp[udpLen:]
	return d, Deliver
}

// Verdict is the result for a frame: a received one (Input) or one to be sent (Output).
type Verdict uint8

// Verdicts. Deliver, ARP, ND and Claim are the successful results of Input, Sent and Parked those
// of Output; the others are drops.
const (
	Deliver Verdict = iota // a PSP datagram for the caller
	ARP                    // handled by the stack
	ND                     // neighbour discovery, handled by the stack
	Claim                  // ARP or neighbour discovery of a host that claims another host's address
	Sent                   // completed for the caller to write
	Parked                 // waits for its neighbour's address

	DropRunt        // shorter than an Ethernet header
	DropMAC         // not to our Ethernet address
	DropSourceMAC   // from a group address, or from our own
	DropEtherType   // neither of our IP version nor ARP
	DropARP         // malformed, or from an impossible sender
	DropND          // neighbour discovery that RFC 4861 §7.1 refuses
	DropConflict    // another host uses our IP address
	DropIPHeader    // not an IP header, bad length, bad checksum
	DropFragment    // PSP is never fragmented
	DropTTL         // arrived with TTL 0
	DropDestination // to another IP address
	DropSource      // from an impossible IP address
	DropProtocol    // not UDP
	DropUDPLength   // UDP length differs from the bytes received (Falcon §9.2.2.1)
	DropPort        // not to PSP's port

	DropRoute      // Output: no gateway, or not a valid destination
	DropTooLong    // Output: above the MTU
	DropBuffer     // Output: the frame has no room for the payload
	DropNeighbours // Output: neighbour table full
	DropParkFull   // Output: too many frames wait already
	DropUnresolved // a parked frame whose neighbour did not answer
	DropQueueFull  // an ARP or neighbour discovery packet for which the queue is full

	NumVerdicts
)

var verdictNames = [NumVerdicts]string{
	"deliver", "arp", "nd", "claim", "sent", "parked",
	"drop-runt", "drop-mac", "drop-source-mac", "drop-ethertype", "drop-arp", "drop-nd", "drop-address-conflict", "drop-ip-header", "drop-fragment",
	"drop-ttl", "drop-destination", "drop-source", "drop-protocol", "drop-udp-length", "drop-port",
	"drop-no-route", "drop-too-long", "drop-buffer", "drop-neighbours-full", "drop-park-full", "drop-unresolved", "drop-queue-full",
}

func (v Verdict) String() string { return verdictNames[v] }

// Stats counts verdicts; index it with a Verdict.
type Stats [NumVerdicts]uint64
