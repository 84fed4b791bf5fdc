package controller

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/fault"
	"github.com/falcon-vnic/vnic/device/settings"
	"github.com/falcon-vnic/vnic/internal/vtime"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// TestFaultsOfAllShardsAreListed checks that the faults of all shards are listed by function, and
// those of one function in the order they were added.
func TestFaultsOfAllShardsAreListed(t *testing.T) {
	a := &told{faults: []control.Fault{{Function: "b", ID: 2}, {Function: "b", ID: 1}}}
	b := &told{faults: []control.Fault{{Function: "a", ID: 9}, {Function: "b", ID: 5}}}
	api := asked(nil, a, b)
	list, err := api.Faults(t.Context())
	var got []string
	for _, f := range list {
		got = append(got, fmt.Sprintf("%s%d", f.Function, f.ID))
	}
	if err != nil || !slices.Equal(got, []string{"a9", "b2", "b1", "b5"}) {
		t.Errorf("%v, %v", got, err)
	}
	if list, err := api.InjectFault(t.Context(), control.FaultChange{Clear: true}); err != nil || list != nil ||
		a.mended != 1 || b.mended != 1 {
		t.Errorf("%v, %v; mended %d and %d times", list, err, a.mended, b.mended)
	}
	change := control.FaultChange{Function: "pf0.vf1", Add: &fault.Rule{Kind: fault.DMA}}
	if list, err := api.InjectFault(t.Context(), change); err != nil || len(list) != 1 ||
		list[0].Function != "h1.pf0.vf1" {
		t.Errorf("%v, %v", list, err)
	}
	a.refuse = errors.New("no such fault")
	if _, err := api.InjectFault(t.Context(), change); !errors.As(err, new(control.BadRequest)) ||
		!errors.Is(err, a.refuse) {
		t.Error(err)
	}
	a.missing = errors.New("it is not there")
	if _, err := api.InjectFault(t.Context(), change); !errors.As(err, new(control.BadRequest)) ||
		!errors.Is(err, a.missing) {
		t.Error(err)
	}
	a.stopped = true
	if _, err := api.InjectFault(t.Context(), change); !errors.Is(err, errStopped) {
		t.Error(err)
	}
}

// unhurried is a shard that is slow to answer the first time.
type unhurried struct {
	told
	waited atomic.Bool
	wait   func()
}

func (v *unhurried) Ask(ask func(View, vtime.Time)) error {
	if !v.waited.Swap(true) {
		v.wait()
	}
	return v.told.Ask(ask)
}

// nothing is a Fitter and a store for functions' settings that does nothing but keep them.
type nothing struct{ kept []byte }

func (*nothing) Fit() map[pfvf.ID]error  { return nil }
func (n *nothing) Load() ([]byte, error) { return n.kept, nil }
func (n *nothing) Store(b []byte) error  { n.kept = b; return nil }

// TestWhatIsRememberedIsWhatWasAppliedLast checks that the next NIC gets the last of two settings that
// operators gave at a time, also when the first operation is slow to end.
func TestWhatIsRememberedIsWhatWasAppliedLast(t *testing.T) {
	n, kept := newNIC(t), new(nothing)
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.Run(func() int64 { return n.now }, notes{})
	}()
	defer func() { n.Halt(); <-done }()
	var api *API
	weigh := func(weight string) {
		if _, err := api.ChangeFunction(t.Context(), control.FunctionChange{Function: "pf0.vf1", Set: map[string]string{"weight": weight}}); err != nil {
			t.Error(err)
		}
	}
	second := make(chan struct{})
	shard := &unhurried{wait: func() {
		go func() {
			defer close(second)
			weigh("2")
		}()
		select { // it ends before the first operation only if it need not wait for that
		case <-second:
		case <-time.After(200 * time.Millisecond):
		}
	}}
	api = NewAPI(Config{Host: 1, Core: n.Core, Shards: Shards{All: []Viewer{shard}}, Settings: settings.NewMemory(kept), Fitter: kept})
	weigh("1")
	<-second
	is := n.Functions.Settings(vf(1)).Weight
	if is != 2 || !strings.Contains(string(kept.kept), `"weight":"2"`) {
		t.Errorf("the weight is %d, remembered is %s", is, kept.kept)
	}
}

// TestAChangeOfTheLinkReachesEveryShard checks that a change of the link reaches every shard and
// leaves fields that it does not name, and that counts are summed over shards. An invalid change
// changes nothing.
func TestAChangeOfTheLinkReachesEveryShard(t *testing.T) {
	counts := control.Impaired{Packets: 1, Delivered: 2, Lost: 3, Duplicated: 4, Reordered: 5, Corrupted: 6, Marked: 7, Overflowed: 8}
	twice := control.Impaired{Packets: 2, Delivered: 4, Lost: 6, Duplicated: 8, Reordered: 10, Corrupted: 12, Marked: 14, Overflowed: 16}
	link := control.Uplink{Name: "vnic1", MTU: 9000, RX: control.Direction{Counts: counts}, TX: control.Direction{Counts: counts}}
	parts := []*part{{link: link, is: config.NoImpairment()}, {link: link, is: config.NoImpairment()}}
	api := &API{c: Config{Shards: Shards{All: []Viewer{parts[0], parts[1]}}}}
	change := func(c control.LinkChange) string {
		t.Helper()
		u, err := api.InjectLink(t.Context(), c)
		if err != nil {
			return err.Error()
		}
		if u.Name != "vnic1" || u.MTU != 9000 || u.RX.Counts != twice || u.TX.Counts != twice {
			t.Errorf("%+v", u)
		}
		if parts[0].is != parts[1].is || parts[0].way != parts[1].way {
			t.Errorf("%+v on one shard, %+v on the other", parts[0], parts[1])
		}
		return ""
	}
	if err := change(control.LinkChange{Uplink: "vnic1", Direction: "tx", Set: json.RawMessage(`{"loss": 0.5, "delay_ns": 7}`)}); err != "" {
		t.Error(err)
	}
	if err := change(control.LinkChange{Set: json.RawMessage(`{"loss": 0.25}`)}); err != "" {
		t.Error(err)
	}
	want := config.NoImpairment()
	want.Loss, want.Delay = 0.25, 7
	if parts[0].is != want || parts[0].way != "" {
		t.Errorf("%+v for %q, want %+v for both", parts[0].is, parts[0].way, want)
	}
	for _, c := range []struct {
		change control.LinkChange
		want   string
	}{
		{control.LinkChange{Uplink: "vnic2", Clear: true}, `unknown uplink "vnic2"; use vnic1`},
		{control.LinkChange{Direction: "up", Clear: true}, `direction "up"`},
		{control.LinkChange{Set: json.RawMessage(`{"los": 1}`)}, "los"},
		{control.LinkChange{Set: json.RawMessage(`{"loss": 2}`)}, "loss"},
	} {
		if err := change(c.change); !strings.Contains(err, c.want) {
			t.Errorf("%+v: %q", c.change, err)
		}
		if slices.ContainsFunc(parts, func(p *part) bool { return p.is != want }) {
			t.Fatalf("%+v was refused, and changed the link", c.change)
		}
	}
	if err := change(control.LinkChange{Direction: "rx", Clear: true}); err != "" || parts[0].is != config.NoImpairment() {
		t.Errorf("%s, %+v", err, parts[0].is)
	}
}
