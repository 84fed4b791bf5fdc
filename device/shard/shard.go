package shard

import (
	"log/slog"
	"sync/atomic"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/effect"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/device/handover"
	"github.com/falcon-vnic/vnic/device/inbox"
	"github.com/falcon-vnic/vnic/device/loglimit"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/local"
	"github.com/falcon-vnic/vnic/rdma/roce"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/trace"
)

// Shard owns functions with all their objects and connections. All its state belongs to one
// goroutine, the caller of Step; others post to its inbox.
type Shard struct {
	*uplink
	*falconWire
	*tracer

	index  int
	cfg    *config.Config
	log    *loglimit.Log
	inbox  inbox.Box
	core   Core
	others *others // the NIC's other shards; nil: there are none
	peers  map[cm.HostID]*peer

	rdma   *rdma.Engine
	txSAs  *security.TxSAs // keys that we seal with
	funcs  *functionSet
	guests *guest.Set
	plain  plainIP
	roce   roceWire
	in     receiver
	out    sender

	effects   effect.List
	roused    atomic.Bool // a goroutine was made runnable since the last call of Roused
	drops     dropCounts
	counters  shardCounts
	now       falcon.Time                // time of the current Step
	fromPorts []gateway.PortInput        // for the next Step
	delivered func(f *gateway.PortFrame) // passes a frame that a port was given to captures
}

// New returns a shard. index is its number in the NIC; cfg and core are the NIC's.
func New(index int, cfg *config.Config, core Core, log *slog.Logger) (*Shard, error) {
	s := &Shard{
		index: index, cfg: cfg, core: core, peers: peersOf(cfg), rdma: rdma.NewEngine(rdma.Config{PollTime: pollTime(cfg)}),
	}
	s.inbox.AnswerBy(s.answer)
	s.log = &loglimit.Log{To: log, Effects: &s.effects}
	s.tracer = &tracer{traces: map[pfvf.ID]*trace.Ring{}, clock: func() int64 { return s.now }}
	var err error
	if s.uplink, err = newUplink(cfg); err != nil {
		return nil, err
	}
	s.guests = guest.NewSet(guest.SetConfig{
		Engine: s.rdma, MTU: cfg.RDMA.MTU, Speed: uint32(cfg.Uplink.Speed / 1e6), Strict: cfg.NIC.Strict, Effects: &s.effects, Roused: &s.roused, Log: s.log.Line,
	})
	encap := encapOf(cfg)
	s.txSAs = security.NewTxSAs(encap, core)
	s.falconWire = s.newFalcon()
	s.funcs = &functionSet{
		falconWire: s.falconWire, tracer: s.tracer, cfg: cfg, core: core, guests: s.guests, rdma: s.rdma, drops: &s.drops,
		ports: &s.plain, other: &s.roce, host: core.Credits(), changed: map[pfvf.ID]bool{},
	}
	if err = s.funcs.populate(); err != nil {
		return nil, err
	}
	s.plain = plainIP{
		gw: gateway.New(uint8(index), core.Routes()), byID: map[pfvf.ID]*Port{}, unfit: map[pfvf.ID]bool{}, changed: make(chan struct{}, 1),
		shard: uint8(index), funcs: s.funcs, core: core, effects: &s.effects,
	}
	s.plain.gw.UseFunctions(core.Knows)
	s.plain.gw.Panicked = func(v any, frame []byte) { s.log.Panicked(s.now, "a packet of plain IP", v, frame) }
	s.delivered = func(f *gateway.PortFrame) { s.capture.toPort(s.now, f) }
	if err = s.plain.populate(cfg); err != nil {
		return nil, err
	}
	s.roce = roceWire{
		engine: rdma.Wire[*roce.Engine](s.rdma), plain: &s.plain, mode: cfg.RDMA.Transport, most: connectionCredits(cfg), now: &s.now, log: s.log,
		knows: func(tenant uint32, gid [16]byte) bool { // the core learns of the shard's own functions a moment later
			return s.funcs.table.ByGID(tenant, gid) != nil || core.Knows(tenant, gid)
		},
	}
	s.roce.useCongestion(cfg.RDMA.Congestion)
	wary := reading{&s.drops, s.log}
	s.in = receiver{
		uplink: s.uplink, falconWire: s.falconWire, tracer: s.tracer, reading: wary, counters: &s.counters,
		opener: core.Opener(), encap: encap, plain: &s.plain, peers: s.peers, mode: cfg.PSP.Mode, refused: core.SPIRefused,
	}
	s.out = sender{
		uplink: s.uplink, falconWire: s.falconWire, drops: &s.drops, counters: &s.counters, host: s.funcs.host,
		plain: plainOut{uplink: s.uplink, reading: wary, gw: s.plain.gw}, roce: &s.roce,
	}
	core.Flush()
	return s, nil
}

// newFalcon creates the Falcon engine, the table of its connections, and what connects it with the
// functions and the connection manager.
func (s *Shard) newFalcon() *falconWire {
	t := &falconWire{rof: rdma.Wire[*rof.Engine](s.rdma)}
	t.falcon = falcon.NewEngine(falcon.Config{Profile: s.cfg.Falcon.Build(), Credits: s.core.Credits().Parent(), MaxConns: conn.MaxSlots}, t.rof)
	t.rof.UseFalcon(t.falcon)
	t.table = conn.NewTable(conn.TableConfig{
		Shard: s.index, Slots: conn.MaxSlots, Transport: t.falcon, Loopbacks: rdma.Wire[*local.Engine](s.rdma), Keys: keyStore{s.txSAs},
		Credits: connectionCredits(s.cfg), Log: s.log.Line,
	})
	t.conns = conn.NewConnector(conn.ConnectorConfig{
		MTU: s.cfg.RDMA.MTU, Table: t.table, Manager: s.core, Links: t.rof, RDMA: t.rof, Wires: &s.roce, Log: s.log.Line,
	})
	return t
}

