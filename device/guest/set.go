package guest

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"

	"github.com/falcon-vnic/vnic/device/effect"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/internal/tape"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma"
)

// SetConfig holds what the functions of a shard need.
type SetConfig struct {
	Engine  *rdma.Engine
	MTU     int          // of RDMA
	Speed   uint32       // of the uplink, Mbit/s
	Strict  bool         // report harmless errors too
	Effects *effect.List // effects to run after the Step
	Woke    *atomic.Bool // set when an effect made a goroutine runnable
	Tape    *tape.Tape   // records what drivers do, or plays it; nil: neither
	Log     func(now falcon.Time, level slog.Level, msg string, args ...any)
}

// Set holds the drivers' side of a shard's functions: their doorbells, the work for them at the end
// of a Step, and the events and replies to be sent then.
type Set struct {
	Bells     *Bells
	Failed    func(id pfvf.ID, how string) // called, as an effect, when a driver broke a rule or its function got a fault; nil: nobody asks
	Doorbells uint64                       // number of doorbells rung
	Commands  uint64                       // number of admin commands carried out

	cfg       SetConfig
	now       falcon.Time // time of the current Step
	events    EventQueues
	unflushed []*Binding // bindings whose channels are to be flushed

	toStop     []*Device // have a fault: to be stopped at the end of the Step
	injected   []*Device // functions that have injected faults
	backlog    []*Device // functions that have admin commands left
	adminPages int       // page list entries that may still be read in this Step

	sessions uint32              // drivers so far, of a shard with a tape
	played   map[uint32]*Binding // drivers that are played, by their number
}

// NewSet returns a set without functions.
func NewSet(c SetConfig) *Set { return &Set{Bells: NewBells(c.Effects), cfg: c} }

// Interrupts returns the number of interrupts raised.
func (s *Set) Interrupts() uint64 { return s.events.Raised }

// Bind prepares a binding for a driver. breach ends its session.
func (s *Set) Bind(b *Binding, breach func(error)) *Binding {
	b.set, b.breach = s, breach
	return b
}

// Listen takes doorbells from a bell, and sends CQ events to its event queues. failed is called, as
// an effect, if the thread cannot wait for the bell.
func (s *Set) Listen(b *Binding, q queues.Bell, failed func(error)) {
	q = b.tapeBell(tape.Listen, q)
	s.Bells.Add(b, q, failed)
	s.openEvents(b, q)
}

// OpenEvents opens a driver's event queues, if its window has some and the driver can use them.
func (s *Set) OpenEvents(b *Binding, q queues.Bell) { s.openEvents(b, b.tapeBell(tape.Window, q)) }

func (s *Set) openEvents(b *Binding, q queues.Bell) {
	if irq, ok := q.(queues.Interrupter); ok && b.Features&abi.FeatureVectors != 0 {
		b.events = s.events.Open(b, irq)
	}
	b.holder, _ = q.(queues.AdminHolder)
}

// failed reports how a function went wrong, when the Step is over.
func (s *Set) failed(id pfvf.ID, how string) {
	if s.Failed != nil {
		s.cfg.Effects.Add(effect.Func(func() { s.Failed(id, how) }))
	}
}

// unlisten removes the bell and the event queues of a driver.
func (s *Set) unlisten(b *Binding) {
	s.Bells.Remove(b)
	s.events.Drop(b.events)
}

// Begin begins a Step: it takes doorbell records and reports whether there were any.
func (s *Set) Begin(now falcon.Time) (found bool) {
	s.now = now
	return s.Bells.Poll(now)
}

// Work gives each function with commands left another turn, until the pages of this Step are used
// up.
func (s *Set) Work(now falcon.Time) {
	s.adminPages = adminPages
	n, i := len(s.backlog), 0
	for ; i < n && s.adminPages > 0; i++ {
		f := s.backlog[i]
		f.inBacklog = false
		if f.serves() {
			f.admin.run(now)
		}
	}
	s.backlog = s.backlog[:copy(s.backlog, s.backlog[i:])]
}

// StopFaulted stops the functions that have a fault.
func (s *Set) StopFaulted(now falcon.Time) {
	for len(s.toStop) > 0 {
		f := s.toStop[0]
		s.toStop = s.toStop[:copy(s.toStop, s.toStop[1:])]
		f.stop(now)
	}
}

// AdvanceFaults carries out the injected faults that are due.
func (s *Set) AdvanceFaults(now falcon.Time) {
	if len(s.injected) == 0 {
		return
	}
	for _, f := range slices.Clone(s.injected) {
		f.Faults.in.advance(now)
	}
}

// faultsChanged records that a function has injected faults, or has none any more.
func (s *Set) faultsChanged(f *Device, on bool) {
	if on {
		s.injected = append(s.injected, f)
	} else {
		s.injected = slices.DeleteFunc(s.injected, func(g *Device) bool { return g == f })
	}
}

// Injected returns the functions that have injected faults.
func (s *Set) Injected() []*Device { return slices.Clone(s.injected) }

// Unfinished counts the functions that have work left for the next Step.
func (s *Set) Unfinished() int { return len(s.toStop) + len(s.backlog) }

// Deadline returns the latest time of the next Step.
func (s *Set) Deadline() falcon.Time {
	at := s.Bells.Deadline()
	for _, f := range s.injected {
		at = min(at, f.Faults.in.deadline(s.now))
	}
	return at
}

// Show shows the drivers everything that was written for them in this Step. What takes a system
// call becomes an effect.
func (s *Set) Show() {
	s.events.Show(s.cfg.Effects)
	for _, b := range s.unflushed {
		b.unflushed = false
		s.cfg.Effects.Add(b)
	}
	clear(s.unflushed)
	s.unflushed = s.unflushed[:0]
}

