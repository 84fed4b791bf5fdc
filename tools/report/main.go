package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	if err := report(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

// event is a line of go test -json (go doc test2json).
type event struct {
	Action     string
	Package    string
	ImportPath string // of build output
	Test       string
	Elapsed    float64 // seconds
	Output     string
}

func (e *event) key() string { return e.Package + "." + e.Test }

// simulation is what a test logs of the packets that it simulated.
var simulation = regexp.MustCompile(`simulated (\d+) packets under faults, (\d+) violations`)

// listed is how many of the longest tests are shown.
const listed = 15

func report(in io.Reader, out io.Writer) error {
	output := map[string][]string{} // of tests and packages that go on, and of builds
	var longest []event
	packages, passed, failed, skipped := 0, 0, 0, 0
	var simulated, violations uint64
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			fmt.Fprintln(out, lines.Text()) // of the go command itself
			continue
		}
		switch e.Action {
		case "output":
			output[e.key()] = append(output[e.key()], e.Output)
			if m := simulation.FindStringSubmatch(e.Output); m != nil {
				n, _ := strconv.ParseUint(m[1], 10, 64)
				v, _ := strconv.ParseUint(m[2], 10, 64)
				simulated, violations = simulated+n, violations+v
			}
			continue
		case "build-output":
			fmt.Fprint(out, e.Output)
			continue
		case "pass", "fail", "skip":
		default:
			continue
		}
		said := strings.Join(output[e.key()], "")
		delete(output, e.key())
		switch {
		case e.Test == "" && e.Action == "skip": // no test files, or none that match
		case e.Test == "":
			packages++
			took := time.Duration(e.Elapsed * float64(time.Second))
			fmt.Fprintf(out, "%-4s %s %s\n", e.Action, e.Package, took.Round(100*time.Millisecond))
			if e.Action == "fail" {
				failed++
				fmt.Fprint(out, said)
			}
		case e.Action == "skip":
			skipped++
			fmt.Fprintf(out, "skip %s %s\n%s", e.Package, e.Test, said)
		case e.Action == "fail":
			failed++
			fmt.Fprintf(out, "FAIL %s %s\n%s", e.Package, e.Test, said)
		default:
			passed++
		}
		if e.Test != "" && !strings.Contains(e.Test, "/") {
			longest = append(longest, e)
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	slices.SortFunc(longest, func(a, b event) int { return cmp.Compare(b.Elapsed, a.Elapsed) })
	fmt.Fprintln(out, "longest:")
	for _, e := range longest[:min(listed, len(longest))] {
		fmt.Fprintf(out, "  %6.1f s %s %s\n", e.Elapsed, e.Package, e.Test)
	}
	if simulated > 0 {
		fmt.Fprintf(out, "simulated: %d packets under faults, %d violations\n", simulated, violations)
	}
	fmt.Fprintf(out, "in %d packages:\n%d passed, %d failed, %d skipped\n", packages, passed, failed, skipped)
	switch {
	case packages == 0:
		return fmt.Errorf("no package was tested")
	case failed+skipped > 0:
		return fmt.Errorf("%d failed, %d skipped", failed, skipped)
	}
	return nil
}
