package wire

import (
	"bytes"
	"errors"
	"testing"

	"github.com/falcon-vnic/vnic/rdma/wire/wiretest"
)

// sample has every field of every header set, each byte different enough to notice a swap.
func sample(op Opcode) Headers {
	h := Headers{
		RBTH:      RBTH{Opcode: op, CE: true, Solicited: true, Pad: 3, DestQP: 0xa1b2c3, Syndrome: 0x62, SN: 0xfffffffe},
		XRC:       XRCETH{SRQ: 0x123456},
		Datagram:  DETH{QKey: 0x80010000, SourceQP: 0x654321},
		RETH:      RETH{VA: 0x0102030405060708, RKey: 0x11121314, Length: 0x80000000},
		Atomic:    AtomicETH{VA: 0x2122232425262728, RKey: 0x31323334, SwapAdd: 0x4142434445464748, Compare: 0x5152535455565758},
		Mask:      AtomicMaskETH{SwapAdd: 0xd1d2d3d4d5d6d7d8, Compare: 0xe1e2e3e4e5e6e7e8},
		AtomicAck: AtomicAckETH{Original: 0x6162636465666768},
		SETH:      SETH{RMSN: 0x71727374},
		OETH:      OETH{Offset: 0x81828384},
		STETH:     STETH{VA: 0x9192939495969798, LKey: 0xa1a2a3a4},
		Imm:       ImmDt{Data: 0xb1b2b3b4},
		Inv:       IETH{RKey: 0xc1c2c3c4},
	}
	// Parse leaves headers that are not on the wire zero.
	set := opcodes[op].Headers
	for _, clear := range []struct {
		hdr   Header
		clear func()
	}{
		{HdrXRCETH, func() { h.XRC = XRCETH{} }},
		{HdrDETH, func() { h.Datagram = DETH{} }},
		{HdrRETH, func() { h.RETH = RETH{} }},
		{HdrAtomicETH, func() { h.Atomic = AtomicETH{} }},
		{HdrAtomicMaskETH, func() { h.Mask = AtomicMaskETH{} }},
		{HdrAtomicAckETH, func() { h.AtomicAck = AtomicAckETH{} }},
		{HdrSETH, func() { h.SETH = SETH{} }},
		{HdrOETH, func() { h.OETH = OETH{} }},
		{HdrSTETH, func() { h.STETH = STETH{} }},
		{HdrImmDt, func() { h.Imm = ImmDt{} }},
		{HdrIETH, func() { h.Inv = IETH{} }},
	} {
		if set&clear.hdr == 0 {
			clear.clear()
		}
	}
	return h
}

// TestOpcodeTable holds the header lengths of RDMA over Falcon §8.1.3 with its two corrections.
func TestOpcodeTable(t *testing.T) {
	lengths := map[Opcode]int{
		SendFirst: 20, SendMiddle: 20, SendLast: 20, SendOnly: 20,
		SendLastImm: 24, SendOnlyImm: 24, SendLastInv: 24, SendOnlyInv: 24,
		WriteFirst: 28, WriteMiddle: 28, WriteLast: 28, WriteOnly: 28,
		WriteLastImm: 36, WriteOnlyImm: 36,
		ReadRequest: 44, ReadRespFirst: 24, ReadRespMiddle: 24, ReadRespLast: 24, ReadRespOnly: 24,
		AtomicResponse: 32, CmpSwap: 56, FetchAdd: 56, MaskedCmpSwap: 72, MaskedFetchAdd: 72,
		UDSendOnly: 20, UDSendOnlyImm: 24,
	}
	for op := range 256 {
		op := Opcode(op)
		want := lengths[op]
		if base := op &^ UC; op&0xe0 == UC && base <= WriteOnlyImm {
			want = lengths[base]
		}
		if op&0xe0 == XRC {
			if want = lengths[op&^XRC]; want != 0 && op.Info().Kind != KindPullData {
				want += XRCETHLen
			}
		}
		if got := op.HeaderLen(); got != want {
			t.Errorf("%v: %d bytes of headers, want %d", op, got, want)
		}
		if got := op.HeaderLen(); got > MaxHeaderLen {
			t.Errorf("%v: %d bytes of headers exceed MaxHeaderLen %d", op, got, MaxHeaderLen)
		}
		if i := op.Info(); i != nil && i.Kind != KindPullRequest && i.Len > MaxDataHeaderLen {
			t.Errorf("%v: %d bytes of headers exceed MaxDataHeaderLen %d", op, i.Len, MaxDataHeaderLen)
		}
		if (op.Info() == nil) != (want == 0) {
			t.Errorf("%v: Info %v", op, op.Info())
		}
	}
}

