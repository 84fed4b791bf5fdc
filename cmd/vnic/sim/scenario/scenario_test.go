package scenario_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/sim/scenario"
	"github.com/falcon-vnic/vnic/falcon/sim"
)

const minimal = `
network: {rate: 100G, rtt: 10us, buffer: 2BDP}
flows: [{from: 0, to: 1, sizes: [64]}]
duration: 1ms
`

func TestFieldsOfAScenarioAreRead(t *testing.T) {
	s, err := scenario.Parse([]byte(`
network: {rate: 25G, rtt: 8us, mtu: 8192, buffer: 64K, mark: 1BDP, loss: 0.5, reorder: 0.25, reorder_by: 3}
falcon: {max_txn: 32}
flows:
  - {from: 1, senders: 2, count: 2, to: 0, op: pull, ordered: false, sizes: [64, 128], outstanding: 4, start: 1ms, stagger: 10us}
  - {from: 0, to: 5, sizes: [8]}
duration: 4ms
warm_up: 1ms
`))
	if err != nil {
		t.Fatal(err)
	}
	n := s.Network
	if n.Hosts != 6 || n.Rate != 25e9 || n.RTT != 8000 || n.MTU != 8192 || n.Buffer != 65536 || n.Mark != 25000 || n.Loss != 0.5 || n.Reorder != 0.25 || n.ReorderBy != 3 {
		t.Errorf("network %+v", n)
	}
	if s.Profile.Name != "hardware" || s.Profile.MaxTxn != 32 || s.Duration != 4e6 || s.WarmUp != 1e6 || s.Sample != 20000 {
		t.Errorf("%+v", s)
	}
	if len(s.Flows) != 5 {
		t.Fatalf("%d flows, want 5", len(s.Flows))
	}
	if f := s.Flows[3]; f.From != 2 || f.To != 0 || !f.Pull || f.Ordered || len(f.Sizes) != 2 || f.Outstanding != 4 || f.Start != 1_030_000 {
		t.Errorf("fourth flow %+v", f)
	}
	if f := s.Flows[4]; f.From != 0 || f.To != 5 || f.Pull || !f.Ordered {
		t.Errorf("last flow %+v", f)
	}
}

// TestConnectionsShareTheirSendersRate: a sender's rate is shared by its connections, one or more to each receiver but
// itself.
func TestConnectionsShareTheirSendersRate(t *testing.T) {
	s, err := scenario.Parse([]byte(`
network: {rate: 100G, rtt: 10us, buffer: 2BDP}
flows:
  - {from: 0, senders: 3, to: 0, receivers: 3, count: 2, sizes: [1048576], rate: 40G, arrivals: poisson}
  - {from: 1, senders: 2, to: 0, sizes: [64], rate: 5G}
duration: 1ms
`))
	if err != nil {
		t.Fatal(err)
	}
	pairs := map[[2]int]int{}
	for _, f := range s.Flows[:12] {
		pairs[[2]int{f.From, f.To}]++
		if f.Rate != 10e9 || !f.Poisson {
			t.Errorf("%+v", f)
		}
	}
	for from := range 3 {
		for to := range 3 {
			if want := map[bool]int{true: 0, false: 2}[from == to]; pairs[[2]int{from, to}] != want {
				t.Errorf("%d connections from %d to %d, want %d", pairs[[2]int{from, to}], from, to, want)
			}
		}
	}
	if len(s.Flows) != 14 || s.Flows[13].Rate != 5e9 || s.Flows[13].Poisson || s.Flows[13].From != 2 {
		t.Errorf("%d flows, the last %+v", len(s.Flows), s.Flows[len(s.Flows)-1])
	}
}

