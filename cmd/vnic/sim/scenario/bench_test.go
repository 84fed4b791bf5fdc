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

// overIdeal reports the share of the goodput without loss.
func overIdeal(name string) map[string]func(*sim.Result) float64 {
	return map[string]func(*sim.Result) float64{name: func(r *sim.Result) float64 { return *r.GoodputOverIdeal }}
}

func BenchmarkSoftwareLoss10(b *testing.B) {
	benchmark(b, "software-loss10", overIdeal("sim/software_loss10pct"))
}

func BenchmarkHardwareLoss5(b *testing.B) {
	benchmark(b, "hardware-loss5", overIdeal("sim/hardware_loss5pct"))
}

func BenchmarkHardwareLoss10(b *testing.B) {
	benchmark(b, "hardware-loss10", overIdeal("sim/hardware_loss10pct"))
}

func BenchmarkPullLoss5(b *testing.B) { benchmark(b, "pull-loss5", overIdeal("sim/pull_loss5pct")) }

func BenchmarkPullLoss10(b *testing.B) { benchmark(b, "pull-loss10", overIdeal("sim/pull_loss10pct")) }

func BenchmarkTailLoss1(b *testing.B) { benchmark(b, "tail-loss1", overIdeal("sim/tail_loss1pct")) }

func BenchmarkOutage5RTT(b *testing.B) { benchmark(b, "outage5rtt", overIdeal("sim/outage5rtt")) }

func BenchmarkLongLoss1(b *testing.B) {
	benchmark(b, "long-loss1", map[string]func(*sim.Result) float64{
		"sim/long_loss1pct": func(r *sim.Result) float64 { return r.Goodput / windowPerRTT },
	})
}

func BenchmarkIncast64Full(b *testing.B) {
	benchmark(b, "incast64-full", map[string]func(*sim.Result) float64{
		"sim/incast64_failed": func(r *sim.Result) float64 { return float64(r.Failed) },
	})
}

func BenchmarkLoss1pct200G(b *testing.B) {
	benchmark(b, "loss1pct-200g", overIdeal("sim/goodput_loss1pct_200g"))
}

func BenchmarkWritesLoss2(b *testing.B) {
	benchmark(b, "writes-loss2", overIdeal("sim/goodput_writes_loss2pct"))
}

func BenchmarkWritesLoss2At200G(b *testing.B) {
	benchmark(b, "writes-loss2-200g", overIdeal("sim/goodput_writes_loss2pct_200g"))
}

func BenchmarkOfferedAny24(b *testing.B) {
	benchmark(b, "offered-any24", map[string]func(*sim.Result) float64{
		"sim/offered_any24_p99_us": func(r *sim.Result) float64 { return float64(r.Time99) / 1e3 },
	})
}

func BenchmarkIncast1023(b *testing.B) {
	benchmark(b, "incast1023", map[string]func(*sim.Result) float64{
		"sim/incast1023_jain": func(r *sim.Result) float64 { return r.Jain },
	})
}

func BenchmarkIncast256(b *testing.B) {
	benchmark(b, "incast256", map[string]func(*sim.Result) float64{
		"sim/incast256_jain": func(r *sim.Result) float64 { return r.Jain },
	})
}
