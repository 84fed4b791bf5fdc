package settings

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// TestValuesAtTheBorder checks that the first and the last valid value of a setting are accepted,
// and that values just outside are refused without any change.
func TestValuesAtTheBorder(t *testing.T) {
	for _, c := range []struct {
		key       string
		good, bad []string
	}{
		{"tenant", []string{"0", "4294967295", "0x10"}, []string{"4294967296", "-1", "", "x"}},
		{"max_tx_rate", []string{"0", "18446744073709551615"}, []string{"18446744073709551616", "-1"}},
		{"weight", []string{"1", "255"}, []string{"0", "256", "-1", "x"}},
		{"max_qp", []string{"1", "4294967295"}, []string{"4294967296", "x"}},
		{"guest", []string{"cid:3", "cid:4294967295", "unix:a", "none"}, []string{"cid:2", "cid:0", "cid:4294967296", "cid:", "unix:", "tcp:3", "", "cid"}},
		{"address", []string{"10.0.0.1", "fd00::1"}, []string{"::ffff:10.0.0.1", "fe80::1%eth0", "x", ""}},
		{"dma_window", []string{"all", "0+4K", "1G+256M"}, []string{"4K", "x+4K", "4K+x", ""}},
		{"trust", []string{"on", "off", "true", "false"}, []string{"yes", ""}},
		{"credits", []string{"1", "req-pkt-tx=1", "req-pkt-tx=4,data-pkt-tx=5"}, []string{"0", "req-pkt-tx=0", "req-pkt-tx", "x=1", "req-pkt-tx=4,", "4294967296"}},
		{"guarantee", []string{"0", "req-pkt-tx=0", "7"}, []string{"x=0", "-1"}},
		{"port", []string{"none", "name=a", "name=a,queues=3"}, []string{"name", "name=a,mtu=x", "address=x", "speed=1"}},
	} {
		for _, text := range c.good {
			f := function()
			if err := Set(&f, c.key, text); err != nil {
				t.Errorf("%s %s: %v", c.key, text, err)
			}
		}
		for _, text := range c.bad {
			f := function()
			if err := Set(&f, c.key, text); err == nil || err.Error() == "" {
				t.Errorf("%s %q is taken", c.key, text)
			}
		}
	}
	f := function()
	if err := Set(&f, "max_qp", "0"); err == nil {
		t.Error("a quota of 0 is taken")
	}
}

// TestCountsByName checks that a number alone sets all counters, and one with a name sets that one.
func TestCountsByName(t *testing.T) {
	f := function()
	set := func(text string) {
		t.Helper()
		if err := Set(&f, "credits", text); err != nil {
			t.Fatal(err)
		}
	}
	set("9")
	for i, n := range f.Credits.Cost() {
		if n != 9 {
			t.Errorf("counter %d is %d", i, n)
		}
	}
	set("data-pkt-tx=4")
	if c := f.Credits; c.DataPacketTx != 4 || c.DataBufferTx != 9 || c.RequestPacketTx != 9 {
		t.Errorf("%+v", c)
	}
	set("5,data-pkt-tx=6,req-pkt-tx=7")
	if c := f.Credits; c.DataPacketTx != 6 || c.DataBufferTx != 5 || c.RequestPacketTx != 7 {
		t.Errorf("%+v", c)
	}
	if text := countText(&config.Credits{}); text != "0" {
		t.Errorf("no credits are %q", text)
	}
	if text := countText(&config.Credits{DataPacketTx: 3}); text != "data-pkt-tx=3" {
		t.Errorf("%q", text)
	}
}

// TestPortKeepsItsMAC checks that a new mode resets the MAC and the same mode keeps it, that
// addresses are added until they are cleared, and that the addresses of the old port value do not
// change.
func TestPortKeepsItsMAC(t *testing.T) {
	f := function()
	set := func(text string) *config.Port {
		t.Helper()
		if err := Set(&f, "port", text); err != nil {
			t.Fatal(err)
		}
		return f.Port
	}
	first := set("name=a,mode=bridged,mac=02:00:00:00:00:05,address=10.0.0.1,assign=off,persist=on")
	if second := set("mode=bridged,address=10.0.0.2"); second.MAC != first.MAC || len(second.Addresses) != 2 ||
		len(first.Addresses) != 1 || *second.Assign || !second.Persist {
		t.Errorf("%+v, then %+v", first, second)
	}
	if third := set("mode=direct,address=none,address=10.0.0.3"); !third.MAC.IsZero() ||
		len(third.Addresses) != 1 || third.Name != "a" {
		t.Errorf("%+v", third)
	}
}

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

// TestMemoryOfSettings checks that settings are restored in the next run: the newest value of each
// key, and the newest action. A reset is not kept.
func TestMemoryOfSettings(t *testing.T) {
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

// TestRecallInAnyOrder checks that functions that need what another one gives up are tried again,
// and that those refused in the end are returned and dropped.
func TestRecallInAnyOrder(t *testing.T) {
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

// TestNoMemory checks that there is nothing to restore without a store or with an empty one, and
// that a store that fails or holds invalid data gives an error.
func TestNoMemory(t *testing.T) {
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
