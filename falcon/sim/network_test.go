package sim

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// maxFrame is the longest frame of the default MTU.
const maxFrame = headers + MTU + Overhead

func network(tb testing.TB, edit func(*NetworkConfig)) *Network {
	tb.Helper()
	cfg := NetworkConfig{Hosts: 2, Rate: 100e9, RTT: 10000, Buffer: 1 << 20}
	edit(&cfg)
	n, err := NewNetwork(1, cfg, falcon.Config{Profile: falcon.Hardware()})
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

func add(tb testing.TB, n *Network, f FlowConfig) *flow {
	tb.Helper()
	if err := n.AddFlow(f); err != nil {
		tb.Fatal(err)
	}
	return n.flows[len(n.flows)-1]
}

// frame makes a packet to host 1 that is not the engine's.
func frame(n *Network, f *flow, size int, psn uint32) *packet {
	p := n.packets.get()
	p.n, p.dst, p.from, p.window, p.psn = size-Overhead, 1, &f.from.history, dataWindow, psn
	return p
}

func TestAPortMarksThenDropsAsItsQueueFills(t *testing.T) {
	// 1 Gbit/s: a frame of 1250 bytes takes 10 µs.
	n := network(t, func(c *NetworkConfig) { c.Rate, c.Buffer, c.Mark = 1e9, 4*maxFrame, 2500 })
	f := add(t, n, FlowConfig{From: 0, To: 1, Sizes: []int{8}, Start: 1e9})
	var sent []*packet
	for i := range 20 {
		p := frame(n, f, 1250, uint32(i))
		sent = append(sent, p)
		n.forward(p)
	}
	port := &n.Ports[1]
	fits := 4 * maxFrame / 1250
	if int(port.Sent) != fits || int(port.Dropped) != 20-fits {
		t.Errorf("%d queued, %d dropped, want %d and %d", port.Sent, port.Dropped, fits, 20-fits)
	}
	if int(port.Marked) != fits-3 || sent[2].ce || !sent[3].ce {
		t.Errorf("%d marked, want those behind 2500 bytes, %d", port.Marked, fits-3)
	}
	if port.Peak != fits*1250 {
		t.Errorf("peak %d", port.Peak)
	}
	last := n.Now + int64(fits)*10000 + n.hop()
	var got falcon.Time
	for _, ev := range n.events.heap {
		if ev.kind == atHost {
			got = max(got, ev.at)
		}
	}
	if got != last {
		t.Errorf("last frame arrives at %d, want %d", got, last)
	}
	n.Now += 15000 // one and a half frames left
	n.forward(frame(n, f, 1250, 99))
	if port.Dropped != uint64(20-fits) {
		t.Error("no room after frames left")
	}
}

// TestNoFrameIsOvertakenByMoreThanConfigured: a frame is overtaken by at most ReorderBy others, and some are overtaken by as
// many.
func TestNoFrameIsOvertakenByMoreThanConfigured(t *testing.T) {
	n := network(t, func(c *NetworkConfig) { c.Reorder, c.ReorderBy = 0.5, 2 })
	f := add(t, n, FlowConfig{From: 0, To: 1, Sizes: []int{8}, Start: 1e9})
	h := n.Hosts[0]
	const frames = 2000
	for i := range frames {
		n.Now += 1000
		h.line.busy = n.Now * picos
		h.line.send(frame(n, f, 1000, uint32(i)))
	}
	h.line.busy = 0
	h.line.releaseAll()
	var order []uint32
	for len(n.events.heap) > 0 {
		if ev := n.events.pop(); ev.kind == atSwitch {
			order = append(order, ev.packet.psn)
		}
	}
	if len(order) != frames {
		t.Fatalf("%d of %d frames came out", len(order), frames)
	}
	overtakers := map[int]int{}
	for i, psn := range order {
		n := 0
		for _, before := range order[:i] {
			if before > psn {
				n++
			}
		}
		overtakers[n]++
	}
	if overtakers[0] == 0 || overtakers[1] == 0 || overtakers[2] == 0 || overtakers[0]+overtakers[1]+overtakers[2] != frames {
		t.Errorf("frames by number of overtakers: %v", overtakers)
	}
}

// TestCopiesOfReceivedPacketsCountAsSpurious: copies of what the receiver has are counted when they end, whether they arrive
// or not.
func TestCopiesOfReceivedPacketsCountAsSpurious(t *testing.T) {
	n := network(t, func(*NetworkConfig) {})
	f := add(t, n, FlowConfig{From: 0, To: 1, Sizes: []int{8}, Start: 1e9})
	e := &f.from.history
	e.received(frame(n, f, 1000, 5))
	e.ended(frame(n, f, 1000, 5), false) // a duplicate arrived
	e.ended(frame(n, f, 1000, 5), true)  // another was lost
	e.ended(frame(n, f, 1000, 6), true)  // an original was lost
	if e.tally != (tally{spurious: 2, lost: 2}) {
		t.Errorf("%+v", e.tally)
	}
}

// TestMeasurementsMatchNumbersWorkedOutByHand compares a run with numbers worked out by hand: operations one at a time.
func TestMeasurementsMatchNumbersWorkedOutByHand(t *testing.T) {
	n := network(t, func(*NetworkConfig) {})
	f := add(t, n, FlowConfig{From: 0, To: 1, Sizes: []int{4096}, Outstanding: 1})
	n.Run(n.Now + 10e6)
	// An operation takes 10 µs of propagation, data of 4250 bytes and an ACK through two links
	// each, and up to the 8 µs an ACK may wait.
	if ops := f.received / 4096; ops < 500 || ops > 925 {
		t.Errorf("%d operations in 10 ms", ops)
	}
	if f.failed != 0 || f.from.history.tally.again != 0 || f.from.history.tally.first < f.received/4096 {
		t.Errorf("%d failed, %+v", f.failed, f.from.history.tally)
	}
	if d := f.from.conn.Info().Delay; d < 10000 || d > 11500 {
		t.Errorf("delay %d ns", d)
	}
}

func TestNetworkDoesNotAllocate(t *testing.T) {
	n := network(t, func(c *NetworkConfig) { c.Hosts, c.Loss, c.Reorder, c.ReorderBy = 5, 0.01, 0.1, 2 })
	for i := range 4 {
		add(t, n, FlowConfig{From: i + 1, To: 0, Pull: i%2 == 0, Ordered: i < 2, Sizes: []int{64, 4096}, Outstanding: 64})
	}
	n.Run(n.Now + 50e6)
	before := n.Ports[0].Sent
	if a := testing.AllocsPerRun(10, func() { n.Run(n.Now + 1e6) }); a > 1 {
		t.Errorf("%v allocations in a millisecond", a)
	}
	if n.Ports[0].Sent-before < 10000 {
		t.Errorf("only %d packets", n.Ports[0].Sent-before)
	}
}

func TestTheRefusalOfAScenarioNamesTheKey(t *testing.T) {
	good := func() *Scenario {
		return &Scenario{
			Network: NetworkConfig{Hosts: 2, Rate: 1e9, RTT: 1000, Buffer: 1 << 20}, Profile: falcon.Hardware(),
			Flows: []FlowConfig{{From: 0, To: 1, Sizes: []int{8}}}, Duration: 1e6, Sample: 1e5,
		}
	}
	for want, edit := range map[string]func(*Scenario){
		"network.hosts: 1 ":       func(s *Scenario) { s.Network.Hosts = 1 },
		"network.rate: 5 ":        func(s *Scenario) { s.Network.Rate = 5 },
		"network.rtt: -1 ":        func(s *Scenario) { s.Network.RTT = -1 },
		"network.buffer: 100 ":    func(s *Scenario) { s.Network.Buffer = 100 },
		"network.mark: -3 ":       func(s *Scenario) { s.Network.Mark = -3 },
		"network.loss: 1 ":        func(s *Scenario) { s.Network.Loss = 1 },
		"network.reorder: 2 ":     func(s *Scenario) { s.Network.Reorder = 2 },
		"network.reorder_by: 0 ":  func(s *Scenario) { s.Network.Reorder = 0.5 },
		"network.burst.enter: 2 ": func(s *Scenario) { s.Network.Burst.Enter = 2 },
		"network.burst: ":         func(s *Scenario) { s.Network.Burst.Enter = 0.5 },
		"network.duplicate: -1 ":  func(s *Scenario) { s.Network.Duplicate = -1 },
		"network.outage: 5 ns ":   func(s *Scenario) { s.Network.Outage, s.Network.OutageEvery = 5, 5 },
		"network.links[0]: ":      func(s *Scenario) { s.Network.Links = []HostLinks{{Host: 1, Count: 2}} },
		"network.links[0].up.rate: 5 ": func(s *Scenario) {
			s.Network.Links = []HostLinks{{Host: 1, Count: 1, Up: LinkConfig{Rate: 5}}}
		},
		"network.links[0].down.loss: 7 ": func(s *Scenario) {
			s.Network.Links = []HostLinks{{Host: 1, Count: 1, Down: LinkConfig{Faults: Faults{Loss: 7}}}}
		},
		"falcon: ":      func(s *Scenario) { s.Profile.MaxTxn = 3 },
		"duration: 0s ": func(s *Scenario) { s.Duration = 0 },
		"warm_up: 2ms ": func(s *Scenario) { s.WarmUp = 2e6 },
		"sample: 1ns is out of range; use at least 100ns": func(s *Scenario) { s.Sample = 1 },
		"flows: 0 ": func(s *Scenario) { s.Flows = nil },
		"flows[0].from: there is no host 2; use 0 to 1":            func(s *Scenario) { s.Flows[0].From = 2 },
		"flows[0].to: 0 is not another host; use 0 to 1 but not 0": func(s *Scenario) { s.Flows[0].To = 0 },
		"flows[0].sizes: empty":                                    func(s *Scenario) { s.Flows[0].Sizes = nil },
		"flows[0].sizes: -2 ":                                      func(s *Scenario) { s.Flows[0].Sizes = []int{8, -2} },
		"flows[0].outstanding: -1":                                 func(s *Scenario) { s.Flows[0].Outstanding = -1 },
		"flows[0].start: -1":                                       func(s *Scenario) { s.Flows[0].Start = -1 },
	} {
		s := good()
		edit(s)
		if _, err := Run(s, 1); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("error %v, want it to begin with %q", err, want)
		}
	}
	if _, err := Run(good(), 1); err != nil {
		t.Error(err)
	}
}

