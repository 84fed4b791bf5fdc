package main

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const canned = `goos: linux
goarch: amd64
pkg: example.org/x/falcon
cpu: Some CPU @ 2.00GHz
BenchmarkPush64-2         	 1234567	       812.5 ns/op	  78.77 MB/s	   1230000 falcon/push64_per_s	    600000 falcon/push64_per_s@rxe	       0 B/op	       0 allocs/op
BenchmarkPush64-2         	 1234567	       900 ns/op	   1250000 falcon/push64_per_s	    400000 falcon/push64_per_s@rxe	       0 B/op	       0 allocs/op
some log line of a benchmark
BenchmarkRTT/depth-1-2    	     100	     21500 ns/op	        21.50 falcon/rtt_us
BenchmarkBad-2            	     100	         1 ns/op	         7.000 falcon/no_suffix	NaN falcon/x_ns	1 nowhere/x_ns	5 falcon/lonely_us@rxe
PASS
ok  	example.org/x/falcon	3.2s
pkg: example.org/x/rdma
BenchmarkWrite-2          	      10	 100000000 ns/op	        12.25 rdma/write_gbps	         0.5000 rdma/sealed_over_clear	     64.00 tunnel/header_bytes
`

func parsed() *report {
	var r report
	r.parse(canned)
	return &r
}

