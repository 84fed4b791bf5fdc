package underlay

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/falcon-vnic/vnic/falcon/psp"
)

// Headroom is the room Output needs in front of the payload: Ethernet, IPv4 and UDP header, bytes.
const Headroom = ethLen + ipv4Len + udpLen

// Config is the NIC's underlay address.
type Config struct {
	MAC     MAC          // unicast
	Addr    netip.Prefix // IPv4 address and its subnet
	Gateway netip.Addr   // for peers outside the subnet; the zero Addr for none
	MTU     int          // of the uplink: largest IP packet, 576..65535 bytes
}

// Datagram is a received PSP datagram.
type Datagram struct {
	Src     netip.Addr
	SrcPort uint16
	TTL     uint8 // as received: the hop count is 255 − TTL
	CE      bool  // ECN congestion experienced
	Payload []byte
}

// Stack is the underlay of one NIC. Make it with New.
type Stack struct {
	mac     MAC
	addr    [4]byte
	subnet  netip.Prefix
	last    [4]byte // the subnet's broadcast address, zero if it has none
	gateway [4]byte // zero for none
	mtu     int

	neighbours map[[4]byte]*neighbour
	table      []*neighbour // the same in a reproducible order
	deadline   int64
	parked     int      // frames waiting at all neighbours together
	ready      ring     // parked frames that became sendable
	free       [][]byte // buffers for parked frames
	arps       arpQueue
	stats      Stats
}

// New checks the configuration and returns a stack.
func New(cfg Config) (*Stack, error) {
	a := cfg.Addr.Addr()
	switch {
	case !unicast(cfg.MAC):
		return nil, fmt.Errorf("underlay MAC %x is not a unicast address", cfg.MAC)
	case !a.Is4() || !cfg.Addr.IsValid():
		return nil, fmt.Errorf("underlay address %v: give an IPv4 address with prefix length, such as 10.0.0.1/24", cfg.Addr)
	case !hostAddr(a.As4()):
		return nil, fmt.Errorf("underlay address %v cannot be a host's address", a)
	case cfg.Gateway.IsValid() && (!cfg.Addr.Contains(cfg.Gateway) || cfg.Gateway == a):
		return nil, fmt.Errorf("underlay gateway %v must be another address inside %v", cfg.Gateway, cfg.Addr.Masked())
	case cfg.MTU < 576 || cfg.MTU > maxPackets:
		return nil, fmt.Errorf("underlay MTU %d must be 576..%d", cfg.MTU, maxPackets)
	}
	s := &Stack{
		mac: cfg.MAC, addr: a.As4(), subnet: cfg.Addr.Masked(), mtu: cfg.MTU, last: lastOf(cfg.Addr.Masked()),
		neighbours: make(map[[4]byte]*neighbour), deadline: never,
	}
	if cfg.Gateway.IsValid() {
		s.gateway = cfg.Gateway.As4()
	}
	return s, nil
}

// Headroom returns the room Output needs in front of the payload, bytes.
func (s *Stack) Headroom() int { return Headroom }

// Stats returns the counters. The pointer stays valid and the counters move.
func (s *Stack) Stats() *Stats { return &s.stats }

// Input classifies one received frame. With verdict Deliver d is a PSP datagram for the caller, whose Payload is part of
// frame; every other verdict is final.
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
	case dst != s.mac && (dst != broadcast || etherType != typeARP):
		return d, DropMAC
	case !unicast(src) || src == s.mac:
		return d, DropSourceMAC
	case etherType == typeARP:
		return d, s.inputARP(now, frame[ethLen:])
	case etherType != typeIPv4:
		return d, DropEtherType
	}
	ip, udp, err := parseIPv4(frame[ethLen:])
	switch {
	case err == errIPFragment:
		return d, DropFragment
	case err != nil:
		return d, DropIPHeader
	case ip.dst != s.addr:
		return d, DropDestination
	case !hostAddr(ip.src) || ip.src == s.addr:
		return d, DropSource
	case ip.ttl == 0:
		return d, DropTTL
	case ip.protocol != protoUDP:
		return d, DropProtocol
	case len(udp) < udpLen || int(binary.BigEndian.Uint16(udp[4:])) != len(udp):
		return d, DropUDPLength
	case binary.BigEndian.Uint16(udp[2:]) != psp.UDPPort:
		return d, DropPort
	}
	return Datagram{
		Src: netip.AddrFrom4(ip.src), SrcPort: binary.BigEndian.Uint16(udp), TTL: ip.ttl,
		CE: ip.tos&ecnMask == ecnCE, Payload: udp[udpLen:],
	}, Deliver
}

