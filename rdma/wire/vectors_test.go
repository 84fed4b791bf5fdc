package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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
		RBTH:  RBTH{Opcode: ReadRequest, DestQP: 0x11, SN: 7},
		RETH:  RETH{VA: 0x1122334455667788, RKey: 0xcafebabe, Length: 4096},
		SETH:  SETH{RMSN: 3},
		STETH: STETH{VA: 0x7f0000001000, LKey: 0x0badf00d},
	},
}, {
	name:   "pull_data + READ resp only, 4 B data",
	falcon: 24,
	headers: Headers{
		RBTH:  RBTH{Opcode: ReadRespOnly, DestQP: 0x22, SN: 7},
		STETH: STETH{VA: 0x7f0000001000, LKey: 0x0badf00d},
	},
	data: []byte{0xde, 0xad, 0xbe, 0xef},
}, {
	name:      "push_data len=32 + WRITE only 4 B",
	falcon:    28,
	requested: 32,
	headers: Headers{
		RBTH: RBTH{Opcode: WriteOnly, DestQP: 0x11, SN: 8},
		RETH: RETH{VA: 0x1122334455667788, RKey: 0xcafebabe, Length: 4},
	},
	data: []byte{0xde, 0xad, 0xbe, 0xef},
}, {
	name:      "push_data len=24 + SEND only 3 B pad 1",
	falcon:    28,
	requested: 24,
	headers: Headers{
		RBTH: RBTH{Opcode: SendOnly, DestQP: 0x11, SN: 9, Pad: 1, Solicited: true},
		SETH: SETH{RMSN: 1},
	},
	data: []byte{1, 2, 3},
}, {
	name:   "pull_data + ATOMIC resp (RBTH,AtomicAckETH,STETH)",
	falcon: 24,
	headers: Headers{
		RBTH:      RBTH{Opcode: AtomicResponse, DestQP: 0x22, SN: 10},
		AtomicAck: AtomicAckETH{Original: 0x0202020202020202},
		STETH:     STETH{VA: 0x7f0000002000, LKey: 0x0badf00d},
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

func TestGoldenVectors(t *testing.T) {
	packets := golden(t)
	for _, v := range vectors {
		t.Run(strings.ReplaceAll(v.name, " ", "_"), func(t *testing.T) {
			packet, ok := packets[v.name]
			if !ok {
				t.Fatalf("testdata/falcon.json has no entry %q", v.name)
			}
			want := packet[v.falcon:]

			got := append(v.headers.Append(nil), v.data...)
			got = append(got, make([]byte, PadLen(len(v.data)))...)
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
