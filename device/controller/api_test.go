package controller

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/internal/vtime"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// part is a fake shard with ports and its own queue of the uplink.
type part struct {
	fake
	CaptureView
	ports []capture.NamedPort
	link  control.Uplink
	is    config.Impairment
	way   string
}

func (p *part) Ports() []capture.NamedPort { return p.ports }
func (p *part) Describe() control.Uplink   { return p.link }

func (p *part) Impair(direction string, change func(config.Impairment) (config.Impairment, error)) error {
	is, err := change(p.is)
	if err == nil {
		p.is, p.way = is, direction
	}
	return err
}

func (p *part) Ask(ask func(View, int64)) error {
	ask(View{Functions: &p.fake, Captures: p, Uplink: p}, 7)
	return nil
}

// told is a fake shard with fixed answers.
type told struct {
	ObjectView
	present, absent []pfvf.ID
	missing         error // returned by Find
	other           []string
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
	ask(View{Functions: v, Objects: v, Faults: v, Captures: v, Peers: v, Uplink: toldUplink{uplink: v.uplink}}, 7)
	return nil
}

func (v *told) Present() []pfvf.ID { return v.present }
func (v *told) Absent() []pfvf.ID  { return v.absent }
func (v *told) Find(pfvf.ID) error { return v.missing }

func (v *told) Describe(id pfvf.ID) control.Function {
	return control.Function{ID: id.String(), Number: uint32(id)}
}

func (v *told) OtherModes(vtime.Time) []string       { return v.other }
func (v *told) Tunnels() []control.Route             { return v.tunnels }
func (v *told) CreditRoots() []control.CreditNode    { return v.roots }
func (v *told) Credits(pfvf.ID) []control.CreditNode { return nil }
func (v *told) List(vtime.Time) []control.Fault      { return v.faults }
func (v *told) Keys() []control.Key                  { return v.keys }
func (v *told) Clear(vtime.Time)                     { v.mended++ }
func (v *told) Paths(list []control.Connection)      { v.paths = append(v.paths, len(list)) }
func (v *told) End(c *capture.Capture)               { v.ended = append(v.ended, c) }

func (v *told) Ports() []capture.NamedPort {
	return []capture.NamedPort{{Port: capture.Port{Name: "vp1"}}, {Port: capture.Port{Name: "vp2"}}}
}

func (v *told) Start(c *capture.Sink, offset int64) error {
	v.begun = append(v.begun, c)
	return v.refuse
}

func (v *told) Inject(_ vtime.Time, id pfvf.ID, _ *control.FaultChange) ([]control.Fault, error) {
	return []control.Fault{{Function: id.String()}}, v.refuse
}

// toldUplink is the uplink of a fake shard.
type toldUplink struct {
	UplinkView
	uplink control.Uplink
}

func (v toldUplink) Describe() control.Uplink { return v.uplink }

