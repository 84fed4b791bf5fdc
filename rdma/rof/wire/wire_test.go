package wire

import (
	"bytes"
	"errors"
	"testing"

	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/ib/wiretest"
)

// sample has every field of every header set, each byte different enough to notice a swap.
func sample(op ib.Opcode) Headers {
	return Headers{
		RBTH:     RBTH{Opcode: op, CE: true, Solicited: true, Pad: 3, DestQP: 0xa1b2c3, Syndrome: 0x62, SN: 0xfffffffe},
		Extended: wiretest.Sample(Opcodes[op].Headers),
	}
}

// TestHeadersHaveTheLengthsOfTheSpecification holds the header lengths of RDMA over Falcon §8.1.3 with its two corrections.
func TestHeadersHaveTheLengthsOfTheSpecification(t *testing.T) {
	lengths := map[ib.Opcode]int{
		ib.SendFirst: 20, ib.SendMiddle: 20, ib.SendLast: 20, ib.SendOnly: 20,
		ib.SendLastImm: 24, ib.SendOnlyImm: 24, ib.SendLastInv: 24, ib.SendOnlyInv: 24,
		ib.WriteFirst: 28, ib.WriteMiddle: 28, ib.WriteLast: 28, ib.WriteOnly: 28,
		ib.WriteLastImm: 36, ib.WriteOnlyImm: 36,
		ib.ReadRequest: 44, ib.ReadRespFirst: 24, ib.ReadRespMiddle: 24, ib.ReadRespLast: 24, ib.ReadRespOnly: 24,
		ib.AtomicResponse: 32, ib.CmpSwap: 56, ib.FetchAdd: 56, ib.MaskedCmpSwap: 72, ib.MaskedFetchAdd: 72,
		ib.UD | ib.SendOnly: 20, ib.UD | ib.SendOnlyImm: 24,
	}
	for op := range 256 {
		op := ib.Opcode(op)
		want := lengths[op]
		if base := op &^ ib.UC; op&ib.ServiceMask == ib.UC && base <= ib.WriteOnlyImm {
			want = lengths[base]
		}
		if op&ib.ServiceMask == ib.XRC {
			if want = lengths[op&^ib.XRC]; want != 0 && op.Info().Kind != ib.KindResponse {
				want += ib.XRCETHLen
			}
		}
		if got := Opcodes[op].Len; got != want {
			t.Errorf("%s: %d bytes of headers, want %d", Opcodes.Name(op), got, want)
		}
		if n := Opcodes[op].Len; op.Info().Kind != ib.KindPull && n > MaxDataHeaderLen {
			t.Errorf("%s: %d bytes of headers exceed MaxDataHeaderLen %d", Opcodes.Name(op), n, MaxDataHeaderLen)
		}
	}
}

// TestOpcodesAreCalledByServiceAndOperation: an opcode is called by its service and its operation; a reserved one by its
// number.
func TestOpcodesAreCalledByServiceAndOperation(t *testing.T) {
	for op, want := range map[ib.Opcode]string{
		ib.SendFirst:              "SEND First",
		ib.WriteOnlyImm:           "WRITE Only with Immediate",
		ib.UC | ib.SendFirst:      "UC SEND First",
		ib.UC | ib.WriteOnlyImm:   "UC WRITE Only with Immediate",
		ib.XRC | ib.ReadRespOnly:  "XRC READ Response Only",
		ib.XRC | ib.MaskedCmpSwap: "XRC Masked CmpSwap",
		ib.UD | ib.SendOnlyImm:    "UD SEND Only with Immediate",
		0x11:                      "reserved opcode 0x11",
		ib.UC | ib.ReadRequest:    "reserved opcode 0x2c",
	} {
		if got := Opcodes.Name(op); got != want {
			t.Errorf("opcode %#x is called %q, want %q", uint8(op), got, want)
		}
	}
}

