package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device/control"
)

// `show nic` says that an uplink was taken down by vnic inject.
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

// `top` shows plain IP where there is some.
func TestTopShowsPlainIP(t *testing.T) {
	at := time.Unix(100, 0)
	was := sample{at: at, counters: control.Counters{"gateway.from_port_bytes": 1000}}
	is := sample{at: at.Add(2 * time.Second), counters: control.Counters{
		"gateway.from_port_bytes": 1000 + 1e9, "gateway.to_port_bytes": 5e8, "gateway.tunnel_tx_packets": 2e6,
	}}
	if head := topHead(&was, &is); !strings.Contains(head, "from ports "+si(4e9)+"bit/s  to ports "+si(2e9)+"bit/s") || !strings.Contains(head, "out "+si(1e6)) {
		t.Error(head)
	}
	if head := topHead(&sample{}, &sample{}); strings.Contains(head, "plain IP") {
		t.Errorf("of a NIC without ports: %s", head)
	}
}
