package gateway

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

func arpFrame(src MAC, sender, target netip.Addr) []byte {
	f := make([]byte, ethLen+arpLen)
	copy(f, everyone[:])
	copy(f[6:], src[:])
	binary.BigEndian.PutUint16(f[12:], typeARP)
	a := f[ethLen:]
	copy(a, arpPrefix[:])
	a[7] = arpRequest
	copy(a[8:], src[:])
	s, d := sender.As4(), target.As4()
	copy(a[14:], s[:])
	copy(a[24:], d[:])
	return f
}

func ndFrame(t testing.TB, src MAC, from, to netip.Addr, kind uint8, target netip.Addr) []byte {
	t.Helper()
	ip := ip6(from, to, layers.IPProtocolICMPv6)
	ip.HopLimit = 255
	icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(kind, 0)}
	_ = icmp.SetNetworkLayerForChecksum(ip)
	body := make([]byte, 20)
	a := target.As16()
	copy(body[4:], a[:])
	return frame(t, eth(MAC{0x33, 0x33, 0, 0, 0, 1}, src, layers.EthernetTypeIPv6), ip, icmp, gopacket.Payload(body))
}

// The gateway answers with its own MAC for addresses behind it, as seen from the port.
func TestTheGatewayAnswersARPForAddressesBehindIt(t *testing.T) {
	for _, target := range []netip.Addr{ipB, ipC, router4, addr("10.3.1.1"), addr("10.2.1.1")} {
		for _, sender := range []netip.Addr{ipA, addr("0.0.0.0"), addr("10.1.4.4")} { // its own, a probe, behind it
			n := newNet(t)
			n.send(arpFrame(macA, sender, target), Offload{})
			out := n.output()
			if len(out) != 1 || out[0].port != n.a {
				t.Fatalf("%s asks for %s: %d answers", sender, target, len(out))
			}
			p := gopacket.NewPacket(out[0].b, layers.LayerTypeEthernet, gopacket.Default)
			a, _ := p.Layer(layers.LayerTypeARP).(*layers.ARP)
			if a == nil || a.Operation != 2 || MAC(a.SourceHwAddress) != gwA || MAC(a.DstHwAddress) != macA ||
				netip.AddrFrom4([4]byte(a.SourceProtAddress)) != target || netip.AddrFrom4([4]byte(a.DstProtAddress)) != sender || MAC(out[0].b[:6]) != macA {
				t.Errorf("%+v", a)
			}
		}
	}
}

// TestLinkLocalFunctions: the gateway answers for link-local addresses that drivers added to
// functions of the tenant, and for no others. A guest that checks whether such an address is free
// gets no answer, since the address may be its own.
func TestLinkLocalFunctions(t *testing.T) {
	n := newNet(t)
	there := addr("fe80::56:4eff:fe02:1")
	n.g.UseFunctions(func(tenant uint32, gid [16]byte) bool { return tenant == 7 && gid == there.As16() })
	for _, c := range []struct {
		from, target string
		answers      int
	}{{"fe80::1", there.String(), 1}, {"fe80::1", "fe80::99", 0}, {"::", there.String(), 0}} {
		n.send(ndFrame(t, macA, addr(c.from), addr("ff02::1:ff02:1"), ndSolicit, addr(c.target)), Offload{})
		out := n.output()
		if len(out) != c.answers {
			t.Fatalf("%s asks for %s: %d answers, want %d", c.from, c.target, len(out), c.answers)
		}
		if len(out) == 1 {
			na, _ := decode(t, out[0].b).Layer(layers.LayerTypeICMPv6NeighborAdvertisement).(*layers.ICMPv6NeighborAdvertisement)
			if na == nil || na.Flags != flagSolicited|flagOverride || MAC(na.Options[0].Data) != gwA {
				t.Errorf("%+v", na)
			}
		}
	}
}

