package checksum

import (
	"testing"

	"pgregory.net/rapid"
)

// TestSumIsThatOfWords compares Sum with a word-by-word implementation of RFC 1071 §1, for any carries.
func TestSumIsThatOfWords(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		one := rapid.Byte()
		if rapid.Bool().Draw(t, "carries") {
			one = rapid.SampledFrom([]byte{0, 1, 0x7f, 0x80, 0xfe, 0xff})
		}
		b := rapid.SliceOfN(one, 0, 300).Draw(t, "b")
		if rapid.Bool().Draw(t, "ones") {
			for i := range b {
				b[i] = 0xff
			}
		}
		want := uint32(0)
		for i, v := range b {
			if want += uint32(v) << (8 * (1 - i%2)); want > 0xffff {
				want -= 0xffff
			}
		}
		if got := Sum(b); uint32(got) != want {
			t.Fatalf("%#x, want %#x", got, want)
		}
	})
}

func BenchmarkSum(b *testing.B) {
	for _, bench := range []struct {
		name string
		size int
	}{{"header", 20}, {"packet", 8900}} {
		b.Run(bench.name, func(b *testing.B) {
			packet := make([]byte, bench.size)
			for i := range packet {
				packet[i] = byte(i * 7)
			}
			b.SetBytes(int64(len(packet)))
			for b.Loop() {
				Sum(packet)
			}
		})
	}
}