func TestIdentityEveryOpcode(t *testing.T) {
	wiretest.EveryOpcode(t, Opcodes, sample, (*Headers).Append, (*Headers).Parse)
}

// TestNumbersAreLeftAligned: 24-bit numbers take the top of their words, as in the figures of §8.2,
// §8.3.9 and §8.3.10.
func TestNumbersAreLeftAligned(t *testing.T) {
	want := []byte{0x0a, 0x0b, 0x0c, 0}
	x := ib.Extended{XRC: ib.XRCETH{SRQ: 0x0a0b0c}, Datagram: ib.DETH{SourceQP: 0x0a0b0c}}
	for op, at := range map[ib.Opcode]int{ib.XRC | ib.WriteOnly: RBTHLen, ib.UD | ib.SendOnly: RBTHLen + 4} {
		h := Headers{RBTH: RBTH{Opcode: op, DestQP: 0x0a0b0c}, Extended: x}
		if b := h.Append(nil); !bytes.Equal(b[4:8], want) || !bytes.Equal(b[at:at+4], want) {
			t.Errorf("%s: % x", Opcodes.Name(op), b)
		}
	}
}

func TestVersionAndReservedOpcodes(t *testing.T) {
	for v := range 16 {
		b := make([]byte, 64)
		b[0] = byte(v << 4)
		b[3] = byte(ib.SendOnly)
		var h Headers
		_, err := h.Parse(b)
		if (v == Version) != (err == nil) {
			t.Errorf("version %d: %v", v, err)
		}
	}
	for _, op := range []ib.Opcode{0x11, 0x15, 0x1a, 0x1f, 0x40, 0x60, 0x66, 0xb1, 0xff} {
		r := RBTH{Opcode: op}
		var h Headers
		if _, err := h.Parse(append(r.Append(nil), make([]byte, 64)...)); !errors.Is(err, ib.ErrOpcode) {
			t.Errorf("opcode %#x: %v, want ErrOpcode", uint8(op), err)
		}
	}
}

func TestReservedBitsAreIgnored(t *testing.T) {
	want := RBTH{Opcode: ib.SendOnly, DestQP: 5, SN: 6}
	b := want.Append(nil)
	b[0] |= 0x0f
	b[1] |= 0xff
	b[2] |= 0xe2 // reserved bits 16–18 and R
	got, err := ParseRBTH(b)
	if err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

func TestRequestLengthCountsHeadersDataAndPad(t *testing.T) {
	for _, c := range []struct {
		op         ib.Opcode
		n          int
		push, pull int
	}{
		{ib.ReadRequest, 0, 0, 24},
		{ib.ReadRequest, 1, 0, 28},
		{ib.ReadRequest, 4096, 0, 4120},
		{ib.CmpSwap, 8, 0, 32},
		{ib.FetchAdd, 8, 0, 32},
		{ib.WriteOnly, 4, 32, 0},
		{ib.WriteOnlyImm, 0, 36, 0},
		{ib.SendOnly, 3, 24, 0},
		{ib.SendOnlyInv, 5, 32, 0},
		{ib.ReadRespOnly, 8, 0, 0},
		{0x11, 8, 0, 0},
	} {
		if push, pull := PushLength(c.op, c.n), PullLength(c.op, c.n); push != c.push || pull != c.pull {
			t.Errorf("%v of %d bytes: push %d, pull %d, want %d, %d", c.op, c.n, push, pull, c.push, c.pull)
		}
	}
}

func TestNoAllocations(t *testing.T) {
	buf := make([]byte, 0, 128)
	h := sample(ib.FetchAdd)
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
		if h := sample(ib.Opcode(op)); Opcodes[op].Len != 0 {
			f.Add(h.Append(nil))
		}
	}
	for _, p := range golden(f) {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var h Headers
		n, err := h.Parse(b)
		if k, is := Length(b); k != n || is != err {
			t.Fatalf("length %d, %v, decoded %d, %v", k, is, n, err)
		}
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
