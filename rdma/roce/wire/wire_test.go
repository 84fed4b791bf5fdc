package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/ib/wiretest"
)

// sample has every field of every header set, each byte different enough to notice a swap.
func sample(op ib.Opcode) Headers {
	return Headers{
		BTH: BTH{
			Opcode: op, Solicited: true, Migrated: true, Pad: 3, PKey: 0x8123, FECN: true, BECN: true, DestQP: 0xa1b2c3,
			AckReq: true, PSN: 0xfffffe,
		},
		Extended: wiretest.Sample(Opcodes[op].Headers),
	}
}

// TestHeaderLengthsAreThoseOfTheSpecification holds the header lengths of IBA table 38.
func TestHeaderLengthsAreThoseOfTheSpecification(t *testing.T) {
	rc := map[ib.Opcode]int{
		ib.SendFirst: 12, ib.SendMiddle: 12, ib.SendLast: 12, ib.SendOnly: 12, ib.SendLastImm: 16, ib.SendOnlyImm: 16, ib.SendLastInv: 16, ib.SendOnlyInv: 16,
		ib.WriteFirst: 28, ib.WriteMiddle: 12, ib.WriteLast: 12, ib.WriteOnly: 28, ib.WriteLastImm: 16, ib.WriteOnlyImm: 32,
		ib.ReadRequest: 28, ib.ReadRespFirst: 16, ib.ReadRespMiddle: 12, ib.ReadRespLast: 16, ib.ReadRespOnly: 16,
		ib.Acknowledge: 16, ib.AtomicResponse: 24, ib.CmpSwap: 40, ib.FetchAdd: 40,
	}
	for op := range 256 {
		op := ib.Opcode(op)
		want, base := 0, op&^ib.ServiceMask
		switch op & ib.ServiceMask {
		case ib.RC:
			want = rc[op]
		case ib.UC:
			if base <= ib.WriteOnlyImm {
				want = rc[base]
			}
		case ib.UD:
			if base == ib.SendOnly || base == ib.SendOnlyImm {
				want = rc[base] + ib.DETHLen
			}
		case ib.XRC:
			if want = rc[base]; want != 0 && op.Info().Kind != ib.KindResponse {
				want += ib.XRCETHLen
			}
		case Vendor:
			if base == ib.CmpSwap || base == ib.FetchAdd {
				want = 56
			}
		case ib.XRC | Vendor:
			// Masked atomics over XRC: the prefix is XRC|Vendor.
			if base == ib.CmpSwap || base == ib.FetchAdd {
				want = 60
			}
		}
		if op == CNP {
			want = BTHLen
		}
		if got := Opcodes[op].Len; got != want || got > MaxHeaderLen {
			t.Errorf("%s: %d bytes of headers, want %d", Opcodes.Name(op), got, want)
		}
		if n := Opcodes[op].Len; op.Info().Kind == ib.KindData && n > MaxDataHeaderLen {
			t.Errorf("%s: %d bytes of headers exceed MaxDataHeaderLen %d", Opcodes.Name(op), n, MaxDataHeaderLen)
		}
	}
}

func TestIdentityEveryOpcode(t *testing.T) {
	wiretest.EveryOpcode(t, Opcodes, sample, (*Headers).Append, (*Headers).Parse)
}

func TestReservedOpcodesAndVersions(t *testing.T) {
	for _, op := range []ib.Opcode{0x15, 0x1f, 0x2c, 0x40, 0x60, 0x80, 0x82, 0xb5, 0xc0, 0xff} {
		var h Headers
		if _, err := h.Parse(append((&BTH{Opcode: op}).Append(nil), make([]byte, 64)...)); !errors.Is(err, ib.ErrOpcode) {
			t.Errorf("opcode %#x: %v, want ErrOpcode", uint8(op), err)
		}
	}
	for v := range 16 {
		b := (&BTH{Opcode: ib.SendOnly}).Append(nil)
		b[1] |= byte(v)
		if _, err := ParseBTH(b); (v == 0) != (err == nil) {
			t.Errorf("version %d: %v", v, err)
		}
	}
}

