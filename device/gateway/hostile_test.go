package gateway

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/gopacket/gopacket/layers"
)

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

// No checksum may be written over checked fields: addresses, extension headers, next headers.
func TestChecksumOnlyInUpperLayer(t *testing.T) {
	extended := udp(t, gwA, macA, v6A, v6C, 100)
	extended[20] = protoDstOpts
	clear(extended[54:62])
	extended[54], extended[56], extended[57] = protoUDP, 1, 4
	for _, tc := range []struct {
		name string
		f    []byte
		l4   int
	}{
		{"IPv4", udp(t, gwA, macA, ipA, ipC, 100), ipv4Len},
		{"IPv6", udp(t, gwA, macA, v6A, v6C, 100), ipv6Len},
		{"IPv6 with an extension", extended, ipv6Len + 8},
		{"IPv6 to a port of this NIC", udp(t, gwA, macA, v6A, v6B, 100), ipv6Len},
	} {
		for start := range len(tc.f) + 3 {
			for _, at := range []int{0, 1, 2, 6, 16, 0xfffe} {
				n := newNet(t)
				off := Offload{NeedsCsum: true, CsumStart: uint16(start), CsumOffset: uint16(at)}
				was := tc.f[ethLen : ethLen+tc.l4]
				packets := n.send(bytes.Clone(tc.f), off)
				for _, o := range n.output() { // its kernel completes the checksum
					if int(o.off.CsumStart) < ethLen+tc.l4 {
						t.Fatalf("%s: checksum from %d on, at +%d, reached a port", tc.name, start, at)
					}
					packets = append(packets, o.b[ethLen:])
				}
				want := start >= ethLen+tc.l4 && start+at+2 <= len(tc.f)
				if len(packets) == 1 != want || !want && n.a.Drops[DropOffload] != 1 {
					t.Fatalf("%s: checksum from %d on, at +%d: %d packets", tc.name, start, at, len(packets))
				}
				if want && !bytes.Equal(packets[0][:tc.l4], was) {
					t.Fatalf("%s: checksum from %d on, at +%d: headers %x became %x", tc.name, start, at, was, packets[0][:tc.l4])
				}
			}
		}
	}
}

// A frame that makes this code panic leaves nothing behind but a count.
func TestSurvivesPanic(t *testing.T) {
	n := newNet(t)
	var told []any
	n.g.Panicked = func(v any, _ []byte) { told = append(told, v) }
	n.g.FromTunnel(n.g.Tunnels.To(2, 7), udp(t, gwA, macA, ipC, ipA, 100), 0)
	n.send(arpFrame(macA, ipA, ipC), Offload{})

	network := n.a.network
	n.a.network = nil // whatever needs it fails
	for _, f := range [][]byte{udp(t, gwA, macA, ipA, ipC, 100), dhcpFrame(t, macA, layers.DHCPMsgTypeDiscover, ipA), arpFrame(macA, ipA, ipB)} {
		if p := n.send(f, Offload{}); p != nil {
			t.Errorf("%x went on", p)
		}
	}
	n.a.network = network
	n.g.FromTunnel(nil, udp(t, gwA, macA, v6C, v6A, 100), 0)

	if c := n.g.Stats().Reasons[DropPanic]; c != 4 || n.a.Drops[DropPanic] != 3 || len(told) != 4 {
		t.Errorf("%d counted, %d at the port, %d told: %v", c, n.a.Drops[DropPanic], len(told), told)
	}
	if out := n.output(); len(out) != 2 {
		t.Errorf("%d frames for ports, want the two from before", len(out))
	}
	if p := n.send(udp(t, gwA, macA, ipA, ipC, 100), Offload{}); len(p) != 1 {
		t.Error("the port does not work any more")
	}
}
