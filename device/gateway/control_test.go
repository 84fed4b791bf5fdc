package gateway

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket/layers"
)

// discovery returns a neighbour discovery message from port a's guest, with n bytes of ICMPv6.
func discovery(hops, kind, code uint8, from, to netip.Addr, n int) []byte {
	b := make([]byte, ipv6Len+n)
	putIPv6(b, protoICMP6, hops, from, to, n)
	if n == 0 {
		return framed(b)
	}
	m := b[ipv6Len:]
	m[0], m[1] = kind, code
	if n > 8 {
		copy(m[8:], v6C.AsSlice())
	}
	finishICMP6(b)
	return framed(b)
}

// TestNeighbourDiscoveryIsChecked: a message from beyond the link, or one that is too short, has a
// code or a wrong checksum, is not answered (RFC 4861 §7.1). The gateway does not handle messages
// of other types.
func TestNeighbourDiscoveryIsChecked(t *testing.T) {
	link, all := addr("fe80::1"), addr("ff02::2")
	corrupt := discovery(ndHops, ndSolicit, 0, v6A, v6C, ndLen)
	corrupt[len(corrupt)-1] ^= 1
	for name, tc := range map[string]struct {
		f       []byte
		answers int
		why     Reason
	}{
		"solicitation":                  {discovery(ndHops, ndSolicit, 0, v6A, v6C, ndLen), 1, none},
		"a byte less":                   {discovery(ndHops, ndSolicit, 0, v6A, v6C, ndLen-1), 0, DropND},
		"from beyond the link":          {discovery(ndHops-1, ndSolicit, 0, v6A, v6C, ndLen), 0, DropND},
		"with a code":                   {discovery(ndHops, ndSolicit, 1, v6A, v6C, ndLen), 0, DropND},
		"wrong checksum":                {corrupt, 0, DropND},
		"router solicitation":           {discovery(ndHops, ndRouterSolicit, 0, link, all, 8), 1, none},
		"a byte less of that":           {discovery(ndHops, ndRouterSolicit, 0, link, all, 7), 0, DropND},
		"that from beyond the link":     {discovery(ndHops-1, ndRouterSolicit, 0, link, all, 8), 0, DropND},
		"an advertisement":              {discovery(ndHops, ndAdvertise, 0, v6A, v6C, ndLen), 0, DropND},
		"a redirect":                    {discovery(ndHops, ndRedirect, 0, v6A, v6C, ndLen), 0, DropND},
		"the type in front, to a group": {discovery(ndHops, ndRouterSolicit-1, 0, v6A, all, ndLen), 0, DropMulticast},
		"the type behind, to a group":   {discovery(ndHops, ndRedirect+1, 0, v6A, all, ndLen), 0, DropMulticast},
	} {
		n := newNet(t)
		if p := n.send(tc.f, Offload{}); p != nil {
			t.Errorf("%s: %d packets for the peer", name, len(p))
		}
		if out := n.output(); len(out) != tc.answers || tc.why != none && n.a.Drops[tc.why] != 1 {
			t.Errorf("%s: %d answers, %v", name, len(out), n.g.Stats().Reasons)
		}
	}
	n := newNet(t)
	if p := n.send(discovery(64, 0, 0, v6A, v6C, 0), Offload{}); len(p) != 1 {
		t.Errorf("ICMPv6 without a message: %d packets for the peer, %v", len(p), n.g.Stats().Reasons)
	}
}

// TestGatewayItself: the gateway answers for its own link-local address, as a router. If the tenant
// has no router, it answers for its address as a DHCP server.
func TestGatewayItself(t *testing.T) {
	n := newNet(t)
	own := n.a.linkLocal()
	n.send(ndFrame(t, macA, v6A, own, ndSolicit, own), Offload{})
	out := n.output()
	if len(out) != 1 {
		t.Fatalf("%d answers, %v", len(out), n.g.Stats().Reasons)
	}
	na, _ := decode(t, out[0].b).Layer(layers.LayerTypeICMPv6NeighborAdvertisement).(*layers.ICMPv6NeighborAdvertisement)
	if na == nil || na.Flags != flagSolicited|flagOverride|flagRouter {
		t.Errorf("%+v", na)
	}
	for _, c := range []struct {
		routers []netip.Addr
		answers int
	}{{addrs("10.0.0.254"), 0}, {nil, 1}} {
		n.g.routes.SetTenant(TenantConfig{Tenant: 7, Routers: c.routers})
		n.send(arpFrame(macA, ipA, anyServer), Offload{})
		if out := n.output(); len(out) != c.answers {
			t.Errorf("with %d routers: %d answers for %s", len(c.routers), len(out), anyServer)
		}
	}
}