func TestPSNsWrapAt24Bits(t *testing.T) {
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
	h := Headers{BTH: BTH{Opcode: ib.WriteOnly, DestQP: 17, PSN: 9, PKey: DefaultPKey, Pad: uint8(ib.PadLen(n))}, Extended: ib.Extended{RETH: ib.RETH{Length: uint32(n)}}}
	b := h.Append(make([]byte, w.HeaderLen()))
	b = append(b, bytes.Repeat([]byte{0x5a}, n)...)
	b = append(b, make([]byte, ib.PadLen(n)+ICRCLen)...)
	w.Put(b)
	return b
}

func TestAWayIsParsedAsItWasPut(t *testing.T) {
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

// TestACutOrChangedPacketIsRefused cuts and changes a packet: every prefix and every changed bit is noticed, but for
// the fields that hops may change. The UDP checksum is none of them: it is 0, or right.
func TestACutOrChangedPacketIsRefused(t *testing.T) {
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

// TestAWrongFixedFieldIsRefused: a packet whose ICRC is right is refused for each field that RoCEv2 fixes.
func TestAWrongFixedFieldIsRefused(t *testing.T) {
	for _, w := range ways {
		ip := w.HeaderLen() - udpLen
		v6 := ip == ipv6Len
		set16 := func(at int, v uint16) func([]byte) []byte {
			return func(b []byte) []byte { binary.BigEndian.PutUint16(b[at:], v); return b }
		}
		set := func(at int, v byte) func([]byte) []byte {
			return func(b []byte) []byte { b[at] = v; return b }
		}
		longer := func(n int) func([]byte) []byte {
			return func(b []byte) []byte {
				b = append(b, make([]byte, n)...)
				if v6 {
					binary.BigEndian.PutUint16(b[4:], uint16(len(b)-ipv6Len))
				} else {
					binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
				}
				binary.BigEndian.PutUint16(b[ip+4:], uint16(len(b)-ip))
				return b
			}
		}
		all := len(packet(&w, 8))
		for name, c := range map[string]struct {
			v4, v6 bool
			change func([]byte) []byte
			want   error
		}{
			"nothing":                    {true, true, func(b []byte) []byte { return b }, nil},
			"version 5":                  {true, true, set(0, 0x55), ErrIP},
			"options":                    {true, false, set(0, 0x46), ErrIP},
			"IPv4 too long":              {true, false, set16(2, uint16(all+1)), ErrIP},
			"IPv4 too short":             {true, false, set16(2, uint16(all-1)), ErrIP},
			"may be cut (CA17-7)":        {true, false, set16(6, 0), ErrIP},
			"reserved flag":              {true, false, set16(6, 0xc000), ErrIP},
			"more fragments":             {true, false, set16(6, 0x2000), ErrIP},
			"a later fragment":           {true, false, set16(6, 0x4001), ErrIP},
			"TCP over IPv4":              {true, false, set(9, 6), ErrIP},
			"IPv6 too long":              {false, true, set16(4, uint16(all-ipv6Len+1)), ErrIP},
			"IPv6 too short":             {false, true, set16(4, uint16(all-ipv6Len-1)), ErrIP},
			"TCP over IPv6":              {false, true, set(6, 6), ErrIP},
			"another port":               {true, true, set16(ip+2, 4790), ErrUDP},
			"UDP too long":               {true, true, set16(ip+4, uint16(all-ip+1)), ErrUDP},
			"UDP too short":              {true, true, set16(ip+4, uint16(all-ip-1)), ErrUDP},
			"no multiple of four":        {true, true, longer(2), ErrUDP},
			"longer by a multiple of it": {true, true, longer(4), nil},
			"a UDP checksum":             {true, true, withChecksum(ip, 0), nil},
			"a wrong UDP checksum":       {true, true, withChecksum(ip, 1), ErrUDP},
			"another wrong one":          {true, true, withChecksum(ip, 0x8000), ErrUDP},
		} {
			if v6 && !c.v6 || !v6 && !c.v4 {
				continue
			}
			b := c.change(packet(&w, 8))
			sign(b)
			if _, _, err := Parse(b); !errors.Is(err, c.want) {
				t.Errorf("IPv6 %t, %s: %v, want %v", v6, name, err, c.want)
			}
		}
	}
}

// withChecksum makes a packet's UDP checksum (RFC 768, RFC 8200 §8.1), wrong by some bits.
func withChecksum(ip int, wrong uint16) func([]byte) []byte {
	return func(b []byte) []byte {
		pseudo := append([]byte{}, b[8:ipv6Len]...)
		if ip == ipv4Len {
			pseudo = append([]byte{}, b[12:ipv4Len]...)
		}
		pseudo = append(binary.BigEndian.AppendUint32(pseudo, uint32(len(b)-ip)), 0, 0, 0, Protocol)
		sign(b) // the checksum covers the ICRC, which takes it for ones
		pseudo = append(pseudo, b[ip:]...)
		total := 0
		for i := 0; i < len(pseudo); i += 2 {
			if total += int(binary.BigEndian.Uint16(pseudo[i:])); total > 0xffff {
				total -= 0xffff
			}
		}
		binary.BigEndian.PutUint16(b[ip+6:], ^uint16(total)^wrong)
		return b
	}
}

// TestATooShortPacketIsCalledShort: a packet has a base header and an ICRC at least; what is shorter is short, not
// wrong in another way.
func TestATooShortPacketIsCalledShort(t *testing.T) {
	for _, w := range ways {
		n := w.HeaderLen()
		b := append((&BTH{Opcode: ib.SendOnly}).Append(make([]byte, n)), make([]byte, ICRCLen)...)
		w.Put(b)
		if _, transport, err := Parse(b); err != nil || len(transport) != BTHLen {
			t.Errorf("%d bytes behind UDP, %v", len(transport), err)
		}
		short := bytes.Clone(b[:n+BTHLen])
		w.Put(short)
		if _, _, err := Parse(short); !errors.Is(err, ib.ErrShort) {
			t.Errorf("without room for the ICRC: %v", err)
		}
	}
	v4, v6 := make([]byte, ipv4Len), make([]byte, ipv6Len)
	v4[0], v6[0] = 0x45, 0x60
	for _, c := range []struct {
		b    []byte
		want error
	}{{nil, ib.ErrShort}, {v4[:19], ib.ErrShort}, {v4, ErrIP}, {v6[:19], ib.ErrShort}, {v6[:39], ib.ErrShort}, {v6, ErrIP}} {
		if _, _, err := Parse(c.b); !errors.Is(err, c.want) {
			t.Errorf("%x: %v, want %v", c.b, err, c.want)
		}
	}
}

// TestNumbersAreCut: numbers that are longer than their fields are cut to them, and touch no other.
func TestNumbersAreCut(t *testing.T) {
	b := (&BTH{Pad: 7, DestQP: 0xff123456, PSN: 0xff654321}).Append(nil)
	if h, err := ParseBTH(b); err != nil || h != (BTH{Pad: 3, DestQP: 0x123456, PSN: 0x654321}) {
		t.Errorf("%+v, %v", h, err)
	}
}

func TestNoAllocations(t *testing.T) {
	w := ways[1]
	b := packet(&w, 1024)
	h := sample(ib.FetchAdd)
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
		if h := sample(ib.Opcode(op)); Opcodes[op].Len != 0 {
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
// the ICRC is wrong gets the right one: otherwise hardly any changed input would get past it.
func FuzzPacket(f *testing.F) {
	for _, p := range frames(f, "testdata/rxe.pcapng") {
		f.Add(p)
	}
	for op := range 256 {
		for _, w := range ways {
			if h := sample(ib.Opcode(op)); Opcodes[op].Len != 0 {
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
