package main

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// printMetrics prints the metrics as a table.
func printMetrics(w io.Writer, metrics []Metric) {
	rows := [][]string{{"metric", "value", "unit", "better", "peer", "peer value", "value/peer", "goal"}}
	for _, m := range metrics {
		row := []string{m.Name, number(m.Value), m.Unit, "lower", m.Peer, "", "", goal(m)}
		if m.HigherIsBetter {
			row[3] = "higher"
		}
		if m.PeerValue != nil {
			row[5] = number(*m.PeerValue)
		}
		if m.Ratio != nil {
			row[6] = fmt.Sprintf("%.2f", *m.Ratio)
		}
		rows = append(rows, row)
	}
	table(w, rows, "lrlllrrl")
}

// printBenchmarks prints time and memory of every benchmark.
func printBenchmarks(w io.Writer, list []benchmark) {
	if len(list) == 0 {
		return
	}
	fmt.Fprintln(w)
	rows := [][]string{{"benchmark", "ns/op", "B/op", "allocs/op"}}
	optional := func(v float64) string {
		if v < 0 {
			return ""
		}
		return number(v)
	}
	for _, b := range list {
		name := b.name
		if b.pkg != "" {
			name = b.pkg[strings.LastIndexByte(b.pkg, '/')+1:] + "." + name
		}
		rows = append(rows, []string{name, optional(b.nsOp), optional(b.bytesOp), optional(b.allo)})
	}
	table(w, rows, "lrrr")
}

// table prints rows aligned: 'l' left, 'r' right.
func table(w io.Writer, rows [][]string, align string) {
	width := make([]int, len(align))
	for _, row := range rows {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
			if align[i] == 'r' {
				b.WriteString(pad + cell)
			} else {
				b.WriteString(cell + pad)
			}
			b.WriteString("  ")
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}

// number prints four digits that matter, and groups the large ones.
func number(v float64) string {
	abs := math.Abs(v)
	if abs != 0 && abs < 1000 {
		digits := max(0, 3-int(math.Floor(math.Log10(abs))))
		return strconv.FormatFloat(v, 'f', min(digits, 6), 64)
	}
	s := strconv.FormatFloat(v, 'f', 0, 64)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + " " + s[i:]
	}
	return s
}
