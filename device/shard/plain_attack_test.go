package shard

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/gateway"
)

// put puts a complete frame of the function's guest into a port.
func (v *virtual) put(side, port int, dst [6]byte, etherType uint16, packet []byte, off gateway.Offload) {
	p := v.portAt(side, port)
	f := append(append(dst[:len(dst):len(dst)], p.MAC[:]...), byte(etherType>>8), byte(etherType))
	v.ports[side] = append(v.ports[side], gateway.PortInput{From: p.Endpoint, Frame: append(f, packet...), Offload: off})
}

// dhcpDiscover returns a packet with a DHCP message of a client with this MAC, whose last option
// claims a length of n bytes.
func dhcpDiscover(mac [6]byte, n uint8) []byte {
	b := make([]byte, 28+240)
	b[0], b[8], b[9] = 0x45, 64, 17
	copy(b[16:], []byte{255, 255, 255, 255})
	m := b[28:]
	m[0], m[1], m[2] = 1, 1, 6
	copy(m[28:], mac[:])
	copy(m[236:], []byte{99, 130, 83, 99})
	b = append(b, 53, 1, 1, 12, n)
	b = append(b, make([]byte, n)...)
	b = append(b, 255)
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	binary.BigEndian.PutUint16(b[20:], 68)
	binary.BigEndian.PutUint16(b[22:], 67)
	binary.BigEndian.PutUint16(b[24:], uint16(len(b)-20))
	devicetest.FinishHeader(b[:20])
	return b
}

// TestAttackDHCP sends DHCP options of all lengths, from a guest of a NIC that others use too.
func TestAttackDHCP(t *testing.T) {
	v := newPortWorld(t, 31)
	all := [6]byte{255, 255, 255, 255, 255, 255}
	for n := range 256 {
		v.put(0, 0, all, 0x0800, dhcpDiscover(v.portAt(0, 0).MAC, uint8(n)), gateway.Offload{})
		if got := v.heard(0); len(got) != 1 {
			t.Errorf("option of %d bytes: %d answers", n, len(got))
		}
	}
	v.say(0, 1, host1, host2, 1000)
	if len(v.heard(1)) != 1 {
		t.Error("another function's traffic does not pass")
	}
}

// TestAttackChecksumOverAddress: a guest requests checksums at any offset, with data chosen such
// that the checksum changes the end of its address to a neighbour's. The peer's guest gets packets
// from the function's own address only.
func TestAttackChecksumOverAddress(t *testing.T) {
	const neighbour = 0x13 // fd00:100::13
	v := newPortWorldWith(t, 32, func(i int, c *config.Config) {
		if i == 0 {
			devicetest.AddPort(c, 1, &config.Port{Name: "vp2", Addresses: devicetest.Addrs("fd00:100::13")})
		}
	})
	v.ports[0] = nil
	own := v.portAt(0, 0)
	src, dst := netip.MustParseAddr("fd00:100::11"), netip.MustParseAddr("fd00:100::21")
	arrived := 0
	for start := 14; start < 14+40+24; start++ {
		for at := range uint16(26) {
			b := make([]byte, 40+24)
			b[0], b[6], b[7] = 0x60, 17, 64
			binary.BigEndian.PutUint16(b[4:], 24)
			s, d := src.As16(), dst.As16()
			copy(b[8:], s[:])
			copy(b[24:], d[:])
			binary.BigEndian.PutUint16(b[44:], 24)
			sum := uint32(0)
			for i := start - 14; i+1 < len(b); i += 2 {
				sum += uint32(binary.BigEndian.Uint16(b[i:]))
			}
			binary.BigEndian.PutUint16(b[62-start%2:], uint16((2*0xffff-neighbour-sum%0xffff)%0xffff))
			v.put(0, 0, own.Gateway, 0x86dd, b, gateway.Offload{NeedsCsum: true, CsumStart: uint16(start), CsumOffset: at})
			for _, f := range v.heard(1) {
				arrived++
				if from := netip.AddrFrom16([16]byte(f[22:38])); from != src {
					t.Errorf("checksum from %d on, at +%d: the peer's guest got a packet from %s", start, at, from)
				}
			}
		}
	}
	if arrived == 0 {
		t.Error("nothing arrived")
	}
}
