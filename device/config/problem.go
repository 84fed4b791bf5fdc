package config

import (
	"fmt"
	"math"
	"sort"
	"strings"
)

// Problem is an error in a configuration.
type Problem struct {
	Line   int    // 1-based line in the file, 0 when the key is absent
	Path   string // as in "functions[1].vfs[0].address"
	What   string // what is wrong, naming the value
	Remedy string // what to write instead
	InUse  bool   // the value is used by another object
}

func (p Problem) String() string {
	var b strings.Builder
	if p.Line > 0 {
		fmt.Fprintf(&b, "line %d: ", p.Line)
	}
	if p.Path != "" {
		fmt.Fprintf(&b, "%s: ", p.Path)
	}
	b.WriteString(p.What)
	if p.Remedy != "" {
		fmt.Fprintf(&b, "; %s", p.Remedy)
	}
	return b.String()
}

// order puts problems in the file's order, those without a line last.
func (p Problem) order() int {
	if p.Line == 0 {
		return math.MaxInt
	}
	return p.Line
}

// Problems is the error of Load and Parse: every problem found, in the order
// of the file where a line is known.
type Problems []Problem

func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// maxProblems bounds a report; a file with more problems is probably not a configuration file.
const maxProblems = 100

// report collects problems and the line of every key that was read.
type report struct {
	problems Problems
	lines    map[string]int  // nil: the checked values do not come from a file
	zeros    map[string]bool // keys whose value is 0, which a default must not hide
}

func (r *report) add(path, what, remedy string) {
	if len(r.problems) >= maxProblems {
		return
	}
	r.problems = append(r.problems, Problem{Line: r.lineOf(path), Path: path, What: what, Remedy: remedy})
}

// inUse reports a value that another object uses.
func (r *report) inUse(path, what, remedy string) {
	r.add(path, what, remedy)
	if n := len(r.problems); n > 0 && r.problems[n-1].Path == path {
		r.problems[n-1].InUse = true
	}
}

func (r *report) addAt(line int, path, what, remedy string) {
	if len(r.problems) >= maxProblems {
		return
	}
	r.problems = append(r.problems, Problem{Line: line, Path: path, What: what, Remedy: remedy})
}

// value formats the value of a key, and marks it as the default if the file does not contain the
// key.
func (r *report) value(path string, v any) string {
	if _, written := r.lines[path]; written || r.lines == nil {
		return fmt.Sprint(v)
	}
	return fmt.Sprintf("the default, %v,", v)
}

// lineOf returns the line of a path, or of the nearest key above it.
func (r *report) lineOf(path string) int {
	for path != "" {
		if l, ok := r.lines[path]; ok {
			return l
		}
		i := strings.LastIndexAny(path, ".[")
		if i < 0 {
			break
		}
		path = path[:i]
	}
	return 0
}

// sorted returns the problems in the order of the file, or nil if there are none.
func (r *report) sorted() error {
	if len(r.problems) == 0 {
		return nil
	}
	sort.SliceStable(r.problems, func(i, j int) bool { return r.problems[i].order() < r.problems[j].order() })
	return r.problems
}
