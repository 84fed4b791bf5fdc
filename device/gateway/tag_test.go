package gateway

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/gopacket/gopacket/layers"
)

// tagged returns a frame with a VLAN tag.
func tagged(f []byte, tci uint16) []byte {
	t := append(bytes.Clone(f[:12]), 0x81, 0)
	return append(binary.BigEndian.AppendUint16(t, tci), f[12:]...)
}

// TestPriorityTags: a frame with a priority tag is handled like one without; a frame of a VLAN is
// dropped.
func TestPriorityTags(t *testing.T) {
	big, off := whole(t, ipA, ipC, layers.IPProtocolTCP, 0, 5000, 1000, 0)
	for name, tc := range map[string]struct {
		frame []byte
		off   Offload
	}{
		"to a peer":             {udp(t, gwA, macA, ipA, ipC, 100), Offload{}},
		"to a port":             {udp(t, gwA, macA, v6A, v6B, 100), Offload{}},
		"ARP":                   {arpFrame(macA, ipA, ipB), Offload{}},
		"that stands for many":  {big, off},
		"a checksum left open":  {udp(t, gwA, macA, ipA, ipC, 100), Offload{NeedsCsum: true, CsumStart: 34, CsumOffset: 6}},
		"a checksum in nothing": {udp(t, gwA, macA, ipA, ipC, 100), Offload{NeedsCsum: true, CsumStart: 2, CsumOffset: 6}},
	} {
		plain := newNet(t)
		want := plain.send(bytes.Clone(tc.frame), tc.off)
		ports := plain.output()
		for _, tci := range []uint16{0, 0xe000, 0x1000} { // priorities, and DEI
			n := newNet(t)
			o := tc.off
			if o.NeedsCsum {
				o.CsumStart += 4
			}
			got := n.send(tagged(tc.frame, tci), o)
			if len(got) != len(want) || !bytes.Equal(bytes.Join(got, nil), bytes.Join(want, nil)) {
				t.Errorf("%s, tag %#x: %d packets, want %d", name, tci, len(got), len(want))
			}
			out := n.output()
			if len(out) != len(ports) {
				t.Fatalf("%s, tag %#x: %d frames, want %d", name, tci, len(out), len(ports))
			}
			for i := range out {
				if !bytes.Equal(out[i].b, ports[i].b) || out[i].off != ports[i].off {
					t.Errorf("%s, tag %#x: frame %x, want %x", name, tci, out[i].b, ports[i].b)
				}
			}
		}
		n := newNet(t)
		if got := n.send(tagged(tc.frame, 1), tc.off); got != nil || len(n.output()) != 0 || n.g.Stats().Reasons[DropEtherType] != 1 {
			t.Errorf("%s of VLAN 1 went on", name)
		}
	}
	n := newNet(t)
	for i := range ethLen + 8 { // every prefix
		n.send(tagged(udp(t, gwA, macA, ipA, ipC, 100), 0)[:i], Offload{})
	}
	if s := n.g.Stats(); s.Reasons[DropTruncated]+s.Reasons[DropEtherType] != ethLen+8 {
		t.Errorf("%v", s.Reasons)
	}
}
