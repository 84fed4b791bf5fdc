package shard

import (
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/effect"
	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/device/inbox"
	"github.com/falcon-vnic/vnic/device/loglimit"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/wire"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/trace"
	rdmawire "github.com/falcon-vnic/vnic/rdma/wire"
)

// Bounds of one Step, so that input is looked at between them.
const (
	txSlots   = 128    // frames waiting for the uplink
	txQuantum = 64     // packets made per Step
	txShort   = 16_000 // the same while somebody may come who must not wait
	txBurst   = 60_000 // bytes, about a superframe: it leaves while it is still in the processor's cache
)

// peer is another NIC.
type peer struct {
	cfg      *config.Peer
	host     cm.HostID
	underlay netip.Addr

	otherMode     falcon.Time // of its last packet in another psp.mode; 0: none
	otherModeTold falcon.Time // when the log said so last
}

// Shard owns functions with all their objects and connections. Everything in
// it belongs to one goroutine, the caller of Step; others post to its inbox.
type Shard struct {
	index int
	cfg   *config.Config
	log   *loglimit.Log
	inbox inbox.Box[*Shard]

	underlay *underlay.Stack
	falcon   *falcon.Engine
	rdma     *rdma.Engine
	rof      *rof.Engine // what of rdma is over falcon
	core     Core
	opener   *security.Opener // of what they sealed
	txSAs    *security.TxSAs  // what we seal with
	encap    security.Encap   // of Falcon's packets
	table    *conn.Table
	conns    *conn.Functions
	peers    map[cm.HostID]*peer
	funcs    *functionSet
	guests   *guest.Set
	tx       *tap.Queue
	effects  effect.List
	plain    plainIP
	roce     roceWire
	roused   atomic.Bool // a goroutine was made runnable since the thread last slept
	capture  tapPoint
	traces   map[pfvf.ID]*trace.Ring // of functions that are traced
	clock    func() int64            // tells the time within a Step, for traces only
	arrived  int64                   // when the frame at hand came, by it
	changed  chan struct{}           // functions are set to something else since it was read

	others *others // of the NIC; nil: there are none

	event    falcon.Event
	drops    dropCounts
	counters shardCounts
	now      falcon.Time // of the Step in progress, for records of what drivers do wrong
}

// shardCounts counts what went well. The shard owns it.
type shardCounts struct {
	rxPackets, rxBytes uint64 // Falcon packets accepted
	txPackets, txBytes uint64 // Falcon packets sealed
	steps              uint64

	insidePackets, insideBytes uint64 // Falcon packets handed to other shards
}

// New makes a shard of a NIC: its number, the NIC's configuration and core, and where it logs.
func New(index int, cfg *config.Config, core Core, log *slog.Logger) (*Shard, error) {
	s := &Shard{
		index: index, cfg: cfg, core: core,
		peers:   map[cm.HostID]*peer{},
		tx:      tap.NewQueue(txSlots, txBufferSize(cfg)),
		changed: make(chan struct{}, 1),
	}
	s.log = &loglimit.Log{To: log, Effects: &s.effects}
	s.clock = func() int64 { return s.now }
	var err error
	u := underlay.Config{MAC: cfg.Uplink.MAC, Addr: cfg.Uplink.Address, Gateway: cfg.Uplink.Gateway, MTU: cfg.Uplink.MTU}
	for _, n := range cfg.Uplink.Neighbours {
		u.Neighbours = append(u.Neighbours, underlay.Neighbour{Addr: n.Address, MAC: underlay.MAC(n.MAC)})
	}
	s.underlay, err = underlay.New(u)
	if err != nil {
		return nil, fmt.Errorf("uplink: %w", err)
	}
	s.newSecurity()
	host := core.Credits()
	s.rdma = rdma.NewEngine(rdma.Config{PollTime: pollTime(cfg)})
	s.rof = rdma.Wire[*rof.Engine](s.rdma)
	s.falcon = falcon.NewEngine(falcon.Config{Profile: cfg.Falcon.Build(), Credits: host.Parent(), MaxConns: conn.MaxSlots}, s.rof)
	s.rof.UseFalcon(s.falcon)
	s.newRoCE()
	s.guests = guest.NewSet(guest.SetConfig{
		Engine: s.rdma, MTU: cfg.RDMA.MTU, Strict: cfg.NIC.Strict, Effects: &s.effects, Roused: &s.roused, Log: s.log.Line,
	})
	s.newConnections()
	if s.funcs, err = newFunctionSet(s, host); err != nil {
		return nil, err
	}
	if err := s.newPlainIP(); err != nil {
		return nil, err
	}
	s.syncPorts()
	s.core.Flush()
	return s, nil
}

// pollTime is how long an empty send queue is looked at: as long as the thread
// looks for work, but also while others keep it awake.
func pollTime(cfg *config.Config) falcon.Time {
	return falcon.Time(max(*cfg.NIC.Spin, config.DefaultSpin))
}

// txBufferSize is the room of one frame: what the uplink takes, and what the
// transport asks for while it fills a packet.
func txBufferSize(cfg *config.Config) int {
	return max(falconAt+cfg.Uplink.MTU+tap.FrameOverhead, falconAt+wire.MaxHeaderLen+cfg.RDMA.MTU+rdmawire.MaxDataHeaderLen+security.Trailer)
}

