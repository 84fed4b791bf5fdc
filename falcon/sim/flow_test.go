package sim

import (
	"math"
	"slices"
	"strconv"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
)

// TestOperationsOfManyPackets: an operation ends when all of its packets have ended, is counted
// once, and delivers all of its bytes, with packets of 1 to 32 KiB. As many are in progress as are
// allowed.
func TestOperationsOfManyPackets(t *testing.T) {
	for mtu := 1024; mtu <= MaxMTU; mtu *= 2 {
		t.Run(strconv.Itoa(mtu), func(t *testing.T) { testOperations(t, mtu) })
	}
}

func testOperations(t *testing.T, mtu int) {
	for _, pull := range []bool{false, true} {
		for _, ordered := range []bool{false, true} {
			n := network(t, func(c *NetworkConfig) { c.Loss, c.MTU = 0.02, mtu })
			size := 10*mtu + 1
			f := add(t, n, FlowConfig{From: 0, To: 1, Pull: pull, Ordered: ordered, Sizes: []int{size}, Outstanding: 3})
			n.Run(n.Now + 5e6)
			if f.outstanding != 3 || len(f.operations.all) != 3 {
				t.Errorf("pull %v, ordered %v: %d operations under way, %d were at most, want 3", pull, ordered, f.outstanding, len(f.operations.all))
			}
			c := &n.completions
			if bytes := c.n * uint64(size); c.n < 50 || f.received < bytes || f.received > bytes+3*uint64(size) || f.failed != 0 {
				t.Errorf("pull %v, ordered %v: %d operations of %d bytes are over, %d failed, %d bytes were received", pull, ordered, c.n, size, f.failed, f.received)
			}
			if least := c.quantile(0); least < n.cfg.RTT { // a round trip at least, whatever came first
				t.Errorf("pull %v, ordered %v: an operation took %d ns", pull, ordered, least)
			}
		}
	}
}

// TestOperationFailsOnce: an operation that loses several of its packets for good fails once, and
// has no completion time.
func TestOperationFailsOnce(t *testing.T) {
	n := network(t, func(*NetworkConfig) {})
	f := add(t, n, FlowConfig{From: 0, To: 1, Sizes: []int{8}, Start: 1e9})
	tag := uint64(f.operations.begin(n.Now))
	f.operations.all[tag] = operation{packets: 3, issued: true}
	f.outstanding = 1
	for i, failed := range []bool{true, true, false} {
		if f.failed != 0 || f.outstanding != 1 {
			t.Errorf("over after %d of 3 packets", i)
		}
		f.packetOver(n.Now, tag, failed)
	}
	if f.failed != 1 || f.outstanding != 0 || n.completions.n != 0 {
		t.Errorf("%d failed, %d under way, %d completed", f.failed, f.outstanding, n.completions.n)
	}
}

// TestOperationsArriveByTheClock: with a rate that many bytes arrive, whether or not the network
// carries them. Operations that wait for others count their waiting from their arrival.
func TestOperationsArriveByTheClock(t *testing.T) {
	for name, c := range map[string]struct {
		rate      int64
		poisson   bool
		delivered float64 // of the rate
	}{
		"uniform":           {40e9, false, 1},
		"poisson":           {40e9, true, 1},
		"uniform, too much": {120e9, false, 0.8},
		"poisson, too much": {120e9, true, 0.8},
	} {
		n := network(t, func(*NetworkConfig) {})
		f := add(t, n, FlowConfig{From: 0, To: 1, Ordered: true, Sizes: []int{2000, 18000}, Rate: c.rate, Poisson: c.poisson})
		const run = 20e6
		end := n.Now + run
		n.Run(end)
		if got := float64(f.received) * 8e9 / run / float64(c.rate); math.Abs(got-c.delivered) > 0.03 {
			t.Errorf("%s: %.3f of the rate is delivered, want %.2f", name, got, c.delivered)
		}
		slowest := n.completions.quantile(1)
		if tooMuch := c.delivered < 1; tooMuch != (slowest > 2e6) {
			t.Errorf("%s: the slowest operation took %d ns", name, slowest)
		}
	}
}

