package device

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/ports"
	"github.com/falcon-vnic/vnic/falcon"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// edited returns a NIC's configuration with changes.
func (w *world) edited(nic int, change func(*config.Config)) *config.Config {
	is := *w.nics[nic].reload.was
	is.Peers = slices.Clone(is.Peers)
	is.Functions = slices.Clone(is.Functions)
	for i := range is.Functions {
		is.Functions[i].VFs = slices.Clone(is.Functions[i].VFs)
	}
	change(&is)
	return &is
}

// TestAConfigurationTakesEffectWithoutARestart: what differs is applied, and named; a function whose
// settings did not change stays as it is.
func TestAConfigurationTakesEffectWithoutARestart(t *testing.T) {
	s := newStage(t)
	s.works()
	n := s.w.nics[0]
	must(t, n.Reconfigure(s.w.edited(0, func(c *config.Config) {
		c.Functions[0].VFs[1].Weight = 7
		c.Functions[0].VFs[3].Tenant, c.Functions[0].VFs[3].Address = 9, netip.MustParseAddr("192.168.100.99")
		c.Peers[0].Tenants = []uint32{7, 9}
	})))
	if got := strings.Join(n.reload.changed, "; "); got != "peer 2 changed; h1.pf0.vf2: weight; h1.pf0.vf4: tenant, address" {
		t.Errorf("changed: %s", got)
	}
	list, err := n.Functions(t.Context())
	must(t, err)
	for _, f := range list {
		switch f.ID {
		case "h1.pf0.vf2":
			if f.Weight != 7 {
				t.Errorf("%+v", f)
			}
		case "h1.pf0.vf4":
			if f.Tenant != 9 || f.Addr != "192.168.100.99" {
				t.Errorf("%+v", f)
			}
		}
	}
	s.works() // the same drivers, over the same connection
	must(t, n.Reconfigure(s.w.edited(0, func(*config.Config) {})))
	if len(n.reload.changed) != 0 {
		t.Errorf("changed: %v", n.reload.changed)
	}
}

// TestAConfigurationTakesEffectAsAWholeOrNotAtAll: a key that cannot change while the NIC runs is
// named, and so is what does not fit the NIC as it is; nothing has changed then.
func TestAConfigurationTakesEffectAsAWholeOrNotAtAll(t *testing.T) {
	w := newWorld(t)
	n := w.nics[0]
	for _, tc := range []struct {
		change func(*config.Config)
		want   string
	}{
		{func(c *config.Config) { c.Uplink.MTU, c.RDMA.MTU = 4000, 2048 }, "these take effect when vnic run is stopped and started: uplink.mtu, rdma.mtu"},
		{func(c *config.Config) { c.Functions[0].VFCount = 9 }, "the list of PFs, and their vf_count"},
		{func(c *config.Config) { c.Functions[0].VFs[1].Limits.ReadAtomic = 3 }, "h1.pf0.vf2.limits.read_atomic"},
		{func(c *config.Config) {
			c.Peers[0].Underlay = config.Place{AddrPort: netip.AddrPortFrom(c.Uplink.Address.Addr(), 1000)}
		}, "cannot be the peer's address"},
		{func(c *config.Config) {
			c.Peers[0].Functions = []config.PeerFunction{{Tenant: 7, Address: netip.MustParseAddr("192.168.100.12")}}
		}, "192.168.100.12 of tenant 7 is the address of h1.pf0.vf2"},
	} {
		err := n.Reconfigure(w.edited(0, func(c *config.Config) {
			c.Functions[0].VFs[0].Weight = 9
			tc.change(c)
		}))
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v, want %q", err, tc.want)
		}
		var weight uint8
		must(t, n.core.Do(func(falcon.Time) { weight = n.core.Functions.Settings(0x10001).Weight }))
		if weight == 9 {
			t.Errorf("%s: half of it was applied", tc.want)
		}
	}
}

// TestFunctionsMayTakeWhatOthersGiveUp: changes are applied in an order in which each is allowed.
func TestFunctionsMayTakeWhatOthersGiveUp(t *testing.T) {
	w := newWorld(t)
	n := w.nics[0]
	must(t, n.Reconfigure(w.edited(0, func(c *config.Config) {
		vfs := c.Functions[0].VFs
		vfs[0].Address, vfs[1].Address = vfs[1].Address, netip.MustParseAddr("192.168.100.77")
	})))
	var got [2]netip.Addr
	must(t, n.core.Do(func(falcon.Time) {
		for i := range got {
			got[i] = n.core.Functions.Settings(pfvf.ID(0x10001 + i)).Address
		}
	}))
	if got != [2]netip.Addr{netip.MustParseAddr("192.168.100.12"), netip.MustParseAddr("192.168.100.77")} {
		t.Errorf("%v", got)
	}
}

