package guest

import (
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestDoorbellsCoalesce checks that rings of one queue that meet are merged, and keep their order
// with everything else. (DEV-802)
func TestDoorbellsCoalesce(t *testing.T) {
	m := NewMailbox(func() bool { return true }, nil)
	bell := func(q, index uint32) {
		m.Put(Request{Kind: Ring, Doorbell: abi.Doorbell{Kind: abi.DoorbellSQ, Queue: q, Index: index}})
	}
	bell(1, 1)
	bell(2, 1)
	bell(1, 2)
	bell(2, 5)
	m.Put(Request{Kind: RegWrite})
	bell(1, 3)
	bell(1, 4)
	var got []uint32
	for _, it := range m.items {
		got = append(got, it.Doorbell.Queue<<8|it.Doorbell.Index)
	}
	want := []uint32{1<<8 | 2, 2<<8 | 5, 0, 1<<8 | 4}
	if len(got) != len(want) {
		t.Fatalf("%x, want %x", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("%x, want %x", got, want)
		}
	}
}
