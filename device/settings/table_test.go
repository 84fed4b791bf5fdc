package settings

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
)

// examples has a value for each key without one by default.
var examples = map[string]string{
	"mac": "02:00:00:00:00:55", "tenant": "9", "address": "192.168.100.99", "guest": "unix:bare", "dma_window": "1G+256M",
	"max_tx_rate": "500", "weight": "4", "trust": "on", "spoofchk": "off", "state": "disable",
	"credits": "req-pkt-tx=64", "guarantee": "data-pkt-tx=2", "port": "name=vp9,mode=bridged,bridge=br1,mac=02:00:00:00:00:66,mtu=1400,persist=on,assign=off,address=fd00::7",
}

func example(s *Setting) string {
	if text := examples[s.Key]; text != "" {
		return text
	}
	return "17" // a quota
}

func function() config.Function {
	nic := config.Config{CM: config.CM{Name: "1"}}
	return nic.DefaultVF(0, 3)
}

// TestEachSettingReadsWhatItWrites checks that the text that a setting writes can be parsed again
// and gives the same value, whatever the value was before.
func TestEachSettingReadsWhatItWrites(t *testing.T) {
	for _, s := range All() {
		was, is := function(), function()
		if err := s.Set(&is, example(&s)); err != nil {
			t.Fatalf("%s: %v", s.Key, err)
		}
		if reflect.DeepEqual(was, is) {
			t.Errorf("%s %s changes nothing", s.Key, example(&s))
		}
		text := s.Text(&is)
		again := function()
		if err := s.Set(&again, text); err != nil {
			t.Errorf("%s %s: %v", s.Key, text, err)
		}
		if !reflect.DeepEqual(again, is) {
			t.Errorf("%s %s: %+v, want %+v", s.Key, text, again, is)
		}
		if s.Resets != Another(&was, &is) {
			t.Errorf("%s: a new value makes another function: %v", s.Key, !s.Resets)
		}
	}
}

// TestNoTwoSettingsHaveOneName checks that each name, also those of `ip link set … vf`, belongs to
// one setting, and is in docs/functions.md.
func TestNoTwoSettingsHaveOneName(t *testing.T) {
	page, err := os.ReadFile("../../docs/functions.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, s := range All() {
		for _, name := range append([]string{s.Key}, s.Also...) {
			if seen[name] || elsewhere[name] != "" {
				t.Errorf("%s has two meanings", name)
			}
			seen[name] = true
			if got := Find(name); got == nil || got.Key != s.Key {
				t.Errorf("%s is not found", name)
			}
		}
		if row := fmt.Sprintf("| `%s` | `%s` | ", s.Key, strings.ReplaceAll(s.Value, "|", `\|`)); !strings.Contains(string(page), row) {
			t.Errorf("docs/functions.md has no row %q", row)
		}
		if s.Help == "" || s.Value == "" {
			t.Errorf("%s: nothing for `vnic vf set --help`", s.Key)
		}
	}
}

func TestAnUnknownSettingNamesTheKnownOnes(t *testing.T) {
	f := function()
	if err := Set(&f, "vlan", "7"); err == nil || !strings.Contains(err.Error(), "set tenant") {
		t.Error(err)
	}
	if err := Set(&f, "colour", "red"); err == nil || !strings.Contains(err.Error(), "max_tx_rate") {
		t.Error(err)
	}
}

// TestAPortReadsWhatItWrites, whatever its type and mode, and whatever the port was before.
func TestAPortReadsWhatItWrites(t *testing.T) {
	port := Find("port")
	for _, text := range []string{
		"type=tap,name=vp9,mode=bridged,bridge=br1,netns=ns1,mac=02:00:00:00:00:66,mtu=1400,persist=on,assign=off,address=fd00::7,address=10.0.0.7",
		"type=tap,name=vp8,mode=direct,assign=on",
		"type=vhost-user,socket=/run/p.sock,listen=vnic,queues=3,mtu=9000,assign=off",
		"type=vhost-user,socket=/run/q.sock,assign=on,address=10.0.0.8", "none",
	} {
		is := function()
		if err := port.Set(&is, text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		for _, before := range []string{"none", "type=tap,name=vp7,mode=bridged,bridge=br2,address=10.0.0.9", "type=vhost-user,socket=/run/r.sock,queues=2"} {
			again := function()
			if err := errors.Join(port.Set(&again, before), port.Set(&again, port.Text(&is))); err != nil || !reflect.DeepEqual(again, is) {
				t.Errorf("%s, after %s: %+v, want %+v, %v", port.Text(&is), before, again.Port, is.Port, err)
			}
		}
	}
}

// TestAPortOfAnotherTypeKeepsWhatBothHave checks that a port that changes its type keeps only the
// fields that both types have, and that otherwise it keeps all.
func TestAPortOfAnotherTypeKeepsWhatBothHave(t *testing.T) {
	all := All()
	set := &all[slices.IndexFunc(all, func(s Setting) bool { return s.Key == "port" })]
	f := function()
	for text, want := range map[string]string{
		"type=tap":                           "vp9 1400",
		"type=vhost-user,socket=/run/p.sock": " 1400",
	} {
		if err := set.Set(&f, "type=tap,name=vp9,mode=direct,mtu=1400"); err != nil {
			t.Fatal(err)
		}
		if err := set.Set(&f, text); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(f.Port.Name, " ", f.Port.MTU); got != want {
			t.Errorf("%s: name and MTU %q, want %q", text, got, want)
		}
	}
}
