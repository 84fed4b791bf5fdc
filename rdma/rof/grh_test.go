package rof

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// TestGRH compares the headers before datagrams with bytes made by hand: IPv6's, and IPv4's with
// its checksum behind 20 bytes of nothing. Their lengths are those of RoCEv2's packets, with the
// pad.
func TestGRH(t *testing.T) {
	v4 := func(a, b, c, d byte) [16]byte { return [16]byte{10: 0xff, 11: 0xff, 12: a, 13: b, 14: c, 15: d} }
	for name, c := range map[string]struct {
		from, to [16]byte
		class    uint8
		hops     uint8
		n        int
		want     string
		sl       uint8
	}{
		"IPv6": {
			[16]byte{0xfd, 15: 2},
			[16]byte{0xfd, 15: 3},
			0x24, 9, 100,
			"62400000 0084 11 09 fd000000000000000000000000000002 fd000000000000000000000000000003", abi.SLRoCEIPv6,
		},
		"IPv6, to be padded": {
			[16]byte{0xfd, 15: 2},
			[16]byte{0xfd, 15: 3},
			0, 255, 101,
			"60000000 0088 11 ff fd000000000000000000000000000002 fd000000000000000000000000000003", abi.SLRoCEIPv6,
		},
		"IPv6, nothing": {
			[16]byte{0xfd, 15: 2},
			[16]byte{0xfd, 15: 3},
			0xff, 0, 0,
			"6ff00000 0020 11 00 fd000000000000000000000000000002 fd000000000000000000000000000003", abi.SLRoCEIPv6,
		},
		"IPv4": { // the example of RFC 1071's arithmetic: 4524+0098+4000+0911+0a00+0002+0a00+0003 = a2d2
			v4(10, 0, 0, 2), v4(10, 0, 0, 3), 0x24, 9, 97,
			strings.Repeat("00", 20) + "4524 0098 0000 4000 0911 5d2d 0a000002 0a000003", abi.SLRoCEIPv4,
		},
		"IPv4, a sum of ones": { // 4500+0034+4000+0011+7aba+0000+0000+0000 = ffff
			v4(0x7a, 0xba, 0, 0), v4(0, 0, 0, 0), 0, 0, 0,
			strings.Repeat("00", 20) + "4500 0034 0000 4000 0011 0000 7aba0000 00000000", abi.SLRoCEIPv4,
		},
		"IPv4, a carry of the carry": { // 4500+0034+4000+0011+7aba+ffff+0001+0000 = 1ffff, 10000, 1
			v4(0x7a, 0xba, 0xff, 0xff), v4(0, 1, 0, 0), 0, 0, 0,
			strings.Repeat("00", 20) + "4500 0034 0000 4000 0011 fffe 7abaffff 00010000", abi.SLRoCEIPv4,
		},
	} {
		want, err := hex.DecodeString(strings.ReplaceAll(c.want, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		l := &Link{to: LinkKey{GID: c.from, TrafficClass: c.class, HopLimit: c.hops}, own: c.to}
		var b [verbs.GRHSize]byte
		for i := range b {
			b[i] = 0xee // of the last datagram
		}
		if l.putGRH(&b, c.n); !bytes.Equal(b[:], want) || l.packetType() != c.sl {
			t.Errorf("%s: % x, want % x; packet type %d", name, b, want, l.packetType())
		}
	}
}
