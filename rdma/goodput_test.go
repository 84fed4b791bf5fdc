package rdma

import (
	"bytes"
	"encoding/csv"
	"flag"
	"os"
	"strconv"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/sim/plot"
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
			for _, byRoCE := range []bool{true, false} {
				row = append(row, strconv.FormatFloat(100*goodput(t, byRoCE, loss/100), 'f', 1, 64))
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
			if is := 100 * goodput(t, k == 0, rates[i]/100); is < v-5 || is > v+5 {
				t.Errorf("%s at %g %% loss: %.1f %% of the line, the plot says %.1f: run this test with -draw", lines[k].Name, rates[i], is, v)
			}
		}
	}
	return &plot.Chart{Title: "Goodput of one connection over a line of 1 Gbit/s", X: "packets lost, %", Y: "% of the line", Lines: lines}
}
