package shard

import (
	"log/slog"
	"math"
	"sync/atomic"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/effect"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/device/handover"
	"github.com/falcon-vnic/vnic/device/inbox"
	"github.com/falcon-vnic/vnic/device/pathmtu"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/internal/loglimit"
	"github.com/falcon-vnic/vnic/internal/tape"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// Shard owns functions with all their objects and connections. All its state belongs to one
// goroutine, the caller of Step; others post to its inbox.
type Shard struct {
	index int
	cfg   *config.Config
	log   *loglimit.Log
	inbox inbox.Box
	core  Core
	peers map[cm.PeerID]*peer

	in       *receiver
	out      *sender
	probes   *probes
	funcs    *functionSet
	falcon   *falconWire
	networks *networks
	plain    *plainIP
	others   *others // the NIC's other shards; nil: there are none
	uplink   *uplink

	rdma    *rdma.Engine
	txSAs   *security.TxSAs // keys that we seal with
	guests  *guest.Set
	capture captures
	trace   *tracer
	tape    *tape.Tape // records what the shard takes from outside, or plays it; nil: neither

	effects   effect.List
	woke      atomic.Bool // a goroutine was made runnable since the last call of Woke
	drops     dropCounts
	counters  shardCounts
	now       falcon.Time                // time of the current Step
	fromPorts []gateway.PortInput        // for the next Step
	delivered func(f *gateway.PortFrame) // passes a frame that a port was given to captures
}

// New returns a shard. index is its number in the NIC; cfg and core are the NIC's. The tape records
// it, or plays, and then it has no core; nil: neither. Its parts are made in the order in which they
// use each other, the lowest first.
func New(index int, cfg *config.Config, core Core, t *tape.Tape, log *slog.Logger) (*Shard, error) {
	if t != nil {
		core = newTapedCore(core, cfg, t)
	}
	s := &Shard{
		tape: t, index: index, cfg: cfg, core: core, peers: map[cm.PeerID]*peer{},
		rdma: rdma.NewEngine(rdma.Config{PollTime: pollTime(cfg), Tape: t, Wires: transport.Options{Congestion: cfg.RDMA.Congestion, Tape: t}}),
	}
	s.inbox.AnswerBy(s.runEffect)
	s.log = &loglimit.Log{To: log, Later: func(write func()) { s.effects.Add(effect.Func(write)) }}
	s.trace = &tracer{traces: map[pfvf.ID]*trace.Ring{}, clock: func() int64 { return s.now }}
	s.delivered = func(f *gateway.PortFrame) { s.capture.toPort(s.now, f) }
	var err error
	if s.uplink, err = newUplink(cfg, &s.capture); err != nil {
		return nil, err
	}
	s.uplink.tape = t
	s.guests = guest.NewSet(guest.SetConfig{
		Engine: s.rdma, MTU: pathMTU(cfg), Speed: uint32(cfg.Uplink.Speed / 1e6), Strict: cfg.NIC.Strict, Effects: &s.effects, Woke: &s.woke, Tape: t, Log: s.log.Line,
	})
	encap := security.EncapOf(cfg.PSP.Mode == config.PSPTransport)
	s.txSAs = security.NewTxSAs(encap, core)
	s.txSAs.Name = s.peerName
	s.txSAs.UseTape(t)
	s.plain = newPlainIP(index, cfg, core, &s.effects)
	s.plain.gw.UseTape(t)
	s.plain.gw.Panicked = func(v any, frame []byte) { s.log.Panicked(s.now, "a packet of plain IP", v, frame) }
	enabled := pfvf.NewTable(maxFunctions)
	s.networks = &networks{plain: s.plain, own: enabled, core: core, mtu: pathMTU(cfg), crc: *cfg.RDMA.CRC, most: connectionCredits(cfg), now: &s.now, log: s.log, tape: t}
	s.networks.add(s.rdma, s.inbox.Wake)
	s.falcon = newFalcon(index, cfg, core, s.rdma, s.networks, s.txSAs, t, s.log)
	s.funcs = &functionSet{
		falcon: s.falcon, networks: s.networks, plain: s.plain, trace: s.trace, cfg: cfg, core: core, guests: s.guests, rdma: s.rdma, counters: &s.counters,
		host: core.Credits(), table: enabled, tape: t,
	}
	parsing := guard{&s.drops, s.log}
	s.probes = &probes{
		uplink: s.uplink, guard: parsing, drops: &s.drops, core: core, peers: s.peers, keys: s.txSAs, asked: map[security.Use]bool{},
		shard: uint8(index), overhead: cfg.SealedOverhead(), short: math.MaxInt,
	}
	if own := cfg.Uplink.Own(); cfg.Uplink.ProbeMTU != config.ProbeMTUOff {
		s.probes.short = pathmtu.Least(own.Is6()) - underlay.HeaderLen(own)
	}
	s.in = &receiver{
		uplink: s.uplink, falcon: s.falcon, gw: s.plain.gw, probes: s.probes, capture: &s.capture, trace: s.trace, guard: parsing, drops: &s.drops, counters: &s.counters,
		opener: core.Opener(), encap: encap, peers: s.peers, mode: cfg.PSP.Mode, core: core,
		moves: cfg.Uplink.Type == config.UplinkUDP,
	}
	s.out = &sender{
		uplink: s.uplink, falcon: s.falcon, networks: s.networks, probes: s.probes, capture: &s.capture, drops: &s.drops, counters: &s.counters, host: s.funcs.host,
		plain: &plainOut{uplink: s.uplink, probes: s.probes, gw: s.plain.gw, capture: &s.capture, guard: parsing, drops: &s.drops},
	}
	if err = s.plain.populate(cfg); err != nil {
		return nil, err
	}
	if err = s.funcs.populate(); err != nil {
		return nil, err
	}
	core.Flush()
	return s, nil
}

// UseSecret sets the random seed that keys of memory are made from. It is called before there are
// drivers.
func (s *Shard) UseSecret(seed [32]byte) {
	s.tape.Event(tape.Secret)
	s.rdma.UseSecret(seed)
}

// Join connects the shards of a NIC with each other. They are in order of their index. It is called
// before the first Step.
func Join(shards []*Shard) {
	if len(shards) == 1 {
		return
	}
	for i, end := range handover.New(len(shards)) {
		shards[i].join(end)
		for _, other := range shards {
			shards[i].others.wakes = append(shards[i].others.wakes, waker{&other.inbox})
		}
	}
}

// join connects the shard with others by its end of the handover.
func (s *Shard) join(end rings) {
	if s.tape != nil {
		end = &tapedRings{rings: end, t: s.tape, shards: s.cfg.NIC.Shards}
	}
	o := &others{
		rings: end, index: s.index, underlay: s.uplink.underlay, opener: s.in.opener, encap: s.in.encap, drops: &s.drops, tape: s.tape,
		cut: make([]byte, s.cfg.Uplink.MTU+tap.FrameOverhead),
	}
	s.others, s.in.others, s.out.others, s.plain.gw.Handover = o, o, o, o
}

// pollTime returns how long an empty send queue is polled: as long as the thread looks for work
// before it sleeps. A thread that other queues keep awake stops polling this one after that
// time, too.
func pollTime(cfg *config.Config) falcon.Time {
	return falcon.Time(max(*cfg.NIC.Spin, config.DefaultSpin))
}

// Step does all work that is due at one moment: it takes the input, runs the timers and the
// engines, and leaves frames, events, requests to the core and effects. It reads no clock and does
// no I/O, so that whole NICs run in virtual time.
//
//	bells  ▶ doorbells
//	frames ▶ underlay ▶ psp open ▶ inner IP ▶ slot{conn, keys} ▶ falcon ▶ rdma ▶ guest memory
//	inbox  ▶ doorbells, registers, admin commands, orders and answers of the core
//	timers ▶ falcon, rdma, underlay
//	guest memory ▶ rdma ▶ falcon ▶ inner IP ▶ psp seal ▶ underlay ▶ tx queue
func (s *Shard) Step(now falcon.Time, in *thread.Input, out *thread.Output) {
	s.tapeStep(tape.Step, now, in)
	s.counters.steps++
	s.now = now
	sealing := s.plain.gw.Busy()
	for _, fd := range in.Rung {
		s.guests.Bells.NoteReadable(fd)
	}
	found := s.guests.Begin(now) // first: a guest may have woken this thread
	if s.funcs.host.Offered() {
		s.rdma.CreditsChanged()
	}
	s.capture.fromPorts(now, s.fromPorts)
	s.plain.gw.Cast()
	s.plain.gw.Take(s.fromPorts)
	s.fromPorts = nil
	s.falcon.engine.HoldCredit(true)
	s.in.receiveAll(now, in.Frames, in.Segments)
	handed := s.in.takeHanded(now)
	s.guests.Work(now)
	posted := s.inbox.Take()
	s.tapeRoutes()
	for _, src := range posted {
		src.Drain(now)
	}
	s.tape.Event(tape.InboxEnd)
	s.falcon.advance(now)
	if now >= s.uplink.underlay.Deadline() {
		s.uplink.underlay.Advance(now)
	}
	s.falcon.engine.HoldCredit(false)
	s.falcon.passEvents(now)
	fromTCP := s.networks.step(now)
	found = s.rdma.Poll(now) || found
	more := s.rdma.Run(now)
	s.networks.send(now)
	s.falcon.passEvents(now)
	more = s.out.transmit(now) || more
	s.falcon.endDrains(now)
	s.falcon.table.EndPartings(now)
	s.guests.StopFaulted(now)
	s.guests.AdvanceFaults(now)
	s.flushCore()
	s.guests.Show()
	out.Worked = found || handed || fromTCP || len(posted) > 0 || sealing && !s.plain.gw.Busy()
	out.More = more || s.guests.Unfinished() > 0 || s.rdma.Ready() || s.others.waiting() || s.plain.gw.Casting(0) || s.networks.waiting()
	out.Deadline = s.deadline()
	s.others.wake(&s.effects, s.funcs.host.Waiters())
	out.Effects.Take(&s.effects)
	s.tape.Check()
}

// Flush is called before the caller waits for input or time: delayed acknowledgements are sent now,
// and polled rings are armed to ask for a doorbell. It leaves frames in the tx queue and a new
// deadline in out; if out.More is set, the caller must not wait.
func (s *Shard) Flush(now falcon.Time, out *thread.Output) {
	s.tapeStep(tape.Flush, now, nil)
	s.falcon.engine.FlushAcks(now)
	found := s.guests.Bells.Arm()
	found = s.rdma.Arm(now) || found
	s.guests.StopFaulted(now)
	out.More = s.out.transmit(now) || found || s.rdma.Ready()
	s.falcon.endDrains(now)
	s.flushCore()
	s.guests.Show()
	out.More = out.More || s.guests.Unfinished() > 0 || s.plain.gw.Casting(0) || s.networks.waiting()
	out.Deadline = s.deadline()
	s.funcs.host.Settle()
	s.others.wake(&s.effects, s.funcs.host.Waiters())
	out.Effects.Take(&s.effects)
	s.tape.Check()
}

// Park implements thread.Shard.
func (s *Shard) Park() bool {
	return s.inbox.Park() && !s.others.waiting() && !s.networks.waiting() && !s.funcs.host.Called()
}

// Unpark implements thread.Shard.
func (s *Shard) Unpark() { s.inbox.Unpark() }

// runEffect runs an effect after those that the shard has asked for so far, for a caller that waits.
func (s *Shard) runEffect(e effect.Effect) {
	s.effects.Add(e)
	s.woke.Store(true)
}

// Woke implements thread.Shard.
func (s *Shard) Woke() bool { return s.woke.Swap(false) }

// Index returns the shard's number in its NIC.
func (s *Shard) Index() int { return s.index }

// UseClock sets the clock that tells the time within a Step, for traces. It is called before the
// first Step.
func (s *Shard) UseClock(clock func() int64) { s.trace.clock = clock }

// Inbox returns the inbox, in which others leave input for the shard.
func (s *Shard) Inbox() *inbox.Box { return &s.inbox }

// Queue returns the queue of frames for the uplink.
func (s *Shard) Queue() *tap.Queue { return s.uplink.tx }

// Guests returns the drivers' side of the shard's functions.
func (s *Shard) Guests() *guest.Set { return s.guests }

// Changed returns a channel that gets a value when settings of functions have changed.
func (s *Shard) Changed() <-chan struct{} { return s.funcs.signal }

// Count returns how many functions the shard has. Any goroutine may call it.
func (s *Shard) Count() int { return int(s.funcs.count.Load()) }

// LogKeysTo makes the shard write the keys that peers gave us to a key log. It is called before the
// first Step.
func (s *Shard) LogKeysTo(l *security.KeyLog) { s.txSAs.LogTo(l) }

// Do runs f on the shard's thread and returns when it is done (inbox.Box.Do).
func (s *Shard) Do(f func(now falcon.Time)) error { return s.inbox.Do(f) }

// flushCore sends the shard's requests to the core.
func (s *Shard) flushCore() {
	if s.core.Flush() {
		s.woke.Store(true)
	}
}

func (s *Shard) deadline() falcon.Time {
	return min(s.falcon.deadline(), s.rdma.Deadline(), s.uplink.underlay.Deadline(), s.guests.Deadline(), s.networks.deadline())
}

// Close ends what runs beside the shard's thread, when that has ended.
func (s *Shard) Close() { s.networks.close() }
