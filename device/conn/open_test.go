package conn

import "testing"

// TestFlowLabelsSpread: neighbouring flow labels of one program use all paths.
func TestFlowLabelsSpread(t *testing.T) {
	const paths = 8 // docs/wire.md
	used := map[uint32]int{}
	for label := uint32(1); label <= 64; label++ {
		used[FirstPath(label, 0)%paths]++
	}
	for p, n := range used {
		if n > 16 {
			t.Errorf("%d of 64 labels on path %d", n, p)
		}
	}
	if len(used) != paths || FirstPath(0, 77) != 77 {
		t.Errorf("paths used: %v", used)
	}
}
