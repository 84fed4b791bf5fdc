package counters

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/falcon/cm"
)

// TestCountersAreDescribed: each counter has a help sentence, and counters of Prometheus families
// have a value for each label.
func TestCountersAreDescribed(t *testing.T) {
	for name, c := range All() {
		if c.Name != name || !strings.HasSuffix(c.Help, ".") {
			t.Errorf("%+v", c)
		}
	}
	for name, want := range map[string]string{
		"drop.psp_auth": "vnic_drops_total device psp_auth", "falcon.drop_unknown_cid": "vnic_drops_total falcon unknown_cid",
		"gateway.drop_ttl": "vnic_drops_total gateway ttl", "falcon.completion_success": "vnic_falcon_completions_total success",
		"falcon.nack_sent_invalid_cid": "vnic_falcon_nacks_total tx invalid_cid", "falcon.nack_received_reserved": "vnic_falcon_nacks_total rx reserved",
		"impair.rx_lost": "vnic_impaired_packets_total rx lost", "port.eth0.5.tx_dropped": "vnic_port_dropped_frames_total eth0.5 tx",
		"port.vp1.rx_bytes": "vnic_port_bytes_total vp1 rx",
	} {
		f, labels, hidden := FamilyOf(name)
		if f == nil || hidden || len(labels) != len(f.Labels) || f.Metric+" "+strings.Join(labels, " ") != want {
			t.Errorf("%s: %v %v, want %s", name, f, labels, want)
		}
	}
	for _, name := range []string{"port.vp1.drop_source_ip", "falcon.nacks_sent"} {
		if f, _, hidden := FamilyOf(name); f != nil || !hidden {
			t.Errorf("%s is shown twice", name)
		}
	}
	if f, _, hidden := FamilyOf("rdma.posted"); f != nil || hidden {
		t.Error("a counter of its own is in a family")
	}
}

// TestEachFieldIsCounted: every field of connection management's Stats has a counter, and each line
// reads its own field.
func TestEachFieldIsCounted(t *testing.T) {
	var s cm.Stats
	v := reflect.ValueOf(&s).Elem()
	for i := range v.NumField() {
		v.Field(i).SetUint(uint64(i + 1))
	}
	got := control.Counters{}
	OfCM.Add(got, &s)
	var values []uint64
	for _, n := range got {
		values = append(values, n)
	}
	slices.Sort(values)
	if len(slices.Compact(values)) != v.NumField() || values[0] == 0 {
		t.Errorf("%d counters with different values, %d fields", len(slices.Compact(values)), v.NumField())
	}
}
