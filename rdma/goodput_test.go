package rdma

import (
	"bytes"
	"encoding/csv"
	"flag"
	"os"
	"strconv"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/sim/plot"
	"github.com/falcon-vnic/vnic/queues/abi"
)

var drawGoodput = flag.Bool("draw", false, "write the plot of goodput over loss and its numbers, for docs/performance.md")

// The plot in docs/performance.md and its columns: loss, goodput of RoCEv2, goodput of Falcon, in
// percent.
const (
	goodputCSV = "../docs/img/goodput-loss.csv"
	goodputSVG = "../docs/img/goodput-loss.svg"
)

// TestGoodputOverLoss: the documentation's plot of goodput over loss matches both wires to within
// five percent of the line, and is drawn from its numbers.
func TestGoodputOverLoss(t *testing.T) {
	rates := []float64{0, 0.1, 0.2, 0.5, 1, 2, 3, 4, 5}
	if *drawGoodput {
		var b bytes.Buffer
		w := csv.NewWriter(&b)
		for _, loss := range rates {
			row := []string{strconv.FormatFloat(loss, 'g', -1, 64)}
			for _, wire := range []string{byRoCE, byFalcon} {
				row = append(row, strconv.FormatFloat(100*goodput(t, wire, loss/100), 'f', 1, 64))
			}
			_ = w.Write(row) // to memory
		}
		w.Flush()
		var svg bytes.Buffer
		if err := goodputChart(t, b.Bytes(), rates, false).Draw(&svg); err != nil {
			t.Fatal(err)
		}
		for path, data := range map[string][]byte{goodputCSV: b.Bytes(), goodputSVG: svg.Bytes()} {
			if err := os.WriteFile(path, data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	numbers, err := os.ReadFile(goodputCSV)
	if err != nil {
		t.Fatal(err)
	}
	var svg bytes.Buffer
	if err := goodputChart(t, numbers, rates, true).Draw(&svg); err != nil {
		t.Fatal(err)
	}
	if is, err := os.ReadFile(goodputSVG); err != nil || !bytes.Equal(is, svg.Bytes()) {
		t.Errorf("%s is not drawn from %s: run this test with -draw; %v", goodputSVG, goodputCSV, err)
	}
}

// goodputChart reads the numbers and compares them with what both wires do, if asked to.
func goodputChart(t *testing.T, numbers []byte, rates []float64, compare bool) *plot.Chart {
	t.Helper()
	rows, err := csv.NewReader(bytes.NewReader(numbers)).ReadAll()
	if err != nil || len(rows) != len(rates) {
		t.Fatalf("%s: %d rows, want %d, %v", goodputCSV, len(rows), len(rates), err)
	}
	lines := []plot.Line{{Name: "RoCEv2"}, {Name: "Falcon"}}
	wires := []string{byRoCE, byFalcon}
	for i, row := range rows {
		for k, text := range row[1:] {
			v, err := strconv.ParseFloat(text, 64)
			if err != nil {
				t.Fatal(err)
			}
			lines[k].X, lines[k].Y = append(lines[k].X, rates[i]), append(lines[k].Y, v)
			if !compare {
				continue
			}
			if is := 100 * goodput(t, wires[k], rates[i]/100); is < v-5 || is > v+5 {
				t.Errorf("%s at %g %% loss: %.1f %% of the line, the plot says %.1f: run this test with -draw", lines[k].Name, rates[i], is, v)
			}
		}
	}
	return &plot.Chart{Title: "Goodput of one connection over a line of 1 Gbit/s", X: "packets lost, %", Y: "% of the line", Lines: lines}
}

// goodput is the share of a line of 1 Gbit/s that WRITEs of 64 KiB get by one connection with
// packets of 1 KiB, over a path of 50 µs each way that loses some, in virtual time.
func goodput(t testing.TB, wire string, loss float64) float64 {
	t.Helper()
	worldsOver(t, wire)
	const size, count, deep, line = 64 << 10, 100, 16, 1e9
	p := newPair(t, true, 1<<20, worldConfig{seed: 1, arena: 32 << 20, net: sim.Impairment{Delay: 50e3, Rate: line, Loss: loss}}, qpConfig{})
	begun := p.now
	for posted, done := 0, 0; done < count; done++ {
		for ; posted < count && posted-done < deep; posted++ {
			p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, size))
		}
		success(t, p.a.send.wait(1))
	}
	return size * count * 8 * 1e9 / float64(p.now-begun) / line
}

// BenchmarkRoCEGoodput compares both wires under losses.
func BenchmarkRoCEGoodput(b *testing.B) {
	for b.Loop() {
		b.ReportMetric(goodput(b, byRoCE, 0.01), "roce/goodput_loss1pct")
		b.ReportMetric(goodput(b, byFalcon, 0.01), "roce/goodput_loss1pct@falcon")
	}
}

// TestRoCEUsesTheLineDespiteLosses has RoCEv2 use a line that loses nothing, and go on where packets are lost.
func TestRoCEUsesTheLineDespiteLosses(t *testing.T) {
	for _, loss := range []float64{0, 0.001, 0.01, 0.05} {
		roce, falcon := goodput(t, byRoCE, loss), goodput(t, byFalcon, loss)
		t.Logf("loss %.1f %%: RoCEv2 %.0f %%, Falcon %.0f %% of the line", loss*100, roce*100, falcon*100)
		if least := map[float64]float64{0: 0.8, 0.001: 0.4, 0.01: 0.1, 0.05: 0.01}[loss]; roce < least {
			t.Errorf("loss %.1f %%: RoCEv2 has %.2f %% of the line", loss*100, roce*100)
		}
	}
}