func rooms(t *testing.T, list string) []room {
	t.Helper()
	r, err := selectRooms(list)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func ptr(v float64) *float64 { return &v }

func TestMetricsAreReadFromBenchmarkOutput(t *testing.T) {
	got, warnings := parsed().metrics(rooms(t, "all"))
	want := []Metric{
		{Name: "falcon/push64_per_s", Value: 1240000, Unit: "1/s", HigherIsBetter: true, Peer: "rxe", PeerValue: ptr(500000), Ratio: ptr(2.48)},
		{Name: "falcon/rtt_us", Value: 21.5, Unit: "µs"},
		{Name: "rdma/sealed_over_clear", Value: 0.5, Unit: "ratio"},
		{Name: "rdma/write_gbps", Value: 12.25, Unit: "Gbit/s", HigherIsBetter: true},
		{Name: "tunnel/header_bytes", Value: 64, Unit: "bytes"},
	}
	if !reflect.DeepEqual(got, want) {
		a, _ := json.Marshal(got)
		b, _ := json.Marshal(want)
		t.Errorf("got  %s\nwant %s", a, b)
	}
	text := strings.Join(warnings, "\n")
	for _, w := range []string{"falcon/no_suffix", "falcon/x_ns: its value is NaN", `no room "nowhere"`, "falcon/lonely_us itself was not reported"} {
		if !strings.Contains(text, w) {
			t.Errorf("no warning about %q in:\n%s", w, text)
		}
	}
	if len(warnings) != 4 {
		t.Errorf("%d warnings", len(warnings))
	}
}

// The simulation's figures belong to the room of the transport.
func TestSharesOfTheSimulation(t *testing.T) {
	var r report
	r.parse("BenchmarkX-2 1 9 ns/op 0.99 sim/goodput_loss1pct 0.0001 sim/spurious_retx_reorder2 1 sim/incast32_jain 0 sim/incast32_loss 1.07 sim/incast32_delay_over_target 0.6 sim/tail_loss1pct 0 sim/incast64_failed 0.7 sim/outage5rtt\n")
	got, warnings := r.metrics(rooms(t, "falcon"))
	want := []Metric{
		{Name: "sim/goodput_loss1pct", Value: 0.99, Unit: "ratio", HigherIsBetter: true},
		{Name: "sim/incast32_delay_over_target", Value: 1.07, Unit: "ratio"},
		{Name: "sim/incast32_jain", Value: 1, Unit: "ratio", HigherIsBetter: true},
		{Name: "sim/incast32_loss", Value: 0, Unit: "ratio"},
		{Name: "sim/incast64_failed", Value: 0, Unit: "ratio"},
		{Name: "sim/outage5rtt", Value: 0.7, Unit: "ratio", HigherIsBetter: true},
		{Name: "sim/spurious_retx_reorder2", Value: 0.0001, Unit: "ratio"},
		{Name: "sim/tail_loss1pct", Value: 0.6, Unit: "ratio", HigherIsBetter: true},
	}
	if !reflect.DeepEqual(got, want) || len(warnings) != 0 {
		t.Errorf("got %+v, %q", got, warnings)
	}
	if got, warnings := r.metrics(rooms(t, "rdma")); len(got) != 0 || len(warnings) != 0 {
		t.Errorf("room rdma: %+v, %q", got, warnings)
	}
}

func TestOnlyTheRoomsAskedFor(t *testing.T) {
	got, warnings := parsed().metrics(rooms(t, "rdma"))
	if len(got) != 2 || len(warnings) != 1 {
		t.Errorf("%+v %q", got, warnings)
	}
}

func TestAMetricMayHaveTwoPeers(t *testing.T) {
	var r report
	r.parse("BenchmarkX-2 1 5 ns/op 10 rdma/x_us 20 rdma/x_us@rxe 0 rdma/x_us@ernic\n")
	got, _ := r.metrics(rooms(t, "all"))
	if len(got) != 2 || got[0].Peer != "ernic" || got[0].Ratio != nil || got[1].Peer != "rxe" || *got[1].Ratio != 0.5 {
		t.Errorf("%+v", got)
	}
}

func TestMetricsAndBenchmarksArePrintedAsTables(t *testing.T) {
	var b bytes.Buffer
	r := parsed()
	m, _ := r.metrics(rooms(t, "all"))
	printMetrics(&b, m)
	printBenchmarks(&b, r.benchmarks)
	want := `metric                      value  unit    better  peer  peer value  value/peer  goal
falcon/push64_per_s     1 240 000  1/s     higher  rxe      500 000        2.48
falcon/rtt_us               21.50  µs      lower
rdma/sealed_over_clear     0.5000  ratio   lower
rdma/write_gbps             12.25  Gbit/s  higher
tunnel/header_bytes         64.00  bytes   lower

benchmark                 ns/op    B/op  allocs/op
falcon.Push64             812.5       0          0
falcon.Push64             900.0       0          0
falcon.RTT/depth-1       21 500
falcon.Bad                1.000
rdma.Write          100 000 000
`
	want = strings.ReplaceAll(want, "ns/op    B/op", "ns/op  B/op")
	if got := b.String(); strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(want), " ") {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for l := range strings.Lines(b.String()) {
		if strings.HasSuffix(l, " \n") {
			t.Errorf("space at the end of %q", l)
		}
	}
}

func TestNumbersAreRoundedAndGroupedInThousands(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 1: "1.000", 0.5: "0.5000", 12.345: "12.35", 999.94: "999.9", 1000: "1 000", -1234567: "-1 234 567", 0.00001234: "0.000012", 100000: "100 000",
	} {
		if got := number(v); got != want {
			t.Errorf("%v: %q, want %q", v, got, want)
		}
	}
}

func TestUnitBeforeMTU(t *testing.T) {
	if unit, higher, ok := unitOf("tunnel/tcp_gbps_mtu9000"); unit != "Gbit/s" || !higher || !ok {
		t.Error(unit, higher, ok)
	}
}

func TestTheMedianIsTheMiddleValue(t *testing.T) {
	if median([]float64{3, 1, 2}) != 2 || median([]float64{4, 1, 2, 3}) != 2.5 || !math.IsNaN(median(nil)) {
		t.Error("median")
	}
}

func TestOnlyKnownRoomsAreSelected(t *testing.T) {
	if _, err := selectRooms("falcon,kitchen"); err == nil || !strings.Contains(err.Error(), "use all, or one or more of falcon, tunnel, uplink, ports, rdma, roce, iwarp, driver, record, credits, fleet, guest") {
		t.Errorf("%v", err)
	}
	if r := rooms(t, "rdma, falcon"); len(r) != 2 || r[0].name != "rdma" {
		t.Errorf("%+v", r)
	}
}