func TestTheGatewayAnswersNeighbourDiscovery(t *testing.T) {
	n := newNet(t)
	ask := func(from, target netip.Addr) *layers.ICMPv6NeighborAdvertisement {
		t.Helper()
		n.send(ndFrame(t, macA, from, addr("ff02::1:ff00:3"), ndSolicit, target), Offload{})
		out := n.output()
		if len(out) != 1 || out[0].port != n.a {
			t.Fatalf("%d answers", len(out))
		}
		p := decode(t, out[0].b)
		na, _ := p.Layer(layers.LayerTypeICMPv6NeighborAdvertisement).(*layers.ICMPv6NeighborAdvertisement)
		if na == nil || len(na.Options) != 1 || MAC(na.Options[0].Data) != gwA || !bytes.Equal(na.TargetAddress, target.AsSlice()) {
			t.Fatalf("%v", p)
		}
		return na
	}
	if na := ask(v6A, v6C); na.Flags != flagSolicited|flagOverride {
		t.Errorf("%+v", na)
	}
	if na := ask(addr("fe80::1"), router6); na.Flags != flagSolicited|flagOverride|flagRouter {
		t.Errorf("%+v", na)
	}
	if na := ask(addr("::"), v6B); na.Flags != flagOverride { // another's duplicate address detection: it is taken
		t.Errorf("%+v", na)
	}

	n.send(ndFrame(t, macA, addr("fe80::1"), addr("ff02::2"), ndRouterSolicit, addr("::")), Offload{})
	out := n.output()
	if len(out) != 1 {
		t.Fatal("no router advertisement")
	}
	ra, _ := decode(t, out[0].b).Layer(layers.LayerTypeICMPv6RouterAdvertisement).(*layers.ICMPv6RouterAdvertisement)
	if ra == nil || ra.RouterLifetime != routerLifetime {
		t.Fatalf("%+v", ra)
	}
	found := map[layers.ICMPv6Opt][]byte{}
	for _, o := range ra.Options {
		found[o.Type] = o.Data
	}
	if mtu := found[layers.ICMPv6OptMTU]; len(mtu) != 6 || binary.BigEndian.Uint32(mtu[2:]) != tunnelMTU {
		t.Errorf("MTU %x", mtu)
	}
	if p := found[layers.ICMPv6OptPrefixInfo]; len(p) != 30 || p[0] != 64 || p[1] != onLinkFlag || p[14] != 0xfd {
		t.Errorf("prefix %x: a guest must not make itself an address that is not its own", p)
	}
	mac := EndpointConfig{Tenant: 7, MAC: macA, Addresses: []netip.Addr{ipA, eui64(netip.MustParsePrefix("fd00::/64"), macA)}, MTU: tunnelMTU, Assign: true}
	configure(n.g, n.a, mac, true)
	n.send(ndFrame(t, macA, addr("fe80::1"), addr("ff02::2"), ndRouterSolicit, addr("::")), Offload{})
	if b := n.output()[0].b; !bytes.Contains(b, []byte{optPrefix, 4, 64, onLinkFlag | autonomousFlag}) {
		t.Errorf("%x", b)
	}
}

// A trusted port's host has its own MAC, which the gateway learns from packets of its addresses,
// not from traffic between other hosts of its network. A host that asks for a neighbour gets
// the answer itself.
func TestTrustedPortHasItsOwnMAC(t *testing.T) {
	n := newNet(t)
	host, other := MAC{2, 0, 0, 0, 0, 0xc}, MAC{2, 0, 0, 0, 0, 0xd}
	c := n.a.EndpointConfig
	c.Trust = true
	configure(n.g, n.a, c, true)
	to := func(at ...netip.Addr) MAC {
		t.Helper()
		from := ipB
		if at = append(at, ipA); at[0].Is6() {
			from = v6B
		}
		n.g.FromPort(second, &PortInput{From: n.b, Frame: udp(t, gwB, macB, from, at[0], 10)}, &n.fwd)
		out := n.output()
		if len(out) == 0 || out[0].port != n.a {
			t.Fatalf("%+v", out)
		}
		return MAC(out[0].b[:6])
	}
	if got := to(); got != macA {
		t.Errorf("before it is known: to %x", got)
	}
	link := addr("fe80::d")
	for name, announce := range map[string][]byte{
		"a packet": udp(t, gwA, host, ipA, ipB, 10), "ARP": arpFrame(host, ipA, ipB), "an announcement": arpFrame(host, ipA, ipA),
		"a solicitation": ndFrame(t, host, v6A, v6B, ndSolicit, v6B),
	} {
		at := ipA
		if name == "a solicitation" {
			at = v6A
		}
		n.send(udp(t, gwA, macA, ipA, ipB, 10), Offload{})
		n.send(announce, Offload{})
		n.output()
		if got := to(at); got != host {
			t.Errorf("after %s: to %x", name, got)
		}
		for _, f := range [][]byte{
			arpFrame(other, addr("10.0.0.77"), ipA), arpFrame(other, addr("0.0.0.0"), ipB), ndFrame(t, other, link, v6B, ndSolicit, v6B),
			udp(t, everyone, other, addr("10.0.0.77"), addr("10.0.0.255"), 10), udp(t, gwA, other, addr("10.0.0.77"), ipB, 10),
		} {
			n.send(f, Offload{})
			for _, o := range n.output() {
				if got := MAC(o.b[:6]); got != other {
					t.Errorf("%x was answered to %x", f, got)
				}
			}
		}
		if got := to(at); got != host {
			t.Errorf("after %s and what others said: to %x", name, got)
		}
	}
}

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