// TestArrivalsKeepTheirRateAndDistribution: gaps have the mean of the rate. Uniform gaps are all equal; of Poisson's, the share
// above each time is correct.
func TestArrivalsKeepTheirRateAndDistribution(t *testing.T) {
	cfg := FlowConfig{Sizes: []int{1000, 3000}, Rate: 16e6} // a millisecond
	uniform, firsts := newArrivals(&cfg, 5000, 1), map[float64]bool{}
	for seed := range uint64(100) {
		first := newArrivals(&cfg, 5000, seed).next
		if firsts[first] = true; first < 5000 || first > 5000+1e6 {
			t.Errorf("the first operation arrives at %v", first)
		}
	}
	if len(firsts) < 100 {
		t.Error("flows of one rate move in step")
	}
	cfg.Poisson = true
	poisson := newArrivals(&cfg, 0, 1)
	const count = 100_000
	start, sum, longer := uniform.next, 0.0, [4]int{}
	for range count {
		uniform.advance()
		before := poisson.next
		poisson.advance()
		gap := poisson.next - before
		sum += gap
		for k := range longer {
			if gap > float64(k)*1e6 {
				longer[k]++
			}
		}
	}
	if got := (uniform.next - start) / count; math.Abs(got-1e6) > 1e-3 {
		t.Errorf("uniform gaps of %v ns", got)
	}
	if got := sum / count; math.Abs(got-1e6) > 1e4 {
		t.Errorf("Poisson gaps of %v ns in the mean", got)
	}
	for k, n := range longer {
		if got, want := float64(n)/count, math.Exp(-float64(k)); math.Abs(got-want) > 0.005 {
			t.Errorf("%.4f of Poisson gaps are longer than %d times the mean, want %.4f", got, k, want)
		}
	}
}

// TestAQuantileIsAtMostSlightlyTooHigh: a quantile is at least the exact one, and at most 1/256 above it.
func TestAQuantileIsAtMostSlightlyTooHigh(t *testing.T) {
	c := completions{since: 1000}
	var times []falcon.Time
	rnd := uint64(1)
	for range 5000 {
		rnd = Mix(rnd)
		times = append(times, falcon.Time(rnd>>(20+rnd%44)))
	}
	for _, d := range times {
		c.add(1000, 1000+d)
		c.add(999, 999+d) // before the warm-up's end
	}
	slices.Sort(times)
	for _, q := range []float64{0.001, 0.25, 0.5, 0.99, 0.999, 1} {
		want := times[int(math.Ceil(q*float64(len(times))))-1]
		if got := c.quantile(q); got < want || got-want > want/256 {
			t.Errorf("quantile %v: %d, want %d", q, got, want)
		}
	}
	if empty := (completions{}); empty.quantile(0.5) != 0 {
		t.Error("a quantile of nothing")
	}
	for _, d := range []falcon.Time{0, 1, 255, 256, 257, 511, 512, 1 << 40, math.MaxInt64} {
		if top := upTo(bucket(uint64(d))); top < d || bucket(uint64(top)) != bucket(uint64(d)) {
			t.Errorf("%d is counted with times up to %d", d, top)
		}
	}
}

// TestResultOfOperations: a result excludes operations that arrived before the end of the warm-up,
// and its offered load is what arrives after it from flows with a rate.
func TestResultOfOperations(t *testing.T) {
	s := small()
	s.Duration, s.WarmUp, s.Network.Rate = 4e6, 1e6, 100e9
	s.Flows[0].Rate, s.Flows[0].Sizes = 3e9, []int{30000}
	s.Flows[1].Rate, s.Flows[1].Sizes, s.Flows[1].Start = 3e9, []int{30000}, 2.5e6
	r, err := Run(&s, 1)
	if err != nil {
		t.Fatal(err)
	}
	if want := 3e9 + 3e9/2; !near(r.Offered, want) || math.Abs(r.Goodput/want-1) > 0.1 {
		t.Errorf("%v offered and %v delivered, want %v", r.Offered, r.Goodput, want)
	}
	if want := r.Offered * 3e-3 / 8 / 30000; math.Abs(float64(r.Operations)-want) > 3 {
		t.Errorf("%d operations, want about %v", r.Operations, want)
	}
	// A round trip takes 10 µs, 30000 bytes 2.5 µs, their last acknowledgement may wait 8 µs.
	if r.Time50 < 12.5e3 || r.Time50 > r.Time99 || r.Time99 > r.Time999 || r.Time999 > 30e3 {
		t.Errorf("half took %d ns, 99 %% %d, 99.9 %% %d", r.Time50, r.Time99, r.Time999)
	}
	s.Flows[0].Rate, s.Flows[1].Rate = 0, 0
	if r, err := Run(&s, 1); err != nil || r.Offered != 0 || r.Operations == 0 {
		t.Errorf("without rates: %v offered, %d operations, %v", r.Offered, r.Operations, err)
	}
}

