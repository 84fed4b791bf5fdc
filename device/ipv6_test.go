package device

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/falcon/psp"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// ipVersions changes a pair's configuration to the given IP versions of
// underlay and tenants.
func ipVersions(outer, inner int) func(i int, c *config.Config) {
	return func(i int, c *config.Config) {
		if outer == 6 {
			c.Uplink.Address = netip.MustParsePrefix(fmt.Sprintf("fd00::%d/64", i+1))
			c.Peers[0].Underlay = netip.MustParseAddr(fmt.Sprintf("fd00::%d", 2-i))
		}
		if inner == 6 {
			for j := range c.Functions[0].VFs {
				if vf := &c.Functions[0].VFs[j]; vf.Address.IsValid() {
					vf.Address = netip.MustParseAddr(fmt.Sprintf("fd01::%d:%d", i+1, vf.VF))
				}
			}
		}
	}
}

func combinations(t *testing.T, f func(t *testing.T, outer, inner int)) {
	for _, outer := range []int{4, 6} {
		for _, inner := range []int{4, 6} {
			t.Run(fmt.Sprintf("v%d in v%d", inner, outer), func(t *testing.T) { f(t, outer, inner) })
		}
	}
}

// checkSealed decodes a frame with gopacket and checks what carries the PSP
// packet, and that packet's header. It reports whether it is a sealed one.
func checkSealed(t *testing.T, frame []byte, outer, inner int) bool {
	t.Helper()
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.DecodeOptions{Lazy: false, NoCopy: true})
	udp, ok := p.Layer(layers.LayerTypeUDP).(*layers.UDP)
	if !ok || udp.DstPort != psp.UDPPort {
		return false
	}
	switch ip := p.NetworkLayer().(type) {
	case *layers.IPv4:
		if outer != 4 || ip.TTL != 255 || ip.Flags != layers.IPv4DontFragment || ip.TOS&3 == 0 || int(ip.Length) != len(udp.Payload)+28 {
			t.Errorf("outer header %+v", ip)
		}
	case *layers.IPv6:
		if outer != 6 || ip.HopLimit != 255 || ip.TrafficClass&3 == 0 || int(ip.Length) != len(udp.Payload)+8 || ip.FlowLabel != uint32(udp.SrcPort) {
			t.Errorf("outer header %+v", ip)
		}
	default:
		t.Errorf("no IP header: %v", p)
	}
	h, n, err := psp.ParseHeader(udp.Payload)
	want := psp.Header{NextHeader: 4, CryptOffset: 8}
	innerLayer := gopacket.Decoder(layers.LayerTypeIPv4)
	if inner == 6 {
		want = psp.Header{NextHeader: 41, CryptOffset: 13}
		innerLayer = layers.LayerTypeIPv6
	}
	if err != nil || h.NextHeader != want.NextHeader || h.CryptOffset != want.CryptOffset || !h.HasVC {
		t.Errorf("PSP header %+v, %v", h, err)
		return true
	}
	in := gopacket.NewPacket(udp.Payload[n:len(udp.Payload)-psp.ICVLen], innerLayer, gopacket.Default)
	switch ip := in.NetworkLayer().(type) { // it is in clear text
	case *layers.IPv4:
		if inner != 4 || ip.Protocol != 252 || ip.SrcIP[0] != 192 {
			t.Errorf("inner header %+v", ip)
		}
	case *layers.IPv6:
		if inner != 6 || ip.NextHeader != 252 || ip.SrcIP[0] != 0xfd || ip.SrcIP[1] != 1 {
			t.Errorf("inner header %+v", ip)
		}
	default:
		t.Errorf("no inner IP header: %v", in)
	}
	return true
}

