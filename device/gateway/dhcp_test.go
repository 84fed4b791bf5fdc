package gateway

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

func dhcpFrame(t testing.TB, client MAC, kind layers.DHCPMsgType, wants netip.Addr) []byte {
	t.Helper()
	d := &layers.DHCPv4{
		Operation: layers.DHCPOpRequest, HardwareType: layers.LinkTypeEthernet, HardwareLen: 6, Xid: 0x01020304, ClientHWAddr: client[:],
		ClientIP: []byte{0, 0, 0, 0}, YourClientIP: []byte{0, 0, 0, 0}, NextServerIP: []byte{0, 0, 0, 0}, RelayAgentIP: []byte{0, 0, 0, 0},
		Options: layers.DHCPOptions{layers.NewDHCPOption(layers.DHCPOptMessageType, []byte{byte(kind)})},
	}
	if wants.IsValid() {
		d.Options = append(d.Options, layers.NewDHCPOption(layers.DHCPOptRequestIP, wants.AsSlice()))
	}
	u := &layers.UDP{SrcPort: dhcpClient, DstPort: dhcpServer}
	ip := ip4(addr("0.0.0.0"), addr("255.255.255.255"), layers.IPProtocolUDP)
	_ = u.SetNetworkLayerForChecksum(ip)
	return frame(t, eth(everyone, macA, layers.EthernetTypeIPv4), ip, u, d)
}

func TestAGuestGetsItsAddressByDHCP(t *testing.T) {
	n := newNet(t)
	answer := func(f []byte) *layers.DHCPv4 {
		t.Helper()
		n.send(f, Offload{})
		out := n.output()
		if len(out) != 1 || out[0].port != n.a {
			t.Fatalf("%d answers", len(out))
		}
		d, _ := decode(t, out[0].b).Layer(layers.LayerTypeDHCPv4).(*layers.DHCPv4)
		if d == nil || d.Xid != 0x01020304 || d.Operation != layers.DHCPOpReply || MAC(d.ClientHWAddr) != macA {
			t.Fatalf("%+v", d)
		}
		return d
	}
	ask := func(kind layers.DHCPMsgType, wants netip.Addr) *layers.DHCPv4 {
		t.Helper()
		return answer(dhcpFrame(t, macA, kind, wants))
	}
	option := func(d *layers.DHCPv4, o layers.DHCPOpt) []byte {
		for _, x := range d.Options {
			if x.Type == o {
				return x.Data
			}
		}
		return nil
	}
	offer := ask(layers.DHCPMsgTypeDiscover, netip.Addr{})
	if option(offer, layers.DHCPOptMessageType)[0] != byte(layers.DHCPMsgTypeOffer) || !offer.YourClientIP.Equal(ipA.AsSlice()) {
		t.Errorf("%+v", offer)
	}
	for o, want := range map[layers.DHCPOpt][]byte{
		layers.DHCPOptSubnetMask: {255, 255, 255, 0}, layers.DHCPOptRouter: router4.AsSlice(), layers.DHCPOptDNS: {10, 0, 0, 53},
		layers.DHCPOptInterfaceMTU: {tunnelMTU >> 8, tunnelMTU & 0xff}, layers.DHCPOptServerID: router4.AsSlice(),
	} {
		if got := option(offer, o); !bytes.Equal(got, want) {
			t.Errorf("option %v: %v, want %v", o, got, want)
		}
	}
	if d := ask(layers.DHCPMsgTypeRequest, ipA); option(d, layers.DHCPOptMessageType)[0] != byte(layers.DHCPMsgTypeAck) {
		t.Errorf("%+v", d)
	}
	if d := ask(layers.DHCPMsgTypeRequest, ipB); option(d, layers.DHCPOptMessageType)[0] != byte(layers.DHCPMsgTypeNak) || option(d, layers.DHCPOptSubnetMask) != nil {
		t.Errorf("%+v", d)
	}
	renewal := dhcpFrame(t, macA, layers.DHCPMsgTypeRequest, netip.Addr{}) // to the server itself, of the address it has
	copy(renewal, gwA[:])
	copy(renewal[ethLen+12:], ipA.AsSlice())
	copy(renewal[ethLen+16:], router4.AsSlice())
	finishIPv4(renewal[ethLen:], ipv4Len)
	m := renewal[ethLen+ipv4Len+udpLen:]
	copy(m[12:], ipA.AsSlice())
	finishL4(renewal[ethLen:], &header{proto: protoUDP, src: ipA, dst: router4, l4: ipv4Len, total: ipv4Len + udpLen + len(m)}, 6)
	if d := answer(renewal); option(d, layers.DHCPOptMessageType)[0] != byte(layers.DHCPMsgTypeAck) || !d.YourClientIP.Equal(ipA.AsSlice()) {
		t.Errorf("%+v", d)
	}
	n.a.Assign = false
	if n.send(dhcpFrame(t, macA, layers.DHCPMsgTypeDiscover, netip.Addr{}), Offload{}); len(n.output()) != 0 {
		t.Error("answered though it assigns nothing")
	}
}