// TestOpcodeNames: an opcode is called by its service and its operation; a reserved one by its number.
func TestOpcodeNames(t *testing.T) {
	for op, want := range map[Opcode]string{
		SendFirst:           "SEND First",
		WriteOnlyImm:        "WRITE Only with Immediate",
		UC | SendFirst:      "UC SEND First",
		UC | WriteOnlyImm:   "UC WRITE Only with Immediate",
		XRC | ReadRespOnly:  "XRC READ Response Only",
		XRC | MaskedCmpSwap: "XRC Masked CmpSwap",
		UDSendOnlyImm:       "UD SEND Only with Immediate",
		0x11:                "reserved opcode 0x11",
		UC | ReadRequest:    "reserved opcode 0x2c",
	} {
		if got := op.String(); got != want {
			t.Errorf("opcode %#x is called %q, want %q", uint8(op), got, want)
		}
	}
}

func TestIdentityEveryOpcode(t *testing.T) {
	wiretest.Format[Headers]{
		Len: func(op uint8) int { return Opcode(op).HeaderLen() }, Sample: func(op uint8) Headers { return sample(Opcode(op)) },
		Append: (*Headers).Append, Parse: (*Headers).Parse, Short: ErrShort,
	}.EveryOpcode(t)
}

func TestEveryHeaderRefusesEveryPrefix(t *testing.T) {
	b := bytes.Repeat([]byte{0x10}, 64)
	for _, c := range []struct {
		name  string
		n     int
		parse func([]byte) error
	}{
		{"RBTH", RBTHLen, func(b []byte) error { _, err := ParseRBTH(b); return err }},
		{"RETH", RETHLen, func(b []byte) error { _, err := ParseRETH(b); return err }},
		{"SETH", SETHLen, func(b []byte) error { _, err := ParseSETH(b); return err }},
		{"OETH", OETHLen, func(b []byte) error { _, err := ParseOETH(b); return err }},
		{"STETH", STETHLen, func(b []byte) error { _, err := ParseSTETH(b); return err }},
		{"ImmDt", ImmDtLen, func(b []byte) error { _, err := ParseImmDt(b); return err }},
		{"AtomicETH", AtomicETHLen, func(b []byte) error { _, err := ParseAtomicETH(b); return err }},
		{"AtomicMaskETH", AtomicMaskETHLen, func(b []byte) error { _, err := ParseAtomicMaskETH(b); return err }},
		{"AtomicAckETH", AtomicAckETHLen, func(b []byte) error { _, err := ParseAtomicAckETH(b); return err }},
		{"IETH", IETHLen, func(b []byte) error { _, err := ParseIETH(b); return err }},
		{"XRCETH", XRCETHLen, func(b []byte) error { _, err := ParseXRCETH(b); return err }},
		{"DETH", DETHLen, func(b []byte) error { _, err := ParseDETH(b); return err }},
	} {
		for cut := range c.n {
			if err := c.parse(b[:cut:cut]); !errors.Is(err, ErrShort) {
				t.Errorf("%s of %d bytes: %v, want ErrShort", c.name, cut, err)
			}
		}
		if err := c.parse(b[:c.n:c.n]); err != nil {
			t.Errorf("%s of %d bytes: %v", c.name, c.n, err)
		}
	}
}

func TestNumbersAreLeftAligned(t *testing.T) {
	// Figures of §8.2, §8.3.9 and §8.3.10: 24-bit numbers take the top of their words.
	r := RBTH{DestQP: 0x0a0b0c}
	if got := r.Append(nil)[4:8]; !bytes.Equal(got, []byte{0x0a, 0x0b, 0x0c, 0}) {
		t.Errorf("RBTH destination QP word % x", got)
	}
	x := XRCETH{SRQ: 0x0a0b0c}
	if got := x.Append(nil); !bytes.Equal(got, []byte{0x0a, 0x0b, 0x0c, 0}) {
		t.Errorf("XRCETH word % x", got)
	}
	d := DETH{SourceQP: 0x0a0b0c}
	if got := d.Append(nil)[4:]; !bytes.Equal(got, []byte{0x0a, 0x0b, 0x0c, 0}) {
		t.Errorf("DETH source QP word % x", got)
	}
}

