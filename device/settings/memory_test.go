package settings

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/control"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// drawer is a Store in memory.
type drawer struct {
	b    []byte
	fail error
}

func (d *drawer) Load() ([]byte, error) { return d.b, d.fail }

func (d *drawer) Store(b []byte) error {
	if d.fail == nil {
		d.b = b
	}
	return d.fail
}

// TestSettingsAreRememberedForTheNextNIC checks that settings are restored in the next run: the
// newest value of each key, and the newest action. A reset is not kept.
func TestSettingsAreRememberedForTheNextNIC(t *testing.T) {
	d := &drawer{}
	m := NewMemory(d)
	note := func(id pfvf.ID, weight uint8, c control.FunctionChange) {
		t.Helper()
		is := function()
		is.Weight, is.MaxTxRate = weight, 500
		if err := m.Note(id, &c, &is); err != nil {
			t.Fatal(err)
		}
	}
	note(1<<16|1, 3, control.FunctionChange{Set: map[string]string{"weight": "3"}})
	note(1<<16|1, 3, control.FunctionChange{Action: "disable"})
	note(1<<16|1, 4, control.FunctionChange{Set: map[string]string{"weight": "1+", "rate": "0.5G", "nonsense": "1"}})
	note(1<<16|1, 9, control.FunctionChange{Action: "reset", Set: map[string]string{"weight": "9"}})
	note(1<<16|2, 5, control.FunctionChange{Action: "enable", Set: map[string]string{"weight": "5"}})
	note(1<<16|3, 5, control.FunctionChange{Set: map[string]string{}}) // all of it was refused
	var got []string
	refused, err := NewMemory(d).Recall(func(id pfvf.ID, c *control.FunctionChange) error {
		got = append(got, fmt.Sprintf("%s %s %s %v", id, c.Function, c.Action, c.Set))
		return nil
	})
	want := []string{"h1.pf0.vf1 h1.pf0.vf1 disable map[max_tx_rate:500 weight:4]", "h1.pf0.vf2 h1.pf0.vf2 enable map[weight:5]"}
	if err != nil || len(refused) != 0 || !slices.Equal(got, want) {
		t.Errorf("%q, %v, %v; want %q", got, refused, err, want)
	}
}

// TestSettingsAreRecalledInAnyOrder checks that functions that need what another one gives up are
// tried again, and that those refused in the end are returned and dropped.
func TestSettingsAreRecalledInAnyOrder(t *testing.T) {
	d := &drawer{}
	m := NewMemory(d)
	for id := range pfvf.ID(4) {
		is := function()
		if err := m.Note(1<<16|id, &control.FunctionChange{Action: "enable"}, &is); err != nil {
			t.Fatal(err)
		}
	}
	needs := map[pfvf.ID]pfvf.ID{0: 1, 1: 3, 2: 2} // the last never succeeds
	var done []pfvf.ID
	tries := 0
	recall := func(m *Memory) (map[pfvf.ID]error, error) {
		return m.Recall(func(id pfvf.ID, _ *control.FunctionChange) error {
			tries++
			id &= 0xffff
			if other, waits := needs[id]; waits && !slices.Contains(done, other) {
				return errors.New("not yet")
			}
			done = append(done, id)
			return nil
		})
	}
	again := NewMemory(d)
	refused, err := recall(again)
	if err != nil || !slices.Equal(done, []pfvf.ID{3, 1, 0}) ||
		!slices.Equal(slices.Collect(maps.Keys(refused)), []pfvf.ID{1<<16 | 2}) {
		t.Errorf("%v, refused %v, %v", done, refused, err)
	}
	if tries != 4+3+2+1 { // all, those left, …, and once more in vain
		t.Errorf("%d tries", tries)
	}
	is := function()
	if err := again.Note(1<<16, &control.FunctionChange{Action: "enable"}, &is); err != nil ||
		strings.Contains(string(d.b), "vf2") || !strings.Contains(string(d.b), "vf1") {
		t.Errorf("%v, kept: %s", err, d.b)
	}
}

// TestNothingIsRememberedWithoutAStore checks that there is nothing to restore without a store or
// with an empty one, and that a store that fails or holds invalid data gives an error.
func TestNothingIsRememberedWithoutAStore(t *testing.T) {
	none := func(pfvf.ID, *control.FunctionChange) error { t.Error("something is recalled"); return nil }
	is := function()
	for _, c := range []struct {
		store Store
		ok    bool
	}{{nil, true}, {&drawer{}, true}, {&drawer{fail: errors.New("broken")}, false}, {&drawer{b: []byte("{")}, false}} {
		if refused, err := NewMemory(c.store).Recall(none); (err == nil) != c.ok || refused != nil {
			t.Errorf("%+v: %v, %v", c.store, refused, err)
		}
	}
	if err := NewMemory(nil).Note(1<<16, &control.FunctionChange{Action: "enable"}, &is); err != nil {
		t.Error(err)
	}
	broken := &drawer{fail: errors.New("broken")}
	if err := NewMemory(broken).Note(1<<16, &control.FunctionChange{Action: "enable"}, &is); !errors.Is(err, broken.fail) {
		t.Error(err)
	}
}

// TestTheConfigurationCountsForWhatIsForgotten: the next run has the operators' other settings of the
// function, and nothing of a function of which all is forgotten.
func TestTheConfigurationCountsForWhatIsForgotten(t *testing.T) {
	d := &drawer{}
	m := NewMemory(d)
	for id := range pfvf.ID(3) {
		is := function()
		c := control.FunctionChange{Action: "disable", Set: map[string]string{"weight": "1", "tenant": "0"}}
		if err := m.Note(1<<16|id, &c, &is); err != nil {
			t.Fatal(err)
		}
	}
	for id, keys := range map[pfvf.ID][]string{0: {"weight", "mac"}, 1: {"weight", "tenant", "enabled"}, 7: {"weight"}} {
		if err := m.Forget(1<<16|id, keys); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	if _, err := NewMemory(d).Recall(func(_ pfvf.ID, c *control.FunctionChange) error {
		got = append(got, fmt.Sprint(c.Function, c.Action, c.Set))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	want := []string{"h1.pf0disablemap[tenant:0]", "h1.pf0.vf2disablemap[tenant:0 weight:1]"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if err := NewMemory(nil).Forget(1<<16, []string{"weight"}); err != nil {
		t.Error(err)
	}
	d.fail = errors.New("broken")
	if err := m.Forget(1<<16, []string{"tenant"}); !errors.Is(err, d.fail) {
		t.Error(err)
	}
}
