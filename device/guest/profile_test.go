package guest

import "testing"

func TestSumOfActs(t *testing.T) {
	if n := (Acts{1, 20, 300, 4000, 50000}).Sum(); n != 54321 {
		t.Errorf("%d acts", n)
	}
}
