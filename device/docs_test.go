package device

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/fabric"
	"github.com/falcon-vnic/vnic/device/metrics"
)

// troubleshooting returns the page that leads from symptom to command to cause.
func troubleshooting(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestCountersAreExplained checks that every counter of a NIC, including every drop reason, is in
// docs/troubleshooting.md.
func TestCountersAreExplained(t *testing.T) {
	page := troubleshooting(t)
	w := newWorldWith(t, fabric.New(devicetest.MTU).Port, func(int, *config.Config) {})
	counters, err := w.nics[0].Counters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	counters["capture.dropped"] = 0 // needs a capture from the start
	for name := range counters {
		if of, what, _ := strings.Cut(name, "."); of == "impair" {
			name = "_" + what[len("rx_"):]
		}
		for _, family := range []string{"falcon.nack_sent_", "falcon.nack_received_", "falcon.completion_"} { // one row for all of the family
			if rest, ok := strings.CutPrefix(name, family); ok && strings.Contains(page, "`"+family+"…`") {
				name = "_" + rest
			}
		}
		if name == "_success" {
			name = "falcon.completion_success"
		}
		if !strings.Contains(page, "`"+name+"`") {
			t.Errorf("docs/troubleshooting.md says nothing of `%s`: add what it counts and what to do about it", name)
		}
	}
	for _, name := range []string{"rx_frames", "rx_bytes", "rx_dropped", "tx_frames", "tx_bytes", "tx_dropped"} {
		if !strings.Contains(page, "`port.NAME."+name+"`") {
			t.Errorf("docs/troubleshooting.md says nothing of `port.NAME.%s`", name)
		}
	}
}

// TestMetricsFollowPrometheusConventions checks that the names of metrics follow Prometheus' conventions, and that
// every counter has a help text of its own.
func TestMetricsFollowPrometheusConventions(t *testing.T) {
	w := newWorldWith(t, fabric.New(devicetest.MTU).Port, func(int, *config.Config) {})
	s, err := metrics.Serve("127.0.0.1:0", nil, w.nics[0])
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		http.DefaultClient.CloseIdleConnections()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	resp, err := http.Get("http://" + s.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.New(bytes.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "vnic_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "of vnic show counters") {
			t.Errorf("device/counters/rooms.go has no help text for: %s", line)
		}
	}
	if !bytes.Contains(text, []byte("vnic_falcon_packets_sent_total")) {
		t.Errorf("no counters in %s", text)
	}
}

// TestErrorsAreExplained checks that every status, fault and event of the ABI has its line in the
// page.
func TestErrorsAreExplained(t *testing.T) {
	page := troubleshooting(t)
	file, err := parser.ParseFile(token.NewFileSet(), "../queues/abi/abi_gen.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			typ, ok := v.Type.(*ast.Ident)
			if !ok || !slices.Contains([]string{"Status", "WCStatus", "Fault", "EventType"}, typ.Name) {
				continue
			}
			for _, n := range v.Names {
				if found++; !strings.Contains(page, "`"+n.Name+"`") {
					t.Errorf("docs/troubleshooting.md says nothing of %s: add what it means and what to do", n.Name)
				}
			}
		}
	}
	if found < 50 {
		t.Errorf("%d names found, it should be more", found)
	}
}
