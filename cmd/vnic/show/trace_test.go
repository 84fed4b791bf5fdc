package show

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/control"
)

// TestTraceFollowsRequests follows the requests of a running NIC under load by the real command
// line: timelines, JSON, the format for browsers, the summary.
func TestTraceFollowsRequests(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		l.Start(0)
		l.Start(1)
		l.Joined()
		a, b := l.Client(0, 100_000), l.Client(1, 100_000)
		defer a.P.Stop(time.Second)
		defer b.P.Stop(time.Second)
		b.Next("progress")
		trace := func(args ...string) string {
			t.Helper()
			stdout, stderr, code := vnictest.Run(t, append([]string{"trace", "-s", l.Hosts[0].Control, "pf0.vf1"}, args...)...)
			if code != 0 {
				t.Fatalf("%v: exit status %d, %s", args, code, stderr)
			}
			return stdout
		}
		text := trace("--count", "20", "--side", "requester")
		if n := strings.Count(text, "h1.pf0.vf1 requester QP 0x"); n != 20 || !strings.Contains(text, "  cqe_written\n") || !strings.Contains(text, "FROM") {
			t.Errorf("%d timelines:\n%s", n, text)
		}

		for _, side := range []string{"requester", "responder"} {
			ops := operations(t, trace("--json", "--count", "50", "--side", side))
			if len(ops) != 50 {
				t.Errorf("%d operations", len(ops))
			}
			for _, o := range ops {
				checkSteps(t, o, side)
			}
		}
		one := operations(t, trace("--json", "--count", "1", "--side", "requester"))[0]
		for _, o := range operations(t, trace("--json", "--for", "500ms", "--qp", fmt.Sprintf("%#x", one.QPN))) {
			if o.QPN != one.QPN {
				t.Errorf("%+v is not of QP %#x", o, one.QPN)
			}
		}

		path := filepath.Join(l.Dir, "trace.json")
		trace("--count", "30", "--chrome", path)
		var events []struct {
			Ph   string
			ID   int
			TS   float64
			Name string
		}
		data, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(data, &events)
		}
		open := 0
		for _, e := range events {
			open += map[string]int{"b": 1, "e": -1}[e.Ph]
		}
		if err != nil || len(events) < 30*4 || open != 0 {
			t.Errorf("%v, %d events, %d without an end", err, len(events), open)
		}
		if text := trace("--summary", "--count", "20"); strings.Contains(text, "WQE") || !strings.Contains(text, "P99") || !strings.Contains(text, ", falcon: ") {
			t.Errorf("summary:\n%s", text)
		}
		for want, args := range map[string][]string{
			"there is no function h1.pf3":        {"pf3"},
			`--side "left"`:                      {"pf0.vf1", "--side", "left"},
			"has no queue pair 0xfffff0":         {"pf0.vf1", "--qp", "0xfffff0"},
			`--qp "x": write a queue pair's`:     {"pf0.vf1", "--qp", "x"},
			"exists and is not overwritten":      {"pf0.vf1", "--chrome", path},
			"two formats; choose one":            {"pf0.vf1", "--chrome", path, "--json"},
			`pf0.vf1: "pf0.vf2" is not expected`: {"pf0.vf1", "pf0.vf2"},
		} {
			if _, stderr, code := vnictest.Run(t, append([]string{"trace", "-s", l.Hosts[0].Control}, args...)...); code == 0 || !strings.Contains(stderr, want) {
				t.Errorf("%v: exit status %d, %q, want %q", args, code, stderr, want)
			}
		}
	})
}

func operations(t *testing.T, text string) (ops []control.Operation) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	for d.More() {
		var o control.Operation
		if err := d.Decode(&o); err != nil {
			t.Fatal(err)
		}
		ops = append(ops, o)
	}
	return ops
}

// checkSteps checks that an operation has the expected steps, in order of time, with correct
// differences.
func checkSteps(t *testing.T, o control.Operation, side string) {
	t.Helper()
	var names []string
	for i, s := range o.Steps {
		names = append(names, s.Name)
		if i > 0 && (s.After < 0 || s.At-o.Steps[i-1].At != s.After) {
			t.Errorf("%s is %d ns after the step before: %+v", s.Name, s.After, o)
		}
	}
	want := []string{"wqe_read", "issued", "scheduled", "sealed", "acked"}
	if side == "responder" {
		want = []string{"received", "opened", "delivered", "acked"}
	}
	for _, n := range want {
		if !slices.Contains(names, n) {
			t.Errorf("no %s: %+v", n, o)
		}
	}
	if o.Side != side || o.Transport != "falcon" || o.Function != "h1.pf0.vf1" || len(names) == 0 {
		t.Errorf("%+v", o)
	}
}

// TestATraceShowsEachStepAndItsTime: what the formats show of an operation.
func TestATraceShowsEachStepAndItsTime(t *testing.T) {
	op := control.Operation{
		Function: "h1.pf0.vf1", Side: "requester", QPN: 0x11, Op: "WRITE", WQE: 7, WRID: 42, Bytes: 9000, Transport: "falcon", Packets: 3, Again: 1, Status: "success", Found: true,
		Steps: []control.Step{{Name: "doorbell", At: 1_000_000_000}, {Name: "wqe_read", At: 1_000_000_500, After: 500}, {Name: "cqe_written", At: 1_000_100_500, After: 100_000}},
	}
	var out bytes.Buffer
	if err := PrintOperation(&out, &op); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	for i, want := range []string{
		"  h1.pf0.vf1 requester QP 0x11  WRITE 9000 bytes in 3 packets, 1 sent again  WQE 7 wr_id 0x2a  falcon  success  100.50µs",
		"        0.00µs       +0.00µs  doorbell  (found by polling)",
		"        0.50µs       +0.50µs  wqe_read",
		"      100.50µs     +100.00µs  cqe_written",
	} {
		if !strings.HasSuffix(lines[i], want) {
			t.Errorf("line %d: %q, want %q", i, lines[i], want)
		}
	}

	var s Summary
	for i := range 100 {
		o := op
		o.Steps = slices.Clone(op.Steps)
		o.Steps[1].After = int64(i+1) * 1000
		s.Add(&o)
	}
	out.Reset()
	if err := s.Print(&out); err != nil {
		t.Fatal(err)
	}
	fields := func(line string) string { return strings.Join(strings.Fields(line), " ") }
	got := strings.Split(out.String(), "\n")
	for i, want := range []string{
		"", "requester, WRITE, falcon: 100, 100 packets sent again", "FROM TO COUNT P50 P99 MAX",
		"doorbell wqe_read 100 51.00µs 100.00µs 100.00µs", "wqe_read cqe_written 100 100.00µs 100.00µs 100.00µs", "first last 100 100.50µs 100.50µs 100.50µs",
	} {
		if fields(got[i]) != want {
			t.Errorf("line %d: %q, want %q", i, fields(got[i]), want)
		}
	}
}
