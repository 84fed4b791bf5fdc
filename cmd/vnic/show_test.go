package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/control"
)

// F56: `show nic` says that an uplink was taken down by vnic inject.
func TestShowUplinkDown(t *testing.T) {
	for _, tc := range []struct {
		rx, tx bool
		want   string
	}{
		{false, false, "mtu 1500\n"},
		{true, false, "mtu 1500, rx down by impairment"},
		{false, true, "mtu 1500, tx down by impairment"},
		{true, true, "mtu 1500, down by impairment"},
	} {
		u := control.Uplink{Name: "v0", MTU: 1500}
		u.RX.Impairment.Down, u.TX.Impairment.Down = tc.rx, tc.tx
		var b bytes.Buffer
		printNIC(&b, control.NIC{Uplinks: []control.Uplink{u}})
		if !strings.Contains(b.String(), tc.want) {
			t.Errorf("%+v: %q", tc, b.String())
		}
	}
}
