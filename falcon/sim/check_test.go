package sim

import (
	"slices"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
)

// small is a scenario that runs in no time.
func small() Scenario {
	return Scenario{
		Name: "small", Duration: 2e6, WarmUp: 1e6, Sample: 1e5, Profile: falcon.Hardware(),
		Network: NetworkConfig{Hosts: 3, Rate: 1e9, RTT: 10000, Buffer: 1 << 16},
		Flows:   []FlowConfig{{From: 0, To: 2, Sizes: []int{4096}}, {From: 1, To: 2, Sizes: []int{4096}}},
	}
}

// TestEachCheckRefusesTheFirstValueBeyondItsBound: the last value that a check takes, and the first
// that it refuses, by what it says.
func TestEachCheckRefusesTheFirstValueBeyondItsBound(t *testing.T) {
	links := func(l LinkConfig) func(*Scenario) {
		return func(s *Scenario) { s.Network.Links = []HostLinks{{Host: 1, Count: 2, Up: l}} }
	}
	faults := func(f Faults) func(*Scenario) { return func(s *Scenario) { s.Network.Faults = f } }
	for _, c := range []struct {
		name      string
		good, bad []func(*Scenario)
	}{
		{
			name: "duration",
			good: []func(*Scenario){func(s *Scenario) { s.Duration, s.Sample = 100e9, 1e9 }},
			bad:  []func(*Scenario){func(s *Scenario) { s.Duration, s.Sample = 100e9+1, 1e9 }, func(s *Scenario) { s.Duration = 0 }},
		},
		{
			name: "warm_up",
			good: []func(*Scenario){func(s *Scenario) { s.WarmUp = 0 }, func(s *Scenario) { s.WarmUp = s.Duration - 1 }},
			bad:  []func(*Scenario){func(s *Scenario) { s.WarmUp = -1 }, func(s *Scenario) { s.WarmUp = s.Duration }},
		},
		{
			name: "sample",
			good: []func(*Scenario){func(s *Scenario) { s.Sample = s.Duration / maxSamples }},
			bad:  []func(*Scenario){func(s *Scenario) { s.Sample = 0 }, func(s *Scenario) { s.Sample = s.Duration/maxSamples - 1 }},
		},
		{
			name: "flows",
			good: []func(*Scenario){
				func(s *Scenario) { s.Flows = s.Flows[:1] },
				func(s *Scenario) { s.Flows = slices.Repeat(s.Flows[:1], maxFlows) },
			},
			bad: []func(*Scenario){func(s *Scenario) { s.Flows = nil }, func(s *Scenario) { s.Flows = make([]FlowConfig, maxFlows+1) }},
		},
		{
			name: "hosts",
			good: []func(*Scenario){func(s *Scenario) { s.Network.Hosts = MaxHosts }},
			bad:  []func(*Scenario){func(s *Scenario) { s.Network.Hosts = MaxHosts + 1 }, func(s *Scenario) { s.Network.Hosts = 1 }},
		},
		{
			name: "rate",
			good: []func(*Scenario){func(s *Scenario) { s.Network.Rate = 1e6 }, func(s *Scenario) { s.Network.Rate = 1e13 }},
			bad:  []func(*Scenario){func(s *Scenario) { s.Network.Rate = 1e6 - 1 }, func(s *Scenario) { s.Network.Rate = 1e13 + 1 }},
		},
		{
			name: "rtt",
			good: []func(*Scenario){func(s *Scenario) { s.Network.RTT = 0 }, func(s *Scenario) { s.Network.RTT = 1e9 }},
			bad:  []func(*Scenario){func(s *Scenario) { s.Network.RTT = -1 }, func(s *Scenario) { s.Network.RTT = 1e9 + 1 }},
		},
		{
			name: "buffer",
			good: []func(*Scenario){func(s *Scenario) { s.Network.Buffer = maxFrame }, func(s *Scenario) { s.Network.Buffer = 1 << 32 }},
			bad: []func(*Scenario){
				func(s *Scenario) { s.Network.Buffer = maxFrame - 1 }, func(s *Scenario) { s.Network.Buffer = 1<<32 + 1 },
				func(s *Scenario) { s.Network.Buffer, s.Network.MTU = maxFrame, MTU+1 },
			},
		},
		{
			name: "mtu",
			good: []func(*Scenario){func(s *Scenario) { s.Network.MTU = 1 }, func(s *Scenario) { s.Network.MTU = MaxMTU }},
			bad:  []func(*Scenario){func(s *Scenario) { s.Network.MTU = -1 }, func(s *Scenario) { s.Network.MTU = MaxMTU + 1 }},
		},
		{
			name: "mark",
			good: []func(*Scenario){func(s *Scenario) { s.Network.Mark = 0 }},
			bad:  []func(*Scenario){func(s *Scenario) { s.Network.Mark = -1 }},
		},
		{
			name: "links[0]: there are no hosts",
			good: []func(*Scenario){links(LinkConfig{})},
			bad: []func(*Scenario){
				func(s *Scenario) { s.Network.Links = []HostLinks{{Host: 2, Count: 2}} },
				func(s *Scenario) { s.Network.Links = []HostLinks{{Host: 2}} },
				func(s *Scenario) { s.Network.Links = []HostLinks{{Host: -1, Count: 1}} },
			},
		},
		{
			name: "links[0].up.rate",
			good: []func(*Scenario){links(LinkConfig{Rate: 1e6}), links(LinkConfig{Rate: 1e13})},
			bad:  []func(*Scenario){links(LinkConfig{Rate: 1e6 - 1}), links(LinkConfig{Rate: 1e13 + 1})},
		},
		{
			name: "links[0].up.delay",
			good: []func(*Scenario){links(LinkConfig{Delay: 1e9})},
			bad:  []func(*Scenario){links(LinkConfig{Delay: -1}), links(LinkConfig{Delay: 1e9 + 1})},
		},
		{
			name: "loss",
			good: []func(*Scenario){faults(Faults{Loss: 0.999})},
			bad:  []func(*Scenario){faults(Faults{Loss: 1}), faults(Faults{Loss: -0.1})},
		},
		{
			name: "burst",
			good: []func(*Scenario){faults(Faults{Burst: Burst{Enter: 1, Leave: 0.1, Loss: 1}})},
			bad:  []func(*Scenario){faults(Faults{Burst: Burst{Enter: 0.1, Loss: 1}}), faults(Faults{Burst: Burst{Enter: 0.1, Leave: 1}})},
		},
		{
			name: "reorder_by",
			good: []func(*Scenario){faults(Faults{Reorder: 1, ReorderBy: 64}), faults(Faults{Reorder: 1, ReorderBy: 1})},
			bad:  []func(*Scenario){faults(Faults{Reorder: 0.1}), faults(Faults{Reorder: 0.1, ReorderBy: 65}), faults(Faults{ReorderBy: -1})},
		},
		{
			name: "outage",
			good: []func(*Scenario){faults(Faults{Outage: 9, OutageEvery: 10})},
			bad:  []func(*Scenario){faults(Faults{Outage: 10, OutageEvery: 10}), faults(Faults{Outage: -1}), faults(Faults{OutageEvery: -1})},
		},
		{
			name: "flows[0].from",
			bad:  []func(*Scenario){func(s *Scenario) { s.Flows[0].From = 3 }, func(s *Scenario) { s.Flows[0].From = -1 }},
		},
		{
			name: "flows[1].to",
			bad: []func(*Scenario){
				func(s *Scenario) { s.Flows[1].To = 3 }, func(s *Scenario) { s.Flows[1].To = -1 }, func(s *Scenario) { s.Flows[1].To = 1 },
			},
		},
		{
			name: "flows[0].outstanding",
			good: []func(*Scenario){func(s *Scenario) { s.Flows[0].Outstanding = falcon.MaxTxWindow }},
			bad:  []func(*Scenario){func(s *Scenario) { s.Flows[0].Outstanding = falcon.MaxTxWindow + 1 }, func(s *Scenario) { s.Flows[0].Outstanding = -1 }},
		},
		{
			name: "flows[0].start",
			bad:  []func(*Scenario){func(s *Scenario) { s.Flows[0].Start = -1 }},
		},
		{
			name: "flows[0].sizes",
			good: []func(*Scenario){func(s *Scenario) { s.Flows[0].Sizes = []int{1, MaxOperation} }},
			bad: []func(*Scenario){
				func(s *Scenario) { s.Flows[0].Sizes = []int{0} }, func(s *Scenario) { s.Flows[0].Sizes = []int{8, MaxOperation + 1} },
				func(s *Scenario) { s.Flows[0].Sizes = nil },
			},
		},
		{
			name: "flows[0].rate",
			good: []func(*Scenario){func(s *Scenario) { s.Flows[0].Rate = 1e13 }, func(s *Scenario) { s.Flows[0].Rate = 1 }},
			bad:  []func(*Scenario){func(s *Scenario) { s.Flows[0].Rate = 1e13 + 1 }, func(s *Scenario) { s.Flows[0].Rate = -1 }},
		},
		{
			name: "flows[0].arrivals",
			good: []func(*Scenario){func(s *Scenario) { s.Flows[0].Rate, s.Flows[0].Poisson = 1, true }},
			bad:  []func(*Scenario){func(s *Scenario) { s.Flows[0].Poisson = true }},
		},
	} {
		for i, edit := range c.good {
			s := small()
			if edit(&s); s.Check() != nil {
				t.Errorf("%s, good value %d: %v", c.name, i, s.Check())
			}
		}
		for i, edit := range c.bad {
			s := small()
			edit(&s)
			if err := s.Check(); err == nil || !strings.Contains(err.Error(), c.name) {
				t.Errorf("%s, bad value %d: error %v", c.name, i, err)
			}
		}
	}
}

