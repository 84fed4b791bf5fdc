package metrics

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/counters"
)

// TestMetricsAreExplained: docs/metrics.md contains every metric whose name is not made from a
// counter's name.
func TestMetricsAreExplained(t *testing.T) {
	source, err := os.ReadFile("metrics.go")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range counters.Families {
		source = fmt.Appendf(source, "\ndescribe(%q)", f.Metric)
	}
	names := regexp.MustCompile(`describe\("(vnic_[a-z_]*[a-z])"`).FindAllSubmatch(source, -1)
	if len(names) < 15 {
		t.Fatalf("%d metrics", len(names))
	}
	for _, n := range names {
		if !strings.Contains(string(page), "| `"+string(n[1])+"` |") {
			t.Errorf("docs/metrics.md says nothing of %s", n[1])
		}
	}
	for _, named := range regexp.MustCompile("(?m)^\\| `(vnic_[a-z_]+)`").FindAllSubmatch(page, -1) {
		if !strings.Contains(string(source), `"`+string(named[1])+`"`) {
			t.Errorf("docs/metrics.md has %s, which there is not", named[1])
		}
	}
}
