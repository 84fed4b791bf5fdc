package controller

import (
	"errors"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/inbox"
	"github.com/falcon-vnic/vnic/device/settings"
	"github.com/falcon-vnic/vnic/internal/vtime"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// fits is a Fitter that cannot give some functions their part.
type fits map[pfvf.ID]error

func (f fits) Fit() map[pfvf.ID]error { return f }

// noPort is links of a NIC that cannot listen for its peers.
type noPort struct{ notes }

var errNoPort = errors.New("cm.listen is in use")

func (noPort) Open() error { return errNoPort }

// operated returns a NIC whose core runs until stop is called or the test ends, and its API.
func operated(t *testing.T) (n *nic, api *API, stop func()) {
	t.Helper()
	n = newNIC(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.Run(func() int64 { return n.now }, notes{})
	}()
	stop = sync.OnceFunc(func() { n.Halt(); <-done; n.Stop() })
	t.Cleanup(stop)
	return n, NewAPI(Config{
		Host: 1, Core: n.Core, Shards: Shards{All: []Viewer{&told{}, &told{}}}, Links: notes{}, Warnings: NewWarnings(slog.New(slog.DiscardHandler)),
		Settings: settings.NewMemory(nil), Fitter: fits{}, WallOffset: func() int64 { return 0 }, Log: slog.New(slog.DiscardHandler),
	}), stop
}

// edited returns the NIC's configuration with changes.
func (n *nic) edited(change func(*config.Config)) *config.Config {
	is := *n.cfg.NIC
	is.Peers, is.Functions = slices.Clone(is.Peers), slices.Clone(is.Functions)
	for i := range is.Functions {
		is.Functions[i].VFs = slices.Clone(is.Functions[i].VFs)
	}
	change(&is)
	return &is
}

// weights returns the weights of the first VFs, and the tenants of the peer.
func (n *nic) weights() (w [3]uint8, tenants []uint32) {
	n.t.Helper()
	if err := n.Do(func(vtime.Time) {
		for i := range w {
			w[i] = n.Functions.Settings(vf(i + 1)).Weight
		}
		tenants = n.Peers.Find("2").Is.Tenants
	}); err != nil {
		n.t.Fatal(err)
	}
	return w, tenants
}

// TestAReloadThatIsRefusedChangesNothing, whether a shard refuses it or something outside the shards, whatever
// was applied before; whether it does not fit the NIC as it is now, or its peers could not be reached.
func TestAReloadThatIsRefusedChangesNothing(t *testing.T) {
	change := func(c *config.Config) {
		c.Functions[0].VFs[0].Weight, c.Functions[0].VFs[1].Weight = 5, 6
		c.Peers[0].Tenants = []uint32{7, 9}
	}
	for what, tc := range map[string]struct {
		set    func(n *nic, a *API)
		change func(*config.Config)
		want   string
	}{
		"a shard":     {func(n *nic, _ *API) { n.sides[1].refuse = errors.New("no memory") }, change, "h1.pf0.vf1: no memory"},
		"the second":  {func(n *nic, _ *API) { n.sides[0].refuse = errors.New("no memory") }, change, "h1.pf0.vf2: no memory"},
		"a port":      {func(_ *nic, a *API) { a.c.Fitter = fits{vf(2): errors.New("no port")} }, change, "no port"},
		"no listener": {func(_ *nic, a *API) { a.c.Links = noPort{} }, change, errNoPort.Error()},
		"a driver's address": {func(n *nic, _ *API) {
			if err := n.Do(func(vtime.Time) {
				if err := n.Functions.AddGID(vf(3), netip.MustParseAddr("192.168.100.77").As16(), [16]byte{}); err != nil {
					t.Error(err)
				}
			}); err != nil {
				t.Error(err)
			}
		}, func(c *config.Config) {
			change(c)
			c.Functions[0].VFs[1].Address = netip.MustParseAddr("192.168.100.77")
		}, "192.168.100.77"},
	} {
		n, api, _ := operated(t)
		tc.set(n, api)
		was, peers := n.weights()
		changed, err := api.Apply(Compare(n.cfg.NIC, n.edited(tc.change)))
		if err == nil || !strings.Contains(err.Error(), tc.want) || changed != nil {
			t.Errorf("%s: changed %q, %v", what, changed, err)
		}
		if is, now := n.weights(); is != was || !slices.Equal(now, peers) {
			t.Errorf("%s: weights %v, tenants %v, were %v and %v", what, is, now, was, peers)
		}
	}
}

func TestAFunctionThatAFileNoLongerNamesIsAsOthersByDefault(t *testing.T) {
	n, api, _ := operated(t)
	last := len(n.cfg.NIC.Functions[0].VFs)
	changed, err := api.Apply(Compare(n.cfg.NIC, n.edited(func(c *config.Config) { c.Functions[0].VFs = c.Functions[0].VFs[:last-1] })))
	gone := n.cfg.NIC.Functions[0].VFs[last-1]
	if err != nil || len(changed) != 1 || !strings.Contains(changed[0], gone.MAC.String()) && !strings.Contains(changed[0], "enabled") {
		t.Errorf("%q, %v", changed, err)
	}
	if err := n.Do(func(vtime.Time) {
		want := n.cfg.NIC.DefaultVF(0, gone.VF)
		if is := n.Functions.Settings(vf(int(gone.VF))); !reflect.DeepEqual(is.Enabled, want.Enabled) || is.Tenant != want.Tenant {
			t.Errorf("%+v, want %+v", is, want)
		}
	}); err != nil {
		t.Error(err)
	}
}

// TestPeersOfADirectoryStandBesideTheNICsOwn: those of the configuration and of operators count, one that does not fit is
// left out alone, and the next list takes the place of the last.
func TestPeersOfADirectoryStandBesideTheNICsOwn(t *testing.T) {
	n, api, _ := operated(t)
	peer := func(name, underlay string) config.Peer {
		return config.Peer{
			Name: name, Underlay: config.Place{AddrPort: netip.AddrPortFrom(netip.MustParseAddr(underlay), 1000)},
			CM: netip.MustParseAddrPort("127.0.0.1:3"), Tenants: []uint32{uint32(name[0])},
		}
	}
	names := func() (list []string) {
		if err := n.Do(func(vtime.Time) {
			for _, p := range n.Peers.List() {
				list = append(list, p.Name)
			}
		}); err != nil {
			t.Fatal(err)
		}
		return list
	}
	for _, tc := range []struct {
		list       []config.Peer
		want, left string
	}{
		{[]config.Peer{peer("2", "10.99.0.9"), peer("3", "10.99.0.3"), peer("4", "10.99.0.1"), peer("5", "10.99.0.5")}, "2 3 5", "2 4"},
		{[]config.Peer{peer("5", "10.99.0.5"), peer("6", "10.99.0.6")}, "2 5 6", ""},
		{[]config.Peer{peer("5", "10.99.0.5"), peer("6", "10.99.0.6")}, "2 5 6", ""},
		{[]config.Peer{peer("3", "10.99.0.2"), peer("6", "10.99.0.6")}, "2 6", "3"}, // 2 is at 10.99.0.2
		{nil, "2", ""},
	} {
		left, err := api.Follow(tc.list)
		var out []string
		for _, name := range []string{"2", "3", "4", "5", "6"} {
			if left[name] != nil {
				out = append(out, name)
			}
		}
		if got := strings.Join(names(), " "); err != nil || got != tc.want || strings.Join(out, " ") != tc.left {
			t.Errorf("peers %s, left out %v, %v; want %s, %s", got, left, err, tc.want, tc.left)
		}
	}
	if _, err := api.Follow([]config.Peer{peer("7", "10.99.0.7"), peer("8", "10.99.0.7")}); err == nil || strings.Join(names(), " ") != "2" {
		t.Errorf("two peers have one address: %v, %v", names(), err)
	}
	api.c.Links = noPort{}
	if _, err := api.Follow(nil); !errors.Is(err, errNoPort) {
		t.Error(err)
	}
}

// TestAPeerOfADirectoryBecomesTheNICsOwn: when an operator or the configuration says something of a peer
// that a directory told of, that holds, whatever the directory says later.
func TestAPeerOfADirectoryBecomesTheNICsOwn(t *testing.T) {
	fleets := []config.Peer{{
		Name: "x", Underlay: config.Place{AddrPort: netip.MustParseAddrPort("10.99.0.8:1000")},
		CM: netip.MustParseAddrPort("127.0.0.1:8"), Tenants: []uint32{8}, All: true,
	}}
	own := fleets[0]
	own.Underlay.AddrPort, own.All = netip.MustParseAddrPort("10.99.0.88:1000"), false
	place, none := own.Underlay.String(), ""
	for name, take := range map[string]func(*nic, *API) error{
		"set": func(n *nic, _ *API) error {
			return n.Peers.operate(n.now, &control.PeerChange{Action: "set", Name: "x", Underlay: &place})
		},
		"removed and added": func(n *nic, _ *API) error {
			return errors.Join(
				n.Peers.operate(n.now, &control.PeerChange{Action: "remove", Name: "x"}),
				n.Peers.operate(n.now, &control.PeerChange{Action: "add", Name: "x", Underlay: &place, CM: &none, Tenants: &own.Tenants}))
		},
		"reload": func(n *nic, api *API) error {
			is := *n.cfg.NIC
			is.Peers = append(slices.Clone(is.Peers), own)
			_, err := api.Apply(Compare(n.cfg.NIC, &is))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, api, _ := operated(t)
			if left, err := api.Follow(fleets); err != nil || len(left) > 0 {
				t.Fatal(left, err)
			}
			if err := take(n, api); err != nil {
				t.Fatal(err)
			}
			for _, list := range [][]config.Peer{fleets, nil} {
				if left, err := api.Follow(list); err != nil || len(left) != len(list) {
					t.Errorf("%v, %v", left, err)
				}
				if x := n.Peers.Find("x"); x == nil || x.Is.Underlay.String() != place {
					t.Fatalf("with %d peers of the directory: %+v", len(list), x)
				}
			}
		})
	}
}

