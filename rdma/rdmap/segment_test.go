package rdmap

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func unhex(s string) []byte {
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		panic(err)
	}
	return b
}

type segment struct {
	name  string
	msg   any
	bytes []byte
}

// golden are segments laid out by hand, row by row, after the figures of RFC 7306 Appendix A with
// the control fields of its figures 1 and 2: T=0 L=1 DV=01b is 41h, RV=01b and the opcode 48h to
// 4Bh.
var golden = []segment{{
	"Immediate Data",
	Immediate{MSN: 0x01020304, Data: [8]byte{0xd0, 0xd1, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7}},
	unhex(`4148
		00000000
		00000000
		01020304
		00000000
		d0d1d2d3 d4d5d6d7`),
}, {
	"Immediate Data with SE",
	Immediate{MSN: 0xfffffffe, Solicited: true, Data: [8]byte{7: 1}},
	unhex(`4149
		00000000
		00000000
		fffffffe
		00000000
		00000000 00000001`),
}, {
	"FetchAdd",
	AtomicRequest{
		MSN: 5, Op: AtomicFetchAdd, ID: 0x11121314, STag: 0x21222324, Offset: 0x3132333435363738,
		Data: 0x4142434445464748, Mask: 0x8000800080008000,
	},
	unhex(`414a
		00000000
		00000001
		00000005
		00000000
		00000000
		11121314
		21222324
		31323334 35363738
		41424344 45464748
		80008000 80008000
		00000000 00000000
		ffffffff ffffffff`),
}, {
	"CmpSwap",
	AtomicRequest{
		MSN: 6, Op: AtomicCmpSwap, ID: 0x11121314, STag: 0x21222324, Offset: 0x3132333435363738,
		Data: 0x4142434445464748, Mask: 0x5152535455565758, Compare: 0x6162636465666768, CompareMask: 0x7172737475767778,
	},
	unhex(`414a
		00000000
		00000001
		00000006
		00000000
		00000002
		11121314
		21222324
		31323334 35363738
		41424344 45464748
		51525354 55565758
		61626364 65666768
		71727374 75767778`),
}, {
	"Atomic Response",
	AtomicResponse{MSN: 7, ID: 0x11121314, Original: 0x8182838485868788},
	unhex(`414b
		00000000
		00000003
		00000007
		00000000
		11121314
		81828384 85868788`),
}}

func encode(m any) []byte {
	switch m := m.(type) {
	case Immediate:
		return m.Append(nil)
	case AtomicRequest:
		return m.Append(nil)
	case AtomicResponse:
		return m.Append(nil)
	}
	panic("no encoder")
}

// decode parses whatever b is.
func decode(b []byte) (any, error) {
	op, _, err := ParseHeader(b)
	if err != nil {
		return nil, err
	}
	switch op {
	case OpAtomicRequest:
		return ParseAtomicRequest(b)
	case OpAtomicResponse:
		return ParseAtomicResponse(b)
	}
	return ParseImmediate(b)
}

func TestGolden(t *testing.T) {
	for _, g := range golden {
		if got := encode(g.msg); !bytes.Equal(got, g.bytes) {
			t.Errorf("%s: encoded\n%x, want\n%x", g.name, got, g.bytes)
		}
		got, err := decode(g.bytes)
		if err != nil {
			t.Errorf("%s: %v", g.name, err)
		}
		if diff := cmp.Diff(g.msg, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", g.name, diff)
		}
	}
}

func TestEveryPrefixAndTrailingByteIsRefused(t *testing.T) {
	for _, g := range golden {
		for n := range g.bytes {
			if _, err := decode(g.bytes[:n:n]); !errors.Is(err, ErrLength) {
				t.Errorf("%s cut to %d of %d bytes: %v", g.name, n, len(g.bytes), err)
			}
		}
		if _, err := decode(append(bytes.Clone(g.bytes), 0)); !errors.Is(err, ErrLength) {
			t.Errorf("%s with a trailing byte: %v", g.name, err)
		}
	}
}

