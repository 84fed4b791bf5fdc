package rdma

import (
	"math/rand/v2"
	"slices"

	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/internal/fair"
	"github.com/falcon-vnic/vnic/internal/tape"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// Limits of what queue pairs and functions do at a time.
const (
	turnOps   = 8        // work requests one QP starts per turn
	turnBytes = 64 << 10 // data bytes one QP issues per turn
	runTurns  = 64       // turns per Run
	quantum   = 16 << 10 // data bytes that each function may issue in a round
)

// linger is how long a failed QP keeps its connection to tell the peer.
const linger vtime.Time = 500e6

// Config is what an engine is set to.
type Config struct {
	PollTime vtime.Time // how long an empty send queue is polled before it is armed; default 200 µs
	Tape     *tape.Tape // records random numbers, or plays them; nil: neither
	Wires    transport.Options
}

// Engine carries out the verbs of all functions of one shard over its wires (wires.go). An Engine
// and everything made from it belong to one goroutine.
type Engine struct {
	cfg    Config
	wires  []transport.Wire   // in the order of Wires
	driven []transport.Driven // the wires that Run drives; the shard drives Falcon
	sched  scheduler
	turns  int // per Run
	shared verbs.Shared

	secrets *rand.ChaCha8 // of functions' keys and first queue pairs; nil: both are numbered from the lowest

	functions []*Function
	closed    Stats // counters of closed functions
}

// NewEngine makes an engine without functions.
func NewEngine(cfg Config) *Engine {
	if cfg.PollTime <= 0 {
		cfg.PollTime = 200e3
	}
	e := &Engine{cfg: cfg, turns: runTurns}
	e.sched = scheduler{active: fair.Round[schedule]{Quantum: quantum}, timers: &e.shared.Timers, wires: e}
	e.shared.Bounds = verbs.Bounds{TurnOps: turnOps, TurnBytes: turnBytes, Linger: linger, PollTime: cfg.PollTime}
	for _, k := range Wires {
		w := k.New(e, cfg.Wires)
		e.wires = append(e.wires, w)
		if d, ok := w.(transport.Driven); ok {
			e.driven = append(e.driven, d)
		}
	}
	return e
}

// UseSecret makes the keys of functions made from now on unpredictable, and the numbers of their queue pairs begin
// at random. Nobody else may know seed.
func (e *Engine) UseSecret(seed [32]byte) {
	e.secrets = rand.NewChaCha8(seed)
	for _, s := range e.Streams() {
		_, _ = e.secrets.Read(seed[:]) // it never fails
		s.UseRandom(seed)
	}
}

// Stats sums the counters of all functions, closed ones included.
func (e *Engine) Stats() Stats {
	sum := e.closed
	for _, f := range e.functions {
		of := f.Stats()
		sum.add(&of)
	}
	return sum
}

// NewFunction makes function id with the guest memory mem.
func (e *Engine) NewFunction(id uint32, mem *queues.Memory, limits verbs.Limits, out verbs.Notifier) *Function {
	f := &Function{id: id, e: e}
	f.Links = Wire[*rof.Engine](e).NewLinks(id, &f.Objects, &e.shared.Timers)
	f.sched = schedule{of: &e.sched, objects: &f.Objects, rate: new(credit.Bucket)}
	f.destinations.links = f.Links
	f.Init(&e.shared, mem, limits, out, &f.sched, &f.destinations)
	if e.secrets != nil {
		random := func() uint64 { return e.cfg.Tape.Number(tape.Random, e.secrets.Uint64()) }
		f.Regions.UseSecret(random)
		f.QPs.StartAt(random())
	}
	e.functions = append(e.functions, f)
	return f
}

// forget removes a closed function and keeps its counters.
func (e *Engine) forget(f *Function) {
	if i := slices.Index(e.functions, f); i >= 0 {
		e.functions = slices.Delete(e.functions, i, i+1)
		of := f.Stats()
		e.closed.add(&of)
	}
}

// RateChanged lets a function that waits for its rate check the rate again.
func (e *Engine) RateChanged(now vtime.Time, f *Function) { f.sched.rateChanged(now) }

// Run gives functions with work their turns (sched.go), closes connections that have lingered long
// enough and lets the wires send what they can. It reports whether work is left that could continue
// now. Work that waits for credit, a rate, a window, a fence or a peer does not count.
func (e *Engine) Run(now vtime.Time) (more bool) {
	e.shared.CloseLingering(now)
	e.shared.Timers.Run(now)
	for n := 0; n < e.turns && !e.sched.active.Empty(); n++ {
		e.sched.visit(now)
	}
	for _, w := range e.driven {
		if w.Run(now) {
			more = true
		}
	}
	return more || !e.sched.active.Empty()
}

// Ready reports whether Run has work at once. Events and freed credits may create work.
func (e *Engine) Ready() bool {
	if !e.sched.active.Empty() {
		return true
	}
	for _, w := range e.driven {
		if w.Ready() {
			return true
		}
	}
	return false
}

// Deadline returns when Run has timed work next, math.MaxInt64 if never.
func (e *Engine) Deadline() vtime.Time {
	at := e.shared.Deadline()
	for _, w := range e.driven {
		at = min(at, w.Deadline())
	}
	return at
}

// Poll examines send queues that became empty a short while ago; see verbs.Shared. It reports
// whether one had work.
func (e *Engine) Poll(now vtime.Time) (found bool) { return e.shared.Poll(now) }

// Arm requests a doorbell at the next entry of each polled queue, before the shard stops polling;
// see verbs.Shared. It reports whether one had work.
func (e *Engine) Arm(now vtime.Time) (found bool) { return e.shared.Arm(now) }

// Wire returns the engine's wire of type W, nil if it has none, for opening connections on it.
func Wire[W transport.Wire](e *Engine) W {
	var none W
	for _, w := range e.wires {
		if w, ok := w.(W); ok {
			return w
		}
	}
	return none
}

// CreditsChanged implements transport.Host: it tells all wires that credit may be available again.
func (e *Engine) CreditsChanged() {
	for _, w := range e.wires {
		w.CreditsChanged()
	}
}