// TestAStoppedNICAnswersOperatorsWithAnError, whichever of its parts has stopped: none of them waits, and none answers
// with a part of the truth.
func TestAStoppedNICAnswersOperatorsWithAnError(t *testing.T) {
	ask := func(t *testing.T, api *API, which string, want error) {
		ctx := t.Context()
		for name, call := range map[string]func() (any, error){
			"core NIC":         func() (any, error) { return api.NIC(ctx) },
			"core Peers":       func() (any, error) { return api.Peers(ctx) },
			"core Connections": func() (any, error) { return api.Connections(ctx) },
			"core Routes":      func() (any, error) { return api.Routes(ctx) },
			"core Keys":        func() (any, error) { return api.Keys(ctx) },
			"core Rotate":      func() (any, error) { return api.RotateKeys(ctx) },
			"core Counters":    func() (any, error) { return api.Counters(ctx) },
			"core Follow":      func() (any, error) { return api.Follow(nil) },
			"core Offered":     func() (any, error) { list, _, err := api.Offered(); return list, err },
			"core GiveUp":      func() (any, error) { return nil, api.GiveUp("pf0.vf1") },
			"core Change":      func() (any, error) { return api.ChangeFunction(ctx, control.FunctionChange{Function: "pf0.vf1"}) },
			"core ChangePeer":  func() (any, error) { return api.ChangePeer(ctx, control.PeerChange{Action: "remove", Name: "2"}) },
			"shard Functions":  func() (any, error) { return api.Functions(ctx) },
			"shard Queues":     func() (any, error) { return api.Queues(ctx) },
			"shard Credits":    func() (any, error) { return api.Credits(ctx) },
			"shard Keys":       func() (any, error) { return api.Keys(ctx) },
			"shard Violations": func() (any, error) { return api.Violations(ctx) },
			"shard Faults":     func() (any, error) { return api.Faults(ctx) },
			"shard Link":       func() (any, error) { return api.InjectLink(ctx, control.LinkChange{Clear: true}) },
		} {
			if strings.HasPrefix(name, which) {
				if _, err := call(); !errors.Is(err, want) {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
	}
	_, api, stop := operated(t)
	api.c.Shards = Shards{All: []Viewer{&told{stopped: true}, &told{}}}
	ask(t, api, "shard", errStopped)
	stop()
	ask(t, api, "core", inbox.ErrStopped)
}

// TestAnOperatorHearsWhatIsWrongWithAName and that a peer cannot be added to a NIC that cannot listen.
func TestAnOperatorHearsWhatIsWrongWithAName(t *testing.T) {
	_, api, _ := operated(t)
	bad := func(what string, err error) {
		if !errors.As(err, new(control.BadRequest)) {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := api.ChangeFunction(t.Context(), control.FunctionChange{Function: "nonsense"})
	bad("a change", err)
	_, err = api.InjectFault(t.Context(), control.FaultChange{Function: "nonsense"})
	bad("a fault", err)
	_, err = api.ChangePeer(t.Context(), control.PeerChange{Action: "set", Name: "9"})
	bad("a peer", err)
	if err := api.GiveUp("nonsense"); err == nil {
		t.Error("a function that there is not is given up")
	}
	api.c.Links = noPort{}
	_, err = api.ChangePeer(t.Context(), third())
	if bad("another peer", err); !errors.Is(err, errNoPort) {
		t.Error(err)
	}
}
