package config

import (
	"slices"
	"testing"
	"time"
)

// TestDifferencesAreNamedByTheirKeys: with the keys that errors use; a list whose length
// differs is one difference.
func TestDifferencesAreNamedByTheirKeys(t *testing.T) {
	every, other := time.Second, time.Second
	was := &Config{PSP: PSP{RotateEvery: &every}, Attach: []Attach{{CID: 3}, {CID: 4}}, Functions: []PF{{PF: 1}}}
	is := &Config{PSP: PSP{RotateEvery: &other}, Attach: []Attach{{CID: 3}, {CID: 5}}, Functions: []PF{{PF: 1}}}
	if got := Differences(was, was); got != nil {
		t.Errorf("%v", got)
	}
	is.NIC.Strict, is.Uplink.MTU, is.Functions[0].Weight, is.Functions[0].Limits.QP = true, 9, 2, 5
	is.Tenants = []Tenant{{Tenant: 1}}
	want := []string{"nic.strict", "uplink.mtu", "tenants", "functions[0].limits.qp", "functions[0].weight", "attach[1].cid"}
	if got := Differences(was, is); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
