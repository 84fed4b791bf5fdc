package counters

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/wire"
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

// TestEachReasonHasItsCounter: counters by reason are shown under the reason's name, each once; a
// value that is not a reason is not shown.
func TestEachReasonHasItsCounter(t *testing.T) {
	var s falcon.Stats
	for i := range s.Drops {
		s.Drops[i] = 1000 + uint64(i)
	}
	for i := range s.NackCodesSent {
		s.NackCodesSent[i], s.NackCodesReceived[i] = 2000+uint64(i), 3000+uint64(i)
	}
	for i := range s.Completions {
		s.Completions[i] = 4000 + uint64(i)
	}
	got, want := control.Counters{}, control.Counters{}
	AddFalcon(got, &s)
	for i := 1; i < len(s.Drops); i++ {
		want["falcon.drop_"+Name(wire.Drop(i).String())] = 1000 + uint64(i)
	}
	want["falcon.nack_received_reserved"] = 3000
	for i := range s.NackCodesSent {
		if wire.NackCode(i).Valid() {
			want["falcon.nack_sent_"+Name(wire.NackCode(i).String())] = 2000 + uint64(i)
			want["falcon.nack_received_"+Name(wire.NackCode(i).String())] = 3000 + uint64(i)
		}
	}
	for i := range s.Completions {
		if name := falcon.Completion(i).Name(); name != "" {
			want["falcon.completion_"+Name(name)] = 4000 + uint64(i)
		}
	}
	reasons := 0
	for name, n := range got {
		if n < 1000 { // has a line in a table
			continue
		}
		if reasons++; want[name] != n {
			t.Errorf("%s is %d, want %d", name, n, want[name])
		}
		if f, _, hidden := FamilyOf(name); f == nil || hidden {
			t.Errorf("%s is in no family", name)
		}
	}
	if reasons != len(want) || reasons < 20 {
		t.Errorf("%d reasons, want %d", reasons, len(want))
	}
	var g gateway.Stats
	for i := range g.Reasons {
		g.Reasons[i] = 1000 + uint64(i)
	}
	got, reasons = control.Counters{}, 0
	AddGateway(got, &g)
	for name, n := range got {
		if n < 1000 {
			continue
		}
		if reasons++; name != "gateway."+gateway.Reason(n-1000).String() || n == 1000 {
			t.Errorf("%s is %d", name, n)
		}
	}
	if reasons != len(g.Reasons)-1 {
		t.Errorf("%d reasons of the gateway, want %d", reasons, len(g.Reasons)-1)
	}
}

// TestAPortsNameMayHaveDots: a port's counters are named after the device, whose name may contain
// dots. A similar name that is not a port's counter is in no family.
func TestAPortsNameMayHaveDots(t *testing.T) {
	got := control.Counters{}
	AddPort(got, "a.b", &gateway.PortStats{RxFrames: 1, RxBytes: 2, RxDropped: 3, TxFrames: 4, TxBytes: 5, TxDropped: 6})
	for name, want := range map[string]string{
		"port.a.b.rx_frames": "vnic_port_frames_total a.b rx", "port.a.b.rx_bytes": "vnic_port_bytes_total a.b rx",
		"port.a.b.rx_dropped": "vnic_port_dropped_frames_total a.b rx", "port.a.b.tx_frames": "vnic_port_frames_total a.b tx",
		"port.a.b.tx_bytes": "vnic_port_bytes_total a.b tx", "port.a.b.tx_dropped": "vnic_port_dropped_frames_total a.b tx",
	} {
		f, labels, _ := FamilyOf(name)
		if _, is := got[name]; !is || f == nil || f.Metric+" "+strings.Join(labels, " ") != want {
			t.Errorf("%s: %v %v", name, f, labels)
		}
	}
	if len(got) != 6 || got["port.a.b.rx_dropped"] != 3 || got["port.a.b.tx_frames"] != 4 {
		t.Errorf("%v", got)
	}
	for _, name := range []string{"port.rx_bytes", "port.a.rx", "port.a.rx_other", "port.a"} {
		if f, labels, hidden := FamilyOf(name); f != nil || labels != nil || !hidden {
			t.Errorf("%s: %v %v", name, f, labels)
		}
	}
	for _, name := range []string{"transport.a.rx_bytes", "a.rx_bytes", "drops.x"} {
		if f, _, hidden := FamilyOf(name); f != nil || hidden {
			t.Errorf("%s: %v", name, f)
		}
	}
}

// TestACounterWithoutALineHasOnlyItsName: a counter without a line in a table has only its name.
func TestACounterWithoutALineHasOnlyItsName(t *testing.T) {
	if c := Of("new.thing"); c != (Counter{Name: "new.thing"}) {
		t.Errorf("%+v", c)
	}
	if c := Of("rdma.posted"); c.Name != "rdma.posted" || c.Help == "" || c.Gauge {
		t.Errorf("%+v", c)
	}
	if c := Of("falcon.conns"); !c.Gauge {
		t.Errorf("%+v", c)
	}
}
