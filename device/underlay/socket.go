package underlay

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Socket is the Layer of a NIC on the host's UDP sockets (package udp). Its frames have the outer
// headers too, behind an empty Ethernet header as on a loopback device: in them the socket says
// where a datagram came from and how it was marked, and learns where one goes. The host's kernel
// resolves neighbours and routes.
type Socket struct {
	own      netip.AddrPort
	mtu      int
	headroom int
	stats    Stats
}

var _ Layer = (*Socket)(nil)

// NewSocket returns the layer of a NIC that receives at own. mtu is the longest IP packet.
func NewSocket(own netip.AddrPort, mtu int) (*Socket, error) {
	a := own.Addr()
	if !own.IsValid() || own.Port() == 0 || a.Zone() != "" || a.IsMulticast() {
		return nil, fmt.Errorf("underlay address %v cannot be a host's address with a port", own)
	}
	if mtu < MinMTU(a) || mtu > maxPackets {
		return nil, fmt.Errorf("underlay MTU %d must be %d..%d", mtu, MinMTU(a), maxPackets)
	}
	return &Socket{own: own, mtu: mtu, headroom: HeaderLen(a) + ethLen}, nil
}

// Headroom implements Layer.
func (s *Socket) Headroom() int { return s.headroom }

// Stats implements Layer.
func (s *Socket) Stats() *Stats { return &s.stats }

// CountSegment implements Layer.
func (s *Socket) CountSegment() { s.stats[Deliver]++ }

// Input implements Layer.
func (s *Socket) Input(_ int64, frame []byte) (d Datagram, v Verdict) {
	d, v = s.input(frame)
	s.stats[v]++
	return d, v
}

// input reads the headers. They may be damaged where an impairment of the uplink flips bits.
func (s *Socket) input(frame []byte) (d Datagram, v Verdict) {
	if len(frame) < ethLen {
		return d, DropRunt
	}
	var protocol uint8
	var udp []byte
	switch etherType := binary.BigEndian.Uint16(frame[12:]); {
	case etherType == typeIPv4 && s.own.Addr().Is4():
		ip, payload, err := parseIPv4(frame[ethLen:])
		if err != nil {
			return d, DropIPHeader
		}
		protocol, udp = ip.protocol, payload
		d = Datagram{Src: netip.AddrFrom4(ip.src), TTL: ip.ttl, ECN: ip.tos & ecnMask}
	case etherType == typeIPv6 && s.own.Addr().Is6():
		ip, payload, err := parseIPv6(frame[ethLen:])
		if err != nil {
			return d, DropIPHeader
		}
		protocol, udp = ip.next, payload
		d = Datagram{Src: netip.AddrFrom16(ip.src), TTL: ip.hopLimit, ECN: ip.class & ecnMask}
	default:
		return d, DropEtherType
	}
	if protocol != protoUDP {
		return d, DropProtocol
	}
	d.CE = d.ECN == ecnCE
	return inputUDP(d, udp, s.own.Port())
}

// Peek implements Layer.
func (s *Socket) Peek(frame []byte) (sealed []byte, ok bool) {
	if len(frame) < s.headroom {
		return nil, false
	}
	return frame[s.headroom:], true
}

// Output implements Layer.
func (s *Socket) Output(_ int64, to netip.AddrPort, path uint16, class uint8, frame []byte, n int) (total int, ok bool) {
	v := s.output(to, path, class, frame, n)
	s.stats[v]++
	return s.headroom + n, v == Sent
}

func (s *Socket) output(to netip.AddrPort, path uint16, class uint8, frame []byte, n int) Verdict {
	switch {
	case n < 0 || len(frame) < s.headroom+n:
		return DropBuffer
	case s.headroom+n-ethLen > s.mtu:
		return DropTooLong
	case !to.IsValid() || to.Addr().IsUnspecified() || to.Addr().Is4() != s.own.Addr().Is4() || to == s.own:
		return DropRoute
	}
	o := Outer{Src: netip.AddrPortFrom(s.own.Addr(), path), Dst: to, Class: class, TTL: initialTTL}
	o.PutFrame(frame, n)
	return Sent
}

// PutFrame writes the headers of a socket's frame, in front of a payload of n bytes.
func (o *Outer) PutFrame(frame []byte, n int) {
	putEthernet(frame, MAC{}, MAC{}, o.put(frame, n))
}

// The kernel knows its neighbours.

// Authenticated implements Layer.
func (s *Socket) Authenticated(int64, netip.Addr, MAC) {}

// Next implements Layer.
func (s *Socket) Next([]byte) int { return 0 }

// Resolve implements Layer.
func (s *Socket) Resolve(int64, netip.AddrPort) {}

// Overhear implements Layer.
func (s *Socket) Overhear(int64, []byte) {}

// Deadline implements Layer.
func (s *Socket) Deadline() int64 { return never }

// Advance implements Layer.
func (s *Socket) Advance(int64) {}