func TestJainsIndexIsOneForEqualShares(t *testing.T) {
	if Jain([]float64{2, 2, 2}) != 1 || Jain([]float64{1, 0, 0, 0}) != 0.25 || Jain(nil) != 0 {
		t.Error("Jain's index")
	}
}

// TestEventsHappenInOrder: events happen in the order of their times, and those of one time in the
// order in which they were scheduled.
func TestEventsHappenInOrder(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	var e events
	var waiting []event
	for range 5000 {
		if rnd.IntN(5) > 1 {
			at := falcon.Time(rnd.IntN(20))
			e.at(at, timerDue, len(waiting), nil)
			waiting = append(waiting, event{at: at, order: e.order})
			continue
		}
		if len(waiting) == 0 {
			continue
		}
		next := 0
		for i, v := range waiting {
			if v.at < waiting[next].at || v.at == waiting[next].at && v.order < waiting[next].order {
				next = i
			}
		}
		want := waiting[next]
		if e.due(want.at-1) || !e.due(want.at) {
			t.Fatalf("an event of %d: due before %v, due %v", want.at, e.due(want.at-1), e.due(want.at))
		}
		if got := e.pop(); got.at != want.at || got.order != want.order {
			t.Fatalf("event %d of %d, want %d of %d", got.order, got.at, want.order, want.at)
		}
		waiting = slices.Delete(waiting, next, next+1)
	}
	if e = (events{}); e.due(math.MaxInt64) {
		t.Error("nothing is due")
	}
}

