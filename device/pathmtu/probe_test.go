package pathmtu

import (
	"bytes"
	"encoding/hex"
	"testing"
)

// The bytes were written by hand from docs/wire.md; the checksum is that of RFC 1071's sum.
const golden = "45000020 00004000 01fd78e2 00000000 00000000 766e6963 01 00 1194 0a0b0c0d"

func goldenBytes(t testing.TB) []byte {
	b, err := hex.DecodeString(string(bytes.ReplaceAll([]byte(golden), []byte(" "), nil)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestAProbeIsAsDocumented(t *testing.T) {
	want := goldenBytes(t)
	p := Probe{Kind: Request, Size: 4500, Round: 0x0a0b0c0d}
	if got := p.Append(nil, Length); !bytes.Equal(got, want) {
		t.Errorf("appended %x\nwant     %x", got, want)
	}
	if got, ok := Parse(want); !ok || got != p {
		t.Errorf("parsed %+v, %v", got, ok)
	}
	long := p.Append([]byte{9}, 4432)
	if got, ok := Parse(long[1:]); !ok || got != p || len(long) != 4433 {
		t.Errorf("filled up to 4432 bytes: %+v, %v", got, ok)
	}
}

func TestEveryPrefixOfAProbeIsRefused(t *testing.T) {
	b := goldenBytes(t)
	for n := range b {
		if _, ok := Parse(b[:n]); ok {
			t.Errorf("%d of %d bytes are taken for a probe", n, len(b))
		}
	}
}

func FuzzProbe(f *testing.F) {
	f.Add(goldenBytes(f))
	f.Add((&Probe{Kind: Answer, Size: 1500, Round: 7}).Append(nil, Length))
	f.Add((&Probe{Kind: Request, Size: 9000}).Append(nil, 8932))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, ok := Parse(b)
		if !ok {
			return
		}
		if again, ok := Parse(p.Append(nil, len(b))); !ok || again != p {
			t.Errorf("%+v became %+v, %v", p, again, ok)
		}
	})
}