// TestIPVersions moves data in all four combinations of IP versions outside
// and inside, with a key rotation between, and looks at every frame.
func TestIPVersions(t *testing.T) {
	combinations(t, func(t *testing.T, outer, inner int) {
		v := newVirtualWith(t, 1, wire100us, ipVersions(outer, inner))
		sealed := 0
		v.tap = func(_ int, f []byte) []byte {
			if checkSealed(t, f, outer, inner) {
				sealed++
			}
			return f
		}
		a, b := pair(v)
		if g := a.fn.GID(); (g[10] == 0xff) != (inner == 4) {
			t.Errorf("GID %x", g)
		}
		exchange(t, a, b, 100_000)
		for _, s := range v.shards {
			if err := s.keys.Rotate(v.now); err != nil {
				t.Fatal(err)
			}
		}
		exchange(t, a, b, 100_000)
		noKeyDrops(t, v)
		if sealed < 100 {
			t.Errorf("%d sealed frames", sealed)
		}
		for i, s := range v.shards {
			if n := s.drops[dropNotFalcon] + s.drops[dropWrongAddress]; n != 0 {
				t.Errorf("shard %d: %d dropped", i, n)
			}
		}
	})
}

// TestTransportMode moves data with Falcon directly in PSP, and looks at every
// frame. A NIC that tunnels refuses such packets, and the other way round.
func TestTransportMode(t *testing.T) {
	mode := func(modes [2]string) *virtual {
		return newVirtualWith(t, 1, wire100us, func(i int, c *config.Config) { c.PSP.Mode = modes[i] })
	}
	v := mode([2]string{config.PSPTransport, config.PSPTransport})
	sealed := 0
	v.tap = func(_ int, f []byte) []byte {
		if h, n, err := psp.ParseHeader(f[min(42, len(f)):]); err == nil && len(f) > 60 {
			if h.NextHeader != psp.NextHeaderFalcon || h.HasVC || h.CryptOffset != 1 || f[42+n] != 0x10 {
				t.Fatalf("%+v: %x", h, f[:80])
			}
			sealed++
		}
		return f
	}
	a, b := pair(v)
	var pcap bytes.Buffer
	c, err := capture.New(&pcap)
	if err != nil {
		t.Fatal(err)
	}
	v.shards[1].setSinks([]sink{newSink(c, config.CaptureClear)})
	exchange(t, a, b, 100_000)
	for _, s := range v.shards {
		if err := s.keys.Rotate(v.now); err != nil {
			t.Fatal(err)
		}
	}
	exchange(t, a, b, 100_000)
	noKeyDrops(t, v)
	_ = c.Close()
	if sealed < 100 || pcap.Len() < 200_000 {
		t.Errorf("%d sealed frames, %d bytes captured", sealed, pcap.Len())
	}
	for i := range 2 {
		modes := [2]string{config.PSPTunnel, config.PSPTunnel}
		modes[i] = config.PSPTransport
		v := mode(modes)
		a, b := pair(v)
		a.send(abi.OpWrite, 0, 64, b, 5)
		v.idle(1e9)
		if v.shards[1].drops[dropNotFalcon] == 0 {
			t.Errorf("%v: nothing was refused", modes)
		}
		if v.shards[1].peers[1].otherMode == 0 { // F57
			t.Errorf("%v: nobody says why", modes)
		}
	}
}

// TestHops: the hop count comes from the hop limit as from the TTL.
func TestHops(t *testing.T) {
	for limit, want := range map[uint8]uint8{
		255: 0, 254: 1, 240: 15, 200: 15, // from 255
		128: 0, 125: 3, 65: 15, 64: 0, 60: 4, 1: 15, // peers that begin with 128 or 64 (F16)
	} {
		if got := hops(limit); got != want {
			t.Errorf("hop limit %d: %d hops, want %d", limit, got, want)
		}
	}
}

