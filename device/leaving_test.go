package device

import (
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device/directory"
)

// TestAHostGoesOnForAWhileWithWhatHasMoved: a host keeps each function for leaveAfter after it heard that
// another host has it. The time begins again if the function came back in between.
func TestAHostGoesOnForAWhileWithWhatHasMoved(t *testing.T) {
	l, start := leaving{}, time.Now()
	a, b := directory.Function{Name: "pf0.vf1"}, directory.Function{Name: "pf0.vf2"}
	names := func(list []directory.Function) (s string) {
		for _, f := range list {
			s += f.Name + " "
		}
		return s
	}
	const some = leaveAfter / 5
	for _, step := range []struct {
		at            time.Duration
		moved         []directory.Function
		gone, staying string
		wait          time.Duration
	}{
		{0, nil, "", "", 0},
		{some, []directory.Function{a}, "", "pf0.vf1 ", leaveAfter},
		{3 * some, []directory.Function{a, b}, "", "pf0.vf1 pf0.vf2 ", 3 * some},
		{6*some - 1, []directory.Function{a, b}, "", "pf0.vf1 pf0.vf2 ", 1},
		{6 * some, []directory.Function{a, b}, "pf0.vf1 ", "pf0.vf2 ", 2 * some},
		{7 * some, []directory.Function{a}, "pf0.vf1 ", "", 0}, // it could not be given up; the other is back
		{8 * some, []directory.Function{b}, "", "pf0.vf2 ", leaveAfter},
		{99 * some, []directory.Function{b}, "pf0.vf2 ", "", 0},
	} {
		gone, staying, wait := l.due(step.moved, start.Add(step.at))
		if names(gone) != step.gone || names(staying) != step.staying || wait != step.wait {
			t.Errorf("after %v: %q go, %q stay, the next goes after %v; want %q, %q, %v", step.at, names(gone), names(staying), wait, step.gone, step.staying, step.wait)
		}
	}
}