// Binding connects a function with its driver while the driver's session lasts. It belongs to the
// shard's thread.
type Binding struct {
	Peer     queues.Identity
	Attached string // name of the attachment that the driver came through
	Driver   string // the name that the driver gives itself
	Features uint64 // features in use
	Memory   *queues.Memory
	Channel  Channel

	UsesRing bool // the driver has put records into its window's ring

	device    *Device            // nil: none yet
	number    uint32             // on the tape
	events    []*EventQueue      // one per vector
	holder    queues.AdminHolder // the driver's window; nil: it has none
	unflushed bool               // listed in set.unflushed
	set       *Set
	breach    func(error)
}

var (
	_ BellUser  = (*Binding)(nil)
	_ EventUser = (*Binding)(nil)

	_ effect.Effect = (*Binding)(nil)
)

// handle carries out a request that came through the driver's channel.
func (b *Binding) handle(now falcon.Time, r *Request) {
	f := b.device
	if f.driver != b {
		return // the session has ended
	}
	b.tapeRequest(r)
	switch r.Kind {
	case ReservedBits:
		f.Broke(abi.DRV102, abi.RingStream, 0, 0, r.Dirty[:])
	case Ring:
		b.set.Doorbells++
		d := &r.Doorbell
		if b.UsesRing { // although the driver uses its ring
			var is [abi.DoorbellSize]byte
			d.Marshal(is[:])
			f.Broke(abi.DRV1004, abi.RingStream, d.Queue, d.Index, is[:])
		}
		if r.Dirty != nil {
			f.Broke(abi.DRV102, abi.RingStream, d.Queue, d.Index, r.Dirty[:])
		}
		f.doorbell(now, d)
	case RegRead:
		v, st := f.Registers().Read(r.Offset, r.Width)
		b.checkAccess(r, st, f.Lifecycle.State())
		b.reply(r.Tag, &abi.RegReply{Status: st, Value: v})
	case RegWrite:
		before := f.Lifecycle.State()
		st := f.Registers().Write(now, r.Offset, r.Width, r.Value)
		b.checkAccess(r, st, before)
		b.reply(r.Tag, &abi.RegReply{Status: st})
	}
}

// checkAccess records the rule that a register access broke.
func (b *Binding) checkAccess(r *Request, st abi.Status, before abi.State) {
	clause := brokenByAccess(r, st, before)
	if clause == 0 {
		return
	}
	var written []byte
	if r.Kind == RegWrite {
		written = binary.LittleEndian.AppendUint64(nil, r.Value)
	}
	b.device.Broke(clause, abi.RingRegister, 0, r.Offset, written)
}

// cqEvent sends an event of a completion queue through the channel.
func (b *Binding) cqEvent(cqn uint32) {
	b.Channel.CQEvent(cqn)
	b.mark()
}

// asyncEvent sends an asynchronous event through the channel.
func (b *Binding) asyncEvent(e *abi.AsyncEvent) {
	b.Channel.AsyncEvent(e)
	b.mark()
}

// reply answers a register access.
func (b *Binding) reply(tag uint64, r *abi.RegReply) {
	if in := b.device.Faults.in; in == nil || !in.register(b, tag, r) {
		b.sendReply(tag, r)
	}
}

// sendReply sends the answer to a register access.
func (b *Binding) sendReply(tag uint64, r *abi.RegReply) {
	b.Channel.Reply(tag, r)
	b.mark()
}

// leave takes the function from its driver.
func (b *Binding) leave(now falcon.Time, fault error) {
	b.tapeLeave(fault)
	if b.device != nil {
		b.device.detach(now, b, fault)
	}
	b.set.unlisten(b)
}

// End ends the session.
func (b *Binding) End() { b.set.cfg.Effects.Add(effect.Func(b.Channel.End)) }

// mark puts the channel on the list of those to be flushed at the end of the Step.
func (b *Binding) mark() {
	if !b.unflushed {
		b.unflushed = true
		b.set.unflushed = append(b.set.unflushed, b)
	}
}

// Do implements effect.Effect: it flushes the channel.
func (b *Binding) Do() {
	if b.Channel.Flush() {
		b.set.cfg.Woke.Store(true)
	}
}

// Doorbell implements BellUser.
func (b *Binding) Doorbell(now falcon.Time, d *abi.Doorbell, raw []byte) {
	b.UsesRing = true
	b.set.Doorbells++
	if b.set.cfg.Strict && d.Reserved(raw) {
		b.device.Broke(abi.DRV102, abi.RingBells, d.Queue, d.Index, raw)
	}
	b.device.doorbell(now, d)
}

// BrokeBell implements BellUser.
func (b *Binding) BrokeBell(clause abi.Clause) { b.device.Broke(clause, abi.RingBells, 0, 0, nil) }

// Breach implements BellUser: the session ends.
func (b *Binding) Breach(err error) { b.breach(err) }

// BrokeEvents implements EventUser.
func (b *Binding) BrokeEvents(vector int, index uint32, err error) {
	b.device.Broke(abi.DRV1010, abi.RingEvents, uint32(vector)+1, index, nil)
	b.device.Fault(abi.FaultRing, fmt.Sprintf("event queue %d: %v; only the driver writes its consumer index, forwards, and it must take the records of CQs it destroyed", vector+1, err))
}

// Name describes a driver, for logs.
func Name(p queues.Identity) string {
	if p.CID != 0 {
		return fmt.Sprintf("%s guest %d", p.Transport, p.CID)
	}
	return fmt.Sprintf("%s process %d", p.Transport, p.PID)
}
