package show

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/falcon-vnic/vnic/device/control"
)

// Summary gathers the times between the steps of operations.
type Summary struct {
	groups map[string]*group
}

// group holds the operations of one kind.
type group struct {
	name  string
	count int
	again int
	rows  []*row // in the order they were first seen
	whole row
}

// row holds the times from one step to another; only the latest ones, if there are very many.
type row struct {
	from, to string
	times    []int64
	seen     int
}

const maxTimes = 1 << 16

func (r *row) add(ns int64) {
	if len(r.times) < maxTimes {
		r.times = append(r.times, ns)
	} else {
		r.times[r.seen%maxTimes] = ns
	}
	r.seen++
}

// quantile returns the smallest time that the given part of all times does not exceed.
func (r *row) quantile(q float64) int64 {
	s := slices.Sorted(slices.Values(r.times))
	return s[min(int(q*float64(len(s))), len(s)-1)]
}

// Add adds the times of an operation that is complete.
func (s *Summary) Add(o *control.Operation) {
	name := fmt.Sprintf("%s, %s, %s", o.Side, o.Op, o.Transport)
	g := s.groups[name]
	if g == nil {
		if s.groups == nil {
			s.groups = map[string]*group{}
		}
		g = &group{name: name, whole: row{from: "first", to: "last"}}
		s.groups[name] = g
	}
	g.count++
	g.again += o.Again
	for i := 1; i < len(o.Steps); i++ {
		g.row(o.Steps[i-1].Name, o.Steps[i].Name).add(o.Steps[i].After)
	}
	g.whole.add(o.Steps[len(o.Steps)-1].At - o.Steps[0].At)
}

func (g *group) row(from, to string) *row {
	for _, r := range g.rows {
		if r.from == from && r.to == to {
			return r
		}
	}
	r := &row{from: from, to: to}
	g.rows = append(g.rows, r)
	return r
}

// Print prints a table for each kind of operation.
func (s *Summary) Print(w io.Writer) error {
	var groups []*group
	for _, g := range s.groups {
		groups = append(groups, g)
	}
	slices.SortFunc(groups, func(a, b *group) int { return cmp.Compare(a.name, b.name) })
	for _, g := range groups {
		fmt.Fprintf(w, "\n%s: %d, %d packets sent again\n", g.name, g.count, g.again)
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(tw, "  FROM\tTO\tCOUNT\tP50\tP99\tMAX")
		for _, r := range append(slices.Clone(g.rows), &g.whole) {
			fmt.Fprintf(tw, "  %s\t%s\t%d\t%s\t%s\t%s\n", r.from, r.to, r.seen, inMicros(r.quantile(0.5)), inMicros(r.quantile(0.99)), inMicros(slices.Max(r.times)))
		}
		if err := tw.Flush(); err != nil {
			return err
		}
	}
	if len(groups) == 0 {
		fmt.Fprintln(w, "no request was seen from its beginning to its end")
	}
	return nil
}
