package underlay

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Room that Output needs in front of the payload for the Ethernet, IP and UDP headers, bytes.
const (
	Headroom     = ethLen + ipv4Len + udpLen // IPv4 underlay
	HeadroomIPv6 = ethLen + ipv6Len + udpLen
)

// SealedPort is the UDP port of datagrams that carry a sealed packet (PSP Architecture
// Specification, "UDP Header").
const SealedPort = 1000

// HeaderLen returns the length of the headers in front of the payload that count for the MTU, with
// addresses of a's family.
func HeaderLen(a netip.Addr) int {
	if a.Is6() {
		return HeadroomIPv6 - ethLen
	}
	return Headroom - ethLen
}

// Config is the NIC's underlay address.
type Config struct {
	MAC     MAC          // unicast
	Addr    netip.Prefix // IPv4 or IPv6 address and its subnet
	Gateway netip.Addr   // for peers outside the subnet; the zero Addr for none
	MTU     int          // of the uplink: largest IP packet, 576..65535 bytes

	Neighbours []Neighbour // hosts whose MAC address is configured
}

// Neighbour is a host of the uplink's network.
type Neighbour struct {
	Addr netip.Addr // inside the subnet
	MAC  MAC        // unicast
}

// Datagram is a received PSP datagram.
type Datagram struct {
	Src     netip.Addr
	From    MAC // host that delivered it
	SrcPort uint16
	TTL     uint8 // or hop limit, as received: the hop count is 255 − TTL
	CE      bool  // ECN congestion experienced
	ECN     uint8 // the whole ECN field
	Payload []byte
}

// Stack is the underlay of one NIC. Make it with New.
type Stack struct {
	mac      MAC
	addr     netip.Addr
	subnet   netip.Prefix
	last     netip.Addr // the subnet's broadcast address, if it has one
	gateway  netip.Addr // may be unset
	mtu      int
	headroom int
	group    MAC // IPv6: multicast MAC of solicitations for our address

	neighbours map[netip.Addr]*neighbour
	recent     way          // route of the last packet
	authentic  way          // route back to the last authentic sender
	table      []*neighbour // the same entries in a reproducible order
	deadline   int64
	parked     int      // frames waiting at all neighbours together
	ready      ring     // parked frames that became sendable
	free       [][]byte // buffers for parked frames
	queue      frameQueue
	quiet      bool // another stack answers for us
	stats      Stats
}

// way is a destination and the next hop to it.
type way struct {
	dst netip.Addr
	nb  *neighbour // nil: none
}

// New checks the configuration and returns a stack.
func New(cfg Config) (*Stack, error) {
	a := cfg.Addr.Addr()
	switch {
	case !unicast(cfg.MAC):
		return nil, fmt.Errorf("underlay MAC %x is not a unicast address", cfg.MAC)
	case !cfg.Addr.IsValid():
		return nil, fmt.Errorf("underlay address %v: give an address with prefix length, such as 10.0.0.1/24 or fd00::1/64", cfg.Addr)
	case !validHost(a) || a.Zone() != "":
		return nil, fmt.Errorf("underlay address %v cannot be a host's address", a)
	case cfg.Gateway.IsValid() && (!cfg.Addr.Contains(cfg.Gateway) || cfg.Gateway == a):
		return nil, fmt.Errorf("underlay gateway %v must be another address inside %v", cfg.Gateway, cfg.Addr.Masked())
	case cfg.MTU < MinMTU(a) || cfg.MTU > maxPackets:
		return nil, fmt.Errorf("underlay MTU %d must be %d..%d", cfg.MTU, MinMTU(a), maxPackets)
	}
	s := &Stack{
		mac: cfg.MAC, addr: a, subnet: cfg.Addr.Masked(), mtu: cfg.MTU, gateway: cfg.Gateway, headroom: Headroom,
		neighbours: make(map[netip.Addr]*neighbour), deadline: never,
	}
	if a.Is4() {
		s.last = lastOf(s.subnet)
	} else {
		s.headroom, s.group = HeadroomIPv6, multicastMAC(solicitedNode(a.As16()))
	}
	for _, n := range cfg.Neighbours {
		if !s.onSubnet(n.Addr) || !unicast(n.MAC) || s.neighbours[n.Addr] != nil {
			return nil, fmt.Errorf("underlay neighbour %v at %x: give another address inside %v, once, and its unicast MAC address", n.Addr, n.MAC, s.subnet)
		}
		s.addStatic(n)
	}
	return s, nil
}

// MinMTU returns the least MTU of a link that carries packets of a's family (RFC 791, RFC 8200 §5).
func MinMTU(a netip.Addr) int {
	if a.Is4() {
		return 576
	}
	return 1280
}

// validHost reports whether a may be a host's address.
func validHost(a netip.Addr) bool {
	if a.Is4() {
		return hostAddr(a.As4())
	}
	return hostAddr6(a)
}

