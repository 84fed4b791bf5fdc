package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	falcon "github.com/falcon-vnic/vnic/rdma/wire"
	"github.com/falcon-vnic/vnic/rdma/wire/wiretest"
)

// sample has every field of every header set, each byte different enough to notice a swap.
func sample(op Opcode) Headers {
	h := Headers{
		BTH: BTH{
			Opcode: op, Solicited: true, Migrated: true, Pad: 3, PKey: 0x8123, FECN: true, BECN: true, DestQP: 0xa1b2c3,
			AckReq: true, PSN: 0xfffffe,
		},
		XRC:       XRCETH{SRQ: 0x123456},
		Datagram:  DETH{QKey: 0x80010000, SourceQP: 0x654321},
		RETH:      falcon.RETH{VA: 0x0102030405060708, RKey: 0x11121314, Length: 0x80000000},
		Atomic:    falcon.AtomicETH{VA: 0x2122232425262728, RKey: 0x31323334, SwapAdd: 0x4142434445464748, Compare: 0x5152535455565758},
		Mask:      falcon.AtomicMaskETH{SwapAdd: 0xd1d2d3d4d5d6d7d8, Compare: 0xe1e2e3e4e5e6e7e8},
		AETH:      AETH{Syndrome: 0x62, MSN: 0x717273},
		AtomicAck: falcon.AtomicAckETH{Original: 0x6162636465666768},
		Imm:       falcon.ImmDt{Data: 0xb1b2b3b4},
		Inv:       falcon.IETH{RKey: 0xc1c2c3c4},
	}
	set := opcodes[op].headers
	for _, clear := range []struct {
		hdr   header
		clear func()
	}{
		{hdrXRCETH, func() { h.XRC = XRCETH{} }},
		{hdrDETH, func() { h.Datagram = DETH{} }},
		{hdrRETH, func() { h.RETH = falcon.RETH{} }},
		{hdrAtomicETH, func() { h.Atomic = falcon.AtomicETH{} }},
		{hdrAtomicMaskETH, func() { h.Mask = falcon.AtomicMaskETH{} }},
		{hdrAETH, func() { h.AETH = AETH{} }},
		{hdrAtomicAckETH, func() { h.AtomicAck = falcon.AtomicAckETH{} }},
		{hdrImmDt, func() { h.Imm = falcon.ImmDt{} }},
		{hdrIETH, func() { h.Inv = falcon.IETH{} }},
	} {
		if set&clear.hdr == 0 {
			clear.clear()
		}
	}
	return h
}

// TestOpcodeTable holds the header lengths of IBA table 38.
func TestOpcodeTable(t *testing.T) {
	rc := map[Opcode]int{
		SendFirst: 12, SendMiddle: 12, SendLast: 12, SendOnly: 12, SendLastImm: 16, SendOnlyImm: 16, SendLastInv: 16, SendOnlyInv: 16,
		WriteFirst: 28, WriteMiddle: 12, WriteLast: 12, WriteOnly: 28, WriteLastImm: 16, WriteOnlyImm: 32,
		ReadRequest: 28, ReadRespFirst: 16, ReadRespMiddle: 12, ReadRespLast: 16, ReadRespOnly: 16,
		Acknowledge: 16, AtomicResponse: 24, CmpSwap: 40, FetchAdd: 40,
	}
	for op := range 256 {
		op := Opcode(op)
		want, base := 0, op&^ServiceMask
		switch op & ServiceMask {
		case RC:
			want = rc[op]
		case UC:
			if base <= WriteOnlyImm {
				want = rc[base]
			}
		case UD:
			if base == SendOnly || base == SendOnlyImm {
				want = rc[base] + DETHLen
			}
		case XRC:
			if want = rc[base]; want != 0 && !op.Info().Response {
				want += XRCETHLen
			}
		case Vendor:
			if base == CmpSwap || base == FetchAdd {
				want = 56
			}
		case XRCVendor:
			// Masked atomics over XRC: the prefix is XRC|Vendor, which is XRCVendor.
			if base == CmpSwap || base == FetchAdd {
				want = 60
			}
		}
		if op == CNP {
			want = BTHLen
		}
		if got := op.HeaderLen(); got != want || got > MaxHeaderLen {
			t.Errorf("%v: %d bytes of headers, want %d", op, got, want)
		}
		if i := op.Info(); i != nil && i.Data && i.Len > MaxDataHeaderLen {
			t.Errorf("%v: %d bytes of headers exceed MaxDataHeaderLen %d", op, i.Len, MaxDataHeaderLen)
		}
	}
}

