package controller

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/fault"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/internal/vtime"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// told is a fake shard with fixed answers.
type told struct {
	View
	present, absent []pfvf.ID
	missing         error // returned by Find
	other           []uint8
	tunnels         []control.Route
	roots           []control.CreditNode
	faults          []control.Fault
	keys            []control.Key
	uplink          control.Uplink
	refuse          error // error of calls that start something
	paths           []int // number of connections per call of Paths
	begun           []*capture.Sink
	ended           []*capture.Capture
	mended          int
	stopped         bool
}

func (v *told) Ask(ask func(View, vtime.Time)) error {
	if v.stopped {
		return errStopped
	}
	ask(v, 7)
	return nil
}

func (v *told) Present() []pfvf.ID { return v.present }
func (v *told) Absent() []pfvf.ID  { return v.absent }
func (v *told) Find(pfvf.ID) error { return v.missing }
func (v *told) Describe(id pfvf.ID) control.Function {
	return control.Function{ID: id.String(), Number: uint32(id)}
}
func (v *told) OtherModes(vtime.Time) []uint8        { return v.other }
func (v *told) Tunnels() []control.Route             { return v.tunnels }
func (v *told) CreditRoots() []control.CreditNode    { return v.roots }
func (v *told) Credits(pfvf.ID) []control.CreditNode { return nil }
func (v *told) Faults(vtime.Time) []control.Fault    { return v.faults }
func (v *told) Keys() []control.Key                  { return v.keys }
func (v *told) Mend(vtime.Time)                      { v.mended++ }
func (v *told) Uplink() control.Uplink               { return v.uplink }
func (v *told) Paths(list []control.Connection)      { v.paths = append(v.paths, len(list)) }
func (v *told) EndCapture(c *capture.Capture)        { v.ended = append(v.ended, c) }
func (v *told) Ports() []capture.NamedPort {
	return []capture.NamedPort{{Port: capture.Port{Name: "vp1"}}, {Port: capture.Port{Name: "vp2"}}}
}

func (v *told) StartCapture(c *capture.Sink, offset int64) error {
	v.begun = append(v.begun, c)
	return v.refuse
}

func (v *told) InjectFault(_ vtime.Time, id pfvf.ID, _ *control.FaultChange) ([]control.Fault, error) {
	return []control.Fault{{Function: id.String()}}, v.refuse
}

