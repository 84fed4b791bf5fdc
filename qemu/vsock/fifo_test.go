package vsock

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

// TestFifoIsAQueueOfBytes compares the queue with a plain slice.
func TestFifoIsAQueueOfBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := fifo{max: 16384}
		var model []byte
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				p := rapid.SliceOfN(rapid.Byte(), 0, 9000).Draw(t, "put")
				if ok := f.put(p); ok != (len(model)+len(p) <= f.max) {
					t.Fatalf("put %d to %d: %v", len(p), len(model), ok)
				} else if ok {
					model = append(model, p...)
				}
			case 1:
				p := rapid.SliceOfN(rapid.Byte(), 0, 9000).Draw(t, "fill")
				n := f.fill(p)
				if n != min(len(p), f.max-len(model)) {
					t.Fatalf("fill %d of %d", n, len(p))
				}
				model = append(model, p[:n]...)
			case 2:
				got := make([]byte, rapid.IntRange(0, 9000).Draw(t, "get"))
				n := f.get(got)
				if !bytes.Equal(got[:n], model[:n]) || n != min(len(got), len(model)) {
					t.Fatalf("get %d", n)
				}
				model = model[n:]
			case 3:
				n := rapid.IntRange(0, len(model)).Draw(t, "append")
				if n > 0 {
					if got := f.appendTo(nil, n); !bytes.Equal(got, model[:n]) {
						t.Fatalf("append %d", n)
					}
				}
				model = model[n:]
			}
			if f.n != len(model) {
				t.Fatalf("%d bytes, want %d", f.n, len(model))
			}
		}
	})
}