// TestPortsOfDHCP: the gateway handles a datagram from a DHCP client's port to a server's port if
// it is addressed to the gateway or broadcast. It handles no other datagram.
func TestPortsOfDHCP(t *testing.T) {
	const open = 9
	datagram := func(to netip.Addr, proto layers.IPProtocol, src, dst uint16, n int) []byte {
		b := make([]byte, ipv4Len+n)
		putIPv4(b, uint8(proto), ipA, to, len(b))
		if n >= 4 {
			binary.BigEndian.PutUint16(b[ipv4Len:], src)
			binary.BigEndian.PutUint16(b[ipv4Len+2:], dst)
		}
		f := framed(b)
		if to == broadcastIP {
			copy(f, everyone[:])
		}
		return f
	}
	udp, tcp := layers.IPProtocolUDP, layers.IPProtocolTCP
	for name, tc := range map[string]struct {
		f   []byte
		why Reason
	}{
		"to all":                   {datagram(broadcastIP, udp, dhcpClient, dhcpServer, 20), DropDHCP},
		"to all, with no message":  {datagram(broadcastIP, udp, dhcpClient, dhcpServer, udpLen), DropDHCP},
		"cut within its header":    {datagram(broadcastIP, udp, dhcpClient, dhcpServer, udpLen-1), DropMulticast},
		"to the gateway":           {datagram(router4, udp, dhcpClient, dhcpServer, 20), DropDHCP},
		"to another server":        {datagram(nobody4, udp, dhcpClient, dhcpServer, 20), DropNoRoute},
		"from another port":        {datagram(broadcastIP, udp, dhcpServer, dhcpServer, 20), DropMulticast},
		"to another port":          {datagram(broadcastIP, udp, dhcpClient, dhcpClient, 20), DropMulticast},
		"TCP":                      {datagram(router4, tcp, dhcpClient, dhcpServer, 20), DropDestination},
		"between two other ports":  {datagram(broadcastIP, udp, open, open, 20), DropMulticast},
		"a fragment to the server": {fragmented(datagram(router4, udp, dhcpClient, dhcpServer, 20)), DropDestination},
	} {
		n := newNet(t)
		n.send(tc.f, Offload{})
		n.output()
		if n.a.Drops[tc.why] != 1 {
			t.Errorf("%s: not dropped as %v but %v", name, tc.why, n.g.Stats().Reasons)
		}
	}
	many := dhcpMessage(t, message(optMessage, 1, dhcpDiscover, optEnd))
	n := newNet(t)
	n.send(many, Offload{GSO: GSOUDP, NeedsCsum: true, Size: 100, CsumStart: ethLen + ipv4Len, CsumOffset: udpCheckAt})
	if out := n.output(); len(out) != 0 || n.a.Drops[DropMulticast] != 1 {
		t.Errorf("one that stands for several: %d answers, %v", len(out), n.g.Stats().Reasons)
	}
}

// fragmented changes the IPv4 packet of a frame into a first fragment.
func fragmented(f []byte) []byte {
	f[ethLen+6] |= 0x20
	finishIPv4(f[ethLen:], ipv4Len)
	return f
}