// runCore returns a core that runs until the test ends.
func runCore(t *testing.T) *Core {
	t.Helper()
	core, err := NewCore(CoreConfig{
		NIC: devicetest.Config(t, 1, "/nowhere", [2]string{"127.0.0.1:1", "127.0.0.1:2"}), Shards: 2, Rand: devicetest.Seeded(1),
		ShardOf: func(uint32) int { return 0 }, Log: func(vtime.Time, slog.Level, string, ...any) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		core.ShardLink(i).Serve(func([]Order) {})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		core.Run(func() int64 { return 1e9 }, notes{})
	}()
	t.Cleanup(func() { core.Halt(); <-done })
	return core
}

// asked returns an API of two shards.
func asked(core *Core, a, b *told) *API {
	return NewAPI(Config{
		Host: 1, Core: core, Shards: Shards{All: []Viewer{a, b}}, Warnings: NewWarnings(slog.New(slog.DiscardHandler)), WallOffset: func() int64 { return 0 },
	})
}

// notes is links that do nothing, and the notes about them.
type notes map[cm.PeerID]string

func (notes) Open() error               { return nil }
func (notes) Domain() string            { return "test" }
func (notes) Set(*Peer)                 {}
func (notes) Remove(cm.PeerID)          {}
func (notes) Send(cm.PeerID, []byte)    {}
func (notes) End(cm.PeerID, error)      {}
func (n notes) Note(p cm.PeerID) string { return n[p] }

// The clock of the peer with that number is as many minutes ahead.
func (notes) Ahead(p cm.PeerID) time.Duration { return time.Duration(p) * time.Minute }

// TestAShardsNoteAboutAPeerComesFirst checks that a shard's note about a peer takes precedence over
// the note about its link, and that counts of the uplink are summed over shards.
func TestAShardsNoteAboutAPeerComesFirst(t *testing.T) {
	part := control.Uplink{Name: "vnic1", RX: control.Direction{Counts: control.Impaired{Packets: 3}}}
	for _, c := range []struct {
		a, b  []string
		links Links
		want  string
	}{
		{nil, nil, nil, ""},
		{nil, nil, notes{1: "waits"}, "waits"},
		{[]string{"3"}, nil, notes{1: "waits"}, "waits"},
		{[]string{"2"}, nil, notes{1: "waits"}, "seals with another psp.mode"},
		{nil, []string{"3", "2"}, nil, "seals with another psp.mode"},
	} {
		api := asked(runCore(t), &told{other: c.a, uplink: part}, &told{other: c.b, uplink: part})
		api.c.Links = c.links
		ahead := int64(0)
		if c.links != nil {
			ahead = time.Minute.Milliseconds()
		}
		v, err := api.NIC(t.Context())
		if err != nil || len(v.Peers) != 1 || v.Peers[0].Note != c.want || v.Peers[0].ClockAheadMS != ahead || len(v.Uplinks) != 1 ||
			v.Uplinks[0].RX.Counts.Packets != 6 {
			t.Errorf("%+v: %+v, %v", c, v, err)
		}
	}
}

// TestOperatorsSeeTheSupervisorsPID checks that operators see the PID of the supervisor, if there
// is one.
func TestOperatorsSeeTheSupervisorsPID(t *testing.T) {
	api := asked(runCore(t), &told{}, &told{})
	api.c.Supervisor = &Supervisor{PID: 77, Starts: 2, Stuck: 1, Upgraded: func() (int, string) { return 3, "no" }}
	v, err := api.NIC(t.Context())
	if err != nil || v.PID != 77 || v.Worker == 77 || v.Worker == 0 || v.Starts != 2 || v.Stuck != 1 ||
		v.Upgrades != 3 || v.UpgradeRefused != "no" {
		t.Errorf("%+v, %v", v, err)
	}
}

// TestFunctionsAreListedByNumber checks that the functions of all shards, existing or not, are
// listed by number.
func TestFunctionsAreListedByNumber(t *testing.T) {
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

// TestARouteIsSealedIfEveryShardHasAKey checks that a route to a peer counts as sealed when every
// shard that sends there has a key.
func TestARouteIsSealedIfEveryShardHasAKey(t *testing.T) {
	way := func(tenant uint32, peer uint8, sealed bool) []control.Route {
		return []control.Route{{Tenant: tenant, PeerName: fmt.Sprint(peer), Sealed: sealed}}
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
		if err := core.Do(func(vtime.Time) {
			core.plain.routes.Learn(core.Peers.Find("2").ID, []gateway.Address{{Tenant: 7, Addr: addr, MTU: 1400}})
		}); err != nil {
			t.Fatal(err)
		}
		list, err := asked(core, &told{tunnels: c.a}, &told{tunnels: c.b}).Routes(t.Context())
		if err != nil || len(list) != 1 || list[0].Kind != "peer" || list[0].Peer != 2 || list[0].Sealed != c.want {
			t.Errorf("%d: %+v, %v; sealed: want %v", i, list, err, c.want)
		}
	}
}

// TestCreditsInUseAreSummedOverShards checks that use and refusals are summed over shards, and
// limits are not.
func TestCreditsInUseAreSummedOverShards(t *testing.T) {
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

// TestKeysOfAllShardsAreListed checks that the security associations of all shards are listed.
func TestKeysOfAllShardsAreListed(t *testing.T) {
	a, b := &told{keys: []control.Key{{PeerName: "1"}, {PeerName: "2"}}}, &told{keys: []control.Key{{PeerName: "3"}}}
	list, err := asked(runCore(t), a, b).Keys(t.Context())
	if want := []control.Key{{PeerName: "1"}, {Peer: 2, PeerName: "2"}, {PeerName: "3"}}; err != nil || !slices.Equal(list, want) {
		t.Errorf("%+v, %v; want %+v", list, err, want)
	}
}

// TestTheHostMayBeLeftOutOfAName checks that the host may be left out of a function's name.
func TestTheHostMayBeLeftOutOfAName(t *testing.T) {
	api := &API{c: Config{Host: 3}}
	for name, want := range map[string]string{"pf0.vf1": "h3.pf0.vf1", "h3.pf0.vf1": "h3.pf0.vf1", "h2.pf0": "h2.pf0", "pf1": "h3.pf1", "vf1": "", "": ""} {
		if id, err := api.ID(name); (err == nil) != (want != "") || err == nil && id.String() != want {
			t.Errorf("%q: %v, %v", name, id, err)
		}
	}
}
