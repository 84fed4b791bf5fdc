package plot

import (
	"image/color"
	"io"

	gonum "gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// Line is a curve through points.
type Line struct {
	Name string
	X, Y []float64 // as many
}

// Chart is curves over something that is not time.
type Chart struct {
	Title, X, Y string
	Lines       []Line // two at most are told apart by their color
}

// Draw writes the chart as SVG. Both axes begin at 0.
func (c *Chart) Draw(w io.Writer) error {
	p := gonum.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.Title, c.X, c.Y
	p.Legend.Top = true
	p.Add(plotter.NewGrid())
	for i, l := range c.Lines {
		points := make(plotter.XYs, len(l.X))
		for j := range points {
			points[j] = plotter.XY{X: l.X[j], Y: l.Y[j]}
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return err
		}
		line.Color, dots.Color = []color.RGBA{blue, orange}[i%2], []color.RGBA{blue, orange}[i%2]
		line.Width = vg.Points(1.5)
		p.Add(line, dots)
		p.Legend.Add(l.Name, line)
	}
	p.X.Min, p.Y.Min = 0, 0
	return write(w, p)
}
