package guest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/falcon-vnic/vnic/device/inbox"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Features holds the features that the device offers to every function. Those that use one wire alone
// may have others, too (Settings.WireKind).
const Features uint64 = abi.FeatureEventIndex | abi.FeatureExtendedVerbs | abi.FeatureDatagrams | abi.FeatureArmWord | abi.FeatureSourceMAC | abi.FeatureVectors | abi.FeatureFunctionEvents | abi.FeatureVFCommands

// Guest identifies a driver, as the attachment vouches for it, and gives access to its memory. A
// queues.Session is one; so is anything else that has memory. A Guest that is also a queues.Ringer
// may use doorbells and interrupts in shared memory.
type Guest interface {
	Identity() queues.Identity
	// Watch works like queues.Session's.
	Watch(f func(queues.Regions)) (stop func())
}

// Key identifies a guest, so that one guest cannot use up the sessions of others.
type Key struct {
	Attachment string // its address
	CID        uint32
}

// NIC gives sessions their functions: it is a NIC. Any goroutine but its shards' may call its
// methods.
type NIC interface {
	// Find returns the shard of the function that a driver asks for, and the function's number.
	// Where the driver leaves the choice, that is a free function meant for this driver, if there
	// is one.
	Find(number uint32, attachment string, p queues.Identity) (Shard, uint32)
	// SetMemory records how much memory the guest of a session has; 0: the session has ended.
	SetMemory(s *Session, bytes uint64)
}

// Shard is a shard, which has functions. Any goroutine but the shard's may call its methods;
// functions passed to them run on the shard's thread.
type Shard interface {
	// Do runs f on the shard's thread. If the shard has stopped, it returns an error without
	// calling f.
	Do(f func(now falcon.Time)) error
	// Inbox returns the shard's inbox.
	Inbox() *inbox.Box
	// Guests returns the shard's set.
	Guests() *Set
	// Attach gives b the function that its driver asks for by number. If there is none for it, it
	// returns the reason. It is called on the shard's thread.
	Attach(b *Binding, number uint32) (*Device, abi.Status, string)
}

// Refusal is the error for a hello that is answered with a status.
type Refusal struct {
	Status abi.Status
	Why    string
}

func (r *Refusal) Error() string { return fmt.Sprintf("%s: %s", r.Status, r.Why) }

// Breach says how a guest broke the rules of its channel, which ends the channel.
type Breach struct {
	Clause abi.Clause
	Bytes  []byte
	error
}

// Broken returns a Breach.
func Broken(clause abi.Clause, b []byte, err error) *Breach { return &Breach{clause, b, err} }

// maxRequests is the most requests of one session that may wait for the shard. A driver that rings
// faster than the shard works waits in its own channel.
const maxRequests = 256

// leaveTime is how long a hello waits for a function that another driver has. If that driver was
// killed, the end of its stream is read about now: streams are read side by side.
const leaveTime = 300 * time.Millisecond

// Session connects a driver with its function, from its hello until it leaves.
// Its channel opens it, puts the driver's requests into it, and closes it.
type Session struct {
	From Key

	nic     NIC
	shard   Shard
	guest   Guest
	in      *inbox.Mailbox[Request]
	b       *Binding
	f       *Device
	unwatch func()
	bell    queues.Bell           // nil: doorbells come only as messages
	fault   atomic.Pointer[error] // how the guest broke the rules of shared memory
}

// Open gives a driver that says hello its function, with its guest's memory. ch carries the
// messages to the driver. The error is a *Refusal if the driver is to blame. After an error the
// function is unchanged. When ctx ends, Open does not wait for the function any more.
func Open(ctx context.Context, nic NIC, g Guest, from Key, attachment string, m *abi.Hello, ch Channel) (*Session, error) {
	if m.Major != abi.VersionMajor {
		return nil, &Refusal{abi.StatusVersionMismatch, fmt.Sprintf("driver speaks version %d, device %d", m.Major, abi.VersionMajor)}
	}
	number, no := chosen(g, m.Function)
	if no != nil {
		return nil, no
	}
	shard, number := nic.Find(number, attachment, g.Identity())
	s := &Session{From: from, nic: nic, shard: shard, guest: g}
	s.b = shard.Guests().Bind(&Binding{
		Peer: g.Identity(), Attached: attachment, Driver: abi.Text(m.Driver[:]), Features: m.Features, Channel: ch,
	}, s.breach)
	s.in = inbox.NewMailbox(shard.Inbox(), maxRequests, s.b.handle)
	s.in.Merge = mergeDoorbell
	var err error
	if s.f, err = attach(ctx, shard, s.b, number); err != nil {
		return nil, err
	}
	s.unwatch = g.Watch(s.memory)
	if err = s.listen(); err != nil { // before the answer: the driver may ring after that
		s.Close(nil)
		return nil, err
	}
	return s, nil
}

