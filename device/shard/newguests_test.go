package shard

import (
	"maps"
	"testing"

	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// TestNewGuests checks that a shard reports the guests of functions that were added or changed,
// once.
func TestNewGuests(t *testing.T) {
	eachShards(t, func(t *testing.T) {
		v := newVirtual(t, 1, wire100us)
		guests := func() map[pfvf.ID]uint32 {
			all := map[pfvf.ID]uint32{}
			for _, s := range v.nics[0] {
				maps.Copy(all, s.View().NewGuests())
			}
			return all
		}
		if g := guests(); g[vfID(0, 3)] != 33 || g[vfID(0, 1)] != 0 {
			t.Errorf("guests at first: %v", g)
		}
		if g := guests(); len(g) != 0 {
			t.Errorf("guests without a change: %v", g)
		}
		expect := func(cid uint32) {
			t.Helper()
			if g := guests(); len(g) != 1 || g[vfID(0, 3)] != cid {
				t.Errorf("guests %v, want %d of VF 3 alone", g, cid)
			}
		}
		v.mustOperate(0, "pf0.vf3", "", "guest", "none")
		expect(0)
		v.mustOperate(0, "pf0.vf3", "", "guest", "cid:33")
		expect(33)
		v.mustOperate(0, "pf0.vf3", "disable")
		expect(0)
		v.mustOperate(0, "pf0.vf3", "enable")
		expect(33)
	})
}
