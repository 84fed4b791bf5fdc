package conform

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/guestlib/internal/fakedev"
	"github.com/falcon-vnic/vnic/internal/leak"
	"github.com/falcon-vnic/vnic/queues/abi"
)

func TestMain(m *testing.M) { leak.Main(m) }

// startNIC returns the URL of a fake NIC.
func startNIC(t *testing.T, setup func(*fakedev.Server)) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	nic, err := fakedev.Listen(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if setup != nil {
		setup(nic)
	}
	t.Cleanup(func() { nic.Close() })
	return "unix://" + path
}

// run runs the kit.
func run(t *testing.T, url, match string) *Report {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cfg := Config{URL: url, Wait: 10 * time.Second}
	if match != "" {
		cfg.Match = regexp.MustCompile(match)
	}
	r, err := Run(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestADeviceThatKeepsAllRulesPasses: a device that keeps all rules passes all checks.
func TestADeviceThatKeepsAllRulesPasses(t *testing.T) {
	r := run(t, startNIC(t, func(s *fakedev.Server) { s.Plain, s.Reuse = true, true }), "")
	for _, x := range r.Results {
		if x.Outcome == Failed {
			t.Errorf("%s: %s", x.Name, x.Detail)
		}
	}
}

// TestEachClauseHasACheckOrAReason compares the kit with docs/abi: each clause has a check, or a reason why not.
func TestEachClauseHasACheckOrAReason(t *testing.T) {
	text, err := os.ReadFile("../../docs/abi/index.md")
	if err != nil {
		t.Fatal(err)
	}
	var has []string
	for _, m := range regexp.MustCompile(`\*\*((?:DEV|DRV)-\d+)\*\*`).FindAllSubmatch(text, -1) {
		has = append(has, string(m[1]))
	}
	slices.Sort(has)
	known := slices.Collect(maps.Keys(unchecked))
	for _, c := range abi.Clauses {
		known = append(known, c.Clause.String())
	}
	names := map[string]bool{}
	checked := map[string]bool{}
	for _, c := range checks {
		if names[c.name] {
			t.Errorf("two checks are called %s", c.name)
		}
		names[c.name] = true
		for _, clause := range strings.Fields(c.clauses) {
			if !checked[clause] {
				checked[clause] = true
				known = append(known, clause)
			}
		}
	}
	slices.Sort(known)
	for _, c := range known {
		if !slices.Contains(has, c) {
			t.Errorf("%s is not in docs/abi", c)
		}
	}
	for i, c := range has {
		if !slices.Contains(known, c) {
			t.Errorf("%s is in no check, and conform.go does not say why", c)
		}
		if i > 0 && has[i-1] == c {
			t.Errorf("%s is twice in docs/abi", c)
		}
	}
	for i := 1; i < len(known); i++ {
		if known[i-1] == known[i] {
			t.Errorf("%s is said to be both checked and not", known[i])
		}
	}
}

// TestTAPAndJSONHaveEveryResult reads what the kit writes.
func TestTAPAndJSONHaveEveryResult(t *testing.T) {
	r := &Report{Kind: "device", Device: "unix:///x", Function: "0x10001", Results: []Result{
		{Name: "one", Clauses: []string{"DEV-104"}, Outcome: Passed},
		{Name: "two", Clauses: []string{"DEV-104", "DEV-202"}, Outcome: Failed, Detail: "it \"failed\""},
		{Name: "three", Clauses: []string{"DEV-203"}, Outcome: Skipped, Detail: "no window"},
	}}
	r.Coverage = deviceCoverage(r.Results)
	var tap, js bytes.Buffer
	if err := r.TAP(&tap); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"TAP version 13\n", "\n1..3\n", "\nok 1 - one (DEV-104)\n", "\nnot ok 2 - two (DEV-104 DEV-202)\n  ---\n  message: \"it \\\"failed\\\"\"\n",
		"\nok 3 - three (DEV-203) # SKIP no window\n", "# DEV-203 skipped: no window\n", fmt.Sprintf("# %d clauses: 0 passed, 2 failed, 1 skipped, %d unchecked\n", 3+len(unchecked), len(unchecked)),
	} {
		if !strings.Contains(tap.String(), want) {
			t.Errorf("no %q in\n%s", want, tap.String())
		}
	}
	var back Report
	if err := r.JSON(&js); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(js.Bytes(), &back); err != nil || len(back.Results) != 3 || back.Results[1].Detail != `it "failed"` {
		t.Errorf("%v: %s", err, js.String())
	}
	if err := r.Err(); err == nil || !strings.Contains(err.Error(), "1 of 3 checks failed: two") {
		t.Error(err)
	}
}

// broken lists ways to break docs/abi, with the checks that are run and those that must fail.
var broken = map[string]struct{ among, find string }{
	"any version":               {"hello|stream", "hello.version"},
	"open after refusal":        {"hello.version", "hello.version"},
	"features nobody asked for": {"hello|stream", "hello.features"},
	"hello twice":               {"stream", "stream.framing"},
	"odd doorbells":             {"stream", "stream.framing"},
	"heartbeat without token":   {"stream", "stream.heartbeat"},
	"reserved bytes written":    {"stream|cq", "stream.reserved"},
	"any width":                 {"registers", "registers.access"},
	"clock apart":               {"registers", "registers.clock"},
	"enable anytime":            {"lifecycle|registers", "lifecycle.enable"},
	"reset that keeps objects":  {"lifecycle", "lifecycle.reset"},
	"fault without event":       {"lifecycle.fault", "lifecycle.fault"},
	"doorbells after a fault":   {"lifecycle", "lifecycle.fault"},
	"unknown commands succeed":  {"admin|stream.violations|memory.ranges", "stream.violations memory.ranges admin.unknown"},
	"IDs counted":               {"admin.(completions|unknown)", "admin.completions"},
	"no admin events":           {"admin", "admin.outstanding admin.completions"},
	"events before completions": {"admin", "admin.event-after-completion"},
	"any admin doorbell":        {"admin", "admin.index"},
	"consumer stays":            {"queue.(consumer|unsignaled)", "queue.consumer"},
	"unsignaled completions":    {"queue", "queue.unsignaled"},
	"successes only":            {"memory|queue|cq", "memory.foreign queue.unsignaled queue.too-much queue.flush queue.atomic-alignment cq.error-entry"},
	"no flush":                  {"queue.(flush|order)", "queue.flush"},
	"any alignment":             {"queue.atomic", "queue.atomic-alignment"},
	"silent overflow":           {"cq.(overflow|phase)", "cq.overflow"},
	"armed for ever":            {"cq", "cq.arm"},
	"arm waits for the next":    {"cq.(arm-late|phase)", "cq.arm-late"},
	"no CQ events":              {"cq.(arm|phase)$", "cq.arm"},
	"any state":                 {"qp|admin", "admin.refused qp.states"},
	"events without end":        {"cm.(behind|refused)", "cm.behind"},
	"events of late lost":       {"cm.(behind|refused)", "cm.behind"},
}

// TestABrokenRuleFailsItsChecksAndNoOthers: on a device that breaks one rule, the right checks fail and no others. Nearly all of
// the time is spent waiting for messages that do not come, so the devices are checked in parallel.
func TestABrokenRuleFailsItsChecksAndNoOthers(t *testing.T) {
	var wg sync.WaitGroup
	for habit, x := range broken {
		url := startNIC(t, func(s *fakedev.Server) {
			s.Plain, s.Reuse = true, true
			s.Break = func(h string) bool { return h == habit }
		})
		wg.Go(func() {
			r, err := Run(t.Context(), Config{URL: url, Wait: 10 * time.Second, Match: regexp.MustCompile(x.among)})
			if err != nil {
				t.Errorf("%s: %v", habit, err)
				return
			}
			if got := strings.Join(r.Failed(), " "); got != x.find {
				t.Errorf("%s: %q failed, want %q", habit, got, x.find)
				for _, res := range r.Results {
					if res.Outcome == Failed {
						t.Logf("%s: %s", res.Name, res.Detail)
					}
				}
			}
		})
	}
	wg.Wait()
}