func TestIdentityEveryOpcode(t *testing.T) {
	wiretest.Format[Headers]{
		Len: func(op uint8) int { return Opcode(op).HeaderLen() }, Sample: func(op uint8) Headers { return sample(Opcode(op)) },
		Append: (*Headers).Append, Parse: (*Headers).Parse, Short: ErrShort,
	}.EveryOpcode(t)
}

func TestReservedOpcodesAndVersions(t *testing.T) {
	for _, op := range []Opcode{0x15, 0x1f, 0x2c, 0x40, 0x60, 0x80, 0x82, 0xb5, 0xc0, 0xff} {
		var h Headers
		if _, err := h.Parse(append((&BTH{Opcode: op}).Append(nil), make([]byte, 64)...)); !errors.Is(err, ErrOpcode) {
			t.Errorf("opcode %#x: %v, want ErrOpcode", uint8(op), err)
		}
	}
	for v := range 16 {
		b := (&BTH{Opcode: SendOnly}).Append(nil)
		b[1] |= byte(v)
		if _, err := ParseBTH(b); (v == 0) != (err == nil) {
			t.Errorf("version %d: %v", v, err)
		}
	}
}

func TestPSN(t *testing.T) {
	for _, c := range []struct {
		p    PSN
		n    int
		want PSN
	}{{0, 1, 1}, {PSNMask, 1, 0}, {0, -1, PSNMask}, {5, 1 << 22, 5 + 1<<22}, {PSNMask - 2, 10, 7}} {
		if got := c.p.Add(c.n); got != c.want || got.Sub(c.p) != c.n {
			t.Errorf("%#x + %d = %#x, %d apart; want %#x", c.p, c.n, got, got.Sub(c.p), c.want)
		}
	}
}

