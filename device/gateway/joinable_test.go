package gateway

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/gopacket/gopacket/layers"
)

// fixSum puts the right checksum of the upper layer into a packet.
func fixSum(b []byte, h *header, at int) {
	l4 := b[h.l4:h.total]
	l4[at], l4[at+1] = 0, 0
	binary.BigEndian.PutUint16(l4[at:], ^fold(h.pseudo(b, len(l4))+uint32(sum(l4))))
}

// TestJoinable: packets are joined if segmentation could have produced them: plain headers, a
// payload, valid checksums. Anything else in a header prevents joining.
func TestJoinable(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		from, to := ipA, ipC
		if v6 {
			from, to = v6A, v6C
		}
		n := newNet(t)
		packet := func(proto layers.IPProtocol) ([]byte, header) {
			f, off := whole(t, from, to, proto, 0, 100, 100, 0)
			b := bytes.Clone(n.send(f, off)[0])
			h, why := parseIP(b)
			if why != none {
				t.Fatal(why)
			}
			return b, h
		}
		at := func(off int, v byte) func(b, l4 []byte) { return func(_, l4 []byte) { l4[off] = v } }
		for _, c := range []struct {
			name    string
			proto   layers.IPProtocol
			edit    func(b, l4 []byte)
			headers int // of the upper layer; 0: the packet stays alone
		}{
			{"TCP", layers.IPProtocolTCP, nil, 20},
			{"TCP with PSH", layers.IPProtocolTCP, at(13, tcpACK|tcpPSH), 20},
			{"TCP with options", layers.IPProtocolTCP, at(12, 6<<4), 24},
			{"TCP with a byte of payload", layers.IPProtocolTCP, func(_, l4 []byte) { l4[12] = 15 << 4 }, 60},
			{"a header that is too short", layers.IPProtocolTCP, at(12, 4<<4), 0},
			{"a reserved bit", layers.IPProtocolTCP, at(12, 5<<4|1), 0},
			{"no ACK", layers.IPProtocolTCP, at(13, 0), 0},
			{"PSH alone", layers.IPProtocolTCP, at(13, tcpPSH), 0},
			{"SYN", layers.IPProtocolTCP, at(13, tcpACK|2), 0},
			{"FIN", layers.IPProtocolTCP, at(13, tcpACK|1), 0},
			{"RST", layers.IPProtocolTCP, at(13, tcpACK|4), 0},
			{"URG", layers.IPProtocolTCP, at(13, tcpACK|32), 0},
			{"ECE", layers.IPProtocolTCP, at(13, tcpACK|64), 0},
			{"CWR", layers.IPProtocolTCP, at(13, tcpACK|128), 0},
			{"UDP", layers.IPProtocolUDP, nil, 8},
			{"UDP that is shorter than its packet", layers.IPProtocolUDP, at(5, 107), 0},
			{"UDP that is longer than its packet", layers.IPProtocolUDP, at(5, 109), 0},
		} {
			b, h := packet(c.proto)
			check := tcpCheckAt
			if c.proto == layers.IPProtocolUDP {
				check = udpCheckAt
			}
			if c.edit != nil {
				c.edit(b, b[h.l4:h.total])
				fixSum(b, &h, check)
			}
			headers, ok := joinable(n.a, b, &h)
			if ok != (c.headers != 0) || ok && headers != h.l4+c.headers {
				t.Errorf("IPv6 %t, %s: %t, %d bytes of headers", v6, c.name, ok, headers)
			}
			b[h.l4+30] ^= 1
			if _, ok := joinable(n.a, b, &h); ok {
				t.Errorf("IPv6 %t, %s: joined with a wrong checksum", v6, c.name)
			}
		}
		// Without a payload, or with it cut off within the header, there is nothing to join.
		for _, proto := range []layers.IPProtocol{layers.IPProtocolTCP, layers.IPProtocolUDP} {
			b, h := packet(proto)
			least := map[layers.IPProtocol]int{layers.IPProtocolTCP: 20, layers.IPProtocolUDP: 8}[proto]
			for length, want := range map[int]bool{least - 1: false, least: false, least + 1: true} {
				b, h := bytes.Clone(b[:h.l4+length]), h
				h.total = len(b)
				if proto == layers.IPProtocolUDP && length >= 8 {
					binary.BigEndian.PutUint16(b[h.l4+4:], uint16(length))
				}
				if length >= least {
					fixSum(b, &h, map[layers.IPProtocol]int{layers.IPProtocolTCP: tcpCheckAt, layers.IPProtocolUDP: udpCheckAt}[proto])
				}
				if _, ok := joinable(n.a, b, &h); ok != want {
					t.Errorf("IPv6 %t, %v of %d bytes: %t", v6, proto, length, ok)
				}
			}
			h.fragment = true
			if _, ok := joinable(n.a, b, &h); ok {
				t.Errorf("IPv6 %t, %v: a fragment is joined", v6, proto)
			}
		}
		b, h := packet(layers.IPProtocolUDP)
		n.a.USO = false
		if _, ok := joinable(n.a, b, &h); ok {
			t.Error("UDP is joined for a port that takes none")
		}
		n.a.USO = true
		l4 := b[h.l4:]
		l4[udpCheckAt], l4[udpCheckAt+1] = 0, 0
		if _, ok := joinable(n.a, b, &h); ok {
			t.Error("UDP without a checksum is joined")
		}
		h.proto = 132
		if _, ok := joinable(n.a, b, &h); ok {
			t.Error("SCTP is joined")
		}
	}
}