// Output completes the frame around the payload frame[Headroom:Headroom+n] for dst. It returns the frame's length and true when
// frame[:total] can be written; false when the payload was parked until dst's neighbour answers, or dropped (the
// reason is counted). ect marks the packet as ECN-capable.
func (s *Stack) Output(now int64, dst netip.Addr, srcPort uint16, ect bool, frame []byte, n int) (total int, ok bool) {
	total, v := s.output(now, dst, srcPort, ect, frame, n)
	s.stats[v]++
	return total, v == Sent
}

func (s *Stack) output(now int64, dst netip.Addr, srcPort uint16, ect bool, frame []byte, n int) (int, Verdict) {
	total := Headroom + n
	switch {
	case n < 0 || len(frame) < total:
		return 0, DropBuffer
	case total-ethLen > s.mtu:
		return 0, DropTooLong
	}
	hop, ok := s.nextHop(dst)
	if !ok {
		return 0, DropRoute
	}
	ip := ipv4{ttl: initialTTL, protocol: protoUDP, src: s.addr, dst: dst.As4()}
	if ect {
		ip.tos = ecnECT0
	}
	ip.put(frame[ethLen:], total-ethLen)
	udp := frame[ethLen+ipv4Len:]
	binary.BigEndian.PutUint16(udp, srcPort)
	binary.BigEndian.PutUint16(udp[2:], psp.UDPPort)
	binary.BigEndian.PutUint16(udp[4:], uint16(udpLen+n))
	binary.BigEndian.PutUint16(udp[6:], 0) // no checksum: PSP authenticates the payload
	nb := s.neighbours[hop]
	if nb == nil || nb.state == incomplete {
		putEthernet(frame, MAC{}, s.mac, typeIPv4)
		return 0, s.park(now, hop, nb, frame[:total])
	}
	s.touch(now, nb)
	putEthernet(frame, nb.mac, s.mac, typeIPv4)
	return total, Sent
}

// nextHop returns the address to resolve for dst.
func (s *Stack) nextHop(dst netip.Addr) ([4]byte, bool) {
	if !dst.Is4() {
		return [4]byte{}, false
	}
	a := dst.As4()
	switch {
	case !hostAddr(a) || a == s.addr:
		return a, false
	case s.subnet.Contains(dst):
		return a, a != s.last
	default:
		return s.gateway, s.gateway != [4]byte{}
	}
}

// onSubnet tells whether a may be the address of another station on our subnet.
func (s *Stack) onSubnet(a [4]byte) bool {
	return hostAddr(a) && a != s.addr && a != s.last && s.subnet.Contains(netip.AddrFrom4(a))
}

// lastOf returns the subnet's broadcast address; the zero address for prefixes of 31 and 32 bits, which have none.
func lastOf(p netip.Prefix) (a [4]byte) {
	if p.Bits() >= 31 {
		return a
	}
	v := binary.BigEndian.Uint32(p.Addr().AsSlice()) | ^uint32(0)>>p.Bits()
	binary.BigEndian.PutUint32(a[:], v)
	return a
}

// Next writes the next frame the stack itself has to send into out and returns its length, 0 when there is none: ARP
// packets and parked frames that became sendable. out must hold MTU+14 bytes.
func (s *Stack) Next(out []byte) int {
	if n := s.arps.pop(out); n > 0 {
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
