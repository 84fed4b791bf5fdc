package underlay

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/falcon-vnic/vnic/internal/ring"
)

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

// Stack is the Layer of a NIC on an Ethernet port. Make it with New.
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
	parked     int                // frames waiting at all neighbours together
	ready      ring.Queue[[]byte] // parked frames that became sendable: no more than maxParked
	free       [][]byte           // buffers for parked frames
	queue      ring.Queue[queued]
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

// validHost reports whether a may be a host's address.
func validHost(a netip.Addr) bool {
	if a.Is4() {
		return hostAddr(a.As4())
	}
	return hostAddr6(a)
}

// Headroom implements Layer.
func (s *Stack) Headroom() int { return s.headroom }

// Stats implements Layer.
func (s *Stack) Stats() *Stats { return &s.stats }

// CountSegment implements Layer.
func (s *Stack) CountSegment() { s.stats[Deliver]++ }

// Input implements Layer.
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
	return inputUDP(Datagram{Src: netip.AddrFrom4(ip.src), From: src, TTL: ip.ttl, CE: ip.tos&ecnMask == ecnCE, ECN: ip.tos & ecnMask}, udp, SealedPort)
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
	return inputUDP(Datagram{Src: netip.AddrFrom16(ip.src), From: src, TTL: ip.hopLimit, CE: ip.class&ecnMask == ecnCE, ECN: ip.class & ecnMask}, payload, SealedPort)
}

// Output implements Layer. A datagram whose next hop is not known yet is parked until it answers.
func (s *Stack) Output(now int64, to netip.AddrPort, path uint16, class uint8, frame []byte, n int) (total int, ok bool) {
	total, v := s.output(now, to, path, class, frame, n)
	s.stats[v]++
	return total, v == Sent
}

func (s *Stack) output(now int64, to netip.AddrPort, path uint16, class uint8, frame []byte, n int) (int, Verdict) {
	total, dst := s.headroom+n, to.Addr()
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
	o := Outer{Src: netip.AddrPortFrom(s.addr, path), Dst: to, Class: class, TTL: initialTTL}
	etherType := o.put(frame, n)
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

// Next implements Layer: ARP and neighbour discovery packets, and parked frames whose neighbour
// answered.
func (s *Stack) Next(out []byte) int {
	if s.queue.Len() > 0 {
		q := s.queue.Pop()
		return copy(out, q.frame[:q.n])
	}
	if s.ready.Len() == 0 {
		return 0
	}
	f := *s.ready.Pop()
	s.stats[Sent]++
	n := copy(out, f)
	s.free = append(s.free, f)
	return n
}

// Peek implements Layer.
func (s *Stack) Peek(frame []byte) (sealed []byte, ok bool) {
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
