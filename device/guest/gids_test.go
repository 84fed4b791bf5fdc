package guest

import (
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestGIDTable: entries can be the function's addresses and no others, each once, but that a
// trusted function may have any. (DEV-949)
func TestGIDTable(t *testing.T) {
	mac := [6]byte{2, 0x56, 0x4e, 1, 0, 1}
	local := [16]byte{0xfe, 0x80, 8: 0, 0x56, 0x4e, 0xff, 0xfe, 1, 0, 1}
	if linkLocal(mac) != local {
		t.Errorf("%x", linkLocal(mac))
	}
	own := [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 1}
	table := newGIDTable(own, mac)
	if at, ok := table.find(own); !ok || at != 0 || table.used != 1 {
		t.Errorf("%d %t %#x", at, ok, table.used)
	}
	if _, ok := table.find(local); ok || table.has(1) || table.has(abi.GIDEntries) || table.has(1<<15) {
		t.Error("an entry that is not there")
	}
}
