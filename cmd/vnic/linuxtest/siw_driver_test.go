package linuxtest_test

import "testing"

// TestLongSIWDriver runs rping, which verifies the data, between a function with the Linux driver and siw, with
// its server in either guest.
func TestLongSIWDriver(t *testing.T) {
	onTheWire(t, linuxSetting{gid: "fd00:100::11", iwarp: true}, []cell{
		{command: "rping -s -V -C 30 -S 60000{any}|rping -c -V -C 30 -S 60000 -a {peer}"},
	})
}
