package falcon

import (
	"testing"
	"unsafe"
)

// TestConnLines holds the fields of Conn to the cache lines their comments name, which Prefetch
// relies on.
func TestConnLines(t *testing.T) {
	var c Conn
	const header = 8 // of the allocator
	for _, f := range []struct {
		name       string
		start, end uintptr
		first      uintptr
		last       uintptr
	}{
		{"e to path", unsafe.Offsetof(c.e), unsafe.Offsetof(c.path), 0, 0},
		{"reqTx to nextRSN", unsafe.Offsetof(c.reqTx), unsafe.Offsetof(c.nextRSN) + 3, 1, 1},
		{"dataBits to dataFirst", unsafe.Offsetof(c.dataBits), unsafe.Offsetof(c.dataFirst), 2, 3},
		{"txns to fresh pushes", unsafe.Offsetof(c.txns), unsafe.Offsetof(c.lists) + 2*unsafe.Sizeof(c.lists[0]) - 1, 4, 5},
	} {
		if first, last := (f.start+header)/64, (f.end+header)/64; first != f.first || last != f.last {
			t.Errorf("%s are in lines %d to %d, want %d to %d", f.name, first, last, f.first, f.last)
		}
	}
	if c.list(inFlight) != &c.lists[0] || c.list(inFresh+listID(TxnPush)) != &c.lists[1] {
		t.Error("the lists a push goes through are not the first")
	}
}
