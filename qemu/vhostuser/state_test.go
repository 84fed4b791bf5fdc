package vhostuser_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/qemu/vhostuser"
)

// TestGPABorders: a range may end where its region ends, and may not pass it by a byte.
func TestGPABorders(t *testing.T) {
	s := vhostuser.State{Regions: []vhostuser.Region{
		{GPA: 0, User: 0x7000_0000, Size: 0x1000},
		{GPA: 0x8000, User: 0x7000_2000, Size: 0x1000},
	}}
	for _, tc := range []struct {
		user, n, gpa uint64
		ok           bool
	}{
		{0x7000_0000, 0x1000, 0, true},
		{0x7000_0000, 0x1001, 0, false},
		{0x7000_0fff, 1, 0xfff, true},
		{0x7000_0fff, 2, 0, false},
		{0x7000_1000, 1, 0, false}, // the hole between them
		{0x7000_2000, 0x1000, 0x8000, true},
		{0x7000_2fff, 2, 0, false},
		{0x6fff_ffff, 1, 0, false},
		{0x7000_2800, ^uint64(0), 0, false},
	} {
		gpa, err := s.GPA(tc.user, tc.n)
		if gpa != tc.gpa || (err == nil) != tc.ok {
			t.Errorf("%#x+%#x: %#x, %v; want %#x, valid %v", tc.user, tc.n, gpa, err, tc.gpa, tc.ok)
		}
	}
}