// TestValidation has every check of RFC 7306 §8.2 and the Terminate it yields.
func TestValidation(t *testing.T) {
	for _, c := range []struct {
		name    string
		offset  int
		value   byte
		err     error
		control uint32 // layer, type and code of the registry
	}{
		{"tagged", 0, 0xc1, ErrOpcode, 0x02060000},
		{"tagged, DDP version 0", 0, 0xc0, ErrTaggedVersion, 0x11040000},
		{"DDP version 0", 0, 0x40, ErrDDPVersion, 0x12060000},
		{"DDP version 2", 0, 0x42, ErrDDPVersion, 0x12060000},
		{"not the last segment", 0, 0x01, ErrLength, 0x02ff0000},
		{"RDMAP version 0", 1, 0x0a, ErrRDMAPVersion, 0x02050000},
		{"RDMAP version 2", 1, 0x8a, ErrRDMAPVersion, 0x02050000},
		{"opcode of RFC 5040", 1, 0x43, ErrOpcode, 0x02060000},
		{"reserved opcode", 1, 0x4c, ErrOpcode, 0x02060000},
		{"another message's queue", 9, 3, ErrOpcode, 0x02060000},
		{"no such queue", 9, 4, ErrQueue, 0x12010000},
		{"message offset", 17, 1, ErrOffset, 0x12040000},
		{"reserved atomic operation", 21, 1, ErrOpcode, 0x02060000},
		{"unassigned atomic operation", 21, 15, ErrOpcode, 0x02060000},
	} {
		b := bytes.Clone(golden[3].bytes)
		b[c.offset] = c.value
		_, err := decode(b)
		if !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", c.name, err, c.err)
			continue
		}
		term := Terminate{}
		if !errors.As(err, &term) || term.Control(false) != c.control || term.Control(true) != c.control|0xc000 {
			t.Errorf("%s: Terminate %#08x, want %#08x", c.name, term.Control(false), c.control)
		}
		if ParseTerminate(c.control|0xffff) != term || strings.Contains(err.Error(), "layer") {
			t.Errorf("%s: parsed %+v, %q", c.name, ParseTerminate(c.control), err)
		}
	}
}

func TestWrongMessage(t *testing.T) {
	for i, g := range golden {
		_, imm := ParseImmediate(g.bytes)
		_, req := ParseAtomicRequest(g.bytes)
		_, resp := ParseAtomicResponse(g.bytes)
		for j, err := range []error{imm, imm, req, req, resp} {
			if golden[j].bytes[1] == g.bytes[1] || i < 2 && j < 2 {
				if err != nil {
					t.Errorf("%s: %v", g.name, err)
				}
			} else if !errors.Is(err, ErrOpcode) {
				t.Errorf("%s as %s: %v", g.name, golden[j].name, err)
			}
		}
	}
}

func TestReservedFieldsAreIgnored(t *testing.T) {
	for _, g := range golden {
		b := bytes.Clone(g.bytes)
		b[0] |= 0x3c
		b[1] |= 0x30
		copy(b[2:6], "STag")
		if _, ok := g.msg.(AtomicRequest); ok {
			b[HeaderLen], b[HeaderLen+3] = 0xff, b[HeaderLen+3]|0xf0
		}
		if got, err := decode(b); err != nil || got != g.msg {
			t.Errorf("%s: %+v, %v", g.name, got, err)
		}
	}
	b := bytes.Clone(golden[2].bytes) // FetchAdd compares nothing
	for i := 54; i < 70; i++ {
		b[i] = 0x5a
	}
	if got, err := decode(b); err != nil || got != golden[2].msg {
		t.Errorf("FetchAdd with compare fields: %+v, %v", got, err)
	}
}

func TestCheckAddress(t *testing.T) {
	for addr := range uint64(64) {
		if err := CheckAddress(addr); (err == nil) != (addr&7 == 0) || err != nil && !errors.Is(err, ErrAlignment) {
			t.Errorf("address %d: %v", addr, err)
		}
	}
	var term Terminate
	if err := CheckAddress(1); !errors.As(err, &term) || term.Control(true) != 0x0207c000 {
		t.Errorf("%+v", term)
	}
}

func TestNames(t *testing.T) {
	for _, g := range golden {
		op, _, _ := ParseHeader(g.bytes)
		name := op.String()
		if m, ok := g.msg.(AtomicRequest); ok {
			name = m.Op.String()
		}
		if name != g.name {
			t.Errorf("%q, want %q", name, g.name)
		}
	}
}

func TestNoAllocations(t *testing.T) {
	buf := make([]byte, 0, 128)
	bad := bytes.Clone(golden[4].bytes)
	bad[0] = 0
	if n := testing.AllocsPerRun(100, func() {
		m, err := ParseAtomicRequest(golden[3].bytes)
		if b := m.Append(buf); err != nil || len(b) != AtomicRequestLen {
			t.Fatal(err)
		}
		if _, err := ParseAtomicResponse(bad); err == nil {
			t.Fatal("accepted")
		}
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func FuzzSegment(f *testing.F) {
	for _, g := range golden {
		f.Add(encode(g.msg))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decode(b)
		if err != nil {
			if !errors.As(err, new(Terminate)) {
				t.Fatalf("error %T", err)
			}
			return
		}
		// Whatever decodes encodes to bytes that decode to the same (reserved bits aside).
		again := encode(m)
		if len(again) != len(b) {
			t.Fatalf("decoded %d bytes, encoded %d", len(b), len(again))
		}
		if got, err := decode(again); err != nil || got != m {
			t.Fatalf("decode of encode: %+v, %v, want %+v", got, err, m)
		}
	})
}
