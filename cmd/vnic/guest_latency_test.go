package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/falcon-vnic/vnic/guestlib/workload"
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

// TestGuestLatency measures between two clients of one NIC.
func TestGuestLatency(t *testing.T) {
	dir := t.TempDir()
	serveConfig(t, writeQEMUConfig(t, fmt.Sprintf(latencyConfig, dir)))
	second := make(chan error, 1)
	go func() {
		_, err := runHere(t, "guest", "latency", "--second", "--peer", "192.168.100.11", "-d", "unix://"+filepath.Join(dir, "b"))
		second <- err
	}()
	out, err := runHere(t, "guest", "latency", "--json", "--first", "--peer", "192.168.100.12", "--samples", "200", "-d", "unix://"+filepath.Join(dir, "a"))
	if err != nil {
		t.Fatal(err)
	}
	if err := <-second; err != nil {
		t.Fatal(err)
	}
	checkCosts(t, []byte(out), "unix", "unix")
}

// checkCosts reads what `vnic guest latency` printed.
func checkCosts(tb testing.TB, said []byte, paths ...string) []workload.Cost {
	tb.Helper()
	var costs []workload.Cost
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
