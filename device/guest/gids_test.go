package guest

import (
	"testing"

	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestGIDTable checks that entry 0 of a new table is the function's own address.
func TestGIDTable(t *testing.T) {
	mac := [6]byte{2, 0x56, 0x4e, 1, 0, 1}
	local := [16]byte{0xfe, 0x80, 8: 0, 0x56, 0x4e, 0xff, 0xfe, 1, 0, 1}
	if pfvf.LinkLocal(mac) != local {
		t.Errorf("%x", pfvf.LinkLocal(mac))
	}
	own := [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 1}
	table := newGIDTable(own, mac)
	if table.gid(0) != own || table.used != 1 || table.entries[0].MAC != mac {
		t.Errorf("%+v, used %#x", table.entries[0], table.used)
	}
	if table.has(1) || table.has(abi.GIDEntries) || table.has(1<<15) || table.gid(1) != [16]byte{} {
		t.Error("an entry that is not there")
	}
}
