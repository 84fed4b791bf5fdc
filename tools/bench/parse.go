package main

import (
	"regexp"
	"strconv"
	"strings"
)

// report gathers the output of `go test -bench`.
type report struct {
	benchmarks []benchmark
	samples    map[string][]float64 // by metric name, "@peer" included
}

// benchmark is one line of output. A column that was not printed is -1.
type benchmark struct {
	pkg, name           string
	nsOp, bytesOp, allo float64
}

// line is a result: name, iterations, then pairs of value and unit.
var line = regexp.MustCompile(`^(Benchmark\S*)\s+\d+\s+(.*)$`)

// cpus is the "-8" go test puts after a name.
var cpus = regexp.MustCompile(`-\d+$`)

func (r *report) parse(text string) {
	if r.samples == nil {
		r.samples = make(map[string][]float64)
	}
	pkg := ""
	for l := range strings.Lines(text) {
		l = strings.TrimSpace(l)
		if p, ok := strings.CutPrefix(l, "pkg: "); ok {
			pkg = p
			continue
		}
		m := line.FindStringSubmatch(l)
		if m == nil {
			continue
		}
		b := benchmark{pkg: pkg, name: strings.TrimPrefix(cpus.ReplaceAllString(m[1], ""), "Benchmark"), nsOp: -1, bytesOp: -1, allo: -1}
		f := strings.Fields(m[2])
		for i := 0; i+1 < len(f); i += 2 {
			v, err := strconv.ParseFloat(f[i], 64)
			if err != nil {
				break
			}
			switch unit := f[i+1]; {
			case unit == "ns/op":
				b.nsOp = v
			case unit == "B/op":
				b.bytesOp = v
			case unit == "allocs/op":
				b.allo = v
			case unit == "MB/s": // of b.SetBytes
			case strings.Contains(unit, "/"):
				r.samples[unit] = append(r.samples[unit], v)
			}
		}
		r.benchmarks = append(r.benchmarks, b)
	}
}
