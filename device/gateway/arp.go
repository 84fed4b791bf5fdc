package gateway

import (
	"bytes"
	"encoding/binary"
	"net/netip"
)

const (
	arpLen     = 28
	arpRequest = 1
	arpReply   = 2
)

var arpPrefix = [6]byte{0, 1, 8, 0, 6, 4} // Ethernet, IPv4, their address lengths

// arp answers requests for addresses that are reached through the gateway, with the gateway's MAC
// (RFC 826, RFC 1027). It does not answer for the port's own addresses: an answer to a probe for
// one (RFC 5227) would make the guest give the address up.
func (s *station) arp(p *Endpoint, src MAC, b []byte) Reason {
	if len(b) < arpLen || !bytes.Equal(b[:6], arpPrefix[:]) || MAC(b[8:14]) != src {
		return DropARP
	}
	sender, target := netip.AddrFrom4([4]byte(b[14:18])), netip.AddrFrom4([4]byte(b[24:28]))
	p.heard(sender, src)
	switch op := binary.BigEndian.Uint16(b[6:]); {
	case op == arpReply && p.many() && p.own(sender): // an answer to station.ask
		return none
	case op != arpRequest, sender == target, p.own(target):
		return DropARP // other replies, and the guest's announcements and probes of its own addresses
	case !sender.IsUnspecified() && !p.maySend(sender):
		return DropSourceIP
	case !p.answersFor(target):
		return DropARP
	}
	f := s.reply(p, src, typeARP, ethLen+arpLen)
	if f == nil {
		return none
	}
	a := f[ethLen:]
	copy(a, arpPrefix[:])
	binary.BigEndian.PutUint16(a[6:], arpReply)
	copy(a[8:], p.Gateway[:])
	copy(a[14:], b[24:28])
	copy(a[18:], src[:])
	copy(a[24:], b[14:18])
	s.stats.Reasons[CountARP]++
	return none
}
