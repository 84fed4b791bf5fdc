package gateway

import (
	"bytes"
	"testing"

	"github.com/gopacket/gopacket/layers"
)

// samples are frames of all kinds.
func samples(t testing.TB) [][]byte {
	tcp4, _ := whole(t, ipA, ipC, layers.IPProtocolTCP, 12, 4000, 1400, 0)
	tcp6, _ := whole(t, v6A, v6C, layers.IPProtocolTCP, 4, 4000, 1400, 0)
	ext := udp(t, gwA, macA, v6A, v6C, 100)
	ext[20] = protoHopByHop
	ext[54], ext[55] = protoDstOpts, 0
	ext[62], ext[63] = protoUDP, 1
	return [][]byte{
		tcp4, tcp6, ext, udp(t, gwA, macA, ipA, ipC, 30), udp(t, gwA, macA, v6A, v6B, 30), arpFrame(macA, ipA, ipC),
		ndFrame(t, macA, v6A, v6C, ndSolicit, v6C), ndFrame(t, macA, addr("fe80::1"), addr("ff02::2"), ndRouterSolicit, addr("::")),
		dhcpFrame(t, macA, layers.DHCPMsgTypeRequest, ipA),
	}
}

// Checks every prefix of every frame, from a port and from a tunnel: nothing panics, and a
// truncated packet is dropped.
func TestATruncatedFrameIsDropped(t *testing.T) {
	for _, f := range samples(t) {
		h, _ := parseIP(f[ethLen:])
		for n := range min(len(f), 200) {
			w := newNet(t)
			if p := w.send(bytes.Clone(f[:n]), Offload{}); p != nil {
				t.Fatalf("%d of %d bytes went on", n, len(f))
			}
			if n >= ethLen {
				w.g.FromTunnel(w.g.Tunnels.To(2, 7), bytes.Clone(f[:n]), 0)
			}
			if n >= ethLen && n < ethLen+h.total {
				if _, why := parseIP(f[ethLen:n]); h.total != 0 && why == none {
					t.Fatalf("parsed %d of %d bytes", n, len(f))
				}
			}
			w.output()
		}
	}
}

// For any input of a guest: what leaves for a tunnel is a whole packet of the function, never
// Falcon, that fits; what leaves for a port is for a port of the tenant.
func FuzzFromPort(f *testing.F) {
	for _, s := range samples(f) {
		f.Add(s, uint8(0), false, uint16(0), uint16(0), uint16(0))
		f.Add(s, uint8(GSOTCP4), true, uint16(1000), uint16(34), uint16(16))
		f.Add(s, uint8(GSOTCP6), true, uint16(500), uint16(54), uint16(16))
		f.Add(s, uint8(GSOUDP), true, uint16(100), uint16(34), uint16(6))
	}
	n := newNet(f) // making one takes longer than a frame
	one, two := newNet(f), newNet(f)
	f.Fuzz(func(t *testing.T, b []byte, gso uint8, needs bool, size, start, at uint16) {
		if len(b) > 1<<12 {
			return
		}
		n.t, one.t, two.t = t, t, t
		if len(b) >= ethLen && len(b)%2 == 0 { // else the MACs alone are random
			copy(b, gwA[:])
			copy(b[6:], macA[:])
		}
		off := Offload{GSO: gso, NeedsCsum: needs, Size: size, CsumStart: start, CsumOffset: at}
		if len(b) > minHead { // it may have been copied as far as anything
			same(t, one, two, b, minHead+int(start^size)%(len(b)-minHead), off)
		}
		for _, p := range n.send(b, off) {
			h, why := parseIP(p)
			if why != none || h.total != len(p) || len(p) > tunnelMTU || h.proto == protoFalcon || !n.a.maySend(h.src) || h.dst.IsMulticast() {
				t.Fatalf("%v %+v %x", why, h, p)
			}
			if to, ok := n.a.network.find(h.dst); !ok || to.Kind != ToPeer || to.Peer != n.fwd.Tunnel.Peer {
				t.Fatalf("to %s through the tunnel to host %d: %x", h.dst, n.fwd.Tunnel.Peer, p)
			}
			if off.gso() != GSONone && !h.l4Valid(p) {
				t.Fatalf("a segment's checksum is wrong: %x", p)
			}
		}
		for _, o := range n.output() {
			if o.port != n.a && o.port != n.b || len(o.b) < ethLen || MAC(o.b[6:12]) != o.port.Gateway {
				t.Fatalf("%x at %s", o.b, o.port.Name)
			}
			if h, why := parseIP(o.b[ethLen:]); o.port == n.b && (why != none || !n.a.maySend(h.src) || o.off.NeedsCsum && int(o.off.CsumStart) < ethLen+h.l4) {
				t.Fatalf("%v: %x at %s", why, o.b, o.port.Name)
			}
		}
	})
}

// For any input of a peer: output is for a port of the tenant, and from an address of the peer.
func FuzzFromTunnel(f *testing.F) {
	for _, s := range samples(f) {
		f.Add(s[ethLen:], uint8(0))
	}
	f.Add(udp(f, macA, gwA, ipC, ipA, 30)[ethLen:], uint8(3))
	f.Add(udp(f, macA, gwA, v6C, v6A, 30)[ethLen:], uint8(1))
	n := newNet(f)
	f.Fuzz(func(t *testing.T, b []byte, outer uint8) {
		if len(b) > 9000 {
			return
		}
		n.t = t
		tunnel := n.g.Tunnels.To(2, 7)
		for range 3 { // the same again may join
			n.g.FromTunnel(tunnel, append(make([]byte, ethLen), b...), outer&ecnMask)
		}
		for _, o := range n.output() {
			h, why := parseIP(o.b[ethLen:])
			if why != none || h.total != len(o.b)-ethLen || h.proto == protoFalcon || !o.port.own(h.dst) && !h.dst.Is4() {
				t.Fatalf("%v %+v", why, h)
			}
			if to, ok := n.a.network.find(h.src); !ok || to.Kind != ToPeer || to.Peer != tunnel.Peer {
				t.Fatalf("from %s", h.src)
			}
		}
	})
}

func FuzzParseIP(f *testing.F) {
	for _, s := range samples(f) {
		f.Add(s[ethLen:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, why := parseIP(b)
		if why == none && (h.total > len(b) || h.l4 > h.total || h.l4 < ipv4Len) {
			t.Fatalf("%+v", h)
		}
		if why == none {
			h.flow(b)
			h.nested(b)
			h.l4Valid(b)
		}
	})
}

func FuzzParseDHCP(f *testing.F) {
	f.Add(dhcpFrame(f, macA, layers.DHCPMsgTypeRequest, ipA)[42:])
	f.Add(longOption(dhcpFrame(f, macA, layers.DHCPMsgTypeRequest, ipA), 255)[42:])
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, ok := parseDHCP(b); ok && (len(b) < dhcpMinimum || r.kind == 0) {
			t.Fatalf("%+v", r)
		}
	})
}
