package verbs

import (
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestLimitsOfNobody: a limit that is not configured has its default, one above the maximum is cut,
// and queues have a power of two of entries.
func TestLimitsOfNobody(t *testing.T) {
	usual := Limits{}.WithDefaults()
	for k, n := range usual.Objects {
		if info := abi.Object(k).Info(); n != int(info.Initial) {
			t.Errorf("%s: %d, usually %d", abi.Object(k), n, info.Initial)
		}
	}
	if usual.SGEs != 16 || usual.Inline != 224 || usual.ReadAtomic != MaxReadAtomic || usual.MTU != MaxDatagram {
		t.Errorf("usual limits %+v", usual)
	}
	negative := Limits{SGEs: -1, Links: -1}.WithDefaults()
	if negative.SGEs != usual.SGEs || negative.Links != usual.Links {
		t.Errorf("limits below nothing: %+v", negative)
	}
	one := Limits{SGEs: 1, Inline: 1, ReadAtomic: 1, MTU: 1, Links: 1, PageListBytes: 1, QPEntries: 1, CQEntries: 1}
	one.Objects[abi.ObjectAH] = 1
	if got := one.WithDefaults(); got.SGEs != 1 || got.Inline != 1 || got.ReadAtomic != 1 || got.MTU != 1 || got.Links != 1 ||
		got.PageListBytes != 1 || got.QPEntries != 1 || got.CQEntries != 1 || got.Objects[abi.ObjectAH] != 1 {
		t.Errorf("limits of 1: %+v", got)
	}
	huge := Limits{SGEs: 1 << 40, Inline: 1 << 40, ReadAtomic: 1 << 40, MTU: 1 << 40, QPEntries: 1 << 40, CQEntries: 1 << 40}
	huge.Objects[abi.ObjectQP] = 1 << 40
	if got := huge.WithDefaults(); got.SGEs != 64 || got.Inline != 1024 || got.ReadAtomic != MaxReadAtomic || got.MTU != MaxDatagram ||
		got.QPEntries != 1<<abi.MaxQueueLog2 || got.CQEntries != 1<<abi.MaxQueueLog2 || got.Objects[abi.ObjectQP] != 1<<16-2 {
		t.Errorf("limits above everything: %+v", got)
	}
	for n, want := range map[int]int{1: 1, 2: 2, 3: 2, 4: 4, 63: 32, 64: 64, 65: 64} {
		if got := (Limits{QPEntries: n, CQEntries: n}).WithDefaults(); got.QPEntries != want || got.CQEntries != want {
			t.Errorf("%d entries: %d and %d, want %d", n, got.QPEntries, got.CQEntries, want)
		}
	}
}