// TestAPortTakesWhatFillsItsBufferExactly: a port takes what fills its buffer exactly, and without
// a threshold it marks nothing.
func TestAPortTakesWhatFillsItsBufferExactly(t *testing.T) {
	n := network(t, func(c *NetworkConfig) { c.Rate, c.Buffer = 1e9, 5000 })
	f := add(t, n, FlowConfig{From: 0, To: 1, Sizes: []int{8}, Start: 1e9})
	for i := range uint32(5) {
		n.forward(frame(n, f, 1250, i))
	}
	if p := n.Ports[1]; p.Sent != 4 || p.Dropped != 1 || p.Marked != 0 || p.Peak != 5000 || p.Bytes != 5000 {
		t.Errorf("%d sent, %d dropped, %d marked, %d queued, %d bytes", p.Sent, p.Dropped, p.Marked, p.Peak, p.Bytes)
	}
}

// TestAHostSendsAgainWhenItsLastPacketHasLeft: a host sends its next packet in the nanosecond in
// which the last bit of the one before has left, and that arrives a quarter of a round trip later.
func TestAHostSendsAgainWhenItsLastPacketHasLeft(t *testing.T) {
	n := network(t, func(c *NetworkConfig) { c.Rate = 3e9 })
	f := add(t, n, FlowConfig{From: 0, To: 1, Sizes: []int{1000 - Overhead - wire.PushDataLen}, Outstanding: 1, Start: 5000})
	if f.start < n.Now+5000 || f.start >= n.Now+5000+n.cfg.RTT {
		t.Errorf("a flow that starts after 5 µs starts after %d ns", f.start-n.Now)
	}
	n.Run(f.start - 1)
	if n.Hosts[0].sending || f.outstanding != 0 {
		t.Error("it sends before it starts")
	}
	n.Run(f.start)
	if !n.Hosts[0].sending || f.outstanding != 1 {
		t.Fatal("it does not send")
	}
	for _, ev := range n.events.heap { // 8000 bits at 3 Gbit/s: 2666.67 ns
		switch {
		case ev.kind == uplinkIdle && ev.at != f.start+2667:
			t.Errorf("idle after %d ns", ev.at-f.start)
		case ev.kind == atSwitch && ev.at != f.start+2666+2500:
			t.Errorf("arrives after %d ns", ev.at-f.start)
		}
	}

	n = network(t, func(c *NetworkConfig) { c.Rate = 1e9 })
	f = add(t, n, f.cfg)
	n.Run(f.start)
	for _, ev := range n.events.heap { // 8 µs to the picosecond
		if ev.kind == uplinkIdle && ev.at != f.start+8000 {
			t.Errorf("idle after %d ns, want 8000", ev.at-f.start)
		}
	}
}

// TestASecondCopyIsCountedAsSuch: the network records what a receiver accepts, so that another copy
// of it is spurious.
func TestASecondCopyIsCountedAsSuch(t *testing.T) {
	n := network(t, func(*NetworkConfig) {})
	f := add(t, n, FlowConfig{From: 0, To: 1, Sizes: []int{8}, Outstanding: 1})
	n.Run(f.start + 100_000)
	h := &f.from.history
	if h.tally.first < 3 || h.tally.spurious != 0 {
		t.Fatalf("%+v", h.tally)
	}
	h.ended(frame(n, f, 1000, 0), false)
	h.ended(frame(n, f, 1000, h.highest[dataWindow]), false)
	if h.tally.spurious != 1 {
		t.Errorf("%d packets of those that arrived and did not are spurious, want the first", h.tally.spurious)
	}
}