// Headroom returns the room Output needs in front of the payload, bytes.
func (s *Stack) Headroom() int { return s.headroom }

// Stats returns the counters. The pointer stays valid and the counters move.
func (s *Stack) Stats() *Stats { return &s.stats }

// Input classifies one received frame. With verdict Deliver, d is a PSP datagram for the caller,
// and its Payload is part of frame. With any other verdict the frame is done.
func (s *Stack) Input(now int64, frame []byte) (d Datagram, v Verdict) {
	d, v = s.input(now, frame)
	s.stats[v]++
	return d, v
}

func (s *Stack) input(now int64, frame []byte) (d Datagram, v Verdict) {
	if len(frame) < ethLen {
		return d, DropRunt
	}
	dst, src := MAC(frame[0:6]), MAC(frame[6:12])
	etherType := binary.BigEndian.Uint16(frame[12:])
	switch {
	case dst != s.mac && !s.hears(dst, etherType):
		return d, DropMAC
	case !unicast(src) || src == s.mac:
		return d, DropSourceMAC
	case s.addr.Is6() && etherType == typeIPv6:
		return s.input6(now, dst, src, frame[ethLen:])
	case s.addr.Is4() && etherType == typeARP:
		return d, s.inputARP(now, frame[ethLen:])
	case !s.addr.Is4() || etherType != typeIPv4:
		return d, DropEtherType
	}
	ip, udp, err := parseIPv4(frame[ethLen:])
	switch {
	case err == errIPFragment:
		return d, DropFragment
	case err != nil:
		return d, DropIPHeader
	case ip.dst != s.addr.As4():
		return d, DropDestination
	case !hostAddr(ip.src) || ip.src == s.addr.As4():
		return d, DropSource
	case ip.ttl == 0:
		return d, DropTTL
	case ip.protocol != protoUDP:
		return d, DropProtocol
	}
	return inputUDP(Datagram{Src: netip.AddrFrom4(ip.src), From: src, TTL: ip.ttl, CE: ip.tos&ecnMask == ecnCE, ECN: ip.tos & ecnMask}, udp)
}

// hears reports whether a frame to a group address may be for us: ARP requests, solicitations for
// our address, and advertisements to all nodes.
func (s *Stack) hears(dst MAC, etherType uint16) bool {
	if s.addr.Is4() {
		return dst == broadcast && etherType == typeARP
	}
	return etherType == typeIPv6 && (dst == s.group || dst == multicastMAC(allNodes))
}

func (s *Stack) input6(now int64, dst, src MAC, packet []byte) (d Datagram, v Verdict) {
	ip, payload, err := parseIPv6(packet)
	switch {
	case err == errIP6Fragment:
		return d, DropFragment
	case err != nil:
		return d, DropIPHeader
	case ip.next == protoICMP6 && len(payload) > 0 && (payload[0] == ndSolicit || payload[0] == ndAdvertise):
		return d, s.inputND(now, &ip, src, payload)
	case dst != s.mac:
		return d, DropMAC
	case netip.AddrFrom16(ip.dst) != s.addr:
		return d, DropDestination
	case !hostAddr6(netip.AddrFrom16(ip.src)) || netip.AddrFrom16(ip.src) == s.addr:
		return d, DropSource
	case ip.hopLimit == 0:
		return d, DropTTL
	case ip.next != protoUDP:
		return d, DropProtocol
	}
	return inputUDP(Datagram{Src: netip.AddrFrom16(ip.src), From: src, TTL: ip.hopLimit, CE: ip.class&ecnMask == ecnCE, ECN: ip.class & ecnMask}, payload)
}

func inputUDP(d Datagram, udp []byte) (Datagram, Verdict) {
	switch {
	case len(udp) < udpLen || int(binary.BigEndian.Uint16(udp[4:])) != len(udp):
		return Datagram{}, DropUDPLength
	case binary.BigEndian.Uint16(udp[2:]) != SealedPort:
		return Datagram{}, DropPort
	}
	d.SrcPort, d.Payload = binary.BigEndian.Uint16(udp), udp[udpLen:]
	return d, Deliver
}

// Output completes the frame around the payload frame[Headroom():Headroom()+n] for dst. It returns
// the frame's length and true when frame[:total] can be written; false when the payload was parked
// until dst's neighbour answers, or dropped (the reason is counted). ect marks the packet as
// ECN-capable.
func (s *Stack) Output(now int64, dst netip.Addr, srcPort uint16, ect bool, frame []byte, n int) (total int, ok bool) {
	class := uint8(0)
	if ect {
		class = ECT0
	}
	return s.OutputClass(now, dst, srcPort, class, frame, n)
}

// OutputClass is Output with a TOS or traffic class of the caller's: DSCP and, in the two lower
// bits, ECN.
func (s *Stack) OutputClass(now int64, dst netip.Addr, srcPort uint16, class uint8, frame []byte, n int) (total int, ok bool) {
	total, v := s.output(now, dst, srcPort, class, frame, n)
	s.stats[v]++
	return total, v == Sent
}

