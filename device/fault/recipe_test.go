package fault

import (
	"os"
	"strings"
	"testing"
)

// TestRecipesAreValidAndDocumented: every recipe has rules that a set takes, a name of its own, and a
// row in docs/faults.md with the same words.
func TestRecipesAreValidAndDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/faults.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, r := range Recipes() {
		if seen[r.Name] || len(r.Rules) == 0 {
			t.Errorf("%s: twice, or without rules", r.Name)
		}
		seen[r.Name] = true
		given(t, r.Rules...)
		if row := "| `" + r.Name + "` | " + r.Wrong + " | " + r.Driver + " |\n"; !strings.Contains(string(doc), row) {
			t.Errorf("docs/faults.md lacks\n%s", row)
		}
	}
}