// attach gives b the function that its driver asks for. It waits for a driver that is leaving, and
// asks the shard seldom: a guest may have many channels that wait.
func attach(ctx context.Context, shard Shard, b *Binding, number uint32) (f *Device, err error) {
	var st abi.Status
	var why string
	for pause := leaveTime / 128; ; pause *= 2 {
		if err := shard.Do(func(falcon.Time) { f, st, why = shard.Attach(b, number) }); err != nil {
			return nil, err
		}
		switch {
		case st == abi.StatusOK:
			return f, nil
		case st != abi.StatusBusy || pause > leaveTime/2:
			return nil, &Refusal{st, why}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, errors.New("its channel was ended while it waited for its function")
		}
	}
}

// chosen returns the number of the function that a driver asks for. A driver that came by a
// function's own device gets that function only. A host number of 0 means this NIC.
func chosen(g Guest, asked uint32) (uint32, *Refusal) {
	b, ok := g.(queues.Bound)
	if !ok {
		return asked, nil
	}
	own := b.Function()
	const host = 0xff << 16
	if asked == abi.FunctionAssigned || asked == own || asked&host == 0 && asked == own&^host {
		return own, nil
	}
	return 0, &Refusal{abi.StatusDenied, fmt.Sprintf("this device is function %#x, not %#x", own, asked)}
}

// memory takes over a change of the guest's memory.
func (s *Session) memory(regions queues.Regions) {
	s.nic.SetMemory(s, regions.Bytes())
	// Nothing uses the memory after the shard has stopped.
	_ = s.shard.Do(func(falcon.Time) { s.b.Memory.Use(regions) })
}

// listen makes the shard take doorbells from shared memory too, if the guest supports it.
func (s *Session) listen() error {
	r, ok := s.guest.(queues.Ringer)
	if !ok {
		return nil
	}
	bell, err := r.Bell(s.Function())
	if bell == nil || err != nil {
		return err
	}
	s.bell = bell
	stopped := s.shard.Do(func(falcon.Time) { s.shard.Guests().Listen(s.b, bell, s.bellFailed) })
	return errors.Join(stopped, s.Fault())
}

// bellFailed is called when the shard's thread cannot wait for the guest's bell.
func (s *Session) bellFailed(err error) {
	err = fmt.Errorf("bell of %s: %w", s.Name(), err)
	s.fault.Store(&err)
	s.b.Channel.End()
}

// Fault says how the driver broke the rules of shared memory, nil if it did not.
func (s *Session) Fault() error {
	if err := s.fault.Load(); err != nil {
		return *err
	}
	return nil
}

// Guest describes the function's driver, for logs.
func (s *Session) Guest() string { return Name(s.b.Peer) }

// Function returns the number of the driver's function.
func (s *Session) Function() uint32 { return uint32(s.f.ID) }

// Features returns the features in use.
func (s *Session) Features() uint64 { return s.b.Features }

// Driver returns the name that the driver gives itself.
func (s *Session) Driver() string { return s.b.Driver }

// Name returns the function's name, for logs.
func (s *Session) Name() string { return s.f.ID.String() }

// Split returns a seed for cutting messages to the driver in pieces; 0: they are not cut.
func (s *Session) Split() uint64 { return s.f.Faults.split.Load() }

// Put passes a request on. It waits for room, and returns false when the session is over.
func (s *Session) Put(r Request) bool { return s.in.Put(r) }

// Close takes the function from its driver. fault says how the driver broke the rules on its
// channel, nil if it did not. After Close the device does not touch the guest's memory. Close
// returns fault or, if that is nil, how the driver broke the rules of shared memory; that stays
// readable until the next session.
func (s *Session) Close(fault error) error {
	s.in.Close()
	if fault == nil {
		fault = s.Fault()
	}
	_ = s.shard.Do(func(now falcon.Time) { s.b.leave(now, fault) })
	if s.bell != nil {
		s.bell.Close()
	}
	s.unwatch()
	s.nic.SetMemory(s, 0)
	return fault
}

