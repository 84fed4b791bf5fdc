package settings

import (
	"reflect"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
)

// TestValuesEndAtTheirLimits checks that the first and the last valid value of a setting are
// accepted and written such that they are read again, and that values just outside are refused.
func TestValuesEndAtTheirLimits(t *testing.T) {
	for _, c := range []struct {
		key       string
		good, bad []string
	}{
		{"tenant", []string{"0", "4294967295", "0x10"}, []string{"4294967296", "-1", "", "x"}},
		{"max_tx_rate", []string{"0", "18446744073709551615"}, []string{"18446744073709551616", "-1"}},
		{"weight", []string{"1", "255"}, []string{"0", "256", "-1", "x"}},
		{"max_qp", []string{"1", "4294967295"}, []string{"4294967296", "x"}},
		{"guest", []string{"cid:3", "cid:4294967295", "unix:a", "none"}, []string{"cid:2", "cid:0", "cid:4294967296", "cid:", "unix:", "tcp:3", "", "cid"}},
		{"address", []string{"10.0.0.1", "fd00::1", "none"}, []string{"::ffff:10.0.0.1", "fe80::1%eth0", "x", ""}},
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
			if c.key == "port" { // what is missing in it comes from the configuration: TestAPortReadsWhatItWrites
				continue
			}
			again := function()
			if written := Find(c.key).Text(&f); Set(&again, c.key, written) != nil || !reflect.DeepEqual(again, f) {
				t.Errorf("%s %s is written %s", c.key, text, written)
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

// TestCreditsAreSetByName checks that a number alone sets all counters, and one with a name sets
// that one.
func TestCreditsAreSetByName(t *testing.T) {
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