// TestPeersAreCountedAsTheyAre: the counts follow what an operator or a reload has changed
// since the start.
func TestPeersAreCountedAsTheyAre(t *testing.T) {
	w := newWorld(t)
	n := w.nics[0]
	count := func() int {
		d, err := n.Directory(t.Context())
		must(t, err)
		if d.Kind != "static" {
			t.Errorf("%+v", d)
		}
		return d.Peers
	}
	was := count()
	_, err := n.ChangePeer(t.Context(), control.PeerChange{Action: "remove", Name: n.cfg.Peers[0].Name})
	must(t, err)
	if is := count(); is != was-1 {
		t.Errorf("%d peers after one of %d was removed", is, was)
	}
	must(t, n.Reconfigure(w.edited(0, func(c *config.Config) {
		c.Peers = append(c.Peers, config.Peer{Name: "new", Underlay: c.Peers[0].Underlay, CM: c.Peers[0].CM, Tenants: c.Peers[0].Tenants})
		c.Peers[len(c.Peers)-1].Complete()
	})))
	if is := count(); is != was {
		t.Errorf("%d peers after the file named one more than %d", is, was-1)
	}
}

// TestAReloadedIdentityIsTheOneThatCounts: the NIC that had a peer's name is refused as soon as the file
// names another identity, and let in again when it names its own.
func TestAReloadedIdentityIsTheOneThatCounts(t *testing.T) {
	w := newWorld(t)
	n := w.nics[0]
	identify := func(as string) {
		t.Helper()
		must(t, n.Reconfigure(w.edited(0, func(c *config.Config) { c.Peers[0].Identity = as })))
	}
	identify("vnic://elsewhere/host/2")
	w.until("the other NIC is refused", func() bool {
		v, err := n.NIC(t.Context())
		must(t, err)
		return !v.Peers[0].Up && strings.Contains(v.Peers[0].Note, "want vnic://elsewhere/host/2")
	})
	for _, own := range []string{"vnic://test/host/2", ""} {
		identify(own)
		w.waitPeers()
	}
}

// TestServersAndImpairmentsChangeByAReload: the page of metrics moves to another address or goes, and
// the uplink does to packets what the file says now.
func TestServersAndImpairmentsChangeByAReload(t *testing.T) {
	w := newWorld(t)
	n := w.nics[0]
	first, second := netip.MustParseAddrPort(freeAddress(t)), netip.MustParseAddrPort(freeAddress(t))
	answers := func(at netip.AddrPort) bool {
		r, err := http.Get("http://" + at.String() + "/metrics")
		if err != nil {
			return false
		}
		_ = r.Body.Close()
		return r.StatusCode == http.StatusOK
	}
	change := func(want string, f func(c *config.Config)) {
		t.Helper()
		must(t, n.Reconfigure(w.edited(0, f)))
		if got := strings.Join(n.reload.changed, "; "); got != want {
			t.Errorf("changed: %s, want %s", got, want)
		}
	}
	change("metrics and web", func(c *config.Config) { c.Metrics.Listen = first })
	if !answers(first) {
		t.Error("no metrics")
	}
	change("uplink.impair; metrics and web", func(c *config.Config) { c.Metrics.Listen, c.Uplink.Impair.TX.Loss = second, 0.25 })
	if answers(first) || !answers(second) {
		t.Error("metrics are where they were")
	}
	v, err := n.NIC(t.Context())
	must(t, err)
	if tx, rx := v.Uplinks[0].TX.Impairment.Loss, v.Uplinks[0].RX.Impairment.Loss; tx != 0.25 || rx != 0 {
		t.Errorf("the uplink loses %v of what it sends, %v of what it gets", tx, rx)
	}
	change("uplink.impair; metrics and web", func(c *config.Config) { c.Metrics.Listen, c.Uplink.Impair.TX.Loss = netip.AddrPort{}, 0 })
	if answers(second) {
		t.Error("metrics although there should be none")
	}
}

