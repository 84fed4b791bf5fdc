package underlay

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"github.com/falcon-vnic/vnic/internal/checksum"
)

const (
	arpLen      = 28
	arpFrameLen = ethLen + arpLen
	arpRequest  = 1
	arpReply    = 2
)

// arp is an ARP packet for IPv4 over Ethernet (RFC 826).
type arp struct {
	op                 uint16
	senderMAC          MAC
	senderIP, targetIP [4]byte
	targetMAC          MAC
}

// The fixed part: hardware Ethernet, protocol IPv4, their address lengths.
var arpPrefix = [6]byte{0, 1, 8, 0, 6, 4}

func (a *arp) put(b []byte) {
	_ = b[arpLen-1]
	copy(b, arpPrefix[:])
	binary.BigEndian.PutUint16(b[6:], a.op)
	copy(b[8:], a.senderMAC[:])
	copy(b[14:], a.senderIP[:])
	copy(b[18:], a.targetMAC[:])
	copy(b[24:], a.targetIP[:])
}

func parseARP(b []byte) (a arp, ok bool) {
	if len(b) < arpLen || !bytes.Equal(b[:6], arpPrefix[:]) {
		return a, false
	}
	a = arp{
		op:        binary.BigEndian.Uint16(b[6:]),
		senderMAC: MAC(b[8:14]), senderIP: [4]byte(b[14:18]),
		targetMAC: MAC(b[18:24]), targetIP: [4]byte(b[24:28]),
	}
	return a, a.op == arpRequest || a.op == arpReply
}

func (s *Stack) sendARP(to MAC, a arp) {
	f := s.slot(arpFrameLen)
	if f == nil {
		s.stats[DropQueueFull]++
		return
	}
	putEthernet(f, to, s.mac, typeARP)
	a.put(f[ethLen:])
}

// inputARP learns from an ARP packet, and answers requests for our own address only.
func (s *Stack) inputARP(now int64, b []byte) Verdict {
	a, ok := parseARP(b)
	switch {
	case !ok || !unicast(a.senderMAC):
		return DropARP
	case a.senderIP == s.addr.As4():
		return DropConflict
	}
	forUs := a.op == arpRequest && a.targetIP == s.addr.As4()
	v := ARP
	if a.senderIP != [4]byte{} { // zero: the sender probes for a free address (RFC 5227)
		v = s.learn(now, netip.AddrFrom4(a.senderIP), a.senderMAC, forUs, ARP)
	}
	if forUs && !s.quiet {
		s.sendARP(a.senderMAC, arp{op: arpReply, senderMAC: s.mac, senderIP: s.addr.As4(), targetMAC: a.senderMAC, targetIP: a.senderIP})
	}
	return v
}

// Neighbour discovery: solicitations and advertisements (RFC 4861 §4.3, §4.4); no router messages
// and no redirects.
const (
	ndSolicit   = 135
	ndAdvertise = 136
	ndLen       = 24 // without options
	ndOptLen    = 8  // a link-layer address option for Ethernet
	ndFrameLen  = ethLen + ipv6Len + ndLen + ndOptLen
	ndHopLimit  = 255 // packets from beyond the link have less (RFC 4861 §7.1)

	optSource = 1 // link-layer address of the sender of a solicitation
	optTarget = 2 // link-layer address of the target of an advertisement

	flagSolicited = 0x40
	flagOverride  = 0x20
)

// nd is a neighbour solicitation or advertisement.
type nd struct {
	kind   uint8
	flags  uint8 // of advertisements
	target [16]byte
	mac    MAC // link-layer address option
	hasMAC bool
}

// put writes the ICMPv6 message, with the option, to b and completes its checksum.
func (m *nd) put(b []byte, src, dst [16]byte) {
	b = b[:ndLen+ndOptLen]
	clear(b)
	b[0], b[4] = m.kind, m.flags
	copy(b[8:], m.target[:])
	b[ndLen], b[ndLen+1] = optSource, 1
	if m.kind == ndAdvertise {
		b[ndLen] = optTarget
	}
	copy(b[ndLen+2:], m.mac[:])
	binary.BigEndian.PutUint16(b[2:], ^sum6(b, src, dst))
}