// Join connects the shards of a NIC with each other. They are in order of their index. It is called
// before the first Step.
func Join(shards []*Shard) {
	if len(shards) == 1 {
		return
	}
	for i, end := range handover.New(len(shards)) {
		s := shards[i]
		o := &others{
			End: end, index: i, opener: s.in.opener, encap: s.in.encap, drops: &s.drops, cut: make([]byte, s.cfg.Uplink.MTU+tap.FrameOverhead),
		}
		for _, other := range shards {
			o.wakes = append(o.wakes, rouse{&other.inbox})
		}
		s.others, s.in.others, s.out.others, s.plain.gw.Handover = o, o, o, o
	}
}

// pollTime returns how long an empty send queue is polled: as long as the thread looks for work,
// but also while others keep it awake.
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
	s.counters.steps++
	s.now = now
	sealing := s.plain.gw.Busy()
	for _, fd := range in.Rung {
		s.guests.Bells.Rang(fd)
	}
	found := s.guests.Begin(now) // first: a guest may have woken this thread
	if s.funcs.host.Offered() {
		s.rdma.CreditsChanged()
	}
	s.capture.fromPorts(now, s.fromPorts)
	s.plain.gw.Cast()
	s.plain.gw.Take(s.fromPorts)
	s.fromPorts = nil
	s.falcon.HoldCredit(true)
	s.in.receiveAll(now, in.Frames, in.Segments)
	handed := s.in.takeHanded(now)
	s.guests.Work(now)
	posted := s.inbox.Take()
	for _, src := range posted {
		src.Drain(now)
	}
	s.falconWire.advance(now)
	if now >= s.underlay.Deadline() {
		s.underlay.Advance(now)
	}
	s.falcon.HoldCredit(false)
	s.drain(now)
	out.Polled = s.rdma.Poll(now) || found
	more := s.rdma.Run(now)
	s.drain(now)
	more = s.out.transmit(now) || more
	s.endDrains(now)
	s.table.EndPartings(now)
	s.guests.StopFaulted(now)
	s.guests.AdvanceFaults(now)
	s.flushCore()
	s.guests.Show()
	out.Worked = out.Polled || handed || len(posted) > 0 || sealing && !s.plain.gw.Busy()
	out.More = more || s.guests.Unfinished() > 0 || s.rdma.Ready() || s.others.waiting() || s.plain.gw.Casting(0)
	out.Deadline = s.deadline()
	s.others.rouse(&s.effects, s.funcs.host.Waiters())
	out.Effects.Take(&s.effects)
}

// Flush is called before the caller waits for input or time: delayed acknowledgements are sent now,
// and polled rings are armed to ask for a doorbell. It leaves frames in the tx queue and a new
// deadline in out; if out.More is set, the caller must not wait.
func (s *Shard) Flush(now falcon.Time, out *thread.Output) {
	s.falcon.FlushAcks(now)
	found := s.guests.Bells.Arm()
	found = s.rdma.Arm(now) || found
	s.guests.StopFaulted(now)
	out.More = s.out.transmit(now) || found || s.rdma.Ready()
	s.endDrains(now)
	s.flushCore()
	s.guests.Show()
	out.More = out.More || s.guests.Unfinished() > 0 || s.plain.gw.Casting(0)
	out.Deadline = s.deadline()
	s.funcs.host.Settle()
	s.others.rouse(&s.effects, s.funcs.host.Waiters())
	out.Effects.Take(&s.effects)
}

// Park implements thread.Door.
func (s *Shard) Park() bool { return s.inbox.Park() && !s.others.waiting() && !s.funcs.host.Called() }

// Unpark implements thread.Door.
func (s *Shard) Unpark() { s.inbox.Unpark() }

// answer runs an effect after those that the shard has asked for so far, for a caller that waits.
func (s *Shard) answer(e effect.Effect) {
	s.effects.Add(e)
	s.roused.Store(true)
}

// Roused implements thread.Shard.
func (s *Shard) Roused() bool { return s.roused.Swap(false) }

// Index returns the shard's number in its NIC.
func (s *Shard) Index() int { return s.index }

// UseClock sets the clock that tells the time within a Step, for traces. It is called before the
// first Step.
func (s *Shard) UseClock(clock func() int64) { s.clock = clock }

// Inbox returns the inbox, in which others leave input for the shard.
func (s *Shard) Inbox() *inbox.Box { return &s.inbox }

// Queue returns the queue of frames for the uplink.
func (s *Shard) Queue() *tap.Queue { return s.tx }

// Guests returns the drivers' side of the shard's functions.
func (s *Shard) Guests() *guest.Set { return s.guests }

// Changed returns a channel that gets a value when settings of functions have changed.
func (s *Shard) Changed() <-chan struct{} { return s.plain.changed }

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
		s.roused.Store(true)
	}
}

func (s *Shard) deadline() falcon.Time {
	return min(s.falconWire.deadline(), s.rdma.Deadline(), s.underlay.Deadline(), s.guests.Deadline())
}