// TestALinkMayDifferFromTheOthers: bursts, duplicates, outages, and links unlike the others.
func TestALinkMayDifferFromTheOthers(t *testing.T) {
	s, err := scenario.Parse([]byte(`
network:
  rate: 100G
  rtt: 10us
  buffer: 2BDP
  burst: {enter: 0.1, leave: 0.2, loss: 0.3}
  duplicate: 0.4
  outage: 5us
  outage_every: 1ms
  links:
    - {host: 1, count: 2, up: {rate: 10G, delay: 20us, loss: 0.5}, down: {reorder: 0.5, reorder_by: 2}}
flows: [{from: 0, to: 1023, sizes: [64]}]
duration: 1ms
`))
	if err != nil {
		t.Fatal(err)
	}
	n := s.Network
	faults := sim.Faults{Burst: sim.Burst{Enter: 0.1, Leave: 0.2, Loss: 0.3}, Duplicate: 0.4, Outage: 5000, OutageEvery: 1e6}
	links := sim.HostLinks{
		Host: 1, Count: 2,
		Up:   sim.LinkConfig{Rate: 10e9, Delay: 20e3, Faults: sim.Faults{Loss: 0.5}},
		Down: sim.LinkConfig{Faults: sim.Faults{Reorder: 0.5, ReorderBy: 2}},
	}
	if n.Hosts != 1024 || n.Faults != faults || len(n.Links) != 1 || n.Links[0] != links {
		t.Errorf("network %+v", n)
	}
}

func TestAWrongScenarioIsRefusedWithARemedy(t *testing.T) {
	for _, tc := range []struct{ change, to, want string }{
		{"100G", "fast", `network.rate: "fast" is not a rate; write`},
		{"2BDP", "manyBDP", `network.buffer: "manyBDP" is not a buffer; write`},
		{"2BDP", "12X", `network.buffer: "12X" is not a buffer; write`},
		{"2BDP", "0", "network.buffer: 0 bytes is out of range; use"},
		{"rtt:", "rttt:", `network.rttt: unknown key; did you mean "rtt"?`},
		{"10us", "10", `network.rtt: "10" is not a duration; write`},
		{"to: 1", "to: 0", "flows[0].to: 0 is not another host; use"},
		{"to: 1", "to: 1, op: read", `flows[0].op: "read" is not an operation; use`},
		{"to: 1", "to: 1, senders: 0", "flows[0].senders: 0 is out of range; use"},
		{"to: 1", "to: 1, receivers: 0", "flows[0].receivers: 0 is out of range; use"},
		{"to: 1", "to: 1, arrivals: poisson", `flows[0].arrivals: "poisson" needs a rate; give`},
		{"to: 1", "to: 1, rate: 1G, arrivals: often", `flows[0].arrivals: "often" is not a distribution; use`},
		{"to: 1", "to: 1, count: 5000", "flows[0].count: 5000 is out of range; use"},
		{"to: 1", "to: 1, stagger: -1s", "flows[0].stagger: -1s is out of range; use"},
		{"to: 1", "to: 1999", "network.hosts: 2000 is out of range; use"},
		{"duration: 1ms", "", "duration: 0s is out of range; use"},
		{"duration: 1ms", "duration: 1ms\nfalcon: {profile: fast}", "falcon.profile:"},
		{"duration: 1ms", "duration: 1ms\nfalcon: {max_txn: 3}", "falcon.max_txn: 3 is out of range; use"},
		{"duration: 1ms", "duration: [", "not YAML"},
		{"duration: 1ms", "duration: 1ms\nname: ../x", `name: "../x" cannot be part of a file name; leave`},
	} {
		_, err := scenario.Parse([]byte(strings.Replace(minimal, tc.change, tc.to, 1)))
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q for %q: error %v, want %q", tc.to, tc.change, err, tc.want)
		}
	}
	if _, err := scenario.Parse([]byte(minimal)); err != nil {
		t.Error(err)
	}
	if _, err := scenario.Parse(nil); err == nil {
		t.Error("accepted an empty file")
	}
}

func TestLoadNamesTheFile(t *testing.T) {
	if _, err := scenario.Load("nowhere.yaml"); err == nil || !strings.Contains(err.Error(), "nowhere.yaml") || !strings.Contains(err.Error(), "falcon/sim/scenarios") {
		t.Errorf("error %v", err)
	}
	path := filepath.Join(t.TempDir(), "my.yaml")
	if err := os.WriteFile(path, []byte(minimal), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := scenario.Load(path); err != nil || s.Name != "my" {
		t.Errorf("%+v, %v", s, err)
	}
	if err := os.WriteFile(path, []byte("flow: 1"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := scenario.Load(path); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), `line 1: flow: unknown key; did you mean "flows"?`) {
		t.Errorf("error %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(minimal)
	f.Add("network: {rate: 1e400G, buffer: 1e9BDP}")
	f.Fuzz(func(t *testing.T, text string) {
		_, _ = scenario.Parse([]byte(text))
	})
}