// manyHosts returns the network of newNet with a trusted port a that has further addresses.
func manyHosts(t *testing.T) *net {
	n := newNet(t)
	c := n.a.EndpointConfig
	c.Trust, c.Addresses = true, addrs("10.0.0.1", "10.0.0.11", "10.0.0.12", "fd00::1", "fd00::11")
	configure(n.g, n.a, c, true)
	return n
}

// sent returns the MAC to which frames for an address behind port a go, and the requests to its
// hosts.
func (n *net) sent(to netip.Addr) (mac MAC, asked [][]byte) {
	n.t.Helper()
	from := ipB
	if to.Is6() {
		from = v6B
	}
	n.g.FromPort(second, &PortInput{From: n.b, Frame: udp(n.t, gwB, macB, from, to, 10)}, &n.fwd)
	for _, o := range n.output() {
		if o.port != n.a {
			n.t.Fatalf("a frame for %s", o.port.Name)
		}
		h, why := parseIP(o.b[ethLen:])
		if why == none && h.proto == protoUDP {
			mac = MAC(o.b[:6])
			continue
		}
		asked = append(asked, o.b)
	}
	return mac, asked
}

// TestEachHostGetsItsFrames: each of several hosts behind a port gets the frames for its
// address and for the network behind it, whichever host sent last.
func TestEachHostGetsItsFrames(t *testing.T) {
	n := manyHosts(t)
	first, second, third := MAC{2, 0, 0, 0, 1, 1}, MAC{2, 0, 0, 0, 1, 2}, MAC{2, 0, 0, 0, 1, 3}
	said := []struct {
		at  netip.Addr
		mac MAC
	}{
		{ipA, first}, {addr("10.0.0.11"), second}, {addr("10.0.0.12"), third}, {v6A, second}, {addr("fd00::11"), first},
	}
	for _, last := range said {
		for _, s := range append(said[:len(said):len(said)], last) {
			to := ipB
			if s.at.Is6() {
				to = v6B
			}
			n.send(udp(t, gwA, s.mac, s.at, to, 10), Offload{})
			n.output()
		}
		for _, s := range said {
			if got, asked := n.sent(s.at); got != s.mac || asked != nil {
				t.Errorf("%s: to %x, want %x (the last to speak was %s)", s.at, got, s.mac, last.at)
			}
		}
		if got, _ := n.sent(addr("10.1.0.5")); got != first { // behind 10.0.0.1
			t.Errorf("the network behind %s: to %x", ipA, got)
		}
	}
	ping := frame(t, eth(gwA, second, layers.EthernetTypeIPv4), ip4(addr("10.0.0.11"), router4, layers.IPProtocolICMPv4),
		&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0), Id: 5, Seq: 6})
	n.send(ping, Offload{})
	if out := n.output(); len(out) != 1 || MAC(out[0].b[:6]) != second {
		t.Errorf("a ping of %x is answered by %+v", second, out)
	}
	c := n.a.EndpointConfig
	c.Trust = false
	configure(n.g, n.a, c, true)
	for _, s := range said {
		if got, asked := n.sent(s.at); got != macA || asked != nil {
			t.Errorf("%s of a function that is not trusted any more: to %x", s.at, got)
		}
	}
}

// TestSilentHostsAreAskedFor: the gateway sometimes asks for the MAC of an address from which
// nothing has come, and uses the answer. The request causes no wrong entries in others' caches.
func TestSilentHostsAreAskedFor(t *testing.T) {
	n := manyHosts(t)
	last, silent := MAC{2, 0, 0, 0, 1, 1}, MAC{2, 0, 0, 0, 1, 2}
	for _, to := range addrs("10.0.0.11", "fd00::11") {
		n.send(udp(t, gwA, last, ipA, ipB, 10), Offload{})
		n.output()
		questions := 0
		var question []byte
		for range 1000 {
			mac, asked := n.sent(to)
			if mac != last {
				t.Fatalf("%s: to %x", to, mac)
			}
			if questions += len(asked); len(asked) > 0 {
				question = asked[0]
			}
		}
		if questions != 10 || n.g.Stats().Reasons[CountAsked] == 0 {
			t.Fatalf("%s: asked %d times", to, questions)
		}
		var answer []byte
		if to.Is4() {
			arp, _ := decodeARP(question)
			if arp.target != to || arp.sender != netip.IPv4Unspecified() || MAC(question[:6]) != everyone {
				t.Errorf("asked %x", question)
			}
			answer = arpFrame(silent, to, addr("0.0.0.0"))
			binary.BigEndian.PutUint16(answer[ethLen+6:], arpReply)
		} else {
			p := decode(t, question)
			s, _ := p.Layer(layers.LayerTypeICMPv6NeighborSolicitation).(*layers.ICMPv6NeighborSolicitation)
			if s == nil || !s.TargetAddress.Equal(to.AsSlice()) || !bytes.Equal(question[:6], []byte{0x33, 0x33, 0xff, 0, 0, 0x11}) {
				t.Errorf("asked %x", question)
			}
			answer = ndFrame(t, silent, to, n.a.linkLocal(), ndAdvertise, to)
			answer[ethLen+ipv6Len+4] |= flagSolicited
			finishICMP6(answer[ethLen:])
		}
		drops := n.g.Stats().Reasons[DropARP] + n.g.Stats().Reasons[DropND]
		n.send(answer, Offload{})
		if got, asked := n.sent(to); got != silent || asked != nil {
			t.Errorf("%s has answered: to %x", to, got)
		}
		if got := n.g.Stats().Reasons[DropARP] + n.g.Stats().Reasons[DropND]; got != drops {
			t.Errorf("%s: the answer counts as dropped", to)
		}
	}
	if len(n.a.neighbours) > len(n.a.Addresses) {
		t.Errorf("%d hosts of %d addresses", len(n.a.neighbours), len(n.a.Addresses))
	}
	for i := range 1000 { // what is none of its addresses is not kept
		n.send(udp(t, gwA, MAC{2, 0, 0, 1, byte(i >> 8), byte(i)}, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), ipB, 10), Offload{})
		n.output()
	}
	if len(n.a.neighbours) > len(n.a.Addresses) {
		t.Errorf("%d hosts of %d addresses", len(n.a.neighbours), len(n.a.Addresses))
	}
}

