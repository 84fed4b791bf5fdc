package config

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestReportIsBounded: the number of reported problems is bounded.
func TestReportIsBounded(t *testing.T) {
	for what, list := range map[string]func(n int) string{
		"by a check":     func(n int) string { return strings.Repeat("{tenant: 0}, ", n) },
		"while it reads": func(n int) string { return strings.Repeat("{tenant: x}, ", n) },
	} {
		for n, want := range map[int]int{1: 1, maxProblems - 1: maxProblems - 1, maxProblems: maxProblems, maxProblems + 1: maxProblems} {
			_, err := Parse([]byte(anyNIC + "tenants: [" + list(n) + "]\n"))
			var ps Problems
			told := 0
			if errors.As(err, &ps) {
				for _, p := range ps {
					if strings.HasSuffix(p.Path, ".tenant") {
						told++
					}
				}
			}
			if told > maxProblems || told < min(want, n) && what == "while it reads" || len(ps) > maxProblems {
				t.Errorf("%d problems found %s: %d are told", n, what, told)
			}
		}
	}
	r := &report{}
	for n := range maxProblems + 5 {
		r.add("a", "b", "c")
		if want := min(n+1, maxProblems); len(r.problems) != want {
			t.Fatalf("%d problems after %d", len(r.problems), n+1)
		}
	}
	r.problems = r.problems[:maxProblems-1]
	for range 3 {
		if r.addAt(1, "a", "b", "c"); len(r.problems) != maxProblems {
			t.Errorf("%d problems", len(r.problems))
		}
	}
}

// TestLineOfAProblem: a missing key has the line of the nearest key above it. Without such a key it
// has no line, and comes last.
func TestLineOfAProblem(t *testing.T) {
	r := &report{lines: map[string]int{"a": 3, "a.b[0]": 5}}
	for path, want := range map[string]int{"a": 3, "a.x": 3, "a.b": 3, "a.b[0]": 5, "a.b[0].c.d": 5, "a.b[1].c": 3, "b": 0, "": 0, "ab": 0} {
		if got := r.lineOf(path); got != want {
			t.Errorf("%q is on line %d, want %d", path, got, want)
		}
	}
	for want, p := range map[string]Problem{
		"line 3: a.b: wrong; right": {3, "a.b", "wrong", "right", false}, "a.b: wrong; right": {0, "a.b", "wrong", "right", false}, "line 1: wrong": {1, "", "wrong", "", false},
	} {
		if got := p.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for _, path := range []string{"z", "b", "a.x"} {
		r.add(path, "w", "")
	}
	r.addAt(1, "y", "w", "")
	if err := r.sorted(); err == nil ||
		fmt.Sprint(r.problems[0].Path, r.problems[1].Path, r.problems[2].Path, r.problems[3].Path) != "ya.xzb" {
		t.Errorf("%v", err)
	}
	if err := (&report{}).sorted(); err != nil {
		t.Error(err)
	}
}

// TestNumbersThatAreNone: a floating-point number must be finite and within bounds.
func TestNumbersThatAreNone(t *testing.T) {
	for text, want := range map[string]bool{
		"0.5": true, "1e18": true, "-1e18": true, "1.1e18": false, "-1.1e18": false, "NaN": false, "Inf": false, "-Inf": false, "x": false,
	} {
		wrong := false
		for _, p := range problemsOf(t, anyNIC+"falcon: {rx_packets: {alpha: "+text+"}}\n", "falcon.rx_packets.alpha") {
			wrong = wrong || strings.Contains(p, "is not a number")
		}
		if wrong == want {
			t.Errorf("%s is no number: %v", text, wrong)
		}
	}
}

// TestExtentOfMemory: a guest's memory file is as long as the end of its last range, in any order
// of the ranges.
func TestExtentOfMemory(t *testing.T) {
	for want, layout := range map[Size][]RAMRange{0: nil, 30: {{Offset: 10, Size: 20}, {Offset: 0, Size: 10}}, 40: {{Offset: 0, Size: 10}, {Offset: 30, Size: 10}}} {
		if got := (&RAM{Layout: layout}).Extent(); got != want {
			t.Errorf("%v: %d, want %d", layout, got, want)
		}
	}
}
