package main

import (
	"strings"
	"testing"
)

func TestFailedAndSkippedTestsFailTheReport(t *testing.T) {
	const good = `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"what A says\n"}
`
	for name, c := range map[string]struct {
		in, want string
		bad      bool
	}{
		"pass": {good + `{"Action":"pass","Package":"p","Test":"TestA","Elapsed":2}
{"Action":"pass","Package":"p","Elapsed":2}`, "in 1 packages:\n1 passed, 0 failed, 0 skipped\n", false},
		"fail": {good + `{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}`, "FAIL p TestA\nwhat A says\n", true},
		"skip": {good + `{"Action":"skip","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p"}`, "skip p TestA\nwhat A says\n", true},
		"does not build": {`{"ImportPath":"p","Action":"build-output","Output":"p/a.go:1: no\n"}
{"ImportPath":"p","Action":"build-fail"}
{"Action":"fail","Package":"p","FailedBuild":"p"}`, "p/a.go:1: no\n", true},
		"simulated": {good + `{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:1: simulated 700 packets under faults, 0 violations\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    a_test.go:1: simulated 50 packets under faults, 2 violations\n"}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":2}
{"Action":"pass","Package":"p","Elapsed":2}`, "\nsimulated: 750 packets under faults, 2 violations\n", false},
		"nothing":       {"go: cannot find main module", "go: cannot find main module", true},
		"no test files": {`{"Action":"skip","Package":"q"}` + "\n" + `{"Action":"pass","Package":"p"}`, "in 1 packages", false},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			if err := report(strings.NewReader(c.in), &out); (err != nil) != c.bad || !strings.Contains(out.String(), c.want) {
				t.Errorf("%v; %s", err, out.String())
			}
		})
	}
}
