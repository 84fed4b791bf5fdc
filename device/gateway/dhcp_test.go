package gateway

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

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

// TestParseDHCP: the parser reads each option of a message and finds its end.
func TestParseDHCP(t *testing.T) {
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

// TestDHCPAnswers: a request to this server, or to any, is answered according to its kind, with the
// client's identifier. A request to another server, and a message that needs no answer, is not
// answered.
func TestDHCPAnswers(t *testing.T) {
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

// TestDHCPTellsFour: an answer has at most four routers and four name servers, and no IPv6 address.
func TestDHCPTellsFour(t *testing.T) {
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