// breach ends the session from the shard's side.
func (s *Session) breach(err error) {
	s.fault.Store(&err)
	s.b.End()
}

// Channel sends one driver its control messages (docs/abi §2), over a byte stream (Stream) or
// another way. The driver's requests go the other way, through a Session.
//
// All methods but End are called on the shard's thread. None waits for the driver, and only Flush
// does I/O.
type Channel interface {
	// CQEvent queues an event of a completion queue. Events of the same queue that the driver has
	// not taken yet are merged into one.
	CQEvent(cqn uint32)
	// AsyncEvent queues an asynchronous event. None is lost.
	AsyncEvent(e *abi.AsyncEvent)
	// DropObject drops the waiting events about an object, which was destroyed.
	DropObject(kind abi.Object, number uint32)
	// Untaken returns the number of events that the driver has not taken, without those of
	// completion queues.
	Untaken() int
	// Reply answers the register access with that tag.
	Reply(tag uint64, r *abi.RegReply)
	// Forget drops the waiting events: the function was reset, and its objects are gone.
	Forget()
	// Flush sends what was queued since the last Flush. It reports whether it woke a goroutine for
	// that.
	Flush() (woke bool)
	// End ends the session from the device's side: the channel closes the Session soon after. Any
	// goroutine may call it.
	End()
}

// How long a guest may take to send its first message, and to read the last.
const (
	HelloTimeout = 10 * time.Second
	finalTimeout = 2 * time.Second
)

// Served is a control channel that is being served, as Sessions sees it.
type Served interface {
	// Expect sets the time that the driver has for its hello.
	Expect(d time.Duration)
	// Drop ends a channel whose driver has no function.
	Drop()
	// End ends the channel in an orderly way.
	End()
}

// Sessions holds the control channels that are being served, each by its own goroutine.
type Sessions struct {
	HelloTimeout time.Duration // for a guest's first message

	mu   sync.Mutex
	open map[Served]*servedChannel
	last uint64 // number of the newest channel
	end  bool
	wg   sync.WaitGroup
}

// servedChannel describes one of them.
type servedChannel struct {
	Key
	number   uint64 // in the order of arrival
	greeted  bool   // it has a function
	replaced bool   // ended to make room; it is served until it has really ended
}

// Start serves c in a goroutine of its own. It returns false if the guest has limit channels
// already or all are being closed. At the limit, the oldest channel without a function is ended to
// make room: an honest driver says hello at once. Of channels ended so, no more than limit may still
// be on their way out, so that a guest never has more than twice its limit.
func (s *Sessions) Start(c Served, from Key, limit int, serve func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept, ending := s.count(from)
	if s.end || kept >= limit && (ending >= limit || !s.makeRoom(from)) {
		return false
	}
	if s.open == nil {
		s.open = map[Served]*servedChannel{}
	}
	s.last++
	s.open[c] = &servedChannel{Key: from, number: s.last}
	c.Expect(s.HelloTimeout) // before it can be ended to make room
	s.wg.Go(func() {
		defer func() {
			s.mu.Lock()
			delete(s.open, c)
			s.mu.Unlock()
		}()
		serve()
	})
	return true
}

// count returns how many channels a guest has, and how many more were ended to make room.
func (s *Sessions) count(from Key) (kept, ending int) {
	for _, o := range s.open {
		switch {
		case o.Key != from:
		case o.replaced:
			ending++
		default:
			kept++
		}
	}
	return kept, ending
}

// makeRoom ends the oldest of a guest's channels that have no function, if there is one.
func (s *Sessions) makeRoom(from Key) bool {
	var oldest Served
	for c, o := range s.open {
		if o.Key == from && !o.greeted && !o.replaced && (oldest == nil || o.number < s.open[oldest].number) {
			oldest = c
		}
	}
	if oldest == nil {
		return false
	}
	s.open[oldest].replaced = true
	oldest.Drop()
	return true
}

// greet records that a channel's driver has its function. It returns false if the channel was already
// ended to make room.
func (s *Sessions) greet(c Served) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.open[c]
	if o == nil || o.replaced {
		return o == nil
	}
	o.greeted = true
	return true
}

// CloseAll ends all sessions and waits for them. Each channel ends after the device has released
// the guest's memory.
func (s *Sessions) CloseAll() {
	s.mu.Lock()
	s.end = true
	for c := range s.open {
		c.End()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// Begun returns how many channels were served so far.
func (s *Sessions) Begun() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}
