package devicetest

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon/psp"
)

// IPVersions changes a pair's configuration to the given IP versions of
// underlay and tenants.
func IPVersions(outer, inner int) func(i int, c *config.Config) {
	return func(i int, c *config.Config) {
		if outer == 6 {
			c.Uplink.Address = netip.MustParsePrefix(fmt.Sprintf("fd00::%d/64", i+1))
			c.Peers[0].Underlay.AddrPort = netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("fd00::%d", 2-i)), underlay.SealedPort)
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

func Combinations(t *testing.T, f func(t *testing.T, outer, inner int)) {
	for _, outer := range []int{4, 6} {
		for _, inner := range []int{4, 6} {
			t.Run(fmt.Sprintf("v%d in v%d", inner, outer), func(t *testing.T) { f(t, outer, inner) })
		}
	}
}

// CheckSealed decodes a frame with gopacket and checks what carries the PSP
// packet, and that packet's header. It reports whether it is a sealed one.
func CheckSealed(t *testing.T, frame []byte, outer, inner int) bool {
	t.Helper()
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.DecodeOptions{Lazy: false, NoCopy: true})
	udp, ok := p.Layer(layers.LayerTypeUDP).(*layers.UDP)
	if !ok || udp.DstPort != underlay.SealedPort {
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
