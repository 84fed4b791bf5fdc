package scenario_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon/sim"
)

// The figures are of virtual time: they do not depend on the machine, only ns/op does.
func benchmark(b *testing.B, name string, metrics map[string]func(*sim.Result) float64) {
	s := load(b, name)
	var r *sim.Result
	for b.Loop() {
		var err error
		if r, err = sim.Run(s, 1); err != nil {
			b.Fatal(err)
		}
	}
	for name, value := range metrics {
		b.ReportMetric(value(r), name)
	}
}

func BenchmarkLoss1pct(b *testing.B) {
	benchmark(b, "loss1pct", map[string]func(*sim.Result) float64{
		"sim/goodput_loss1pct": func(r *sim.Result) float64 { return *r.GoodputOverIdeal },
	})
}

func BenchmarkReorder2(b *testing.B) {
	benchmark(b, "reorder2", map[string]func(*sim.Result) float64{
		"sim/goodput_reorder2":       func(r *sim.Result) float64 { return *r.GoodputOverIdeal },
		"sim/spurious_retx_reorder2": func(r *sim.Result) float64 { return r.SpuriousShare },
	})
}

func BenchmarkIncast32(b *testing.B) {
	benchmark(b, "incast32", map[string]func(*sim.Result) float64{
		"sim/incast32_jain":              func(r *sim.Result) float64 { return r.Jain },
		"sim/incast32_loss":              func(r *sim.Result) float64 { return r.LossShare },
		"sim/incast32_delay_over_target": func(r *sim.Result) float64 { return r.DelayOverTarget },
	})
}