// Step does everything there is to do at one moment: it takes the input, runs
// the timers and the engines, and leaves frames, messages, events and effects.
// It reads no clock and does no I/O, so that whole NICs run in virtual time.
//
//	bells  ▶ doorbells
//	frames ▶ underlay ▶ psp open ▶ inner IP ▶ slot{conn, guard} ▶ falcon ▶ rdma ▶ guest memory
//	inbox  ▶ doorbells, registers, admin commands, what the core decided and answers
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
	s.plain.gw.Take(in.FromPorts)
	s.capture.fromPorts(now, in.FromPorts)
	s.falcon.HoldCredit(true)
	if len(in.Frames) > 1 {
		for _, f := range in.Frames {
			s.prefetch(f[min(s.underlay.Headroom(), len(f)):])
		}
	}
	for i, f := range in.Frames {
		segment := 0
		if in.Segments != nil {
			segment = in.Segments[i]
		}
		s.receive(now, f, segment)
	}
	handed := s.takeHanded(now)
	s.guests.Work(now)
	posted := s.inbox.Take()
	for _, src := range posted {
		src.Drain(s, now)
	}
	s.advance(now)
	s.falcon.HoldCredit(false)
	s.drainFalcon(now)
	out.Polled = s.rdma.Poll(now) || found
	more := s.rdma.Run(now)
	s.drainFalcon(now)
	more = s.transmit(now) || more
	s.endDrains(now)
	s.table.EndPartings(now)
	s.guests.StopFaulted(now)
	s.guests.AdvanceFaults(now)
	s.flushCore()
	s.guests.Show()
	out.Worked = out.Polled || handed || len(posted) > 0 || sealing && !s.plain.gw.Busy()
	out.More = more || s.guests.Unfinished() > 0 || s.rdma.Ready()
	out.Deadline = s.deadline()
	s.rouseOthers(s.funcs.host.Waiters())
	out.Effects.Take(&s.effects)
}

// Flush is called before the caller waits for input or time: acknowledgements
// that were held back for company go out now, and rings that were polled ask
// for a doorbell. It leaves frames in the tx queue and a new deadline in out;
// with More the caller must not wait.
func (s *Shard) Flush(now falcon.Time, out *thread.Output) {
	s.falcon.FlushAcks(now)
	found := s.guests.Bells.Arm()
	found = s.rdma.Arm(now) || found
	s.guests.StopFaulted(now)
	out.More = s.transmit(now) || found
	s.endDrains(now)
	s.flushCore()
	s.guests.Show()
	out.More = out.More || s.guests.Unfinished() > 0
	out.Deadline = s.deadline()
	s.funcs.host.Settle()
	s.rouseOthers(s.funcs.host.Waiters())
	out.Effects.Take(&s.effects)
}

// Park implements thread.Door.
func (s *Shard) Park() bool { return s.inbox.Park() && !s.handed() && !s.funcs.host.Called() }

// Unpark implements thread.Door.
func (s *Shard) Unpark() { s.inbox.Unpark() }

// Answer implements inbox.Owner.
func (s *Shard) Answer(e effect.Effect) {
	s.effects.Add(e)
	s.roused.Store(true)
}

// Roused implements thread.Shard.
func (s *Shard) Roused() bool { return s.roused.Swap(false) }

// Index is the shard's number in its NIC.
func (s *Shard) Index() int { return s.index }

// UseClock has the shard tell the time within a Step by clock, for traces. It is called before the
// first Step.
func (s *Shard) UseClock(clock func() int64) { s.clock = clock }

// Inbox is where others leave input for the shard.
func (s *Shard) Inbox() *inbox.Box[*Shard] { return &s.inbox }

// Queue has the frames that the shard made for the uplink.
func (s *Shard) Queue() *tap.Queue { return s.tx }

// Guests are the drivers' side of the shard's functions.
func (s *Shard) Guests() *guest.Set { return s.guests }

// Changed tells that functions are set to something else since it was read.
func (s *Shard) Changed() <-chan struct{} { return s.changed }

// Count is how many functions the shard has. Any goroutine may ask.
func (s *Shard) Count() int { return int(s.funcs.count.Load()) }

// LogKeysTo has the keys that peers gave us written to a key log. It is called before the first Step.
func (s *Shard) LogKeysTo(l *security.KeyLog) { s.txSAs.LogTo(l) }

// Do runs f on the shard's thread and returns when it is done (inbox.Do).
func (s *Shard) Do(f func(now falcon.Time)) error {
	return inbox.Do(&s.inbox, func(_ *Shard, now falcon.Time) { f(now) })
}

func (s *Shard) advance(now falcon.Time) {
	if now >= s.falcon.Deadline() {
		s.falcon.Advance(now)
		s.drainFalcon(now)
	}
	if now >= s.underlay.Deadline() {
		s.underlay.Advance(now)
	}
	s.conns.Advance(now)
}

func (s *Shard) deadline() falcon.Time {
	at := min(s.falcon.Deadline(), s.rdma.Deadline(), s.underlay.Deadline(), s.guests.Deadline())
	return min(at, s.conns.Deadline())
}

// drainFalcon hands the transport's events to the RDMA engine.
func (s *Shard) drainFalcon(now falcon.Time) {
	for s.falcon.Next(&s.event) {
		ev := &s.event
		s.rof.HandleEvent(now, ev)
		switch ev.Kind {
		case falcon.EvClosed, falcon.EvDrained, falcon.EvLongPath:
			s.conns.HandleEvent(now, ev)
		}
	}
	s.conns.Ended()
	s.conns.ConnectLinks()
}

// endDrains disconnects what its driver has disconnected and is drained.
func (s *Shard) endDrains(now falcon.Time) {
	if s.table.Draining() {
		s.drainFalcon(now) // the last acknowledgement may just have left
		s.table.EndDrains(now)
		s.conns.Ended()
	}
}
