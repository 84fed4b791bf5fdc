package abi

import (
	"encoding/binary"
	"testing"
)

// TestEachKindOfObjectHasAPlaceAndAName: each kind has its place in ObjectCounts, as drivers count on it, and a word of its
// own for everybody else.
func TestEachKindOfObjectHasAPlaceAndAName(t *testing.T) {
	if ObjectCountsSize != (4*int(NumObjects)+7)&^7 || len(SetVFObjects{}.Counts) != ObjectCountsSize {
		t.Fatalf("%d kinds: ObjectCounts has %d bytes, SetVFObjects.Counts %d", NumObjects, ObjectCountsSize, len(SetVFObjects{}.Counts))
	}
	seen := map[string]bool{}
	for k := range NumObjects {
		var c ObjectCounts
		*c.Of(k) = 7
		b := make([]byte, ObjectCountsSize)
		c.Marshal(b)
		if binary.LittleEndian.Uint32(b[4*k:]) != 7 {
			t.Errorf("%s is at another place in %x", k, b)
		}
		i := k.Info()
		for _, s := range []string{i.Name, i.Key, i.Doc} {
			if s == "" || seen[s] {
				t.Errorf("%s: %q is empty or another's", k, s)
			}
			seen[s] = true
		}
		if i.Initial == 0 || i.Initial > i.Most {
			t.Errorf("%s: at first %d of %d", k, i.Initial, i.Most)
		}
	}
}