// TestMixedInnerVersions: a function of one IP version cannot connect to one of
// the other; the request fails and nothing stays.
func TestMixedInnerVersions(t *testing.T) {
	v := newVirtualWith(t, 1, wire100us, func(i int, c *config.Config) { ipVersions(4, 4+2*i)(i, c) })
	a, b := drivers(v)
	b.must(abi.AdminOpCMListen, &abi.CMListen{Service: 5})
	a.must(abi.AdminOpCMConnect, &abi.CMConnect{QPN: a.qpn, Service: 5, DGID: b.fn.GID()})
	b.command(abi.AdminOpCMAccept, &abi.CMAccept{CMID: b.event(abi.EventConnectRequest).Number, QPN: b.qpn})
	a.event(abi.EventDisconnected)
	settled(t, v)
}

// TestIPv6OverTAPs runs every operation over TAPs in the three combinations
// with IPv6. gopacket is the judge of what crosses the bridge, the kernel of
// neighbour discovery: it resolves a NIC's address, and finds it taken.
func TestIPv6OverTAPs(t *testing.T) {
	combinations(t, func(t *testing.T, outer, inner int) {
		if outer == 4 && inner == 4 {
			return // TestOperationsOverTAPs
		}
		netns.Run(t, func() { testIPv6OverTAPs(t, outer, inner) })
	})
}

func testIPv6OverTAPs(t *testing.T, outer, inner int) {
	if err := tap.NewBridge("vbr0", testMTU); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "vbr0.pcapng")
	var sniffer *capture.Sniffer
	w := newWorldWith(t, func(name string) (tap.Port, error) {
		p, err := tap.Open(tap.Config{Name: name, MTU: testMTU, Bridge: "vbr0", Backend: tap.BackendNative})
		if err == nil && sniffer == nil {
			sniffer, err = capture.Sniff(name, path)
		}
		return p, err
	}, ipVersions(outer, inner))
	testOperations(t, w)
	if outer == 6 {
		kernelResolves(t, w)
	}
	counts, err := sniffer.Close()
	if err != nil || counts.PSP == 0 || counts.Other != 0 || outer == 6 && (counts.ND == 0 || counts.ARP != 0) || outer == 4 && counts.ARP == 0 {
		t.Errorf("%+v, %v", counts, err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewNgReader(f, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	sealed := 0
	for {
		frame, _, err := r.ReadPacketData()
		if err != nil {
			break
		}
		if bytes.Contains(frame, []byte("to the NIC")) {
			continue // the kernel's
		}
		if checkSealed(t, frame, outer, inner) {
			sealed++
		}
	}
	if sealed < 100 {
		t.Errorf("%d sealed frames", sealed)
	}
}

// kernelResolves gives the bridge an address, lets the kernel find NIC 1, and
// then lets it try to take NIC 1's address.
func kernelResolves(t *testing.T, w *world) {
	link, err := netlink.LinkByName("vbr0")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/vbr0/disable_ipv6", []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	add := func(cidr string, flags int) {
		t.Helper()
		a, err := netlink.ParseAddr(cidr)
		if err != nil {
			t.Fatal(err)
		}
		a.Flags = flags
		if err := netlink.AddrAdd(link, a); err != nil {
			t.Fatal(err)
		}
	}
	add("fd00::ff/64", unix.IFA_F_NODAD)
	conn, err := net.Dial("udp6", "[fd00::1]:1000")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	mac := w.nics[0].cfg.Uplink.MAC
	w.until("the kernel knows the NIC", func() bool {
		_, _ = conn.Write([]byte("to the NIC"))
		list, err := netlink.NeighList(link.Attrs().Index, netlink.FAMILY_V6)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range list {
			if n.IP.Equal(net.ParseIP("fd00::1")) && bytes.Equal(n.HardwareAddr, mac[:]) {
				return true
			}
		}
		return false
	})
	add("fd00::1/64", 0)
	w.until("the kernel finds the address taken", func() bool {
		list, err := netlink.AddrList(link, netlink.FAMILY_V6)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range list {
			if a.IP.Equal(net.ParseIP("fd00::1")) && a.Flags&unix.IFA_F_DADFAILED != 0 {
				return true
			}
		}
		return false
	})
}