// ways are one of each family.
var ways = []Way{
	{Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2"), Class: 0x8a, Hops: 64, SrcPort: 0xc123},
	{Src: netip.MustParseAddr("fd00::1"), Dst: netip.MustParseAddr("fd00::2"), Class: 0x8a, Hops: 3, Flow: 0xabcde, SrcPort: 0xffff},
}

// packet makes a whole packet of n data bytes.
func packet(w *Way, n int) []byte {
	h := Headers{BTH: BTH{Opcode: WriteOnly, DestQP: 17, PSN: 9, PKey: DefaultPKey, Pad: uint8(falcon.PadLen(n))}, RETH: falcon.RETH{Length: uint32(n)}}
	b := h.Append(make([]byte, w.HeaderLen()))
	b = append(b, bytes.Repeat([]byte{0x5a}, n)...)
	b = append(b, make([]byte, falcon.PadLen(n)+ICRCLen)...)
	w.Put(b)
	return b
}

func TestWayIdentity(t *testing.T) {
	for _, w := range ways {
		for n := range 9 {
			b := packet(&w, n)
			got, transport, err := Parse(b)
			if err != nil || got != w {
				t.Fatalf("got %+v, %v, want %+v", got, err, w)
			}
			var h Headers
			at, _ := h.Parse(transport)
			if data, ok := h.BTH.Data(transport, at); !ok || len(data) != n {
				t.Errorf("%d data bytes, want %d", len(data), n)
			}
		}
	}
}

// TestWayRefuses cuts and changes a packet: every prefix and every changed bit is noticed, but for
// the fields that hops may change. The UDP checksum is none of them: it is 0, or right.
func TestWayRefuses(t *testing.T) {
	for _, w := range ways {
		b := packet(&w, 5)
		for cut := range b {
			if _, _, err := Parse(b[:cut:cut]); err == nil {
				t.Errorf("cut to %d of %d bytes: taken", cut, len(b))
			}
		}
		ip := w.HeaderLen() - udpLen
		for bit := range len(b) * 8 {
			c := bytes.Clone(b)
			c[bit/8] ^= 0x80 >> (bit % 8)
			at := bit / 8
			invariant := at != ip+udpLen+4
			if ip == ipv4Len {
				invariant = invariant && at != 1 && at != 8 && at != 10 && at != 11
			} else {
				invariant = invariant && at != 7 && (bit < 4 || at > 3)
			}
			if _, _, err := Parse(c); (err != nil) != invariant {
				t.Errorf("bit %d of byte %d changed: %v", bit%8, at, err)
			}
		}
	}
}

func TestNoAllocations(t *testing.T) {
	w := ways[1]
	b := packet(&w, 1024)
	h := sample(FetchAdd)
	buf := make([]byte, 0, 128)
	if n := testing.AllocsPerRun(100, func() {
		w.Put(b)
		if _, _, err := Parse(b); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Parse(h.Append(buf[:0])); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Fatalf("%v allocations per packet, want 0", n)
	}
}

func FuzzHeaders(f *testing.F) {
	for op := range 256 {
		if h := sample(Opcode(op)); h.BTH.Opcode.Info() != nil {
			f.Add(h.Append(nil))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var h Headers
		n, err := h.Parse(b)
		if err != nil {
			return
		}
		again := h.Append(nil)
		if len(again) != n {
			t.Fatalf("decoded %d bytes, encoded %d", n, len(again))
		}
		var g Headers
		if _, err := g.Parse(again); err != nil || g != h {
			t.Fatalf("decode of encode: %+v, %v, want %+v", g, err, h)
		}
		if data, ok := h.BTH.Data(b, n); ok && len(data) > len(b) {
			t.Fatalf("%d data bytes of %d", len(data), len(b))
		}
	})
}

// FuzzPacket begins with what Linux sent and with a packet of each opcode. A packet of which only
// the ICRC is wrong gets the right one: hardly any change of an input would be looked at otherwise.
func FuzzPacket(f *testing.F) {
	for _, p := range frames(f, "testdata/rxe.pcapng") {
		f.Add(p)
	}
	for op := range 256 {
		for _, w := range ways {
			if h := sample(Opcode(op)); h.BTH.Opcode.Info() != nil {
				b := append(h.Append(make([]byte, w.HeaderLen())), make([]byte, 5+int(h.BTH.Pad)+ICRCLen)...)
				w.Put(b)
				f.Add(b)
			}
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		w, transport, err := Parse(b)
		if !bytes.Equal(b, before) {
			t.Fatal("Parse changed the packet")
		}
		if errors.Is(err, ErrICRC) {
			sign(before)
			w, transport, err = Parse(before)
			if err != nil {
				t.Fatalf("with its ICRC: %v", err)
			}
		}
		if err != nil {
			return
		}
		again := make([]byte, w.HeaderLen()+len(transport)+ICRCLen)
		copy(again[w.HeaderLen():], transport)
		w.Put(again)
		v, same, err := Parse(again)
		if err != nil || v != w || !bytes.Equal(same, transport) {
			t.Fatalf("parse of put: %+v, %v, want %+v", v, err, w)
		}
		var h Headers
		if n, err := h.Parse(transport); err == nil {
			if data, ok := h.BTH.Data(transport, n); ok && n+len(data)+int(h.BTH.Pad) != len(transport) {
				t.Fatalf("%d bytes of headers, %d of data and %d of pad are not %d", n, len(data), h.BTH.Pad, len(transport))
			}
		}
	})
}

// sign gives a packet its ICRC.
func sign(b []byte) {
	ip := ipv6Len
	if b[0]>>4 == 4 {
		ip = ipv4Len
	}
	end := len(b) - ICRCLen
	variant := mask(b, ip)
	binary.LittleEndian.PutUint32(b[end:], crc(b[:end]))
	variant.restore(b, ip)
}
