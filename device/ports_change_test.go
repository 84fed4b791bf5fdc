package device

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
)

// eventually polls until ok returns true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(testTime); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not in %v", what, testTime)
		}
	}
}

// TestPortsAtRunTime checks that NICs without ports get some while they run, that their guests
// reach each other, that a port can be changed, removed and created again, and that the operator is
// told if that fails.
func TestPortsAtRunTime(t *testing.T) {
	useShards(t, 2)
	besidePorts(t, func(_ int, c *config.Config) { c.Functions[0].VFs[0].Port = nil }, func(w *world, a, b *namespace) {
		set := func(i int, function string, args ...string) error {
			c := control.FunctionChange{Function: function, Set: map[string]string{}}
			for j := 0; j < len(args); j += 2 {
				c.Set[args[j]] = args[j+1]
			}
			_, err := w.nics[i].ChangeFunction(context.Background(), c)
			return err
		}
		port := func(s *namespace) string { return "name=" + s.name + ",netns=" + s.path() }
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		reach := func() {
			t.Helper()
			eventually(t, "ping", func() bool {
				_, err := a.try("ping -c 1 -W 1 192.168.100.21")
				return err == nil
			})
			a.sh("ping -c 2 -i 0.2 -W 20 -s 1300 192.168.100.21")
		}
		must(set(0, "pf0.vf1", "port", port(a)))
		must(set(1, "pf0.vf1", "port", port(b)))
		a.up("192.168.100.11/24")
		b.up("192.168.100.21/24")
		reach()
		f, err := w.nics[0].Functions(context.Background())
		if must(err); f[1].Port == nil || f[1].Port.Name != a.name || !f[1].Port.Up || f[1].Port.MTU != 1432 {
			t.Errorf("%+v", f[1].Port)
		}

		// Another MTU makes another device; the addresses of the old one are gone.
		must(set(0, "pf0.vf1", "port", "mtu=1400"))
		if out := a.sh("ip link show %s", a.name); !strings.Contains(out, "mtu 1400") {
			t.Error(out)
		}
		a.up("192.168.100.11/24")
		reach()
		carrier := func(want bool, why string) {
			t.Helper()
			eventually(t, why, func() bool { return strings.Contains(a.sh("ip link show %s", a.name), "NO-CARRIER") != want })
		}
		for _, off := range []string{"pf0.vf1", "pf0"} { // its own link, and the PF's, which it follows
			must(set(0, off, "state", "disable"))
			carrier(false, "the carrier to go with the link of "+off)
			must(set(0, off, "state", "auto"))
			carrier(true, "the carrier to come back with the link of "+off)
		}
		reach()
		must(set(0, "pf0.vf1", "mac", "02:00:00:00:77:01")) // the device of a direct port follows it
		if out := a.sh("ip link show %s", a.name); !strings.Contains(out, "02:00:00:00:77:01") {
			t.Error(out)
		}
		a.up("192.168.100.11/24")
		reach()

		for _, c := range []struct{ port, want string }{
			{"name=vp9,netns=/no/such", "port of h1.pf0.vf2: tap"},
			{"name=" + b.name + ",mode=wrong", `"wrong"`},
			{"speed=9", "speed: unknown setting of a port; use type, name, mode"},
			{"name", `"name" is not NAME=VALUE`},
			{"mode=direct", "missing"},
			{port(a), "is already used by h1.pf0.vf1"},
		} {
			if err := set(0, "pf0.vf2", "port", c.port); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want %s", c.port, err, c.want)
			}
		}
		reach()

		must(set(0, "pf0.vf1", "port", "none"))
		if _, err := a.try("ip link show %s", a.name); err == nil {
			t.Error("the device is still there")
		}
		eventually(t, "peer forgets the port", func() bool {
			_, err := b.try("ping -c 1 -W 1 192.168.100.11")
			return err != nil
		})
		for range 5 { // descriptors and slots are used again
			must(set(0, "pf0.vf1", "port", port(a)))
			must(set(0, "pf0.vf1", "port", "none"))
		}
		must(set(0, "pf0.vf2", "port", port(a))) // already the device of another function
		a.up("192.168.100.12/24")
		reach()
	})
}
