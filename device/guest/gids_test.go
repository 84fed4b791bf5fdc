package guest

import (
	"testing"

	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestEntryZeroIsTheFunctionsOwnAddress checks that entry 0 of a new table is the function's own
// address.
func TestEntryZeroIsTheFunctionsOwnAddress(t *testing.T) {
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

// TestAddressesOfAChangingEntryAreNotSettled checks that while an entry is being changed, neither
// its old nor its new address is settled. Addresses of other entries are.
func TestAddressesOfAChangingEntryAreNotSettled(t *testing.T) {
	gid := func(n byte) [16]byte { return [16]byte{15: n} }
	table := newGIDTable(gid(1), [6]byte{2})
	table.set(3, &abi.GIDEntry{GID: gid(3)})
	table.set(abi.GIDEntries-1, &abi.GIDEntry{GID: gid(4)})
	table.changing[5] = gid(5)
	table.changing[3] = [16]byte{} // to be emptied
	for n, want := range map[byte]bool{0: false, 1: false, 3: true, 4: false, 5: true, 6: false} {
		if got := table.unsettled(gid(n)); got != want {
			t.Errorf("address %d is unsettled: %t", n, got)
		}
	}
	for n, want := range map[byte]bool{1: false, 3: true, 4: true, 5: false, 6: false} {
		if got := table.elsewhere(0, gid(n)); got != want {
			t.Errorf("an entry beside the first has address %d: %t", n, got)
		}
	}
	for index, want := range map[uint16]bool{0: false, 3: true, 5: true, 6: false} {
		if table.busy(index) != want {
			t.Errorf("entry %d is being changed: %v", index, !want)
		}
	}
	table.set(3, nil)
	if table.has(3) || !table.has(0) || !table.has(abi.GIDEntries-1) || table.has(abi.GIDEntries) {
		t.Errorf("entries %b", table.used)
	}
}
