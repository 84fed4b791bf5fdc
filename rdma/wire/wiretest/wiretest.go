package wiretest

import (
	"errors"
	"testing"
)

// Format is a packet format: headers H by an opcode.
type Format[H comparable] struct {
	Len    func(op uint8) int // of all headers; 0: there is no such opcode
	Sample func(op uint8) H   // every field that the opcode has is set
	Append func(h *H, b []byte) []byte
	Parse  func(h *H, b []byte) (int, error)
	Short  error // what Parse says of a packet that is cut
}

// EveryOpcode encodes and decodes the headers of each opcode: they stay the same, are as long as
// they should be, and no prefix of them is taken.
func (f Format[H]) EveryOpcode(t *testing.T) {
	t.Helper()
	for op := range 256 {
		op := uint8(op)
		n := f.Len(op)
		if n == 0 {
			continue
		}
		want := f.Sample(op)
		b := f.Append(&want, nil)
		if len(b) != n {
			t.Fatalf("opcode %#x: encoded %d bytes, the table says %d", op, len(b), n)
		}
		var got H
		if k, err := f.Parse(&got, append(b, 1, 2, 3, 4)); err != nil || k != n {
			t.Fatalf("opcode %#x: Parse = %d, %v, want %d", op, k, err, n)
		}
		if got != want {
			t.Errorf("opcode %#x:\n got %+v\nwant %+v", op, got, want)
		}
		for cut := range b {
			if _, err := f.Parse(&got, b[:cut:cut]); !errors.Is(err, f.Short) {
				t.Errorf("opcode %#x cut to %d of %d bytes: %v, want %v", op, cut, n, err, f.Short)
			}
		}
	}
}
