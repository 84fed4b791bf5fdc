package config

import (
	"strings"
	"testing"
)

// TestDeviceNames: what the kernel does not take as the name of a device is refused before it is
// asked, up to the last character that it does take.
func TestDeviceNames(t *testing.T) {
	longest := strings.Repeat("n", maxIfName)
	for name, ok := range map[string]bool{
		"nic1": true, "a.b-c_d": true, "...": true, longest: true, longest + "n": false,
		".": false, "..": false, "a/b": false, "a:b": false, "a b": false, "a\tb": false, "a%d": false,
	} {
		var r report
		checkIfName(&r, "uplink.name", name)
		if (len(r.problems) == 0) != ok {
			t.Errorf("%q: %v", name, r.problems)
		}
	}
}