// TestAPayloadThatMovedIsNoticed: a payload whose bytes moved, or that begins with another key,
// does not match its key.
func TestAPayloadThatMovedIsNoticed(t *testing.T) {
	const key = 0x0123456789abcdef
	b := make([]byte, 4096)
	WritePayload(b, key)
	if k, ok := CheckPayload(b); k != key || !ok {
		t.Fatalf("key %#x, %v", k, ok)
	}
	for by := 1; by < 1024; by++ {
		moved := append(slices.Clone(b[:KeyBytes]), b[KeyBytes+by:]...)
		if _, ok := CheckPayload(moved); ok {
			t.Errorf("payload that has moved by %d bytes is taken", by)
		}
	}
	for i := range 64 {
		b[i/8] ^= 1 << (i % 8)
		if _, ok := CheckPayload(b); ok {
			t.Errorf("another key is taken, bit %d", i)
		}
		b[i/8] ^= 1 << (i % 8)
	}
	for n := range KeyBytes + 1 {
		short := []byte{9, 9, 9, 9, 9, 9, 9, 9}[:n]
		WritePayload(short, 5)
		want := uint64(0)
		if n == KeyBytes {
			want = 5
		}
		if k, ok := CheckPayload(short); k != want || !ok {
			t.Errorf("payload of %d bytes: key %d, %v", n, k, ok)
		}
		if n > 0 && n < KeyBytes {
			short[n-1] = 1
			if _, ok := CheckPayload(short); ok {
				t.Errorf("payload of %d bytes is taken with one changed", n)
			}
		}
	}
}

// TestANodeOpensWhatAnotherSealed: what one node seals the other opens, also an empty packet, but
// not if it was cut or changed.
func TestANodeOpensWhatAnotherSealed(t *testing.T) {
	for n := range 20 {
		p := make([]byte, n, n+trailer)
		for i := range p {
			p[i] = byte(i + 1)
		}
		const now = 5_000_000
		sealed := seal(now, p)
		got, ok := open(sealed)
		if !ok || got.T1 != falcon.FalconTime(now) || !slices.Equal(got.Data, p) {
			t.Errorf("%d bytes: %v, %+v", n, ok, got)
		}
		for i := range sealed {
			sealed[i] ^= 4
			if _, ok := open(sealed); ok {
				t.Errorf("%d bytes: opened with byte %d changed", n, i)
			}
			sealed[i] ^= 4
			if _, ok := open(sealed[:i]); ok {
				t.Errorf("%d bytes: opened when cut to %d", n, i)
			}
		}
	}
}
