package controller

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
)

// part is a fake shard with ports and its own queue of the uplink.
type part struct {
	fake
	ports []capture.NamedPort
	link  control.Uplink
	is    config.Impairment
	way   string
}

func (p *part) Ports() []capture.NamedPort { return p.ports }
func (p *part) Uplink() control.Uplink     { return p.link }

func (p *part) InjectLink(direction string, change func(config.Impairment) (config.Impairment, error)) error {
	is, err := change(p.is)
	if err == nil {
		p.is, p.way = is, direction
	}
	return err
}

func (p *part) Ask(ask func(View, int64)) error { ask(p, 7); return nil }

// TestPortsNamed checks that ports are found on every shard by either name, each once, and that the
// error for an unknown name lists the known ones.
func TestPortsNamed(t *testing.T) {
	named := func(name string, also ...string) capture.NamedPort {
		return capture.NamedPort{Port: capture.Port{Name: name}, Names: also}
	}
	a, b := &part{ports: []capture.NamedPort{named("vp0", "h1.pf0", "pf0"), named("vp1", "h1.pf0.vf1")}}, &part{ports: []capture.NamedPort{named("vp2", "h1.pf0.vf2")}}
	api := &API{c: Config{Shards: Shards{All: []Shard{a, b}}}}
	for _, c := range []struct{ names, want string }{
		{"", "[]"},
		{"vp0", "[vp0]"},
		{"pf0", "[vp0]"},
		{"vp2", "[vp2]"},
		{"vp1 vp0", "[vp1 vp0]"},
		{"vp0 pf0 h1.pf0 vp0", "[vp0]"},
		{"any", "[vp0 vp1 vp2]"},
		{"vp1 any", "[vp0 vp1 vp2]"},
		{"vp3", `port "vp3": there is none; there are any, vp0, vp1, vp2`},
		{"vp0 pf1", `port "pf1": there is none; there are any, vp0, vp1, vp2`},
	} {
		found, err := api.portsNamed(strings.Fields(c.names))
		var names []string
		for _, p := range found {
			names = append(names, p.Name)
		}
		got := fmt.Sprint(names)
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%q: %s, want %s", c.names, got, c.want)
		}
	}
}

// TestLinkChanged checks that a change of the link reaches every shard and leaves fields that it
// does not name, and that counts are summed over shards. An invalid change changes nothing.
func TestLinkChanged(t *testing.T) {
	counts := control.Impaired{Packets: 1, Delivered: 2, Lost: 3, Duplicated: 4, Reordered: 5, Corrupted: 6, Marked: 7, Overflowed: 8}
	twice := control.Impaired{Packets: 2, Delivered: 4, Lost: 6, Duplicated: 8, Reordered: 10, Corrupted: 12, Marked: 14, Overflowed: 16}
	link := control.Uplink{Name: "vnic1", MTU: 9000, RX: control.Direction{Counts: counts}, TX: control.Direction{Counts: counts}}
	parts := []*part{{link: link, is: config.NoImpairment()}, {link: link, is: config.NoImpairment()}}
	api := &API{c: Config{Shards: Shards{All: []Shard{parts[0], parts[1]}}}}
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
		{control.LinkChange{Uplink: "vnic2", Clear: true}, `uplink "vnic2": this NIC has none of that name; name vnic1`},
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