type arpPacket struct{ sender, target netip.Addr }

func decodeARP(f []byte) (p arpPacket, ok bool) {
	b := f[ethLen:]
	if len(b) < arpLen || binary.BigEndian.Uint16(f[12:]) != typeARP {
		return p, false
	}
	return arpPacket{netip.AddrFrom4([4]byte(b[14:18])), netip.AddrFrom4([4]byte(b[24:28]))}, true
}

// TestRouterAdvertisementFitsTheMinimumMTU: a router advertisement contains as many subnets as fit
// a packet of the minimum MTU together with all name servers.
func TestRouterAdvertisementFitsTheMinimumMTU(t *testing.T) {
	n := newNet(t)
	tenant := TenantConfig{Tenant: 7, DNS: addrs("fd00::53", "fd00::54", "fd00::55", "fd00::56", "fd00::57")}
	for i := range 50 {
		tenant.Subnets = append(tenant.Subnets, netip.MustParsePrefix(fmt.Sprintf("fd00:%x::/64", i)))
	}
	n.g.routes.SetTenant(tenant)
	n.send(ndFrame(t, macA, addr("fe80::1"), addr("ff02::2"), ndRouterSolicit, addr("::")), Offload{})
	out := n.output()
	if len(out) != 1 || len(out[0].b) > replySize {
		t.Fatalf("%d frames", len(out))
	}
	ra, _ := decode(t, out[0].b).Layer(layers.LayerTypeICMPv6RouterAdvertisement).(*layers.ICMPv6RouterAdvertisement)
	subnets, servers := 0, 0
	for _, o := range ra.Options {
		switch o.Type {
		case layers.ICMPv6OptPrefixInfo:
			subnets++
		case optDNS:
			servers = (len(o.Data) - 6) / 16
		}
	}
	if subnets != 35 || servers != maxDNS {
		t.Errorf("%d subnets and %d servers, want 35 and %d", subnets, servers, maxDNS)
	}
	if answers := n.g.Stats().Reasons[CountND]; answers != 1 {
		t.Errorf("%d solicitations are counted as answered, want 1", answers)
	}
}

// TestAGuestIsToldOfItsRouterAgain: long before the router's lifetime is over, and when what it was
// told has changed.
func TestAGuestIsToldOfItsRouterAgain(t *testing.T) {
	n := newNet(t)
	told := func(now int64) (times int) {
		t.Helper()
		n.g.Cast()
		n.g.FromPort(now, &PortInput{From: n.a, Frame: udp(t, gwA, macA, v6A, v6B, 10)}, &n.fwd)
		for _, o := range n.output() {
			if o.port == n.a && decode(t, o.b).Layer(layers.LayerTypeICMPv6RouterAdvertisement) != nil {
				times++
			}
		}
		return times
	}
	times, now := 0, int64(second)
	for ; now < routerLifetime*second; now += 60 * second {
		times += told(now)
	}
	if want := int(routerLifetime * second / advertiseAgain); times < want-1 || times > want {
		t.Errorf("told %d times in the lifetime of a router, want %d", times, want)
	}
	is := *n.a.network.config.Load()
	is.DNS = []netip.Addr{addr("fd00::53")}
	n.g.routes.SetTenant(is)
	if first, second := told(now), told(now+1); first != 1 || second != 0 {
		t.Errorf("told %d times and %d times of a change", first, second)
	}
}