// message returns a DHCP client's message with options as they are on the wire.
func message(options ...byte) []byte {
	m := make([]byte, dhcpMinimum)
	m[0], m[1], m[2] = bootRequest, 1, 6 // Ethernet, whose addresses have 6 bytes
	copy(m[28:], macA[:])
	copy(m[bootFixed:], dhcpMagic)
	return append(m, options...)
}

// dhcpMessage returns a frame with a message from a client's port to a server's port.
func dhcpMessage(t testing.TB, m []byte) []byte {
	t.Helper()
	u, ip := &layers.UDP{SrcPort: dhcpClient, DstPort: dhcpServer}, ip4(addr("0.0.0.0"), broadcastIP, layers.IPProtocolUDP)
	_ = u.SetNetworkLayerForChecksum(ip)
	f := frame(t, eth(everyone, macA, layers.EthernetTypeIPv4), ip, u, gopacket.Payload(m))
	return f[:ethLen+ipv4Len+udpLen+len(m)] // without padding
}

// TestOptionsOfADHCPMessageAreRead: the parser reads each option of a message and finds its end.
func TestOptionsOfADHCPMessageAreRead(t *testing.T) {
	with := func(change func(m []byte)) []byte {
		m := message(optMessage, 1, dhcpDiscover, optEnd)
		change(m)
		return m
	}
	for name, tc := range map[string]struct {
		m    []byte
		want request // of kind 0: it is refused
	}{
		"discover":                {message(optMessage, 1, dhcpDiscover, optEnd), request{kind: dhcpDiscover}},
		"without an end":          {message(optMessage, 1, dhcpDiscover), request{kind: dhcpDiscover}},
		"no options":              {message(), request{}},
		"an end alone":            {message(optEnd), request{}},
		"behind the end":          {message(optEnd, optMessage, 1, dhcpDiscover), request{}},
		"padding in front":        {message(0, 0, optMessage, 1, dhcpRequest, optEnd), request{kind: dhcpRequest}},
		"a code alone at the end": {message(optMessage, 1, dhcpDiscover, 12), request{}},
		"an empty option there":   {message(optMessage, 1, dhcpDiscover, 80, 0), request{kind: dhcpDiscover}},
		"a value that ends there": {message(optMessage, 1, dhcpDiscover, 12, 2, 'a', 'b'), request{kind: dhcpDiscover}},
		"one that does not":       {message(optMessage, 1, dhcpDiscover, 12, 3, 'a', 'b'), request{}},
		"a kind of two bytes":     {message(optMessage, 2, dhcpDiscover, 0, optEnd), request{}},
		"a kind of none":          {message(optMessage, 0, optEnd), request{}},
		"another of one byte":     {message(optMessage, 1, dhcpRequest, 116, 1, 9, optEnd), request{kind: dhcpRequest}},
		"the address wanted":      {message(optMessage, 1, 3, optRequested, 4, 10, 0, 0, 1), request{kind: dhcpRequest, requested: ipA}},
		"three bytes of it":       {message(optMessage, 1, 3, optRequested, 3, 10, 0, 0), request{kind: dhcpRequest}},
		"the server":              {message(optMessage, 1, 3, optServer, 4, 10, 0, 0, 254), request{kind: dhcpRequest, server: router4}},
		"five bytes of it":        {message(optMessage, 1, 3, optServer, 5, 10, 0, 0, 254, 0), request{kind: dhcpRequest}},
		"a lease of four bytes":   {message(optMessage, 1, 3, optLease, 4, 0, 0, 1, 0), request{kind: dhcpRequest}},
		"the address it has":      {with(func(m []byte) { copy(m[12:], ipA.AsSlice()) }), request{kind: dhcpDiscover, ciaddr: ipA}},
		"the client":              {message(optMessage, 1, 3, optClientID, 3, 1, 2, 3), request{kind: dhcpRequest, client: span{dhcpMinimum + 5, dhcpMinimum + 8}}},
		"an empty client":         {message(optMessage, 1, 3, optClientID, 0), request{kind: dhcpRequest}},
		"a reply":                 {with(func(m []byte) { m[0] = bootReply }), request{}},
		"another network":         {with(func(m []byte) { m[1] = 6 }), request{}},
		"longer addresses":        {with(func(m []byte) { m[2] = 8 }), request{}},
		"BOOTP":                   {with(func(m []byte) { m[bootFixed+3]++ }), request{}},
		"shorter than any":        {message()[:dhcpMinimum-1], request{}},
		"shorter than its magic":  {message()[:bootFixed], request{}},
	} {
		r, ok := parseDHCP(tc.m)
		if ok != (tc.want.kind != 0) || ok && r != tc.want {
			t.Errorf("%s: %t, %+v, want %+v", name, ok, r, tc.want)
		}
	}
}

