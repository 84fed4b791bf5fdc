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

// Config limits the work of one call of Run, and sets the wires. Zero fields take the defaults.
type Config struct {
	TurnOps   int        // work requests one QP starts per turn; default 8
	TurnBytes int        // data bytes one QP issues per turn; default 64 KiB
	Turns     int        // turns per Run; default 64
	Quantum   int        // data bytes that each function may issue in a round; default 16 KiB
	Linger    vtime.Time // how long a failed QP keeps its connection to tell the peer; default 500 ms
	PollTime  vtime.Time // how long an empty send queue is polled before it is armed; default 200 µs

	Tape  *tape.Tape // records random numbers, or plays them; nil: neither
	Wires transport.Options
}

// Engine carries out the verbs of all functions of one shard over its wires (wires.go). An Engine
// and everything made from it belong to one goroutine.
type Engine struct {
	cfg    Config
	wires  []transport.Wire   // in the order of Wires
	driven []transport.Driven // the wires that Run drives; the shard drives Falcon
	sched  scheduler
	shared verbs.Shared

	secrets *rand.ChaCha8 // of functions' keys and first queue pairs; nil: both are numbered from the lowest

	functions []*Function
	closed    Stats // counters of closed functions
}

// NewEngine makes an engine without functions.
func NewEngine(cfg Config) *Engine {
	if cfg.TurnOps <= 0 {
		cfg.TurnOps = 8
	}
	if cfg.TurnBytes <= 0 {
		cfg.TurnBytes = 64 << 10
	}
	if cfg.Turns <= 0 {
		cfg.Turns = 64
	}
	if cfg.Linger <= 0 {
		cfg.Linger = 500e6
	}
	if cfg.PollTime <= 0 {
		cfg.PollTime = 200e3
	}
	if cfg.Quantum <= 0 {
		cfg.Quantum = 16 << 10
	}
	e := &Engine{cfg: cfg}
	e.sched = scheduler{active: fair.Round[schedule]{Quantum: cfg.Quantum}, timers: &e.shared.Timers, wires: e}
	e.shared.Bounds = verbs.Bounds{TurnOps: cfg.TurnOps, TurnBytes: cfg.TurnBytes, Linger: cfg.Linger, PollTime: cfg.PollTime}
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
	for n := 0; n < e.cfg.Turns && !e.sched.active.Empty(); n++ {
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
