package config

import (
	"strings"
	"testing"
)

// TestADeviceNameIsOneTheKernelTakes: a device name that the kernel would refuse is refused here; the longest valid
// name is accepted.
func TestADeviceNameIsOneTheKernelTakes(t *testing.T) {
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