// TestAdmission: a packet from a port must come from its function, go to one other station, and
// have an address that may leave the link. A port that may send from any address may not send from
// an invalid one.
func TestAdmission(t *testing.T) {
	small := func(dst MAC, from, to netip.Addr) []byte { return udp(t, dst, macA, from, to, 10) }
	group := MAC{1, 0, 0x5e, 1, 2, 3}
	from := func(src MAC) []byte { return udp(t, gwA, src, ipA, ipC, 10) }
	for name, tc := range map[string]struct {
		trust, spoof bool
		f            []byte
		why          Reason
	}{
		"a trusted MAC":                   {true, false, from(MAC{2, 9, 9, 9, 9, 9}), none},
		"any MAC of one that may spoof":   {false, true, from(MAC{2, 9, 9, 9, 9, 9}), none},
		"a group's MAC":                   {true, true, from(MAC{3, 9, 9, 9, 9, 9}), DropSourceMAC},
		"no MAC":                          {true, true, from(MAC{}), DropSourceMAC},
		"the gateway's MAC":               {true, true, from(gwA), DropSourceMAC},
		"to no address":                   {false, false, small(gwA, ipA, addr("0.0.0.0")), DropDestination},
		"to no IPv6 address":              {false, false, small(gwA, v6A, addr("::")), DropDestination},
		"to itself as all do":             {false, false, small(gwA, v6A, addr("::1")), DropDestination},
		"to one, for a group":             {false, false, small(group, ipA, ipC), DropMulticast},
		"to all, for the gateway":         {false, false, small(gwA, ipA, broadcastIP), DropMulticast},
		"to a group, for the gateway":     {false, false, small(gwA, ipA, addr("224.0.0.9")), DropMulticast},
		"from no address":                 {false, true, small(gwA, addr("0.0.0.0"), ipC), DropSourceIP},
		"from a group":                    {false, true, small(gwA, addr("224.0.0.9"), ipC), DropSourceIP},
		"from an IPv6 group":              {false, true, small(gwA, addr("ff02::9"), v6C), DropSourceIP},
		"from itself as all do":           {false, true, small(gwA, addr("127.0.0.1"), ipC), DropSourceIP},
		"from another's address":          {false, true, small(gwA, ipB, ipC), none},
		"from the link":                   {false, true, small(gwA, addr("fe80::9"), v6C), DropLinkLocal},
		"to the link":                     {false, false, small(gwA, v6A, addr("fe80::9")), DropLinkLocal},
		"to IPv4's link":                  {false, false, small(gwA, ipA, addr("169.254.7.7")), DropLinkLocal},
		"from IPv4's link":                {false, false, small(gwA, addr("169.254.7.7"), ipC), DropSourceIP},
		"from IPv4's link, spoofed":       {false, true, small(gwA, addr("169.254.7.7"), ipC), none},
		"nothing behind its type":         {false, false, small(gwA, v6A, v6C)[:ethLen], DropTruncated},
		"nothing behind a type of others": {false, false, append(small(gwA, v6A, v6C)[:12:12], 0x88, 0xcc), DropEtherType},
	} {
		n := newNet(t)
		c := n.a.EndpointConfig
		c.Trust, c.Spoof = tc.trust, tc.spoof
		configure(n.g, n.a, c, true)
		p := n.send(tc.f, Offload{})
		n.output()
		if len(p) != 0 != (tc.why == none) || tc.why != none && n.a.Drops[tc.why] != 1 {
			t.Errorf("%s: %d packets for the peer, %v", name, len(p), n.g.Stats().Reasons)
		}
	}
}

// TestLastHop: a router forwards a packet only if a hop is left after it. Inside a subnet the TTL
// is not changed.
func TestLastHop(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, tc := range []struct {
			onLink     bool
			ttl, after uint8 // 0: it does not arrive
		}{{true, 1, 1}, {true, 2, 2}, {false, 1, 0}, {false, 2, 1}, {false, 3, 2}} {
			n := newNet(t)
			from, to, at := ipA, addr("10.3.1.1"), 8
			if v6 {
				from, to, at = v6A, v6C, 7
			}
			switch {
			case tc.onLink && !v6:
				to = ipC
			case !tc.onLink && v6: // it has moved out of the subnet
				to = addr("fd01::3")
				n.g.routes.Learn(2, []Address{{7, to, 0x020001, 9000}})
			}
			hop := func() []byte {
				f := udp(t, gwA, macA, from, to, 10)
				f[ethLen+at] = tc.ttl
				if !v6 {
					finishIPv4(f[ethLen:], ipv4Len)
				}
				return f
			}
			packets := n.send(hop(), Offload{})
			n.output()
			if n.g.FromFunction(n.a, hop(), &n.fwd) {
				packets = append(packets, n.fwd.Next())
			}
			if (len(packets) == 2) != (tc.after != 0) || tc.after == 0 && n.a.Drops[DropTTL] != 2 {
				t.Fatalf("IPv6 %t, %+v: %d packets, %v", v6, tc, len(packets), n.g.Stats().Reasons)
			}
			for _, p := range packets {
				if h, why := parseIP(p); why != none || h.ttl != tc.after {
					t.Errorf("IPv6 %t, %+v: %v, %d hops left", v6, tc, why, h.ttl)
				}
			}
		}
	}
}

// TestAnswersAlone: a reply of the gateway goes to the port that asked, also when there is no other
// output.
func TestAnswersAlone(t *testing.T) {
	n := newNet(t)
	device := &taking{}
	n.a.Port = device
	if n.g.Waiting() {
		t.Error("output without input")
	}
	n.send(arpFrame(macA, ipA, ipC), Offload{})
	if !n.g.Waiting() {
		t.Error("an answer does not wait")
	}
	took := 0
	n.g.Deliver(func(*PortFrame) { took++ })
	if took != 1 || len(device.frames) != 1 || n.g.Waiting() {
		t.Errorf("%d taken, waiting %t", took, n.g.Waiting())
	}
	n.a.Lost = true
	n.send(arpFrame(macA, ipA, ipC), Offload{})
	n.g.Deliver(func(*PortFrame) { took++ })
	if took != 1 || len(device.frames) != 1 || n.a.Drops[DropPortFull] != 1 {
		t.Errorf("a device that is gone took %d, %d dropped", took-1, n.a.Drops[DropPortFull])
	}
}
