package metrics

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// some is a collector that sends what a function of this package sends.
type some func(out chan<- prometheus.Metric, gauge showGauge)

func (some) Describe(chan<- *prometheus.Desc) {}

func (f some) Collect(out chan<- prometheus.Metric) {
	f(out, func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	})
}

// shown returns the output of a collector, as "name{label=value}" and a number.
func shown(t *testing.T, collect some) map[string]float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collect)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			all[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return all
}

// TestOtherFunctions: functions beyond those with their own series are summed, each counter
// separately. Without any there is no such series.
func TestOtherFunctions(t *testing.T) {
	many := func(n int) (list []control.Function) {
		for i := range n {
			f := control.Function{ID: fmt.Sprintf("f%d", i), State: "READY", TxBytes: 1, RxBytes: 2, Resets: 3}
			for k := range abi.NumObjects {
				*f.Has(k) = int(k) + 1
			}
			list = append(list, f)
		}
		return list
	}
	for _, c := range []struct {
		functions, others int
	}{{MaxFunctions - 1, 0}, {MaxFunctions, 0}, {MaxFunctions + 1, 1}, {MaxFunctions + 3, 3}} {
		for _, link := range []int{-1, c.functions - 1, max(c.functions-2, MaxFunctions)} { // whose is up
			list := many(c.functions)
			up := 0.0
			if link >= MaxFunctions && link < c.functions {
				list[link].LinkUp, up = true, 1
			}
			all := shown(t, func(out chan<- prometheus.Metric, gauge showGauge) { collectFunctions(out, gauge, list) })
			n := float64(c.others)
			want := map[string]float64{
				"vnic_function_link_up{function=other}": up, "vnic_function_tx_bytes_total{function=other}": n,
				"vnic_function_rx_bytes_total{function=other}": 2 * n, "vnic_function_resets_total{function=other}": 3 * n,
			}
			for k := range abi.NumObjects {
				want[fmt.Sprintf("vnic_function_objects{function=other,kind=%s}", k.Info().Key)] = float64(k+1) * n
			}
			for name, v := range want {
				if got, is := all[name]; is != (c.others > 0) || got != v {
					t.Errorf("%d functions: %s %v, %v; want %v", c.functions, name, got, is, v)
				}
			}
			last := fmt.Sprintf("vnic_function_resets_total{function=f%d}", min(c.functions, MaxFunctions)-1)
			if all[last] != 3 || all["vnic_functions{state=READY}"] != float64(c.functions) {
				t.Errorf("%d functions: %s %v, %v in all", c.functions, last, all[last], all["vnic_functions{state=READY}"])
			}
			if _, is := all[fmt.Sprintf("vnic_function_resets_total{function=f%d}", MaxFunctions)]; is {
				t.Errorf("%d functions: one too many has series of its own", c.functions)
			}
		}
	}
}

// TestCreditsOfMany: the maximum number of functions have their own series of credits, wherever
// they are in the list of nodes.
func TestCreditsOfMany(t *testing.T) {
	node := func(level, name string) control.CreditNode {
		one := map[string]uint32{"req-pkt-tx": 1}
		return control.CreditNode{Level: level, Name: name, Limit: one, Guarantee: one, InUse: one, Refused: 2}
	}
	nodes := []control.CreditNode{node("nic", "n")}
	for i := range MaxFunctions + 2 {
		nodes = append(nodes, node("function", fmt.Sprintf("f%d", i)), node("connection", fmt.Sprintf("f%d/1", i)))
	}
	nodes = append(nodes, node("host", "h"))
	all := shown(t, func(out chan<- prometheus.Metric, gauge showGauge) { collectCredits(out, gauge, nodes) })
	for name, want := range map[string]bool{
		"level=nic,node=n": true, "level=host,node=h": true, "level=function,node=f0": true,
		fmt.Sprintf("level=function,node=f%d", MaxFunctions-1): true,
		fmt.Sprintf("level=function,node=f%d", MaxFunctions):   false,
		"level=connection,node=f0/1":                           false,
	} {
		for _, metric := range []string{"vnic_credit_limit", "vnic_credit_guarantee", "vnic_credit_in_use"} {
			if v, is := all[metric+"{counter=req-pkt-tx,"+name+"}"]; is != want || is && v != 1 {
				t.Errorf("%s of %s: %v, %v", metric, name, v, is)
			}
		}
		if v, is := all["vnic_credit_refusals_total{"+name+"}"]; is != want || is && v != 2 {
			t.Errorf("refusals of %s: %v, %v", name, v, is)
		}
	}
}
