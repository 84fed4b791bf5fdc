package pfvf

import (
	"os"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestTableInDocs compares the lifecycle table of docs/abi/index.md §3, which driver authors use,
// with the table in the code.
func TestTableInDocs(t *testing.T) {
	text, err := os.ReadFile("../docs/abi/index.md")
	if err != nil {
		t.Fatal(err)
	}
	columns := []Event{Enable, Ready, Fault, Reset, Disable, Allow}
	rows := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) == len(columns)+3 {
			rows[strings.TrimSpace(cells[1])] = cells[2 : len(columns)+2]
		}
	}
	for from := abi.StateReset; from <= abi.StateDisabled; from++ {
		row := rows[from.String()]
		if row == nil {
			t.Errorf("no row for %s", from)
			continue
		}
		for i, ev := range columns {
			want := "–"
			if to, err := Transition(from, ev); err == nil {
				want = to.String()
			}
			if got, _, _ := strings.Cut(strings.TrimSpace(row[i]), ","); got != want {
				t.Errorf("%s, %s: docs say %s, want %s", from, ev, got, want)
			}
		}
	}
}
