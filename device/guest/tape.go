package guest

import (
	"errors"
	"fmt"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/internal/tape"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// What drivers do is an event on the tape of a recorded shard: a driver gets a function, rings and
// writes registers, uses a window, and leaves. Play makes a driver of the recording do the same
// again, with a channel and a window that have nothing behind them.

// taped begins a driver's session on the tape.
func (b *Binding) taped(f *Device) {
	t := b.set.cfg.Tape
	if t == nil {
		return
	}
	b.set.sessions++
	b.number = b.set.sessions
	if t.Event(tape.Attach) {
		w := b.Memory.Window()
		t.PutUint(uint64(b.number))
		t.PutUint(uint64(f.ID))
		t.PutValue(attached{b.Peer, b.Attached, b.Driver, b.Features, w})
	}
	b.Memory.UseTape(t, b.number)
	b.Channel = tapedChannel{b.Channel, t}
}

// attached describes a driver on the tape.
type attached struct {
	Peer     queues.Identity
	Attached string
	Driver   string
	Features uint64
	Window   queues.Window
}

// tapeRequest records a request of a driver.
func (b *Binding) tapeRequest(r *Request) {
	t := b.set.cfg.Tape
	if !t.Event(tape.Request) {
		return
	}
	t.PutUint(uint64(b.number))
	t.PutUint(uint64(r.Kind))
	switch r.Kind {
	case Ring:
		var raw [abi.DoorbellSize]byte
		r.Doorbell.Marshal(raw[:])
		t.PutBytes(raw[:])
	case RegRead, RegWrite:
		t.PutUint(r.Tag)
		t.PutUint(uint64(r.Offset))
		t.PutUint(uint64(r.Width))
		t.PutUint(r.Value)
	}
	if r.Dirty == nil {
		t.PutUint(0)
		return
	}
	t.PutBytes(r.Dirty[:])
}

func playRequest(t *tape.Tape) (r Request) {
	switch r.Kind = RequestKind(t.Uint()); r.Kind {
	case Ring:
		raw := t.Bytes()
		if len(raw) != abi.DoorbellSize {
			t.Differs("the recording has a doorbell of %d bytes", len(raw))
		}
		r.Doorbell.Unmarshal(raw)
	case RegRead, RegWrite:
		r.Tag, r.Offset, r.Width, r.Value = t.Uint(), uint32(t.Uint()), uint32(t.Uint()), t.Uint()
	}
	if b := t.Bytes(); len(b) == abi.DoorbellSize {
		dirty := [abi.DoorbellSize]byte(b)
		r.Dirty = &dirty
	}
	return r
}

// tapeLeave records that a driver leaves.
func (b *Binding) tapeLeave(fault error) {
	t := b.set.cfg.Tape
	if b.number == 0 || !t.Event(tape.Leave) {
		return
	}
	t.PutUint(uint64(b.number))
	var breach *Breach
	errors.As(fault, &breach)
	switch {
	case fault == nil:
		t.PutUint(0)
	case breach == nil:
		t.PutUint(1)
		t.PutText(fault.Error())
	default:
		t.PutUint(2)
		t.PutText(fault.Error())
		t.PutUint(uint64(breach.Clause))
		t.PutBytes(breach.Bytes)
	}
}

func playFault(t *tape.Tape) error {
	kind := t.Uint()
	if kind == 0 {
		return nil
	}
	err := errors.New(t.Text())
	if kind == 1 {
		return err
	}
	return Broken(abi.Clause(t.Uint()), append([]byte(nil), t.Bytes()...), err)
}

// Play carries out an event of a driver. find returns the device of a function; nil: there is none.
// note is told, for people, what the driver does, before it does it.
func (s *Set) Play(now falcon.Time, k tape.Kind, find func(id uint32) *Device, note func(what string)) {
	t := s.cfg.Tape
	number := uint32(t.Uint())
	if k == tape.Attach {
		s.sessions = number - 1
		f := find(uint32(t.Uint()))
		var is attached
		if t.Value(&is); f == nil {
			t.Differs("a driver gets a function that is not there")
		}
		note(fmt.Sprintf("%s gets a driver, %s", f.ID, is.Attached))
		b := s.Bind(&Binding{
			Peer: is.Peer, Attached: is.Attached, Driver: is.Driver, Features: is.Features, Memory: queues.NewWindowed(is.Window, nil), Channel: nobody{},
		}, func(error) {})
		if st := f.Attach(b); st != abi.StatusOK {
			t.Differs("a driver does not get function %s: %s", f.ID, st)
		}
		if s.played == nil {
			s.played = map[uint32]*Binding{}
		}
		s.played[b.number] = b
		return
	}
	b := s.played[number]
	if b == nil {
		if t.Skip() {
			return
		}
		t.Differs("a driver does something that has no function")
	}
	switch k {
	case tape.Leave:
		fault := playFault(t)
		note(b.says("leaves", fault))
		b.leave(now, fault)
		delete(s.played, b.number)
	case tape.Request:
		r := playRequest(t)
		note(b.says(r.describe(), nil))
		b.handle(now, &r)
	case tape.Listen:
		s.Listen(b, playedBell(t), func(error) {})
	case tape.Window:
		s.OpenEvents(b, playedBell(t))
	}
}

// List reads an event of a driver, and says what it did, for people. names holds the functions of
// drivers, by the drivers' numbers.
func List(t *tape.Tape, k tape.Kind, names map[uint64]string) string {
	number := t.Uint()
	if k == tape.Attach {
		name := pfvf.ID(t.Uint()).String()
		names[number] = "driver of " + name
		var is attached
		t.Value(&is)
		return fmt.Sprintf("%s gets a driver, %s", name, is.Attached)
	}
	name, known := names[number]
	if !known { // it came before what is left of the recording
		name = fmt.Sprintf("driver %d", number)
	}
	switch k {
	case tape.Request:
		r := playRequest(t)
		return name + " " + r.describe()
	case tape.Leave:
		if fault := playFault(t); fault != nil {
			return fmt.Sprintf("%s leaves: %s", name, fault)
		}
		return name + " leaves"
	}
	playedBell(t)
	return name + " uses a window"
}

// says describes what a driver does, and the fault that makes it do so.
func (b *Binding) says(what string, fault error) string {
	if fault != nil {
		what += ": " + fault.Error()
	}
	return fmt.Sprintf("driver of %s %s", b.device.ID, what)
}

// describe returns what a driver does by a request.
func (r *Request) describe() string {
	name := fmt.Sprintf("register %#x", r.Offset)
	if reg := abi.LookupRegister(r.Offset); reg != nil {
		name = reg.Name
	}
	switch r.Kind {
	case Ring:
		return fmt.Sprintf("rings %s %#x, index %d", r.Doorbell.Kind, r.Doorbell.Queue, r.Doorbell.Index)
	case RegRead:
		return "reads " + name
	case RegWrite:
		return fmt.Sprintf("writes %#x to %s", r.Value, name)
	}
	return "sets reserved bits"
}

// nobody is the channel of a driver that is played.
type nobody struct{}

func (nobody) CQEvent(uint32)                {}
func (nobody) AsyncEvent(*abi.AsyncEvent)    {}
func (nobody) DropObject(abi.Object, uint32) {}
func (nobody) Untaken() int                  { return 0 }
func (nobody) Reply(uint64, *abi.RegReply)   {}
func (nobody) Forget()                       {}
func (nobody) Flush() bool                   { return false }
func (nobody) End()                          {}

// tapedChannel adds what goes to a driver to the sums of what goes out, and passes through the
// tape how much of it the driver has not taken.
type tapedChannel struct {
	Channel
	t *tape.Tape
}

func (c tapedChannel) CQEvent(cqn uint32) {
	c.t.OutUint(tape.Messages, uint64(cqn))
	c.Channel.CQEvent(cqn)
}

func (c tapedChannel) AsyncEvent(e *abi.AsyncEvent) {
	c.t.OutUint(tape.Messages, uint64(e.Type)<<32|uint64(e.Number))
	c.t.OutUint(tape.Messages, uint64(e.Status))
	c.t.Out(tape.Messages, e.Priv[:e.PrivLen])
	c.Channel.AsyncEvent(e)
}

func (c tapedChannel) Reply(tag uint64, r *abi.RegReply) {
	c.t.OutUint(tape.Messages, tag)
	c.t.OutUint(tape.Messages, uint64(r.Status))
	c.t.OutUint(tape.Messages, r.Value)
	c.Channel.Reply(tag, r)
}

func (c tapedChannel) Untaken() int {
	return int(c.t.Number(tape.Untaken, uint64(c.Channel.Untaken())))
}

// tapeBell records that a driver uses a window, and returns the bell through the tape.
func (b *Binding) tapeBell(k tape.Kind, q queues.Bell) queues.Bell {
	t := b.set.cfg.Tape
	if t == nil {
		return q
	}
	irq, events := q.(queues.Interrupter)
	holder, admin := q.(queues.AdminHolder)
	w := tapedWindow{tapedBell{q, t, b.number}, irq, holder}
	if t.Event(k) {
		t.PutUint(uint64(b.number))
		fd := 0 // OpenEvents takes no doorbells
		if k == tape.Listen {
			fd = q.FD()
		}
		t.PutUint(uint64(fd))
		vectors := 0
		if events {
			vectors = 1 + len(irq.EventQueues())
		}
		t.PutUint(uint64(vectors))
		t.PutUint(map[bool]uint64{true: 1}[admin])
	}
	switch {
	case events && admin:
		return w
	case events:
		return tapedEvents{w.tapedBell, irq}
	}
	return w.tapedBell
}

func playedBell(t *tape.Tape) queues.Bell {
	b := silentBell{fd: int(t.Uint())}
	vectors, admin := t.Uint(), t.Uint() != 0
	b.vectors = int(min(vectors, maxVectors))
	switch {
	case b.vectors > 0 && admin:
		b.vectors--
		return silentWindow{b}
	case b.vectors > 0:
		b.vectors--
		return silentEvents{b}
	}
	return b
}

// maxVectors bounds the vectors that a tape may say a window has.
const maxVectors = 1 << 12

// tapedBell passes the records of a bell through the tape.
type tapedBell struct {
	queues.Bell
	t      *tape.Tape
	number uint32 // of the driver
}

func (b tapedBell) Take(to []byte) (n int, err error) {
	n, err = b.Bell.Take(to)
	if !b.t.Active() {
		return n, err
	}
	b.t.Place(b.number, 0, 0)
	b.t.Ask(tape.BellTake)
	n = int(min(b.t.Word(uint64(n)), uint64(len(to))))
	b.t.Copy(to[:n])
	return n, b.t.Error(err)
}

func (b tapedBell) Arm() (records bool, err error) {
	records, err = b.Bell.Arm()
	if !b.t.Active() {
		return records, err
	}
	records = b.t.Bool(tape.BellArm, records)
	return records, b.t.Error(err)
}

// tapedEvents is a bell with event queues.
type tapedEvents struct {
	tapedBell
	irq queues.Interrupter
}

func (e tapedEvents) EventQueues() (all []ring.Bytes) {
	for i, q := range e.irq.EventQueues() {
		all = append(all, tapedArea{q, e.t, e.number, 2 + uint64(i)})
	}
	return all
}

func (e tapedEvents) Interrupt(i int) { e.irq.Interrupt(i) }

// tapedWindow is a bell with event queues and admin queues.
type tapedWindow struct {
	tapedBell
	irq    queues.Interrupter
	holder queues.AdminHolder
}

func (w tapedWindow) EventQueues() []ring.Bytes { return tapedEvents{w.tapedBell, w.irq}.EventQueues() }

func (w tapedWindow) Interrupt(i int) { w.irq.Interrupt(i) }

func (w tapedWindow) AdminQueues() (sq, cq ring.Bytes) {
	sq, cq = w.holder.AdminQueues()
	return tapedArea{sq, w.t, w.number, 0}, tapedArea{cq, w.t, w.number, 1}
}

// tapedArea passes what an area of a window holds through the tape.
type tapedArea struct {
	ring.Bytes
	t      *tape.Tape
	number uint32 // of the driver
	index  uint64 // in the window
}

// place says where in which area an access is.
func (a tapedArea) place(off uint64) { a.t.Place(a.number, (a.index+1)<<32|off, 0) }

func (a tapedArea) ReadAt(off uint64, dst []byte) error {
	err := a.Bytes.ReadAt(off, dst)
	if !a.t.Active() {
		return err
	}
	a.place(off)
	a.t.Ask(tape.AreaRead)
	if err = a.t.Error(err); err == nil {
		a.t.Part(dst, len(dst))
	}
	return err
}

func (a tapedArea) WriteAt(off uint64, src []byte) error {
	err := a.Bytes.WriteAt(off, src)
	a.t.Out(tape.Writes, src)
	return a.wrote(off, err)
}

func (a tapedArea) wrote(off uint64, err error) error {
	if !a.t.Active() {
		return err
	}
	a.t.OutUint(tape.Writes, off)
	a.t.Ask(tape.AreaWrite)
	return a.t.Error(err)
}

func (a tapedArea) Load32(off uint64) (uint32, error) {
	v, err := a.Bytes.Load32(off)
	is, err := a.loaded(off, uint64(v), err)
	return uint32(is), err
}

func (a tapedArea) Load64(off uint64) (uint64, error) {
	v, err := a.Bytes.Load64(off)
	return a.loaded(off, v, err)
}

func (a tapedArea) loaded(off, v uint64, err error) (uint64, error) {
	if !a.t.Active() {
		return v, err
	}
	a.place(off)
	a.t.Ask(tape.AreaLoad)
	v = a.t.Word(v)
	return v, a.t.Error(err)
}

func (a tapedArea) Store32(off uint64, v uint32) error {
	a.t.OutUint(tape.Writes, uint64(v))
	return a.wrote(off, a.Bytes.Store32(off, v))
}

func (a tapedArea) Store64Release(off, v uint64) error {
	a.t.OutUint(tape.Writes, v)
	return a.wrote(off, a.Bytes.Store64Release(off, v))
}

// silentBell is the bell of a driver that is played.
type silentBell struct{ fd, vectors int }

func (b silentBell) FD() int                { return b.fd }
func (silentBell) Take([]byte) (int, error) { return 0, nil }
func (silentBell) Arm() (bool, error)       { return false, nil }
func (silentBell) Close()                   {}

type silentEvents struct{ silentBell }

func (e silentEvents) EventQueues() []ring.Bytes {
	all := make([]ring.Bytes, e.vectors)
	for i := range all {
		all[i] = silentArea{}
	}
	return all
}

func (silentEvents) Interrupt(int) {}

type silentWindow struct{ silentBell }

func (w silentWindow) EventQueues() []ring.Bytes { return silentEvents(w).EventQueues() }
func (silentWindow) Interrupt(int)               {}
func (silentWindow) AdminQueues() (sq, cq ring.Bytes) {
	return silentArea{}, silentArea{}
}

// silentArea is an area with nothing behind it.
type silentArea struct{}

func (silentArea) ReadAt(uint64, []byte) error         { return nil }
func (silentArea) WriteAt(uint64, []byte) error        { return nil }
func (silentArea) Load32(uint64) (uint32, error)       { return 0, nil }
func (silentArea) Store32(uint64, uint32) error        { return nil }
func (silentArea) Load64(uint64) (uint64, error)       { return 0, nil }
func (silentArea) Store64Release(uint64, uint64) error { return nil }
