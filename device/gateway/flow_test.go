package gateway

import (
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// TestFlowsSpread: flows that differ in a port or an address use all paths.
func TestFlowsSpread(t *testing.T) {
	const paths = 8
	spread := func(name string, make func(i int) []byte) {
		t.Helper()
		var used [paths]int
		for i := range 64 * paths {
			b := make(i)[ethLen:]
			h, drop := parseIP(b)
			if drop != 0 {
				t.Fatalf("%s: packet %d is dropped for %v", name, i, drop)
			}
			used[h.flow(b)%paths]++
		}
		for path, n := range used {
			if n < 16 || n > 256 {
				t.Errorf("%s: %d of %d flows on path %d", name, n, 64*paths, path)
			}
		}
	}
	spread("IPv4 addresses", func(i int) []byte {
		return udp(t, gwA, macA, ipA, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 10)
	})
	spread("IPv6 addresses", func(i int) []byte {
		to := v6C.As16()
		to[14], to[15] = byte(i>>8), byte(i)
		return udp(t, gwA, macA, v6A, netip.AddrFrom16(to), 10)
	})
	for name, to := range map[string]netip.Addr{"IPv4 ports": ipC, "IPv6 ports": v6C} {
		from, at := ipA, ethLen+20
		if to.Is6() {
			from, at = v6A, ethLen+40
		}
		spread(name, func(i int) []byte {
			b := udp(t, gwA, macA, from, to, 10)
			b[at], b[at+1] = byte(i>>8), byte(i)
			return b
		})
	}
}

// TestFlowStays: packets of one flow take one path. This includes ICMP messages between two
// addresses, which have no ports, and fragments of a datagram, of which only the first has ports.
func TestFlowStays(t *testing.T) {
	flow := func(b []byte) uint32 {
		t.Helper()
		h, drop := parseIP(b)
		if drop != 0 {
			t.Fatal(drop)
		}
		return h.flow(b)
	}
	ping := func(seq uint16) []byte {
		icmp := &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0), Id: 5, Seq: seq}
		return frame(t, eth(gwA, macA, layers.EthernetTypeIPv4), ip4(ipA, ipC, layers.IPProtocolICMPv4), icmp)[ethLen:]
	}
	if a, b := flow(ping(1)), flow(ping(2)); a != b {
		t.Errorf("two echo requests: flows %#x and %#x", a, b)
	}
	fragment := func(offset uint16, more layers.IPv4Flag) []byte {
		ip := ip4(ipA, ipC, layers.IPProtocolUDP)
		ip.Flags, ip.FragOffset = more, offset
		return frame(t, eth(gwA, macA, layers.EthernetTypeIPv4), ip, gopacket.Payload{byte(offset), 1, 2, 3, 4, 5, 6, 7})[ethLen:]
	}
	if a, b := flow(fragment(0, layers.IPv4MoreFragments)), flow(fragment(1, 0)); a != b {
		t.Errorf("two fragments: flows %#x and %#x", a, b)
	}
}

// TestErrorsRefill: ICMP errors stop after a burst, then one is allowed every errorEvery. A quiet
// hour saves up no more than a burst.
func TestErrorsRefill(t *testing.T) {
	var b bucket
	now := int64(second)
	taken := func() (n int) {
		for b.take(now) {
			n++
		}
		return n
	}
	for _, tc := range []struct{ pause, want int64 }{
		{0, errorBurst},
		{errorEvery - 1, 0},
		{1, 1},
		{3*errorEvery + errorEvery/2, 3},
		{errorEvery / 2, 1},
		{errorEvery * errorBurst * 100, errorBurst},
		{errorEvery, 1},
	} {
		now += tc.pause
		if n := taken(); int64(n) != tc.want {
			t.Errorf("%d after %d ns, want %d", n, tc.pause, tc.want)
		}
	}
}
