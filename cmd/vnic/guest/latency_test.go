package guest_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/guest"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/guestlib/perf"
)

const latencyConfig = `
nic: {host: 1}
uplink: {backend: memory, name: up1, mtu: 4500, address: 10.99.0.1/24}
functions:
  - pf: 0
    vfs:
      - {vf: 1, tenant: 100, address: 192.168.100.11, guest: {unix: a}}
      - {vf: 2, tenant: 100, address: 192.168.100.12, guest: {unix: b}}
attach:
  - {type: unix, name: a, socket: %s/a}
  - {type: unix, name: b, socket: %[1]s/b}
`

// TestDoorbellCostsAreMeasuredBetweenTwoClients: vnic guest perf doorbell, and the same command by its old name, measure
// between two clients of one NIC.
func TestDoorbellCostsAreMeasuredBetweenTwoClients(t *testing.T) {
	for name, args := range map[string][2][]string{
		"perf doorbell": {{"perf", "doorbell"}, {"perf", "doorbell", "192.168.100.12"}},
		"latency":       {{"latency", "--second", "--peer", "192.168.100.11"}, {"latency", "--first", "--peer", "192.168.100.12"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			vnictest.Serve(t, vnictest.WriteConfig(t, fmt.Sprintf(latencyConfig, dir)))
			second := make(chan error, 1)
			go func() {
				_, err := vnictest.Here(t, guest.Command(), append(args[0], "-d", "unix://"+filepath.Join(dir, "b"))...)
				second <- err
			}()
			out, err := vnictest.Here(t, guest.Command(), append(args[1], "--json", "--samples", "200", "-d", "unix://"+filepath.Join(dir, "a"))...)
			if err != nil {
				t.Fatal(err)
			}
			if err := <-second; err != nil {
				t.Fatal(err)
			}
			checkCosts(t, []byte(out), "unix", "unix")
		})
	}
}

// checkCosts reads what `vnic guest perf doorbell` printed.
func checkCosts(tb testing.TB, said []byte, paths ...string) []perf.Cost {
	tb.Helper()
	var costs []perf.Cost
	if err := json.Unmarshal(said, &costs); err != nil || len(costs) != len(paths) {
		tb.Fatalf("%v: %s", err, said)
	}
	for i, c := range costs {
		if c.Path != paths[i] || c.Latency.Samples < 100 || c.Latency.DoorbellUS <= 0 || c.Latency.WakeUS <= 0 || c.Write64US <= 0 || c.Posts < 100 {
			tb.Errorf("%+v, want path %s", c, paths[i])
		}
	}
	if costs[0].Shadowed != 0 {
		tb.Errorf("a driver that always rings did not: %+v", costs[0])
	}
	tb.Logf("%+v", costs)
	return costs
}
