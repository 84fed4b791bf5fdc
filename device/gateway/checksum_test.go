package gateway

import (
	"testing"

	"pgregory.net/rapid"
)

// TestSum compares sum with a word-by-word implementation of RFC 1071 §1.
func TestSum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "b")
		if rapid.Bool().Draw(t, "ones") {
			for i := range b {
				b[i] = 0xff
			}
		}
		var s uint32
		for i, v := range b {
			s += uint32(v) << (8 * (1 - i%2))
		}
		got, want := sum(b), fold(s)
		if got != want && !(got%0xffff == 0 && want%0xffff == 0 && (got == 0) == (want == 0)) {
			t.Fatalf("%#x, want %#x", got, want)
		}
	})
}

func BenchmarkSum(b *testing.B) {
	packet := make([]byte, 8900)
	for i := range packet {
		packet[i] = byte(i * 7)
	}
	b.SetBytes(int64(len(packet)))
	for b.Loop() {
		sum(packet)
	}
}
