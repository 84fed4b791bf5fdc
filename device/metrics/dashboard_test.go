package metrics

import (
	"context"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/counters"
)

// counting is a NIC that has every counter.
type counting struct{ fake }

func (c *counting) Counters(ctx context.Context) (control.Counters, error) {
	all, err := c.fake.Counters(ctx)
	for name := range counters.All() {
		all[name] = 1
	}
	return all, err
}

// A dashboard of Grafana, as far as it asks for something.
type dashboard struct {
	Panels []struct {
		Title   string
		Targets []struct{ Expr, LegendFormat string }
	}
}

var (
	metricName = regexp.MustCompile(`\b(?:vnic|process|go)_[a-z_]+`)
	labelName  = regexp.MustCompile(`(?:\{\{|[{,])([a-z]+)(?:\}\}|=)`)
	grouping   = regexp.MustCompile(`by \(([a-z, ]+)\)`)
)

// TestTheDashboardAsksForWhatExists: each metric of docs/grafana.json, and each label that it selects,
// groups or shows by, is in what a NIC tells Prometheus.
func TestTheDashboardAsksForWhatExists(t *testing.T) {
	b, err := os.ReadFile("../../docs/grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	_, text := scrapeOf(t, &counting{fake{functions: 2}})
	asked := 0
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			names := metricName.FindAllString(target.Expr, -1)
			labels := []string{"instance"} // Prometheus' own
			for _, name := range names {
				asked++
				row := regexp.MustCompile(`(?m)^` + name + `(?:\{(.*)\})? `).FindStringSubmatch(text)
				if row == nil {
					t.Errorf("%s: there is no metric %s", p.Title, name)
					continue
				}
				for pair := range strings.SplitSeq(row[1], ",") {
					label, _, _ := strings.Cut(pair, "=")
					labels = append(labels, label)
				}
			}
			var used []string
			for _, l := range labelName.FindAllStringSubmatch(target.Expr+target.LegendFormat, -1) {
				used = append(used, l[1])
			}
			for _, g := range grouping.FindAllStringSubmatch(target.Expr, -1) {
				used = append(used, strings.Split(g[1], ", ")...)
			}
			for _, l := range used {
				if !slices.Contains(labels, l) {
					t.Errorf("%s: %s has no label %s", p.Title, strings.Join(names, ", "), l)
				}
			}
		}
	}
	if asked < 20 {
		t.Errorf("%d metrics are asked for", asked)
	}
}
