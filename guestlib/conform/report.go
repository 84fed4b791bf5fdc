package conform

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Outcome of a check.
type Outcome string

// Outcomes.
const (
	Passed  Outcome = "passed"
	Failed  Outcome = "failed"
	Skipped Outcome = "skipped"
)

// Result is the result of one check.
type Result struct {
	Name    string   `json:"name"`
	Clauses []string `json:"clauses"`
	Outcome Outcome  `json:"outcome"`
	Detail  string   `json:"detail,omitempty"` // of a failure, or why it was skipped
	Millis  int64    `json:"ms"`
}

// Coverage is the state of one clause.
type Coverage struct {
	Clause string   `json:"clause"`
	State  string   `json:"state"` // "passed", "failed", "skipped" (on this device), "unchecked" (by this kit)
	Checks []string `json:"checks,omitempty"`
	Reason string   `json:"reason,omitempty"` // of skipped and unchecked
}

// Report holds the results of Run or Watch.
type Report struct {
	Kind     string     `json:"kind"` // "device" or "driver"
	Device   string     `json:"device"`
	Function string     `json:"function"`
	Features uint64     `json:"features"`
	Results  []Result   `json:"results"`
	Coverage []Coverage `json:"coverage"`
}

// Failed lists the names of the checks that failed.
func (r *Report) Failed() (names []string) {
	for _, x := range r.Results {
		if x.Outcome == Failed {
			names = append(names, x.Name)
		}
	}
	return names
}

// Err returns an error if any check failed.
func (r *Report) Err() error {
	if f := r.Failed(); len(f) > 0 {
		return fmt.Errorf("conform: %d of %d checks failed: %s", len(f), len(r.Results), strings.Join(f, ", "))
	}
	return nil
}

// JSON writes the report.
func (r *Report) JSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// TAP writes the report in version 13 of the Test Anything Protocol, with the coverage as comments.
func (r *Report) TAP(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "TAP version 13\n# %s %s, function %s, features %#x\n1..%d\n", r.Kind, r.Device, r.Function, r.Features, len(r.Results))
	for i, x := range r.Results {
		line := fmt.Sprintf("ok %d - %s (%s)", i+1, x.Name, strings.Join(x.Clauses, " "))
		switch x.Outcome {
		case Failed:
			line = "not " + line
		case Skipped:
			line += " # SKIP " + x.Detail
		}
		b.WriteString(line + "\n")
		if x.Outcome == Failed {
			fmt.Fprintf(&b, "  ---\n  message: %q\n  clauses: [%s]\n  ...\n", x.Detail, strings.Join(x.Clauses, ", "))
		}
	}
	r.summary(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// summary writes the coverage as comments.
func (r *Report) summary(b *strings.Builder) {
	count := map[string]int{}
	for _, c := range r.Coverage {
		count[c.State]++
	}
	var parts []string
	for _, s := range []string{"passed", "failed", "skipped", "unchecked"} {
		parts = append(parts, fmt.Sprintf("%d %s", count[s], s))
	}
	fmt.Fprintf(b, "# %d clauses: %s\n", len(r.Coverage), strings.Join(parts, ", "))
	for _, c := range r.Coverage {
		if c.Reason != "" {
			fmt.Fprintf(b, "# %s %s: %s\n", c.Clause, c.State, c.Reason)
		}
	}
}

// deviceCoverage returns the state of each DEV clause. A clause has passed if one of its checks
// passed and none failed.
func deviceCoverage(results []Result) (list []Coverage) {
	of := map[string]*Coverage{}
	rank := []string{"skipped", "passed", "failed"}
	for _, r := range results {
		for _, clause := range r.Clauses {
			c := of[clause]
			if c == nil {
				c = &Coverage{Clause: clause, State: "skipped"}
				of[clause] = c
			}
			c.Checks = append(c.Checks, r.Name)
			if r.Outcome == Skipped {
				c.Reason = r.Detail
			}
			if slices.Index(rank, string(r.Outcome)) > slices.Index(rank, c.State) {
				c.State = string(r.Outcome)
			}
		}
	}
	for _, c := range of {
		if c.State != "skipped" {
			c.Reason = ""
		}
		list = append(list, *c)
	}
	for clause, why := range unchecked {
		if of[clause] == nil {
			list = append(list, Coverage{Clause: clause, State: "unchecked", Reason: why})
		}
	}
	slices.SortFunc(list, func(a, b Coverage) int { return number(a.Clause) - number(b.Clause) })
	return list
}

// number returns the number of a clause.
func number(clause string) (n int) {
	_, _ = fmt.Sscanf(clause[strings.IndexByte(clause, '-')+1:], "%d", &n)
	return n
}