// TestAReloadIsAskedForOrRefused: whoever asks for it is told what has changed, or why nothing has.
func TestAReloadIsAskedForOrRefused(t *testing.T) {
	w := newWorld(t)
	n := w.nics[0]
	if _, err := n.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "no configuration file that it could reload") {
		t.Error(err)
	}
	keys := filepath.Join(filepath.Dir(w.sockets[0]), "keys")
	must(t, cmlink.Renew(keys, []string{"1"}))
	was := n.links.identity()
	var level slog.Level
	n.deps.LogLevel = func(l slog.Level) { level = l }
	every := 5 * time.Hour
	n.deps.Reload = func(context.Context) error {
		return n.Reconfigure(w.edited(0, func(c *config.Config) {
			c.Log.Level, c.PSP.RotateEvery = "error", &every
			c.Functions[0].VFs[3].Enabled = new(bool)
		}))
	}
	r, err := n.Reload(t.Context())
	if want := []string{"h1.pf0.vf4: enabled", "psp.rotate_every", "log.level", "the certificates in cm.identity"}; err != nil || !slices.Equal(r.Changed, want) {
		t.Errorf("%q, %v", r.Changed, err)
	}
	if level != slog.LevelError || n.links.identity().Same(was) {
		t.Errorf("level %v, the certificate is the same: %v", level, n.links.identity().Same(was))
	}
	list, err := n.Functions(t.Context())
	must(t, err)
	for _, f := range list {
		if f.ID == "h1.pf0.vf4" && f.State != "DISABLED" {
			t.Errorf("%+v", f)
		}
	}

	// A peer that leaves and comes back; links that come up now have the new certificate.
	peers := n.reload.was.Peers
	for _, c := range []struct {
		peers []config.Peer
		says  string
	}{{nil, "peer 2 removed"}, {peers, "peer 2 added"}} {
		must(t, n.Reconfigure(w.edited(0, func(is *config.Config) { is.Peers = c.peers })))
		if !slices.Equal(n.reload.changed, []string{c.says}) {
			t.Errorf("%q, not %q", n.reload.changed, c.says)
		}
	}
	w.waitPeers()

	n.deps.Reload = func(context.Context) error {
		return n.Reconfigure(w.edited(0, func(c *config.Config) { c.NIC.Name = "another" }))
	}
	if _, err := n.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "nothing has changed: these take effect") || !strings.Contains(err.Error(), "nic.name") {
		t.Error(err)
	}
	if n.reload.was.NIC.Name == "another" {
		t.Error("the NIC has the configuration that was refused")
	}
	must(t, os.Remove(filepath.Join(keys, "host-1.key")))
	if err := n.Reconfigure(w.edited(0, func(c *config.Config) { c.Log.Level = "debug" })); err == nil || !strings.Contains(err.Error(), "cm.identity") || level != slog.LevelError {
		t.Errorf("%v, level %v", err, level)
	}
}

// fullGuests has no room for another guest's port.
type fullGuests struct{}

func (fullGuests) OpenPort(*config.Port, func(func()) bool) (ports.Device, error) {
	return nil, errors.New("no room for a port")
}

// TestAReloadWhosePortCannotBeMadeIsTakenBack: functions and peers are as they were before it, and another reload
// finds nothing of it.
func TestAReloadWhosePortCannotBeMadeIsTakenBack(t *testing.T) {
	w := newWorld(t)
	n := w.nics[0]
	n.fitter.mu.Lock()
	n.deps.Guests = fullGuests{}
	n.fitter.mu.Unlock()
	state := func() (is [3]config.Function, tenants []uint32) {
		must(t, n.core.Do(func(falcon.Time) {
			for i := range is {
				is[i] = n.core.Functions.Settings(pfvf.ID(0x10001 + i))
			}
			tenants = n.core.Peers.Find("2").Is.Tenants
		}))
		return is, tenants
	}
	was, tenants := state()
	port := config.Port{Type: config.PortVhostUser, Socket: "/nowhere/p.sock", Listen: "guest", MTU: 1400, Queues: 1, Assign: new(bool)}
	change := func(c *config.Config) {
		vfs := c.Functions[0].VFs
		vfs[0].Address, vfs[1].Address = vfs[1].Address, netip.MustParseAddr("192.168.100.77") // one needs what another gives up
		vfs[2].Port = &port
		c.Peers[0].Tenants = []uint32{7, 9}
	}
	if err := n.Reconfigure(w.edited(0, change)); err == nil || !strings.Contains(err.Error(), "port of h1.pf0.vf3: no room for a port") {
		t.Fatal(err)
	}
	if is, now := state(); !reflect.DeepEqual(is, was) || !slices.Equal(now, tenants) {
		t.Errorf("%+v, %v; want %+v, %v", is, now, was, tenants)
	}
	if err := n.core.Do(func(falcon.Time) {
		if err := n.core.Functions.AddGID(0x10001, netip.MustParseAddr("192.168.100.77").As16(), [16]byte{}); err != nil {
			t.Errorf("an address that nobody has: %v", err)
		}
	}); err != nil {
		t.Error(err)
	}
	must(t, n.Reconfigure(w.edited(0, func(c *config.Config) { c.Peers[0].Tenants = []uint32{7, 9} })))
	if is, now := state(); !reflect.DeepEqual(is, was) || !slices.Equal(now, []uint32{7, 9}) {
		t.Errorf("%+v, %v", is, now)
	}
}
