package plot_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/sim/plot"
)

// TestEveryFigureIsWellFormedSVG: every figure is well-formed SVG of a moderate size, names the scenario and is the same
// each time.
func TestEveryFigureIsWellFormedSVG(t *testing.T) {
	r := &sim.Result{Scenario: "some run", WarmUp: 1e6}
	for i := range int64(200) {
		r.Series = append(r.Series, sim.Sample{At: i * 1e5, Goodput: float64(i) * 5e8, Cwnd: 3, CwndMax: 5, CwndMin: 1, Delay: 12000 + float64(i%7)*100, Target: 13000, Queue: int(i) * 100})
	}
	for _, f := range plot.Figures {
		var a, b bytes.Buffer
		if err := f.Draw(&a, r); err != nil {
			t.Fatal(err)
		}
		if err := f.Draw(&b, r); err != nil {
			t.Fatal(err)
		}
		text := a.String()
		if text != b.String() {
			t.Errorf("%s: two drawings differ", f.Name)
		}
		if len(text) > 100_000 || !strings.Contains(text, "some run") {
			t.Errorf("%s: %d bytes", f.Name, len(text))
		}
		d := xml.NewDecoder(&a)
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", f.Name, err)
			}
		}
	}
}

func TestDrawWithoutSamples(t *testing.T) {
	for _, f := range plot.Figures {
		var b bytes.Buffer
		if err := f.Draw(&b, &sim.Result{Scenario: "empty"}); err != nil || !strings.Contains(b.String(), "empty") || strings.Contains(b.String(), "NaN") {
			t.Errorf("%s: %v\n%s", f.Name, err, b.String())
		}
	}
}

// TestAChartIsWellFormedSVG: a chart is well-formed SVG, and the same each time.
func TestAChartIsWellFormedSVG(t *testing.T) {
	c := plot.Chart{Title: "some chart", X: "loss", Y: "goodput", Lines: []plot.Line{{"one", []float64{0, 1}, []float64{3, 4}}, {"two", []float64{0, 1}, []float64{1, 0}}}}
	var a, b bytes.Buffer
	if err := errors.Join(c.Draw(&a), c.Draw(&b)); err != nil {
		t.Fatal(err)
	}
	for d := xml.NewDecoder(strings.NewReader(a.String())); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(a.Bytes(), b.Bytes()) || !strings.Contains(a.String(), "some chart") || !strings.Contains(a.String(), "two") {
		t.Errorf("%s", &a)
	}
}