// parseND parses a message and makes the checks of RFC 4861 §7.1.
func parseND(ip *ipv6, b []byte) (m nd, ok bool) {
	if len(b) < ndLen || len(b)%8 != 0 || ip.hopLimit != ndHopLimit || b[1] != 0 || sum6(b, ip.src, ip.dst) != 0xffff {
		return m, false
	}
	m = nd{kind: b[0], target: [16]byte(b[8:24])}
	option := byte(optSource)
	if m.kind == ndAdvertise {
		option, m.flags = optTarget, b[4]
	}
	for o := b[ndLen:]; len(o) > 0; {
		n := int(o[1]) * 8
		if n == 0 || n > len(o) {
			return m, false
		}
		if o[0] == option && n == ndOptLen {
			m.mac, m.hasMAC = MAC(o[2:8]), true
		}
		o = o[n:]
	}
	src, dst := netip.AddrFrom16(ip.src), netip.AddrFrom16(ip.dst)
	switch {
	case !hostAddr6(netip.AddrFrom16(m.target)), m.hasMAC && !unicast(m.mac):
		return m, false
	case m.kind == ndSolicit:
		// Without a source address it probes for a free address and says nothing about its sender.
		return m, hostAddr6(src) || src.IsUnspecified() && !m.hasMAC && ip.dst == solicitedNode(m.target)
	case m.kind == ndAdvertise:
		return m, hostAddr6(src) && (!dst.IsMulticast() || m.flags&flagSolicited == 0)
	}
	return m, false
}

// sum6 returns the ones' complement sum over the pseudo header of RFC 8200 §8.1 and an ICMPv6
// message of even length.
func sum6(b []byte, src, dst [16]byte) uint16 {
	pseudo := [ipv6Len]byte{39: protoICMP6}
	copy(pseudo[:], src[:])
	copy(pseudo[16:], dst[:])
	binary.BigEndian.PutUint32(pseudo[32:], uint32(len(b)))
	return checksum.Fold(uint32(checksum.Sum(pseudo[:])) + uint32(checksum.Sum(b)))
}

// inputND learns from neighbour discovery, and answers solicitations for our own address only.
func (s *Stack) inputND(now int64, ip *ipv6, from MAC, b []byte) Verdict {
	m, ok := parseND(ip, b)
	if !ok {
		return DropND
	}
	src, target := netip.AddrFrom16(ip.src), netip.AddrFrom16(m.target)
	switch {
	case src == s.addr, m.kind == ndAdvertise && target == s.addr:
		return DropConflict
	case m.kind == ndAdvertise:
		return s.advertised(now, target, &m)
	case target != s.addr:
		return ND // for another member of the multicast group
	}
	answer := nd{kind: ndAdvertise, flags: flagOverride, target: s.addr.As16(), mac: s.mac}
	if src.IsUnspecified() { // duplicate address detection: tell all that the address is ours (RFC 4861 §7.2.4)
		if s.quiet {
			return ND
		}
		s.sendND(multicastMAC(allNodes), allNodes, answer)
		return ND
	}
	v := ND
	if m.hasMAC {
		from = m.mac
		v = s.learn(now, src, m.mac, true, ND)
	}
	if s.quiet {
		return v
	}
	answer.flags |= flagSolicited
	s.sendND(from, ip.src, answer)
	return v
}

// advertised updates the entry of an address (RFC 4861 §7.2.5). Advertisements for addresses
// without an entry are ignored: nobody asked for them.
func (s *Stack) advertised(now int64, target netip.Addr, m *nd) Verdict {
	nb := s.neighbours[target]
	switch {
	case nb == nil:
	case nb.state == incomplete && m.hasMAC, m.hasMAC && (m.flags&flagOverride != 0 || m.mac == nb.mac):
		return s.learn(now, target, m.mac, false, ND)
	case nb.state == probing && !m.hasMAC && m.flags&flagSolicited != 0: // a unicast answer need not repeat the address
		return s.learn(now, target, nb.mac, false, ND)
	}
	return ND
}

func (s *Stack) sendND(to MAC, dst [16]byte, m nd) {
	f := s.slot(ndFrameLen)
	if f == nil {
		s.stats[DropQueueFull]++
		return
	}
	putEthernet(f, to, s.mac, typeIPv6)
	ip := ipv6{next: protoICMP6, hopLimit: ndHopLimit, src: s.addr.As16(), dst: dst}
	ip.put(f[ethLen:], ndLen+ndOptLen)
	m.put(f[ethLen+ipv6Len:], ip.src, dst)
}
