package security

import (
	"net/netip"
	"testing"

	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon/psp"
)

// TestFalconIsOpenedUnchanged: checks where Falcon packets are in either mode, and that they are
// opened unchanged.
func TestFalconIsOpenedUnchanged(t *testing.T) {
	const n = 100
	for _, tc := range []struct {
		encap    Encap
		v6       bool
		overhead int
	}{{Tunnel{}, false, 24 + 20 + 16}, {Tunnel{}, true, 24 + 40 + 16}, {Transport{}, false, 16 + 16}, {Transport{}, true, 16 + 16}} {
		k, m := newKeys(t, 0, nil)
		k.cfg.Transport = tc.encap == Transport{}
		u := Use{Peer: 2, Tenant: 7}
		tx, err := NewTxSAs(tc.encap, m).Give(u, issue(t, k, u))
		if err != nil {
			t.Fatal(err)
		}
		r, _ := k.Receive(u, 1)
		x := NewSession(r, tx, tc.v6)
		inner := underlay.Inner{Src: addr(1, tc.v6), Dst: addr(2, tc.v6)}
		b := make([]byte, MaxHeadroom+n+Trailer)
		b[MaxHeadroom], b[MaxHeadroom+3] = 1<<4, 0x42 // Falcon's version; connection 0x42
		whole := x.Wrap(&inner, b, MaxHeadroom, n)
		if len(whole) != inner.Len()+n {
			t.Errorf("%d bytes are wrapped", len(whole))
		}
		start, sealed, err := x.Seal(1e9, b, MaxHeadroom, n)
		if err != nil || sealed != n+tc.overhead || tc.encap.Overhead(tc.v6) != tc.overhead {
			t.Errorf("%T, IPv6 %v: %d bytes around it, says %d, want %d: %v", tc.encap, tc.v6, sealed-n, tc.encap.Overhead(tc.v6), tc.overhead, err)
		}
		b = b[start : start+sealed]
		if cid, ok := tc.encap.PeekCID(b); !ok || cid != 0x42 {
			t.Errorf("%T, IPv6 %v: CID %#x", tc.encap, tc.v6, cid)
		}
		o, why := k.Opener(0).Open(b)
		if why != None {
			t.Fatal(why)
		}
		p := o.Packet
		if len(p.Falcon) != n || p.CID != 0x42 || (p.Whole == nil) != (tc.encap == Transport{}) || p.Whole != nil && p.Inner.Dst != inner.Dst {
			t.Errorf("%T, IPv6 %v: %+v", tc.encap, tc.v6, p)
		}
		other := Encap(Tunnel{})
		if tc.encap == other {
			other = Transport{}
		}
		if why := other.unwrap(o); why != OtherMode {
			t.Errorf("%T takes what %T sealed: %d", other, tc.encap, why)
		}
		if newest, why := x.Check(o); why != None || !newest {
			t.Errorf("refusal %d, newest %v", why, newest)
		}
		if newest, why := x.Check(o); why != None || newest {
			t.Errorf("again: refusal %d, newest %v", why, newest)
		}
	}
}

// putFalcon writes the beginning of a Falcon packet of n bytes to b[at:], and an inner header in
// front of it.
func putFalcon(b []byte, at, n int) {
	b[at], b[at+3] = 1<<4, 0x42
	h := underlay.Inner{Src: addr(1, false), Dst: addr(2, false)}
	h.Append(b[at-h.Len():at-h.Len()], n)
}

func addr(last byte, v6 bool) netip.Addr {
	if v6 {
		return netip.AddrFrom16([16]byte{0xfd, 15: last})
	}
	return netip.AddrFrom4([4]byte{10, 0, 0, last})
}