// runCore returns a core that runs until the test ends.
func runCore(t *testing.T) *Core {
	t.Helper()
	core, err := NewCore(CoreConfig{
		NIC: devicetest.Config(t, 1, "/nowhere", [2]string{"127.0.0.1:1", "127.0.0.1:2"}), Shards: 2, Rand: devicetest.Seeded(1),
		Home: func(uint32) int { return 0 }, Log: func(vtime.Time, slog.Level, string, ...any) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		core.Line(i).Serve(func([]Order) {})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		core.Run(func() int64 { return 1e9 }, func(uint8, []byte) {}, nil)
	}()
	t.Cleanup(func() { core.Halt(); <-done })
	return core
}

// asked returns an API of two shards.
func asked(core *Core, a, b *told) *API {
	return NewAPI(Config{
		Host: 1, Core: core, Shards: Shards{All: []Shard{a, b}}, Warnings: NewWarnings(slog.New(slog.DiscardHandler)), WallOffset: func() int64 { return 0 },
	})
}

// notes holds the notes about links, by host.
type notes map[uint8]string

func (n notes) Note(host uint8) string { return n[host] }

// TestNotesOfPeers checks that a shard's note about a peer takes precedence over the note about its
// link, and that counts of the uplink are summed over shards.
func TestNotesOfPeers(t *testing.T) {
	part := control.Uplink{Name: "vnic1", RX: control.Direction{Counts: control.Impaired{Packets: 3}}}
	for _, c := range []struct {
		a, b  []uint8
		links Links
		want  string
	}{
		{nil, nil, nil, ""},
		{nil, nil, notes{2: "waits"}, "waits"},
		{[]uint8{3}, nil, notes{2: "waits"}, "waits"},
		{[]uint8{2}, nil, notes{2: "waits"}, "seals in another psp.mode"},
		{nil, []uint8{3, 2}, nil, "seals in another psp.mode"},
	} {
		api := asked(runCore(t), &told{other: c.a, uplink: part}, &told{other: c.b, uplink: part})
		api.c.Links = c.links
		v, err := api.NIC(t.Context())
		if err != nil || len(v.Peers) != 1 || v.Peers[0].Note != c.want || len(v.Uplinks) != 1 ||
			v.Uplinks[0].RX.Counts.Packets != 6 {
			t.Errorf("%+v: %+v, %v", c, v, err)
		}
	}
}

// TestSupervisedNIC checks that operators see the PID of the supervisor, if there is one.
func TestSupervisedNIC(t *testing.T) {
	api := asked(runCore(t), &told{}, &told{})
	api.c.Supervisor = &Supervisor{PID: 77, Starts: 2, Stuck: 1, Upgraded: func() (int, string) { return 3, "no" }}
	v, err := api.NIC(t.Context())
	if err != nil || v.PID != 77 || v.Worker == 77 || v.Worker == 0 || v.Starts != 2 || v.Stuck != 1 ||
		v.Upgrades != 3 || v.UpgradeRefused != "no" {
		t.Errorf("%+v, %v", v, err)
	}
}

// TestFunctionsInOrder checks that the functions of all shards, existing or not, are listed by
// number.
func TestFunctionsInOrder(t *testing.T) {
	api := asked(runCore(t), &told{present: []pfvf.ID{5, 9}, absent: []pfvf.ID{2}}, &told{present: []pfvf.ID{3}, absent: []pfvf.ID{1, 11}})
	list, err := api.Functions(t.Context())
	var got []uint32
	for _, f := range list {
		got = append(got, f.Number)
	}
	if err != nil || !slices.Equal(got, []uint32{1, 2, 3, 5, 9, 11}) {
		t.Errorf("%v, %v", got, err)
	}
}

// TestSealedRoutes checks that a route to a peer counts as sealed when every shard that sends there
// has a key.
func TestSealedRoutes(t *testing.T) {
	way := func(tenant uint32, peer uint8, sealed bool) []control.Route {
		return []control.Route{{Tenant: tenant, Peer: peer, Sealed: sealed}}
	}
	for i, c := range []struct {
		a, b []control.Route
		want bool
	}{
		{nil, nil, false},
		{way(7, 2, true), nil, true},
		{nil, way(7, 2, true), true},
		{way(7, 2, true), way(7, 2, true), true},
		{way(7, 2, false), way(7, 2, true), false},
		{way(7, 2, true), way(7, 2, false), false},
		{way(7, 2, false), way(7, 2, false), false},
		{way(8, 2, true), way(7, 3, true), false},
	} {
		core := runCore(t)
		addr := netip.MustParseAddr("192.168.100.21")
		if err := core.Do(func(vtime.Time) { core.plain.routes.Learn(2, []gateway.Address{{Tenant: 7, Addr: addr, MTU: 1400}}) }); err != nil {
			t.Fatal(err)
		}
		list, err := asked(core, &told{tunnels: c.a}, &told{tunnels: c.b}).Routes(t.Context())
		if err != nil || len(list) != 1 || list[0].Kind != "peer" || list[0].Peer != 2 || list[0].Sealed != c.want {
			t.Errorf("%d: %+v, %v; sealed: want %v", i, list, err, c.want)
		}
	}
}

// TestCreditsOfShards checks that use and refusals are summed over shards, and limits are not.
func TestCreditsOfShards(t *testing.T) {
	node := func(n uint32) []control.CreditNode {
		return []control.CreditNode{{
			Level: "nic", Limit: map[string]uint32{"a": 9}, InUse: map[string]uint32{"a": n, "b": 2 * n}, Charged: map[string]uint32{"a": 3 * n},
			Refused: uint64(4 * n), Underflows: uint64(5 * n),
		}, {Level: "host", InUse: map[string]uint32{"a": 7 * n}, Charged: map[string]uint32{}}}
	}
	list, err := asked(runCore(t), &told{roots: node(1)}, &told{roots: node(10)}).Credits(t.Context())
	want := node(11)
	want[0].Limit["a"] = 9
	if got := fmt.Sprintf("%+v", list); err != nil || got != fmt.Sprintf("%+v", want) {
		t.Errorf("%s, %v; want %+v", got, err, want)
	}
}

// TestListOfKeys checks that the security associations of all shards are listed.
func TestListOfKeys(t *testing.T) {
	a, b := &told{keys: []control.Key{{Peer: 1}, {Peer: 2}}}, &told{keys: []control.Key{{Peer: 3}}}
	list, err := asked(runCore(t), a, b).Keys(t.Context())
	if want := []control.Key{{Peer: 1}, {Peer: 2}, {Peer: 3}}; err != nil || !slices.Equal(list, want) {
		t.Errorf("%+v, %v; want %+v", list, err, want)
	}
}

// TestFaultsOfShards checks that the faults of all shards are listed by function, and those of one
// function in the order they were added.
func TestFaultsOfShards(t *testing.T) {
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

// TestCaptureOfShards checks that a capture starts and ends on all shards, with an interface for
// each requested port.
func TestCaptureOfShards(t *testing.T) {
	for _, c := range []struct {
		mode          string
		ports         []string
		sealed, clear bool
		any           bool
		of            map[string]int
	}{
		{config.CaptureSealed, nil, true, false, false, map[string]int{}},
		{config.CaptureClear, nil, false, true, false, map[string]int{}},
		{config.CaptureBoth, []string{"vp2"}, true, true, false, map[string]int{"vp2": capture.Clear + 1}},
		{"", []string{"vp2", "vp1"}, false, false, false, map[string]int{"vp2": capture.Clear + 1, "vp1": capture.Clear + 2}},
		{"", []string{"any"}, false, false, true, map[string]int{"vp1": capture.Clear + 3, "vp2": capture.Clear + 4}},
	} {
		a, b := &told{}, &told{}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var file bytes.Buffer
		if err := asked(nil, a, b).Capture(ctx, c.mode, c.ports, &file); err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		if len(a.begun) != 1 || len(b.begun) != 1 || len(a.ended) != 1 || len(b.ended) != 1 ||
			a.ended[0] != a.begun[0].To || file.Len() == 0 {
			t.Errorf("%+v: begun %v and %v, ended %v and %v", c, a.begun, b.begun, a.ended, b.ended)
			continue
		}
		sink := a.begun[0]
		of := map[string]int{}
		for p, n := range sink.Ports {
			of[p.Name] = n
		}
		if sink.Sealed != c.sealed || sink.Clear != c.clear || sink.AnyPort != c.any ||
			fmt.Sprint(of) != fmt.Sprint(c.of) {
			t.Errorf("%+v: %+v", c, sink)
		}
	}
}

// TestCaptureRefused checks that a capture that cannot start returns an error and is ended on all
// shards.
func TestCaptureRefused(t *testing.T) {
	for _, c := range []struct {
		mode  string
		ports []string
		want  string
	}{{"", nil, "name a mode or a port"}, {"all", []string{"vp1"}, `mode "all"`}, {"", []string{"vp9"}, "vp9"}} {
		a, b := &told{}, &told{}
		err := asked(nil, a, b).Capture(t.Context(), c.mode, c.ports, &bytes.Buffer{})
		if !errors.As(err, new(control.BadRequest)) || !strings.Contains(err.Error(), c.want) || a.begun != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for _, second := range []*told{{refuse: errors.New("one too many")}, {stopped: true}} {
		a, b := &told{}, second
		err := asked(nil, a, b).Capture(t.Context(), config.CaptureClear, nil, &bytes.Buffer{})
		if bad := errors.As(err, new(control.BadRequest)); bad != (second.refuse != nil) ||
			second.stopped != errors.Is(err, errStopped) || len(a.ended) != 1 {
			t.Errorf("%v, ended %d times", err, len(a.ended))
		}
	}
	a, b := &told{refuse: errors.New("one too many")}, &told{}
	if err := asked(nil, a, b).Capture(t.Context(), config.CaptureClear, nil, &bytes.Buffer{}); err == nil ||
		b.begun != nil {
		t.Errorf("%v, begun on the shard behind the one that refused", err)
	}
}

// TestNames checks that the host may be left out of a function's name.
func TestNames(t *testing.T) {
	api := &API{Config{Host: 3}}
	for name, want := range map[string]string{"pf0.vf1": "h3.pf0.vf1", "h3.pf0.vf1": "h3.pf0.vf1", "h2.pf0": "h2.pf0", "pf1": "h3.pf1", "vf1": "", "": ""} {
		if id, err := api.ID(name); (err == nil) != (want != "") || err == nil && id.String() != want {
			t.Errorf("%q: %v, %v", name, id, err)
		}
	}
}
