package wiretest

import (
	"errors"
	"testing"

	"github.com/falcon-vnic/vnic/rdma/ib"
)

// Sample returns the extended headers of a set with every field set, each byte different enough to
// notice a swap.
func Sample(set ib.Headers) (x ib.Extended) {
	all := ib.Extended{
		XRC:       ib.XRCETH{SRQ: 0x123456},
		Datagram:  ib.DETH{QKey: 0x80010000, SourceQP: 0x654321},
		RETH:      ib.RETH{VA: 0x0102030405060708, RKey: 0x11121314, Length: 0x80000000},
		Atomic:    ib.AtomicETH{VA: 0x2122232425262728, RKey: 0x31323334, SwapAdd: 0x4142434445464748, Compare: 0x5152535455565758},
		Mask:      ib.AtomicMaskETH{SwapAdd: 0xd1d2d3d4d5d6d7d8, Compare: 0xe1e2e3e4e5e6e7e8},
		AETH:      ib.AETH{Syndrome: 0x62, MSN: 0x717273},
		AtomicAck: ib.AtomicAckETH{Original: 0x6162636465666768},
		SETH:      ib.SETH{RMSN: 0x71727374},
		OETH:      ib.OETH{Offset: 0x81828384},
		STETH:     ib.STETH{VA: 0x9192939495969798, LKey: 0xa1a2a3a4},
		Imm:       ib.ImmDt{Data: 0xb1b2b3b4},
		Inv:       ib.IETH{RKey: 0xc1c2c3c4},
	}
	x.Parse(all.Append(nil, set, 0), set, 0)
	return x
}

// EveryOpcode encodes and decodes the headers H of each opcode of a format: they stay the same, are
// as long as the table says, and no prefix of them is accepted.
func EveryOpcode[H comparable](t *testing.T, table *ib.Table, sample func(ib.Opcode) H, encode func(*H, []byte) []byte, parse func(*H, []byte) (int, error)) {
	t.Helper()
	for i := range table {
		op := ib.Opcode(i)
		n := table[op].Len
		if n == 0 {
			continue
		}
		want := sample(op)
		b := encode(&want, nil)
		if len(b) != n {
			t.Fatalf("%s: encoded %d bytes, the table says %d", table.Name(op), len(b), n)
		}
		var got H
		if k, err := parse(&got, append(b, 1, 2, 3, 4)); err != nil || k != n {
			t.Fatalf("%s: Parse = %d, %v, want %d", table.Name(op), k, err, n)
		}
		if got != want {
			t.Errorf("%s:\n got %+v\nwant %+v", table.Name(op), got, want)
		}
		for cut := range b {
			if _, err := parse(&got, b[:cut:cut]); !errors.Is(err, ib.ErrShort) {
				t.Errorf("%s cut to %d of %d bytes: %v, want %v", table.Name(op), cut, n, err, ib.ErrShort)
			}
		}
	}
}