// A goal is of the ratio where there is a peer, else of the value, and its direction is the
// metric's.
func TestMissedGoalsAreMarked(t *testing.T) {
	for _, c := range []struct {
		m    Metric
		want string
	}{
		{Metric{Name: "roce/write64k_gbps", Value: 1}, ""},
		{Metric{Name: "roce/rxe_write64k_mbs", Value: 30, HigherIsBetter: true, Peer: "rxe", Ratio: ptr(1.5)}, "at least 1.5"},
		{Metric{Name: "roce/rxe_write64k_mbs", Value: 30, HigherIsBetter: true, Peer: "rxe", Ratio: ptr(1.4)}, "at least 1.5: missed"},
		{Metric{Name: "roce/rxe_write64_lat_us", Value: 80, Peer: "rxe", Ratio: ptr(0.6)}, "at most 0.7"},
		{Metric{Name: "roce/rxe_write64_lat_us", Value: 80, Peer: "rxe", Ratio: ptr(0.8)}, "at most 0.7: missed"},
		{Metric{Name: "driver/write64_lat_over_guestlib", Value: 1.3}, "at most 1.2: missed"},
		{Metric{Name: "tunnel/ndr64_pps", Value: 300, HigherIsBetter: true, Peer: "vxlan", Ratio: ptr(1.9)}, ""},
		{Metric{Name: "tunnel/ndr64_pps", Value: 300, HigherIsBetter: true, Peer: "wireguard-go", Ratio: ptr(4)}, "at least 3"},
		{Metric{Name: "ports/local1500_gbps", Value: 16, HigherIsBetter: true, Peer: "testpmd", Ratio: ptr(1.1)}, "at least 15"},
	} {
		if got := goal(c.m); got != c.want {
			t.Errorf("%s: %q, want %q", c.m.Name, got, c.want)
		}
	}
	for name := range goals {
		own, _, _ := strings.Cut(name, "@")
		if _, _, ok := unitOf(own); !ok {
			t.Errorf("goal of %s, which is no metric", name)
		}
	}
}

func TestAMissingProgramIsNamedWithItsPackage(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for _, r := range rooms(t, "guest") {
		if why := r.missing(); !strings.Contains(why, "apt-get install qemu-system-x86") {
			t.Errorf("%q", why)
		}
	}
}

// TestARunWritesMetricsAndReportsFailures benchmarks a small module from end to end.
func TestARunWritesMetricsAndReportsFailures(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":           "module example.org/x\n\ngo 1.26\n",
		"falcon/x_test.go": "package falcon\n\nimport \"testing\"\n\nfunc BenchmarkX(b *testing.B) {\n\tfor b.Loop() {\n\t}\n\tb.ReportMetric(5, \"falcon/x_us\")\n}\n",
		"rdma/x_test.go":   "package rdma\n\nimport \"testing\"\n\nfunc BenchmarkX(b *testing.B) { b.Fatal(\"broken\") }\n",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("GOFLAGS", "-trimpath") // as the Makefile, so that the standard library is not compiled once more
	t.Setenv("GOWORK", "off")
	var out, errs bytes.Buffer
	args := []string{"-root", root, "-benchtime", "1x"}
	if err := run(t.Context(), args, "falcon", &out, &errs); err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	var list []Metric
	b, err := os.ReadFile(filepath.Join(root, "build", "bench.json"))
	if err == nil {
		err = json.Unmarshal(b, &list)
	}
	if err != nil || len(list) != 1 || list[0] != (Metric{Name: "falcon/x_us", Value: 5, Unit: "µs"}) {
		t.Errorf("%s %v", b, err)
	}
	if !strings.Contains(out.String(), "falcon/x_us") || !strings.Contains(out.String(), "falcon.X") {
		t.Errorf("printed\n%s", out.String())
	}
	if err := run(t.Context(), args, "all", &out, &errs); err == nil || !strings.Contains(err.Error(), "failed: ./rdma") || !strings.Contains(errs.String(), "broken") {
		t.Errorf("a failing benchmark: %v", err)
	}
	for why, args := range map[string][]string{
		"-root": {"-root", t.TempDir()}, "only flags": {"falcon"}, "use all, or": {"-rooms", "x"}, "not defined": {"-x"},
	} {
		if err := run(t.Context(), args, "", &out, &errs); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("want an error with %q, got %v", why, err)
		}
	}
}