// TestOpenedPacketIsFalconIfItsHeaderSaysSo: an opened packet is a Falcon packet only if PSP's
// header says so, and only with the IP version that it says.
func TestOpenedPacketIsFalconIfItsHeaderSaysSo(t *testing.T) {
	falcon := make([]byte, 60)
	falcon[0], falcon[3] = 1<<4, 0x42
	inner := func(v6 bool) []byte {
		h := underlay.Inner{Src: addr(1, v6), Dst: addr(2, v6)}
		return append(h.Append(nil, len(falcon)), falcon...)
	}
	for name, tc := range map[string]struct {
		encap Encap
		hdr   psp.Header
		clear []byte
		why   Refusal
	}{
		"IPv4":                    {Tunnel{}, psp.Header{HasVC: true, NextHeader: nextHeader(false)}, inner(false), None},
		"IPv6":                    {Tunnel{}, psp.Header{HasVC: true, NextHeader: nextHeader(true)}, inner(true), None},
		"IPv4 as IPv6":            {Tunnel{}, psp.Header{HasVC: true, NextHeader: nextHeader(true)}, inner(false), NotFalcon},
		"IPv6 as IPv4":            {Tunnel{}, psp.Header{HasVC: true, NextHeader: nextHeader(false)}, inner(true), NotFalcon},
		"half a header":           {Tunnel{}, psp.Header{HasVC: true, NextHeader: nextHeader(false)}, inner(false)[:30], NotFalcon},
		"no cookie":               {Tunnel{}, psp.Header{NextHeader: nextHeader(false)}, inner(false), OtherMode},
		"transport":               {Transport{}, psp.Header{NextHeader: psp.NextHeaderFalcon}, falcon, None},
		"transport of IP":         {Transport{}, psp.Header{NextHeader: nextHeader(false)}, falcon, NotFalcon},
		"transport of two bytes":  {Transport{}, psp.Header{NextHeader: psp.NextHeaderFalcon}, falcon[:2], NotFalcon},
		"transport with a cookie": {Transport{}, psp.Header{HasVC: true, NextHeader: psp.NextHeaderFalcon}, falcon, OtherMode},
	} {
		o := Opened{hdr: tc.hdr, clear: tc.clear}
		why, p := tc.encap.unwrap(&o), &o.Packet
		if why != tc.why || why == None && (p.CID != 0x42 || len(p.Falcon) != len(falcon)) {
			t.Errorf("%s: refusal %d, %+v", name, why, p)
		}
	}
	for _, tc := range []struct {
		encap Encap
		next  uint8
		at    int // of Falcon's header
	}{{Tunnel{}, nextHeader(false), 44}, {Tunnel{}, nextHeader(true), 64}, {Transport{}, psp.NextHeaderFalcon, 16}} {
		b := make([]byte, tc.at+4)
		b[0], b[tc.at], b[tc.at+3] = tc.next, 1<<4, 0x42
		for n := range len(b) + 1 {
			if cid, ok := tc.encap.PeekCID(b[:n]); ok != (n == len(b)) || ok && cid != 0x42 {
				t.Errorf("%T, next header %d, %d bytes: connection %#x, %t", tc.encap, tc.next, n, cid, ok)
			}
		}
	}
	for _, tc := range []struct {
		has    bool
		cookie uint64
		own    bool
	}{{true, Cookie(7), true}, {true, Cookie(8), false}, {false, Cookie(7), false}, {false, 0, false}} {
		o := Opened{Use: Use{Tenant: 7}, hdr: psp.Header{HasVC: tc.has, VC: tc.cookie}}
		if o.OwnCookie() != tc.own {
			t.Errorf("%+v: its own %t", tc, !tc.own)
		}
	}
	if t1 := (&Opened{hdr: psp.Header{IV: 5<<17 | 1<<50 | 77}}).T1(); t1 != 5 {
		t.Errorf("T1 is %d", t1)
	}
}

// TestPlainPacketHasTheVersionOfItsHeader: a packet of the gateway class is an IP packet of the
// version that PSP's header says.
func TestPlainPacketHasTheVersionOfItsHeader(t *testing.T) {
	v4, v6 := nextHeader(false), nextHeader(true)
	for _, c := range []struct {
		clear []byte
		next  uint8
		ok    bool
	}{
		{[]byte{0x45, 1}, v4, true},
		{[]byte{0x60, 1}, v6, true},
		{[]byte{0x4f}, v4, true},
		{[]byte{0x45, 1}, v6, false},
		{[]byte{0x60, 1}, v4, false},
		{nil, v4, false},
		{nil, v6, false},
		{[]byte{0x54, 1}, v4, false},
		{[]byte{0x50, 1}, v6, false},
		{[]byte{0x06, 1}, v6, false},
		{[]byte{0x45}, 17, false},
	} {
		o := Opened{hdr: psp.Header{NextHeader: c.next}, clear: c.clear}
		if p, ok := o.Plain(); ok != c.ok || ok && &p[0] != &c.clear[0] {
			t.Errorf("% x under next header %d: %t", c.clear, c.next, ok)
		}
	}
}
