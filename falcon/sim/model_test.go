package sim_test

import (
	"flag"
	"fmt"
	"math"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

var (
	seedFlag = flag.Uint64("seed", 0, "replay the model test with this seed only")
	runsFlag = flag.Int("runs", 60, "seeds the model test tries")
	drawFlag = flag.Bool("draw", false, "with -seed: log the packets of the model test as a sequence diagram")
)

// TestTheTransportKeepsItsPromisesOverABadLink runs random transactions in both directions over a bad link and checks the results
// against what the transport promises. A failure prints the seed; replay with -run TestTheTransportKeepsItsPromisesOverABadLink -seed
// N.
func TestTheTransportKeepsItsPromisesOverABadLink(t *testing.T) {
	if *seedFlag != 0 {
		runModel(t, *seedFlag)
		return
	}
	runs := *runsFlag
	if testing.Short() {
		runs = 10
	}
	for seed := uint64(1); seed <= uint64(runs); seed++ {
		if runModel(t, seed); t.Failed() {
			t.Fatalf("replay: go test ./falcon/sim -run 'TestTheTransportKeepsItsPromisesOverABadLink$' -seed %d", seed)
		}
	}
}

// TestShortSchedulesKeepTheTransportsPromises is TestTheTransportKeepsItsPromisesOverABadLink with schedules of few transactions, thousands of them a second: most
// mistakes need few packets, and a short failing schedule can be read (-draw).
func TestShortSchedulesKeepTheTransportsPromises(t *testing.T) {
	if *seedFlag != 0 {
		runSmallModel(t, *seedFlag)
		return
	}
	runs := 20 * *runsFlag
	if testing.Short() {
		runs = 500
	}
	start := time.Now()
	for seed := uint64(1); seed <= uint64(runs); seed++ {
		if runSmallModel(t, seed); t.Failed() {
			t.Fatalf("replay: go test ./falcon/sim -run 'TestShortSchedulesKeepTheTransportsPromises$' -seed %d -draw", seed)
		}
	}
	t.Logf("%d schedules, %.0f per second", runs, float64(runs)/time.Since(start).Seconds())
}

// TestModelPoolsOfOne is TestShortSchedulesKeepTheTransportsPromises with room for one transaction in every pool of both nodes:
// pushes and pulls cross, and none may wait for another for ever (Falcon §8.2.1).
func TestModelPoolsOfOne(t *testing.T) {
	if *seedFlag != 0 {
		runPoolsOfOne(t, *seedFlag)
		return
	}
	runs := 10 * *runsFlag
	if testing.Short() {
		runs = 200
	}
	for seed := uint64(1); seed <= uint64(runs); seed++ {
		if runPoolsOfOne(t, seed); t.Failed() {
			t.Fatalf("replay: go test ./falcon/sim -run 'TestModelPoolsOfOne$' -seed %d -draw", seed)
		}
	}
}

// TestLongRandomSchedulesKeepTheTransportsPromises runs random schedules of all kinds, of seeds that the others do not try, until
// VNIC_SIM_PACKETS packets were sent (make test-long PACKETS=…), and says how many there were.
func TestLongRandomSchedulesKeepTheTransportsPromises(t *testing.T) {
	want := uint64(1e5)
	if s := os.Getenv("VNIC_SIM_PACKETS"); s != "" {
		n, err := strconv.ParseFloat(s, 64) // also 1e9
		if err != nil || n < 1 || n > 1e15 {
			t.Fatalf("VNIC_SIM_PACKETS=%s: set it to a number of packets, as 1e9", s)
		}
		want = uint64(n)
	}
	kinds := []struct {
		test string
		run  func(*testing.T, uint64) uint64
	}{{"TestTheTransportKeepsItsPromisesOverABadLink", runModel}, {"TestEveryTransactionCompletesOnceDespiteFaults", runFaults}, {"TestShortSchedulesKeepTheTransportsPromises", runSmallModel}, {"TestModelPoolsOfOne", runPoolsOfOne}}
	var packets, violations atomic.Uint64
	t.Run("schedules", func(t *testing.T) {
		parts := runtime.GOMAXPROCS(0)
		for part := range parts {
			t.Run(strconv.Itoa(part), func(t *testing.T) {
				t.Parallel()
				for seed := uint64(1e6 + part); packets.Load() < want; seed += uint64(parts) {
					for _, k := range kinds {
						packets.Add(k.run(t, seed))
						if t.Failed() {
							violations.Add(1)
							t.Fatalf("replay: go test ./falcon/sim -run '%s$' -seed %d", k.test, seed)
						}
					}
				}
			})
		}
	})
	t.Logf("simulated %d packets under faults, %d violations", packets.Load(), violations.Load())
}

const (
	us = falcon.Time(time.Microsecond)
	ms = falcon.Time(time.Millisecond)
)

// model is one run: two nodes, a few connections, every transaction known to both sides of the
// check.
type model struct {
	t     *testing.T
	w     *sim.World
	rnd   random
	nodes [2]*modelNode
	limit credit.Cost
	txns  map[uint64]*modelTxn // by tag
	left  int                  // transactions still to issue

	segment int // bytes of the longest ones, 1 to 32 KiB
}

type modelNode struct {
	sim.ULP
	m       *model
	i       int
	credits *credit.Node
	conns   []*modelConn
	later   []answer
}

// modelConn is one direction of a connection: what one node initiates.
type modelConn struct {
	conn      *falcon.Conn
	ordered   bool
	xoff      bool
	issued    []uint64 // tags in RSN order
	completed []uint64
	delivered []uint64 // at the peer, accepted or refused for good
	responses int
	freed     int
}

type modelTxn struct {
	pull      bool
	conn      *modelConn
	length    int
	delivered int // to the peer's ULP, except deliveries answered with RNR
	refused   falcon.Completion
	done      bool
}

type answer struct {
	at  falcon.Time
	run func(now falcon.Time)
}

type random struct{ seed, n uint64 }

func (r *random) next() uint64          { r.n++; return sim.Mix(r.seed + sim.Mix(r.n)) }
func (r *random) intn(n int) int        { return int(r.next() % uint64(n)) }
func (r *random) chance(p float64) bool { return float64(r.next()>>11)/(1<<53) < p }

// Each of these runs a schedule and returns how many packets were sent.

func runModel(t *testing.T, seed uint64) uint64 {
	m := newModel(t, seed)
	m.connect(1 + m.rnd.intn(4))
	m.left = 200 + m.rnd.intn(2500)
	m.run()
	return sent(m.w)
}

func runSmallModel(t *testing.T, seed uint64) uint64 {
	m := newModel(t, seed)
	m.connect(1 + m.rnd.intn(2))
	m.left = 1 + m.rnd.intn(16)
	m.run()
	return sent(m.w)
}

func runPoolsOfOne(t *testing.T, seed uint64) uint64 {
	m := newModelWith(t, seed, func(cfg *falcon.Config, segment int) credit.Cost {
		cfg.TxContexts, cfg.RxContexts, cfg.RxCells = 1, 1, 1
		largest := uint32(segment / credit.DefaultCell)
		return credit.Cost{1, largest, 1, largest, 1, largest, 1, 1}
	})
	m.connect(1 + m.rnd.intn(3))
	m.left = 1 + m.rnd.intn(60)
	m.run()
	return sent(m.w)
}

func newModel(t *testing.T, seed uint64) *model { return newModelWith(t, seed, nil) }

// newModelWith makes a model whose pools are random, or those that fit makes.
func newModelWith(t *testing.T, seed uint64, fit func(cfg *falcon.Config, segment int) credit.Cost) *model {
	m := &model{t: t, rnd: random{seed: seed}, txns: map[uint64]*modelTxn{}}
	r := &m.rnd
	m.segment = 1 << (10 + r.intn(6))
	hardware := r.chance(0.3)
	profile := falcon.Software()
	if hardware {
		profile = falcon.Hardware()
		profile.MaxRetransmits, profile.GiveUp, profile.ResyncGiveUp = 0, 8e9, 2e9
		profile.TxnTimeout = 30e9
	}
	imp := sim.Impairment{Delay: falcon.Time(1+r.intn(50)) * us}
	if r.chance(0.8) {
		imp.Loss = float64(r.intn(20)) / 100
		imp.Duplicate = float64(r.intn(10)) / 100
		imp.Reorder = float64(r.intn(20)) / 100
		imp.ReorderDelay = falcon.Time(r.intn(500)) * us
		imp.Corrupt = float64(r.intn(5)) / 100
		imp.Jitter = falcon.Time(r.intn(100)) * us
		imp.Mark = 0.1
	}
	var cfg [2]falcon.Config
	for i := range cfg {
		m.limit = credit.Cost{uint32(20 + r.intn(400)), uint32(400 + r.intn(8000)), uint32(20 + r.intn(400)), uint32(400 + r.intn(8000)), uint32(4 + r.intn(100)), uint32(m.segment/credit.DefaultCell + r.intn(4000)), uint32(4 + r.intn(200)), uint32(r.intn(100))}
		cfg[i] = falcon.Config{Profile: profile, RxCells: 4 + r.intn(200), TxContexts: 16 + r.intn(300), RxContexts: 8 + r.intn(300)}
		if fit != nil {
			m.limit = fit(&cfg[i], m.segment)
		}
		m.nodes[i] = &modelNode{m: m, i: i, credits: credit.New(nil, m.limit)}
		cfg[i].Credits = m.nodes[i].credits
		n := m.nodes[i]
		n.OnPush, n.OnPull, n.OnEvent = n.onPush, n.onPull, n.onEvent
	}
	m.w = sim.NewWorld(seed, cfg, [2]sim.Handler{m.nodes[0], m.nodes[1]}, imp)
	m.w.FlushAcks = r.chance(0.5)
	if *drawFlag && *seedFlag != 0 {
		m.w.Tracing = true
		t.Cleanup(func() { t.Logf("packets (Mermaid):\n%s", m.w.Sequence()) })
	}
	m.w.Now = 1e6
	return m
}

// connect opens connections.
func (m *model) connect(conns int) {
	r := &m.rnd
	for i := range conns {
		base := uint32(math.MaxUint32 - r.intn(200)) // windows cross the 2^32 wrap
		a, b, err := m.w.Connect(falcon.ConnConfig{
			LocalCID: uint32(0x100 + i), RemoteCID: uint32(0x500 + 3*i), LocalFunction: 1, RemoteFunction: 2,
			Protocol: wire.ProtocolRDMA, Ordered: r.chance(0.7), MTU: m.segment + 104,
			TxDataPSN: base, TxReqPSN: base + 50, RxDataPSN: base - 60, RxReqPSN: base + 7, TxRSN: base + 90, RxRSN: uint32(r.next()),
		})
		if err != nil {
			m.t.Fatal(err)
		}
		for j, c := range []*falcon.Conn{a, b} {
			mc := &modelConn{conn: c, ordered: c.Config().Ordered}
			c.SetUser(mc)
			m.nodes[j].conns = append(m.nodes[j].conns, mc)
		}
	}
}

func (m *model) run() {
	const limit = 600e9
	for m.left > 0 || m.busy() {
		for _, n := range m.nodes {
			n.issue()
			n.answerLater()
		}
		m.w.Step()
		if m.t.Failed() {
			return
		}
		at := m.w.Deadline()
		for _, n := range m.nodes {
			for _, a := range n.later {
				at = min(at, a.at)
			}
		}
		if at == math.MaxInt64 && m.left == 0 && !m.busy() {
			break
		}
		if m.left > 0 {
			at = min(at, m.w.Now+falcon.Time(1+m.rnd.intn(40))*us)
		}
		if at > limit || at == math.MaxInt64 {
			m.t.Errorf("deadlock at %v: %d to issue, %d outstanding: %s", time.Duration(m.w.Now), m.left, m.outstanding(), m.state())
			return
		}
		m.w.Now = max(m.w.Now, at)
	}
	m.w.Run(m.w.Now+60e9, nil)
	m.check()
}

// sent returns how many packets both nodes of a world sent.
func sent(w *sim.World) uint64 { return w.Links[0].Stats().Sent + w.Links[1].Stats().Sent }

func (m *model) state() (s string) {
	for i, n := range m.nodes {
		st := m.w.Nodes[i].Engine.Stats()
		s += fmt.Sprintf("\nnode %d: %d tx, %d rx, %d cells, credits %v of %v, %d answers to come", i, st.TxContexts, st.RxContexts, st.RxCells, n.credits.InUse(), n.credits.Limit(), len(n.later))
		s += fmt.Sprintf(" %+v", *st)
		for _, c := range n.conns {
			s += fmt.Sprintf("\n  ordered %v xoff %v %+v", c.ordered, c.xoff, c.conn.Info())
		}
	}
	return s
}

func (m *model) outstanding() (n int) {
	for _, x := range m.txns {
		if !x.done {
			n++
		}
	}
	return n
}

func (m *model) busy() bool {
	for _, n := range m.nodes {
		if len(n.later) > 0 {
			return true
		}
		for _, c := range n.conns {
			if len(c.completed) != len(c.issued) || c.responses != c.freed {
				return true
			}
		}
	}
	return false
}

// issue starts some transactions.
func (n *modelNode) issue() {
	r := &n.m.rnd
	for range r.intn(20) {
		if n.m.left == 0 {
			return
		}
		c := n.conns[r.intn(len(n.conns))]
		if c.xoff {
			continue
		}
		tag := uint64(len(n.m.txns)+1)<<8 | uint64(n.i)
		x := &modelTxn{pull: r.chance(0.4), conn: c, length: 8 + r.intn(1000)}
		if r.chance(0.2) {
			x.length = n.m.segment
		}
		var err error
		switch {
		case x.pull:
			err = c.conn.Pull(n.m.w.Now, tag, 8+r.intn(80), x.length)
		case r.chance(0.3):
			err = c.conn.PushLast(n.m.w.Now, tag, x.length)
		default:
			err = c.conn.Push(n.m.w.Now, tag, x.length)
		}
		if err == falcon.ErrXoff {
			c.xoff = true
			continue
		}
		if err != nil {
			n.m.t.Errorf("issue: %v", err)
			return
		}
		n.m.left--
		n.m.txns[tag] = x
		c.issued = append(c.issued, tag)
	}
}

func (n *modelNode) answerLater() {
	for len(n.later) > 0 {
		due := -1
		for i, a := range n.later {
			if a.at <= n.m.w.Now {
				due = i
				break
			}
		}
		if due < 0 {
			return
		}
		a := n.later[due]
		n.later = append(n.later[:due], n.later[due+1:]...)
		a.run(n.m.w.Now)
	}
}

// do answers now or later. On ordered connections refusals are sent at once, because a ULP must not
// accept later requests and then refuse an earlier one.
func (n *modelNode) do(now falcon.Time, f func(now falcon.Time)) {
	if n.m.rnd.chance(0.7) {
		f(now)
		return
	}
	n.later = append(n.later, answer{at: now + falcon.Time(n.m.rnd.intn(300))*us, run: f})
}

// accept records a delivery that is answered for good.
func (n *modelNode) accept(c *falcon.Conn, key uint64) *modelTxn {
	x := n.m.txns[key]
	if x == nil {
		n.m.t.Errorf("delivery of unknown key %#x", key)
		return nil
	}
	if x.delivered++; x.delivered > 1 {
		n.m.t.Errorf("key %#x delivered %d times", key, x.delivered)
	}
	x.conn.delivered = append(x.conn.delivered, key)
	return x
}

func (n *modelNode) onPush(now falcon.Time, ev *falcon.Event, key uint64) {
	r := &n.m.rnd
	c, rsn := ev.Conn, ev.RSN
	if r.chance(0.05) {
		c.NackPush(now, rsn, wire.NackRNR, uint8(1+r.intn(20)), 0)
		return
	}
	x := n.accept(c, key)
	if x == nil {
		return
	}
	if len(ev.Data) != x.length {
		n.m.t.Errorf("push %#x: %d bytes, want %d", key, len(ev.Data), x.length)
	}
	if r.chance(0.02) {
		refusals := []struct {
			nack wire.NackCode
			cmpl falcon.Completion
		}{{wire.NackCIE, falcon.CmplTargetNackCIE}, {wire.NackNRE, falcon.CmplTargetNackNRE}, {wire.NackCID, falcon.CmplTargetNackCID}, {wire.NackXLR, falcon.CmplRemoteErr}}
		f := refusals[r.intn(len(refusals))]
		x.refused = f.cmpl
		n.do(now, func(now falcon.Time) { c.NackPush(now, rsn, f.nack, 0, uint8(key)) })
		return
	}
	n.do(now, func(now falcon.Time) { c.AckPush(now, rsn) })
}

func (n *modelNode) onPull(now falcon.Time, ev *falcon.Event, key uint64) {
	r := &n.m.rnd
	c, rsn := ev.Conn, ev.RSN
	if r.chance(0.05) {
		c.RNRPull(now, rsn, uint8(1+r.intn(20)))
		return
	}
	x := n.accept(c, key)
	if x == nil {
		return
	}
	if ev.Length != x.length {
		n.m.t.Errorf("pull %#x: asked for %d, want %d", key, ev.Length, x.length)
	}
	n.do(now, func(now falcon.Time) {
		if err := c.RespondPull(now, rsn, key, x.length); err != nil {
			n.m.t.Errorf("respond: %v", err)
			return
		}
		c.User().(*modelConn).responses++
	})
}

func (n *modelNode) onEvent(_ falcon.Time, ev *falcon.Event) {
	c := ev.Conn.User().(*modelConn)
	switch ev.Kind {
	case falcon.EvPushDone, falcon.EvPullDone:
		x := n.m.txns[ev.Tag]
		if x == nil || x.done || x.conn != c {
			n.m.t.Errorf("completion of %#x: unknown, twice or on another connection", ev.Tag)
			return
		}
		x.done = true
		c.completed = append(c.completed, ev.Tag)
		if ev.Code != x.refused {
			n.m.t.Errorf("at %v completion of %#x: %v, want %v%s", time.Duration(n.m.w.Now), ev.Tag, ev.Code, x.refused, n.m.state())
		}
		if x.delivered != 1 {
			n.m.t.Errorf("%#x completed after %d deliveries", ev.Tag, x.delivered)
		}
		if key, _ := sim.CheckPayload(ev.Data); x.pull && (key != ev.Tag || len(ev.Data) != x.length) {
			n.m.t.Errorf("pull %#x: key %#x, %d bytes, want %d", ev.Tag, key, len(ev.Data), x.length)
		}
	case falcon.EvResponseDone:
		c.freed++
	case falcon.EvCredit:
		c.xoff = false
	case falcon.EvClosed:
		n.m.t.Errorf("connection closed: %v", ev.Reason)
	}
}

// check checks the end of a run: everything is done once, in order where promised, and nothing is
// held.
func (m *model) check() {
	for i, n := range m.nodes {
		if n.Corrupt != 0 {
			m.t.Errorf("node %d: %d corrupt payloads delivered", i, n.Corrupt)
		}
		if n.credits.InUse() != (credit.Cost{}) || n.credits.Underflows() != 0 {
			m.t.Errorf("node %d: credits in use %v, %d underflows", i, n.credits.InUse(), n.credits.Underflows())
		}
		s := m.w.Nodes[i].Engine.Stats()
		if s.TxContexts != 0 || s.RxContexts != 0 || s.RxCells != 0 || s.CreditErrors != 0 {
			m.t.Errorf("node %d: %d tx contexts, %d rx contexts, %d cells, %d credit errors", i, s.TxContexts, s.RxContexts, s.RxCells, s.CreditErrors)
		}
		for k, c := range n.conns {
			info := c.conn.Info()
			if info.Outstanding != 0 || info.DataInFlight != 0 || info.RequestsInFlight != 0 || info.TargetTransaction != 0 || info.WaitingForOrder != 0 {
				m.t.Errorf("node %d connection %d not drained: %+v", i, k, info)
			}
			if len(c.issued) != len(c.completed) || len(c.issued) != len(c.delivered) {
				m.t.Errorf("node %d connection %d: %d issued, %d delivered, %d completed", i, k, len(c.issued), len(c.delivered), len(c.completed))
				continue
			}
			for j := range c.issued {
				if c.ordered && (c.issued[j] != c.completed[j] || c.issued[j] != c.delivered[j]) {
					m.t.Errorf("node %d connection %d position %d: issued %#x, delivered %#x, completed %#x", i, k, j, c.issued[j], c.delivered[j], c.completed[j])
					break
				}
			}
		}
		if at := m.w.Nodes[i].Engine.Deadline(); at != math.MaxInt64 {
			m.t.Errorf("node %d: a timer still runs", i)
		}
	}
}
