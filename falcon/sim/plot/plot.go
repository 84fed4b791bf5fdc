package plot

import (
	"fmt"
	"image/color"
	"io"

	gonum "gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/falcon-vnic/vnic/falcon/sim"
)

// Figure is one plot over time.
type Figure struct {
	Name   string // goodput, cwnd, delay, queue
	title  string
	y      string
	curves []curve
}

type curve struct {
	name  string // empty: the only one
	color color.RGBA
	value func(*sim.Sample) float64
}

var (
	blue   = color.RGBA{R: 0x1f, G: 0x77, B: 0xb4, A: 0xff}
	orange = color.RGBA{R: 0xff, G: 0x7f, B: 0x0e, A: 0xff}
	gray   = color.RGBA{R: 0xa0, G: 0xa0, B: 0xa0, A: 0xff}
)

// Figures are all there are to draw.
var Figures = []Figure{
	{"goodput", "Goodput of all flows", "Gbit/s", []curve{
		{"", blue, func(s *sim.Sample) float64 { return s.Goodput / 1e9 }},
	}},
	{"cwnd", "Fabric congestion window over the flows", "packets", []curve{
		{"largest", gray, func(s *sim.Sample) float64 { return s.CwndMax }},
		{"mean", blue, func(s *sim.Sample) float64 { return s.Cwnd }},
		{"smallest", orange, func(s *sim.Sample) float64 { return s.CwndMin }},
	}},
	{"delay", "Fabric delay, mean of the flows", "µs", []curve{
		{"delay", blue, func(s *sim.Sample) float64 { return s.Delay / 1e3 }},
		{"target", orange, func(s *sim.Sample) float64 { return s.Target / 1e3 }},
	}},
	{"queue", "Fullest switch port, peak of each interval", "KB", []curve{
		{"", blue, func(s *sim.Sample) float64 { return float64(s.Queue) / 1e3 }},
	}},
}

// Draw writes the figure as SVG. The warm-up, which totals leave out, ends at a dashed line.
func (f *Figure) Draw(w io.Writer, r *sim.Result) error {
	p := gonum.New()
	p.Title.Text = fmt.Sprintf("%s: %s", r.Scenario, f.title)
	p.X.Label.Text, p.Y.Label.Text = "ms", f.y
	p.Y.Min = 0
	p.Legend.Top = true
	p.Add(plotter.NewGrid())
	for _, c := range f.curves {
		points := make(plotter.XYs, len(r.Series))
		for i := range r.Series {
			points[i] = plotter.XY{X: float64(r.Series[i].At) / 1e6, Y: c.value(&r.Series[i])}
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return fmt.Errorf("plot %s of %s: %w", f.Name, r.Scenario, err)
		}
		line.Color, line.Width = c.color, vg.Points(1)
		p.Add(line)
		if c.name != "" {
			p.Legend.Add(c.name, line)
		}
	}
	p.Y.Max *= 1.05
	if r.WarmUp > 0 {
		at := float64(r.WarmUp) / 1e6
		line, err := plotter.NewLine(plotter.XYs{{X: at, Y: 0}, {X: at, Y: p.Y.Max}})
		if err != nil {
			return fmt.Errorf("plot %s of %s: %w", f.Name, r.Scenario, err)
		}
		line.Color, line.Dashes = gray, []vg.Length{vg.Points(3), vg.Points(3)}
		p.Add(line)
	}
	return write(w, p)
}

// write writes a plot as SVG.
func write(w io.Writer, p *gonum.Plot) error {
	c := vgsvg.New(16*vg.Centimeter, 8*vg.Centimeter)
	p.Draw(draw.New(c))
	_, err := c.WriteTo(w)
	return err
}