// TestDHCPRequestsToAnotherServerGetNoAnswer: a request to this server, or to any, is answered according to its kind, with the
// client's identifier. A request to another server, and a message that needs no answer, is not
// answered.
func TestDHCPRequestsToAnotherServerGetNoAnswer(t *testing.T) {
	router := router4.As4()
	serverIs := func(last byte) []byte {
		asks := []byte{optMessage, 1, dhcpRequest, optRequested, 4, 10, 0, 0, 1, optServer, 4}
		return append(append(asks, router[:3]...), last, optEnd)
	}
	const decline, release = 4, 7
	for name, tc := range map[string]struct {
		options []byte
		answer  byte // 0: none
	}{
		"discover":                {[]byte{optMessage, 1, dhcpDiscover, optEnd}, dhcpOffer},
		"a request to this one":   {serverIs(router[3]), dhcpAck},
		"a request to another":    {serverIs(router[3] - 1), 0},
		"a request for no more":   {[]byte{optMessage, 1, dhcpRequest, optEnd}, dhcpNak},
		"what it needs to know":   {[]byte{optMessage, 1, dhcpInform, optEnd}, dhcpAck},
		"that it does not use it": {[]byte{optMessage, 1, decline, optEnd}, 0},
		"that it has done":        {[]byte{optMessage, 1, release, optEnd}, 0},
	} {
		n := newNet(t)
		client := append([]byte{optClientID, 7, 1}, macA[:]...)
		n.send(dhcpMessage(t, message(append(client, tc.options...)...)), Offload{})
		out := n.output()
		if tc.answer == 0 {
			if len(out) != 0 || n.a.Drops[DropDHCP] != 1 {
				t.Errorf("%s: %d answers, %v", name, len(out), n.a.Drops)
			}
			continue
		}
		if len(out) != 1 {
			t.Fatalf("%s: %d answers", name, len(out))
		}
		m := out[0].b[ethLen+ipv4Len+udpLen:]
		options := m[dhcpMinimum:]
		if d, _ := decode(t, out[0].b).Layer(layers.LayerTypeDHCPv4).(*layers.DHCPv4); d == nil || !slices.ContainsFunc(d.Options, func(o layers.DHCPOption) bool {
			return o.Type == layers.DHCPOptClientID && bytes.Equal(o.Data, client[2:])
		}) {
			t.Errorf("%s: the client's identifier is not in the answer: %v", name, d)
		}
		lease := bytes.Contains(options, []byte{optLease, 4, 0, 1, 0x51, 0x80}) // a day
		mine := netip.AddrFrom4([4]byte(m[16:20]))
		has := tc.answer == dhcpOffer || name == "a request to this one"
		if options[2] != tc.answer || lease != has || (mine == ipA) != has {
			t.Errorf("%s: kind %d, address %s, lease %t", name, options[2], mine, lease)
		}
		if tc.answer == dhcpNak && len(m) != 300 {
			t.Errorf("%s: %d bytes, BOOTP's least are 300", name, len(m))
		}
	}
	n := newNet(t)
	c := n.a.EndpointConfig
	c.Addresses = addrs("fd00::1")
	configure(n.g, n.a, c, true)
	n.send(dhcpMessage(t, message(optMessage, 1, dhcpDiscover)), Offload{})
	if out := n.output(); len(out) != 0 || n.a.Drops[DropDHCP] != 1 {
		t.Errorf("a port without an IPv4 address: %d answers", len(out))
	}
}