func (s *Stack) output(now int64, dst netip.Addr, srcPort uint16, tos uint8, frame []byte, n int) (int, Verdict) {
	total := s.headroom + n
	switch {
	case n < 0 || len(frame) < total:
		return 0, DropBuffer
	case total-ethLen > s.mtu:
		return 0, DropTooLong
	}
	nb, hop := s.recent.nb, netip.Addr{}
	if nb == nil || s.recent.dst != dst {
		var ok bool
		if hop, ok = s.nextHop(dst); !ok {
			return 0, DropRoute
		}
		nb = s.neighbours[hop]
		s.recent = way{dst, nb}
	}
	etherType := uint16(typeIPv4)
	if s.addr.Is4() {
		ip := ipv4{tos: tos, ttl: initialTTL, protocol: protoUDP, src: s.addr.As4(), dst: dst.As4()}
		ip.put(frame[ethLen:], total-ethLen)
	} else {
		etherType = typeIPv6
		ip := ipv6{class: tos, flow: uint32(srcPort), next: protoUDP, hopLimit: initialTTL, src: s.addr.As16(), dst: dst.As16()}
		ip.put(frame[ethLen:], udpLen+n)
	}
	udp := frame[s.headroom-udpLen:]
	binary.BigEndian.PutUint16(udp, srcPort)
	binary.BigEndian.PutUint16(udp[2:], SealedPort)
	binary.BigEndian.PutUint16(udp[4:], uint16(udpLen+n))
	binary.BigEndian.PutUint16(udp[6:], 0) // no checksum: PSP authenticates the payload (RFC 6935 for IPv6)
	if nb == nil || nb.state == incomplete {
		putEthernet(frame, MAC{}, s.mac, etherType)
		return 0, s.park(now, hop, nb, frame[:total])
	}
	s.touch(now, nb)
	putEthernet(frame, nb.mac, s.mac, etherType)
	return total, Sent
}

// nextHop returns the address to resolve for dst.
func (s *Stack) nextHop(dst netip.Addr) (netip.Addr, bool) {
	switch {
	case dst.Is4() != s.addr.Is4() || !validHost(dst) || dst == s.addr:
		return dst, false
	case s.subnet.Contains(dst):
		return dst, dst != s.last
	default:
		return s.gateway, s.gateway.IsValid()
	}
}

// onSubnet reports whether a may be the address of another host on our subnet.
func (s *Stack) onSubnet(a netip.Addr) bool {
	return validHost(a) && a != s.addr && a != s.last && s.subnet.Contains(a)
}

// lastOf returns an IPv4 subnet's broadcast address; the zero Addr for prefixes of 31 and 32 bits,
// which have none.
func lastOf(p netip.Prefix) netip.Addr {
	if p.Bits() >= 31 {
		return netip.Addr{}
	}
	a := p.Addr().As4()
	binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(a[:])|^uint32(0)>>p.Bits())
	return netip.AddrFrom4(a)
}

// Next writes the next frame that the stack itself must send into out, and returns its length, or 0
// if there is none: ARP and neighbour discovery packets, and parked frames whose neighbour
// answered. out must hold MTU+14 bytes.
func (s *Stack) Next(out []byte) int {
	if n := s.queue.pop(out); n > 0 {
		return n
	}
	f := s.ready.pop()
	if f == nil {
		return 0
	}
	s.stats[Sent]++
	n := copy(out, f)
	s.free = append(s.free, f)
	return n
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

func (v Verdict) String() string {
	if v < NumVerdicts {
		return verdictNames[v]
	}
	return fmt.Sprintf("verdict(%d)", uint8(v))
}

// Stats counts verdicts; index it with a Verdict.
type Stats [NumVerdicts]uint64

// Sealed returns the payload of a frame to PSP's port, for steering before Input. It makes only the
// checks needed to find the payload.
func Sealed(frame []byte) (payload []byte, ok bool) {
	if len(frame) < Headroom {
		return nil, false
	}
	at := Headroom
	switch ip := frame[ethLen:]; binary.BigEndian.Uint16(frame[12:]) {
	case typeIPv4:
		ok = ip[0] == 0x45 && ip[9] == protoUDP
	case typeIPv6:
		at = HeadroomIPv6
		ok = len(frame) >= at && ip[6] == protoUDP
	}
	if !ok || binary.BigEndian.Uint16(frame[at-udpLen+2:]) != SealedPort {
		return nil, false
	}
	return frame[at:], true
}

// Overhear learns from an ARP or neighbour discovery message that another stack with the same
// addresses received. That stack answers for all, so this one does not.
func (s *Stack) Overhear(now int64, frame []byte) {
	s.quiet = true
	s.input(now, frame)
	s.quiet = false
}
