package guest

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Features are those that the device offers.
const Features uint64 = abi.FeatureEventIndex | abi.FeatureExtendedVerbs | abi.FeatureDatagrams | abi.FeatureArmWord | abi.FeatureSourceMAC | abi.FeatureVectors | abi.FeatureFunctionEvents | abi.FeatureVFCommands

// Guest is whose driver it is, as the attachment vouches for it, and its memory. A queues.Session
// is one; so is anything else that has memory. One that is a queues.Ringer too may ring and be
// interrupted by shared memory.
type Guest interface {
	Peer() queues.Peer
	// Watch is that of queues.Session.
	Watch(f func(queues.Regions)) (stop func())
}

// Key tells guests apart, so that one cannot take the sessions of others.
type Key struct {
	Attachment string // its address
	CID        uint32
}

// Desk is where sessions get functions: a NIC. Any goroutine but its shards' may call its methods.
type Desk interface {
	// Find returns the shard of the function that a driver asks for by number, and the number to
	// ask it for: where the driver leaves the choice, that of a function of its own that is free,
	// if any.
	Find(number uint32, attachment string, p queues.Peer) (Home, uint32)
	// MemoryIs says how much memory the guest of a session has; 0: the session has ended.
	MemoryIs(s *Session, bytes uint64)
}

// Home is where functions are: a shard. Any goroutine but the shard's may call its methods; the
// functions that it is given run on the shard's thread.
type Home interface {
	// Do runs f on the shard's thread. It fails, without f having run, when the shard has stopped.
	Do(f func(now falcon.Time)) error
	// Post has the shard drain what a driver asks. It reports false when the shard has stopped.
	Post(m *Mailbox) bool
	// Guests is the shard's set.
	Guests() *Set
	// Attach gives b the function that its driver asks for by number. If there is none for it, it
	// says why. It is called on the shard's thread.
	Attach(b *Binding, number uint32) (*Function, abi.Status, string)
}

// Refusal is a hello that is answered with a status.
type Refusal struct {
	Status abi.Status
	Why    string
}

func (r *Refusal) Error() string { return fmt.Sprintf("%s: %s", r.Status, r.Why) }

// Breach is how a guest broke the rules of its channel, which ends it.
type Breach struct {
	Clause abi.Clause
	Bytes  []byte
	error
}

// Broken returns a Breach.
func Broken(clause abi.Clause, b []byte, err error) *Breach { return &Breach{clause, b, err} }

// Session is a driver with its function, from its hello until it leaves, whatever carries its
// messages. Its carrier opens it, puts what the driver asks, and closes it.
type Session struct {
	From Key

	desk    Desk
	home    Home
	guest   Guest
	in      *Mailbox
	b       *Binding
	f       *Function
	unwatch func()
	bell    queues.Bell           // nil: doorbells are messages only
	fault   atomic.Pointer[error] // how the guest broke the rules of shared memory
}

// Open gives a driver that says hello its function, with its guest's memory. ch carries what the
// driver is told. The error is a *Refusal where the driver is to blame. After an error the function
// is as it was.
func Open(desk Desk, g Guest, from Key, attachment string, m *abi.Hello, ch Channel) (*Session, error) {
	if m.Major != abi.VersionMajor {
		return nil, &Refusal{abi.StatusVersionMismatch, fmt.Sprintf("driver speaks version %d, device %d", m.Major, abi.VersionMajor)}
	}
	number, no := chosen(g, m.Function)
	if no != nil {
		return nil, no
	}
	home, number := desk.Find(number, attachment, g.Peer())
	s := &Session{From: from, desk: desk, home: home, guest: g}
	s.b = home.Guests().Bind(&Binding{
		Peer: g.Peer(), Attached: attachment, Driver: abi.Text(m.Driver[:]), Features: m.Features & Features, Channel: ch,
	}, s.breach)
	s.in = NewMailbox(func() bool { return home.Post(s.in) }, s.b.handle)
	var st abi.Status
	var why string
	if err := home.Do(func(falcon.Time) { s.f, st, why = home.Attach(s.b, number) }); err != nil {
		return nil, err
	}
	if st != abi.StatusOK {
		return nil, &Refusal{st, why}
	}
	s.unwatch = g.Watch(s.memory)
	if err := s.listen(); err != nil { // before the answer: the driver may ring then
		s.Close(nil)
		return nil, err
	}
	return s, nil
}

// chosen is the function that a driver gets which asks for one: who came by a function's own device
// gets that. A host number of 0 is this NIC's.
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

// memory takes over what the guest's memory is.
func (s *Session) memory(regions queues.Regions) {
	s.desk.MemoryIs(s, regions.Bytes())
	// After the shard has stopped nothing uses the memory.
	_ = s.home.Do(func(falcon.Time) { s.b.Memory.Use(regions) })
}

// listen lets the shard take doorbells by shared memory too, if the guest can.
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
	stopped := s.home.Do(func(falcon.Time) { s.home.Guests().Listen(s.b, bell, s.deaf) })
	return errors.Join(stopped, s.Fault())
}

// deaf is called when the shard's thread cannot wait for the guest's bell.
func (s *Session) deaf(err error) {
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

// Guest says who drives the function, for logs.
func (s *Session) Guest() string { return Name(s.b.Peer) }

// Function is the number of the driver's function.
func (s *Session) Function() uint32 { return uint32(s.f.ID) }

// Features are those in use.
func (s *Session) Features() uint64 { return s.b.Features }

// Driver is what the driver calls itself.
func (s *Session) Driver() string { return s.b.Driver }

// Name is the function's name, for logs.
func (s *Session) Name() string { return s.f.ID.String() }

// Split is a seed by which messages to the driver are to be cut in pieces; 0: they are not.
func (s *Session) Split() uint64 { return s.f.Faults.split.Load() }

// Put hands on what the driver asks, waiting for room. It reports false when the session is over.
func (s *Session) Put(r Request) bool { return s.in.Put(r) }

// Close takes the function away from its driver, which may have broken the rules. The device does
// not touch the guest's memory after that. It returns how the driver did, there or in shared
// memory; that stays readable until the next session.
func (s *Session) Close(fault error) error {
	s.in.Close()
	if fault == nil {
		fault = s.Fault()
	}
	_ = s.home.Do(func(now falcon.Time) { s.b.leave(now, fault) })
	if s.bell != nil {
		s.bell.Close()
	}
	s.unwatch()
	s.desk.MemoryIs(s, 0)
	return fault
}

// breach ends the session from the shard's side.
func (s *Session) breach(err error) {
	s.fault.Store(&err)
	s.b.End()
}
