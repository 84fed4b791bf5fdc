package device

import (
	"bytes"
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/controller"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/inbox"
	"github.com/falcon-vnic/vnic/device/settings"
	"github.com/falcon-vnic/vnic/internal/loglimit"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// memory keeps settings from one NIC to the next.
type memory struct {
	b    []byte
	full error // error of further writes
}

func (m *memory) Load() ([]byte, error) { return m.b, nil }

func (m *memory) Store(b []byte) error {
	if m.full == nil {
		m.b = b
	}
	return m.full
}

// TestTheNextNICRestoresTheSettingsOfFunctions checks that the next NIC restores the settings of functions, in whatever order they
// were made, and keeps them for the one after it.
func TestTheNextNICRestoresTheSettingsOfFunctions(t *testing.T) {
	kept := &memory{}
	next := func(change func(c *config.Config)) *NIC {
		t.Helper()
		cfg := devicetest.Config(t, 1, t.TempDir()+"/x", [2]string{"127.0.0.1:1", "127.0.0.1:2"})
		change(cfg)
		quiet := slog.New(slog.DiscardHandler)
		n := &NIC{
			API: controller.NewAPI(controller.Config{Host: 1}), cfg: cfg, shards: cfg.ShardOf(), log: quiet, limited: &loglimit.Log{To: quiet},
			deps: Deps{Rand: devicetest.Seeded(1)}, clock: func() int64 { return 1e9 }, settings: settings.NewMemory(kept),
		}
		if err := n.newShards(); err != nil {
			t.Fatal(err)
		}
		return n
	}
	set := func(n *NIC, function, action string, kv ...string) {
		t.Helper()
		c := control.FunctionChange{Function: function, Action: action, Set: map[string]string{}}
		for i := 0; i < len(kv); i += 2 {
			c.Set[kv[i]] = kv[i+1]
		}
		id, err := n.ID(function)
		if err == nil {
			err = n.core.Functions.Recall(id, &c)
		}
		if err != nil {
			t.Fatal(err)
		}
		is := n.core.Functions.Settings(id)
		if err := n.settings.Note(id, &c, &is); err != nil {
			t.Fatal(err)
		}
	}
	all := func(n *NIC) map[pfvf.ID]config.Function {
		m := map[pfvf.ID]config.Function{}
		n.core.Functions.Each(func(id pfvf.ID, is *config.Function) { m[id] = *is })
		return m
	}
	ofShard := func(n *NIC) map[pfvf.ID]config.Function {
		m := map[pfvf.ID]config.Function{}
		v := n.units[0].View().Functions
		for _, id := range append(v.Present(), v.Absent()...) {
			m[id] = v.Settings(id)
		}
		return m
	}
	n := next(func(*config.Config) {})
	if kept.b != nil {
		t.Error("something was stored that nobody set")
	}
	set(n, "pf0.vf1", "disable")
	set(n, "pf0.vf2", "", "rate", "500", "credits", "req-pkt-tx=64", "address", "192.168.100.99")
	set(n, "pf0.vf1", "enable", "address", "192.168.100.12", "trust", "on") // given up by vf2
	set(n, "pf0.vf2", "", "credits", "data-pkt-tx=5", "guarantee", "data-pkt-tx=2")
	set(n, "pf0.vf2", "", "port", "name=vp9,address=192.168.100.77,address=fd00::7")
	set(n, "pf0.vf2", "", "port", "mtu=1400,mode=bridged,assign=off")
	set(n, "pf0.vf3", "disable", "guest", "none", "dma_window", "1G+2M", "mac", "02:00:00:00:00:55")
	want := all(n)
	for range 3 { // each keeps the settings for the next
		n = next(func(*config.Config) {})
		if got := all(n); !reflect.DeepEqual(got, want) {
			t.Fatalf("got  %+v\nwant %+v", got, want)
		}
		if got := ofShard(n); !reflect.DeepEqual(got, want) {
			t.Fatalf("the shard has %+v\nwant %+v", got, want)
		}
		set(n, "pf0.vf4", "", "trust", "on")
		want = all(n)
	}
	// With another configuration, settings that do not fit it are left out, and the others are
	// restored.
	n = next(func(c *config.Config) { c.Functions[0].VFs = c.Functions[0].VFs[:1]; c.Functions[0].VFCount = 2 })
	if v := n.units[0].View().Functions; v.Find(1<<16|1) != nil || !v.Settings(1<<16|1).Trust {
		t.Error("what fits is not set")
	}
	set(n, "pf0.vf1", "", "trust", "off")
	kept.b = []byte("nonsense")
	if _, err := settings.NewMemory(kept).Recall(nil); err == nil {
		t.Error("nonsense was understood")
	}
}

// TestNotedWhenInForce checks that a setting is kept once it is in force, and not if the NIC has
// stopped or refuses it.
func TestNotedWhenInForce(t *testing.T) {
	kept := &memory{}
	var log bytes.Buffer // read after the NIC has ended
	n, stop := runAloneWith(t, func(*config.Config) {}, Deps{Settings: kept, Log: slog.New(slog.NewTextHandler(&log, nil))})
	change := func(weight string) error {
		_, err := n.ChangeFunction(t.Context(), control.FunctionChange{Function: "pf0.vf1", Set: map[string]string{"weight": weight}})
		return err
	}
	must(t, change("9"))
	if noted := string(kept.b); !strings.Contains(noted, "h1.pf0.vf1") || !strings.Contains(noted, `"9"`) {
		t.Errorf("kept %q", noted)
	}
	before := string(kept.b)
	kept.full = errors.New("the disk is full")
	must(t, change("7")) // in force, with a warning
	kept.full = nil
	if err := change("1000"); err == nil || string(kept.b) != before {
		t.Errorf("a weight of 1000: %v, kept %q", err, kept.b)
	}
	stop()
	if err := change("8"); !errors.Is(err, inbox.ErrStopped) || string(kept.b) != before {
		t.Errorf("stopped: %v, kept %q", err, kept.b)
	}
	if said := log.String(); strings.Count(said, "are lost when the NIC restarts") != 1 || !strings.Contains(said, "the disk is full") {
		t.Errorf("warned of what is not kept: %q", said)
	}
}
