package netns

import (
	"errors"
	"testing"
)

// told is a test that records the calls of its methods.
type told struct {
	skipped bool
	calls   string
}

func (*told) Helper()         {}
func (t *told) Skip(...any)   { t.calls += "skip " }
func (t *told) SkipNow()      { t.calls += "skip now " }
func (t *told) Skipped() bool { return t.skipped }
func (t *told) Fatal(...any)  { t.calls += "fatal " }
func (t *told) FailNow()      { t.calls += "fail now " }

// TestATestEndsOutsideAsItEndedInside: a test that may not make namespaces is skipped, unless they are required. A test that
// ended inside the namespace ends the same way outside.
func TestATestEndsOutsideAsItEndedInside(t *testing.T) {
	refused := errors.New("no right")
	for _, tc := range []struct {
		require  string
		refused  error
		finished bool
		skipped  bool
		want     string
	}{
		{"", nil, true, false, ""},
		{"1", nil, true, false, ""},
		{"", refused, true, false, "skip "},
		{"1", refused, true, false, "fatal "},
		{"", nil, false, true, "skip now "},
		{"", nil, false, false, "fail now "},
		{"", nil, true, true, ""},
		{"1", nil, false, true, "skip now "},
	} {
		t.Setenv("VNIC_TEST_REQUIRE", tc.require)
		to := &told{skipped: tc.skipped}
		if report(to, tc.refused, tc.finished); to.calls != tc.want {
			t.Errorf("%+v: %q", tc, to.calls)
		}
	}
}