// TestFlowsStartApart: flows with the same start time start at different times within a round trip,
// and draw different sizes.
func TestFlowsStartApart(t *testing.T) {
	n := network(t, func(*NetworkConfig) {})
	starts, draws := map[falcon.Time]bool{}, map[uint64]bool{}
	early, late := false, false
	for range 20 {
		f := add(t, n, FlowConfig{From: 0, To: 1, Sizes: []int{8}, Start: 1000})
		starts[f.start], draws[f.rnd] = true, true
		after := f.start - n.Now - 1000
		early, late = early || after < n.cfg.RTT/4, late || after >= n.cfg.RTT*3/4
	}
	if len(starts) != 20 || len(draws) != 20 || !early || !late {
		t.Errorf("%d of 20 flows start at different times, early %v, late %v", len(starts), early, late)
	}
}

// TestAnEndCountsItsOperations: what an end counts of its operations.
func TestAnEndCountsItsOperations(t *testing.T) {
	n := network(t, func(*NetworkConfig) {})
	f := add(t, n, FlowConfig{From: 0, To: 1, Sizes: []int{8}, Outstanding: 2, Start: 1e9})
	for range 6 {
		f.operations.all[f.operations.begin(n.Now)] = operation{packets: 1, issued: true}
	}
	f.outstanding = 6
	tag := uint64(0)
	done := func(kind falcon.EventKind, code falcon.Completion, bytes int) {
		f.from.handle(n.Now, &falcon.Event{Kind: kind, Conn: f.from.conn, Tag: tag, Code: code, Data: make([]byte, bytes)})
		tag++
	}
	done(falcon.EvPushDone, falcon.CmplAck, 0)
	done(falcon.EvPullDone, falcon.CmplAck, 100)
	if f.outstanding != 4 || f.failed != 0 || f.received != 100 {
		t.Errorf("%d under way, %d failed, %d bytes", f.outstanding, f.failed, f.received)
	}
	done(falcon.EvPushDone, falcon.CmplLocalTO, 0)
	done(falcon.EvPullDone, falcon.CmplRemoteErr, 7)
	f.from.handle(n.Now, &falcon.Event{Kind: falcon.EvPull, Conn: f.from.conn, RSN: 77}) // which nobody asked
	if f.outstanding != 2 || f.failed != 3 || f.received != 100 {
		t.Errorf("%d under way, %d failed, %d bytes", f.outstanding, f.failed, f.received)
	}
	f.blocked = true
	f.to.handle(n.Now, &falcon.Event{Kind: falcon.EvCredit, Conn: f.to.conn})
	if !f.blocked {
		t.Error("what the other end may do lets this one go on")
	}
	f.from.handle(n.Now, &falcon.Event{Kind: falcon.EvCredit, Conn: f.from.conn})
	if f.blocked || f.dead {
		t.Error("it does not go on")
	}
	f.from.handle(n.Now, &falcon.Event{Kind: falcon.EvClosed, Conn: f.from.conn})
	if !f.dead {
		t.Error("it outlives its connection")
	}
}

// TestAFlowHasAsManyOperationsUnderWayAsAllowed: a flow has as many operations in progress as
// allowed, and no more.
func TestAFlowHasAsManyOperationsUnderWayAsAllowed(t *testing.T) {
	for _, pull := range []bool{false, true} {
		n := network(t, func(*NetworkConfig) {})
		f := add(t, n, FlowConfig{From: 0, To: 1, Pull: pull, Sizes: []int{8}, Outstanding: 3})
		n.Run(f.start)
		if got := f.from.conn.Info().Outstanding; got != 3 || f.outstanding != 3 {
			t.Errorf("pull %v: %d operations under way, %d counted, want 3", pull, got, f.outstanding)
		}
	}
}
