package gateway

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket/layers"
)

// manyStations returns the network of newNet with a trusted port a that has further addresses.
func manyStations(t *testing.T) *net {
	n := newNet(t)
	c := n.a.EndpointConfig
	c.Trust, c.Addresses = true, addrs("10.0.0.1", "10.0.0.11", "10.0.0.12", "fd00::1", "fd00::11")
	configure(n.g, n.a, c, true)
	return n
}

// sent returns the MAC to which frames for an address behind port a go, and the requests to its
// stations.
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

// TestStationsHaveTheirFrames: each of several stations behind a port gets the frames for its
// address and for the network behind it, whichever station sent last.
func TestStationsHaveTheirFrames(t *testing.T) {
	n := manyStations(t)
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

// TestSilentStationsAreAsked: the gateway sometimes asks for the MAC of an address from which
// nothing has come, and uses the answer. The request causes no wrong entries in others' caches.
func TestSilentStationsAreAsked(t *testing.T) {
	n := manyStations(t)
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
	if len(n.a.stations) > len(n.a.Addresses) {
		t.Errorf("%d stations of %d addresses", len(n.a.stations), len(n.a.Addresses))
	}
	for i := range 1000 { // what is none of its addresses is not kept
		n.send(udp(t, gwA, MAC{2, 0, 0, 1, byte(i >> 8), byte(i)}, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), ipB, 10), Offload{})
		n.output()
	}
	if len(n.a.stations) > len(n.a.Addresses) {
		t.Errorf("%d stations of %d addresses", len(n.a.stations), len(n.a.Addresses))
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
