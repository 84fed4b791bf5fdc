package wire

import (
	"bytes"
	"encoding/hex"
	"testing"
)

// TestDatagramGolden compares datagrams' headers with bytes made by hand from the figures of RDMA
// over Falcon §8.2, §8.3.5 and §8.3.10: unlike InfiniBand's, DETH has the source QP in the upper 24
// bits.
func TestDatagramGolden(t *testing.T) {
	for _, c := range []struct {
		h    Headers
		want string
	}{
		{
			Headers{
				RBTH:     RBTH{Opcode: UDSendOnly, DestQP: 0x11, SN: 9, Pad: 1, Solicited: true},
				Datagram: DETH{QKey: 0x80010000, SourceQP: 1},
			},
			"10000564 00001100 00000009 | 80010000 00000100",
		},
		{
			Headers{
				RBTH:     RBTH{Opcode: UDSendOnlyImm, DestQP: 0xabcdef, SN: 0xffffffff},
				Datagram: DETH{QKey: 0x11223344, SourceQP: 0x123456}, Imm: ImmDt{Data: 0xbebafeca},
			},
			"10000065 abcdef00 ffffffff | 11223344 12345600 | cafebabe",
		},
	} {
		want, err := hex.DecodeString(clean(c.want))
		if err != nil {
			t.Fatal(err)
		}
		if got := c.h.Append(nil); !bytes.Equal(got, want) {
			t.Errorf("%x, want %x", got, want)
		}
		var back Headers
		if n, err := back.Parse(want); err != nil || n != len(want) || back != c.h {
			t.Errorf("%+v, %v", back, err)
		}
		for n := range want {
			if _, err := back.Parse(want[:n]); err == nil {
				t.Errorf("%d of %d bytes parse", n, len(want))
			}
		}
	}
}

// clean takes the marks out of hexadecimal text.
func clean(s string) string {
	return string(bytes.Map(func(r rune) rune {
		if r == ' ' || r == '|' {
			return -1
		}
		return r
	}, []byte(s)))
}
