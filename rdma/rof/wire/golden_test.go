package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/falcon-vnic/vnic/rdma/ib"
)

// vector is one entry of testdata/falcon.json that carries RDMA headers.
type vector struct {
	name      string
	falcon    int // length of the Falcon header in front
	requested int // value of Falcon's Request Length field, 0 when there is none
	headers   Headers
	data      []byte
}

var vectors = []vector{{
	name:      "pull_req len=4120 + READ(RBTH,RETH,SETH,STETH)",
	falcon:    32,
	requested: 4120,
	headers: Headers{
		RBTH: RBTH{Opcode: ib.ReadRequest, DestQP: 0x11, SN: 7},
		Extended: ib.Extended{
			RETH:  ib.RETH{VA: 0x1122334455667788, RKey: 0xcafebabe, Length: 4096},
			SETH:  ib.SETH{RMSN: 3},
			STETH: ib.STETH{VA: 0x7f0000001000, LKey: 0x0badf00d},
		},
	},
}, {
	name:   "pull_data + READ resp only, 4 B data",
	falcon: 24,
	headers: Headers{
		RBTH:     RBTH{Opcode: ib.ReadRespOnly, DestQP: 0x22, SN: 7},
		Extended: ib.Extended{STETH: ib.STETH{VA: 0x7f0000001000, LKey: 0x0badf00d}},
	},
	data: []byte{0xde, 0xad, 0xbe, 0xef},
}, {
	name:      "push_data len=32 + WRITE only 4 B",
	falcon:    28,
	requested: 32,
	headers: Headers{
		RBTH:     RBTH{Opcode: ib.WriteOnly, DestQP: 0x11, SN: 8},
		Extended: ib.Extended{RETH: ib.RETH{VA: 0x1122334455667788, RKey: 0xcafebabe, Length: 4}},
	},
	data: []byte{0xde, 0xad, 0xbe, 0xef},
}, {
	name:      "push_data len=24 + SEND only 3 B pad 1",
	falcon:    28,
	requested: 24,
	headers: Headers{
		RBTH:     RBTH{Opcode: ib.SendOnly, DestQP: 0x11, SN: 9, Pad: 1, Solicited: true},
		Extended: ib.Extended{SETH: ib.SETH{RMSN: 1}},
	},
	data: []byte{1, 2, 3},
}, {
	name:   "pull_data + ATOMIC resp (RBTH,AtomicAckETH,STETH)",
	falcon: 24,
	headers: Headers{
		RBTH: RBTH{Opcode: ib.AtomicResponse, DestQP: 0x22, SN: 10},
		Extended: ib.Extended{
			AtomicAck: ib.AtomicAckETH{Original: 0x0202020202020202},
			STETH:     ib.STETH{VA: 0x7f0000002000, LKey: 0x0badf00d},
		},
	},
}}

func golden(t testing.TB) map[string][]byte {
	t.Helper()
	text, err := os.ReadFile("testdata/falcon.json")
	if err != nil {
		t.Fatal(err)
	}
	var entries []struct{ Name, Hex string }
	if err := json.Unmarshal(text, &entries); err != nil {
		t.Fatal(err)
	}
	m := make(map[string][]byte)
	for _, e := range entries {
		if m[e.Name], err = hex.DecodeString(e.Hex); err != nil {
			t.Fatalf("%s: %v", e.Name, err)
		}
	}
	return m
}

func TestBytesAreThoseOfTheSpecification(t *testing.T) {
	packets := golden(t)
	for _, v := range vectors {
		t.Run(strings.ReplaceAll(v.name, " ", "_"), func(t *testing.T) {
			packet, ok := packets[v.name]
			if !ok {
				t.Fatalf("testdata/falcon.json has no entry %q", v.name)
			}
			want := packet[v.falcon:]

			got := append(v.headers.Append(nil), v.data...)
			got = append(got, make([]byte, ib.PadLen(len(v.data)))...)
			if !bytes.Equal(got, want) {
				t.Errorf("encoded %x\n   want %x", got, want)
			}

			var h Headers
			n, err := h.Parse(want)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(v.headers, h); diff != "" {
				t.Errorf("decoded headers (-want +got):\n%s", diff)
			}
			data, ok := h.RBTH.Data(want, n)
			if !ok || !bytes.Equal(data, v.data) {
				t.Errorf("data %x, %v, want %x", data, ok, v.data)
			}
			op := v.headers.RBTH.Opcode
			length := PushLength(op, len(v.data)) + PullLength(op, int(v.headers.RETH.Length))
			if length != v.requested {
				t.Errorf("request length %d, want %d", length, v.requested)
			}
		})
	}
}

// TestDatagramHeadersAreThoseOfTheSpecification compares datagrams' headers with bytes made by hand from the figures of RDMA
// over Falcon §8.2, §8.3.5 and §8.3.10: unlike InfiniBand's, DETH has the source QP in the upper 24
// bits.
func TestDatagramHeadersAreThoseOfTheSpecification(t *testing.T) {
	for _, c := range []struct {
		h    Headers
		want string
	}{
		{
			Headers{
				RBTH:     RBTH{Opcode: ib.UD | ib.SendOnly, DestQP: 0x11, SN: 9, Pad: 1, Solicited: true},
				Extended: ib.Extended{Datagram: ib.DETH{QKey: 0x80010000, SourceQP: 1}},
			},
			"10000564 00001100 00000009 | 80010000 00000100",
		},
		{
			Headers{
				RBTH:     RBTH{Opcode: ib.UD | ib.SendOnlyImm, DestQP: 0xabcdef, SN: 0xffffffff},
				Extended: ib.Extended{Datagram: ib.DETH{QKey: 0x11223344, SourceQP: 0x123456}, Imm: ib.ImmDt{Data: 0xbebafeca}},
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