func TestVersionAndReservedOpcodes(t *testing.T) {
	for v := range 16 {
		b := make([]byte, 64)
		b[0] = byte(v << 4)
		b[3] = byte(SendOnly)
		var h Headers
		_, err := h.Parse(b)
		if (v == Version) != (err == nil) {
			t.Errorf("version %d: %v", v, err)
		}
	}
	for _, op := range []Opcode{0x11, 0x15, 0x1a, 0x1f, 0x40, 0x60, 0x66, 0xb1, 0xff} {
		r := RBTH{Opcode: op}
		var h Headers
		if _, err := h.Parse(append(r.Append(nil), make([]byte, 64)...)); !errors.Is(err, ErrOpcode) {
			t.Errorf("opcode %#x: %v, want ErrOpcode", uint8(op), err)
		}
	}
}

func TestReservedBitsAreIgnored(t *testing.T) {
	want := RBTH{Opcode: SendOnly, DestQP: 5, SN: 6}
	b := want.Append(nil)
	b[0] |= 0x0f
	b[1] |= 0xff
	b[2] |= 0xe2 // reserved bits 16–18 and R
	got, err := ParseRBTH(b)
	if err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

func TestRequestLength(t *testing.T) {
	for _, c := range []struct {
		op         Opcode
		n          int
		push, pull int
	}{
		{ReadRequest, 0, 0, 24},
		{ReadRequest, 1, 0, 28},
		{ReadRequest, 4096, 0, 4120},
		{CmpSwap, 8, 0, 32},
		{FetchAdd, 8, 0, 32},
		{WriteOnly, 4, 32, 0},
		{WriteOnlyImm, 0, 36, 0},
		{SendOnly, 3, 24, 0},
		{SendOnlyInv, 5, 32, 0},
		{ReadRespOnly, 8, 0, 0},
		{0x11, 8, 0, 0},
	} {
		if push, pull := PushLength(c.op, c.n), PullLength(c.op, c.n); push != c.push || pull != c.pull {
			t.Errorf("%v of %d bytes: push %d, pull %d, want %d, %d", c.op, c.n, push, pull, c.push, c.pull)
		}
	}
}

func TestData(t *testing.T) {
	part := make([]byte, 24)
	for _, c := range []struct {
		len  int
		pad  uint8
		want int // −1: refused
	}{{24, 0, 12}, {24, 3, 9}, {12, 0, 0}, {12, 1, -1}, {8, 0, -1}, {23, 0, -1}, {16, 3, 1}} {
		r := RBTH{Pad: c.pad}
		data, ok := r.Data(part[:c.len], 12)
		if got := len(data); ok != (c.want >= 0) || ok && got != c.want {
			t.Errorf("part of %d bytes, pad %d: %d bytes, %v, want %d", c.len, c.pad, got, ok, c.want)
		}
	}
}

func TestNoAllocations(t *testing.T) {
	buf := make([]byte, 0, 128)
	h := sample(FetchAdd)
	if n := testing.AllocsPerRun(100, func() {
		b := h.Append(buf[:0])
		if _, err := h.Parse(b); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Fatalf("%v allocations per packet, want 0", n)
	}
}

func FuzzHeaders(f *testing.F) {
	for op := range 256 {
		if h := sample(Opcode(op)); h.RBTH.Opcode.Info() != nil {
			f.Add(h.Append(nil))
		}
	}
	for _, p := range golden(f) {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var h Headers
		n, err := h.Parse(b)
		if err != nil {
			return
		}
		// Whatever decodes encodes to bytes that decode to the same (reserved bits aside).
		again := h.Append(nil)
		if len(again) != n {
			t.Fatalf("decoded %d bytes, encoded %d", n, len(again))
		}
		var g Headers
		if _, err := g.Parse(again); err != nil || g != h {
			t.Fatalf("decode of encode: %+v, %v, want %+v", g, err, h)
		}
		if data, ok := h.RBTH.Data(b, n); ok && len(data) > len(b) {
			t.Fatalf("%d data bytes of %d", len(data), len(b))
		}
	})
}