// TestDHCPOffersAtMostFourRouters: an answer has at most four routers and four name servers, and no
// IPv6 address.
func TestDHCPOffersAtMostFourRouters(t *testing.T) {
	for count, told := range map[int]int{0: 0, 1: 1, 4: 4, 5: 4} {
		n := newNet(t)
		c := TenantConfig{Tenant: 7, Routers: addrs("fd00::fe"), DNS: addrs("fd00::53")}
		var want []byte
		for i := range count {
			c.DNS = append(c.DNS, netip.AddrFrom4([4]byte{10, 0, 0, byte(50 + i)}))
			if i < told {
				want = append(want, 10, 0, 0, byte(50+i))
			}
		}
		n.g.routes.SetTenant(c)
		n.send(dhcpMessage(t, message(optMessage, 1, dhcpDiscover)), Offload{})
		out := n.output()
		if len(out) != 1 {
			t.Fatalf("%d servers: %d answers", count, len(out))
		}
		d, _ := decode(t, out[0].b).Layer(layers.LayerTypeDHCPv4).(*layers.DHCPv4)
		var servers []byte
		for _, o := range d.Options {
			switch o.Type {
			case layers.DHCPOptDNS:
				servers = o.Data
			case layers.DHCPOptRouter:
				t.Errorf("routers %v", o.Data)
			}
		}
		if !bytes.Equal(servers, want) {
			t.Errorf("%d servers: told %v, want %v", count, servers, want)
		}
	}
}

// TestDHCPForTheGatewayIsAnswered: the gateway handles a datagram from a DHCP client's port to a
// server's port if it is addressed to the gateway or broadcast. It handles no other datagram.
func TestDHCPForTheGatewayIsAnswered(t *testing.T) {
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

// longOption adds an option of n bytes at the end of a DHCP frame, filled as far as the frame goes.
func longOption(f []byte, n uint8) []byte {
	const ip, udp = ethLen, ethLen + ipv4Len
	end := bytes.LastIndexByte(f, optEnd)
	f = append(f[:end:end], 12, n) // 12: host name
	f = append(f, make([]byte, n)...)
	f = append(f, optEnd)
	binary.BigEndian.PutUint16(f[ip+2:], uint16(len(f)-ip))
	binary.BigEndian.PutUint16(f[udp+4:], uint16(len(f)-udp))
	finishIPv4(f[ip:], ipv4Len)
	h := header{proto: protoUDP, l4: ipv4Len, total: len(f) - ip}
	finishL4(f[ip:], &h, udpCheckAt)
	return f
}

// An option of any length is read, or ends the message, and never panics.
func TestDHCPOptionOfAnyLength(t *testing.T) {
	for n := range 256 {
		w := newNet(t)
		f := longOption(dhcpFrame(t, macA, layers.DHCPMsgTypeDiscover, ipA), uint8(n))
		w.send(bytes.Clone(f), Offload{})
		if out := w.output(); len(out) != 1 || w.g.Stats().Reasons[CountDHCP] != 1 {
			t.Errorf("option of %d bytes: %d answers", n, len(out))
		}
		for cut := 1; cut <= n+1; cut++ { // the option says more than there is
			if r, ok := parseDHCP(f[42 : len(f)-cut]); ok && cut > 1 {
				t.Fatalf("option of %d bytes, %d cut off: %+v", n, cut-1, r)
			}
		}
	}
}
