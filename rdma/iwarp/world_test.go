package iwarp_test

import (
	"math"
	"math/rand/v2"

	"github.com/falcon-vnic/vnic/internal/ring"
	"github.com/falcon-vnic/vnic/rdma/iwarp"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// tester is a test, of package testing or of rapid.
type tester interface {
	Helper()
	Error(args ...any)
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
}

const never = transport.Time(math.MaxInt64)

// stream is one direction of a TCP connection in virtual time. It has all bytes arrive, in order, but
// late and cut anywhere, and takes only as many as it has room for.
type stream struct {
	rng      *rand.Rand
	delay    transport.Time // longest
	cut      int            // longest piece; 0: pieces are as they were written
	size     int            // bytes that are written and not acknowledged
	data     []byte         // behind what arrived
	written  uint64
	arrived  uint64
	acked    uint64 // at the sender
	pieces   ring.Queue[mark]
	acks     ring.Queue[mark]
	fin      bool
	finished bool // the fin has arrived
}

// mark is a time up to which something gets.
type mark struct {
	at transport.Time
	to uint64
}

func (s *stream) later(now transport.Time, q *ring.Queue[mark]) transport.Time {
	at := now
	if s.delay > 0 {
		at += transport.Time(s.rng.Int64N(int64(s.delay)))
	}
	if n := q.Len(); n > 0 {
		at = max(at, q.At(n-1).at)
	}
	return at
}

func (s *stream) room() int { return s.size - int(s.written-s.acked) }

func (s *stream) write(now transport.Time, b []byte) {
	s.data = append(s.data, b...)
	for len(b) > 0 {
		n := len(b)
		if s.cut > 0 {
			n = 1 + s.rng.IntN(min(n, s.cut))
		}
		b = b[n:]
		s.written += uint64(n)
		at := s.later(now, &s.pieces)
		*s.pieces.Push() = mark{at, s.written}
	}
}

// deliver gives take what has arrived by now.
func (s *stream) deliver(now transport.Time, take func([]byte) int) (any bool) {
	for s.pieces.Len() > 0 && s.pieces.At(0).at <= now {
		n := int(s.pieces.At(0).to - s.arrived)
		got := take(s.data[:n])
		s.data = s.data[:copy(s.data, s.data[got:])]
		if s.arrived += uint64(got); got < n {
			return any
		}
		any = true
		s.pieces.Pop()
		at := s.later(now, &s.acks)
		*s.acks.Push() = mark{at, s.arrived}
	}
	return any
}

func (s *stream) next() transport.Time {
	at := never
	if s.pieces.Len() > 0 {
		at = s.pieces.At(0).at
	}
	if s.acks.Len() > 0 {
		at = min(at, s.acks.At(0).at)
	}
	return at
}

// world is two NICs with connections between them.
type world struct {
	t       tester
	rng     *rand.Rand
	engines [2]*iwarp.Engine
	links   []*link
	packet  [1 << 16]byte
	sees    func(from int, b []byte) // all that is sent
}

// link is a connection: end 0 asked for it.
type link struct {
	conns    [2]*iwarp.Conn
	streams  [2]stream // from each
	settings [2]iwarp.Settings
	events   [2][]iwarp.Event
	rejects  bool // end 1 does
	patient  bool // end 1 accepts later
}

// shape is how a stream behaves.
type shape struct {
	delay transport.Time
	cut   int
	size  int
	mss   int
}

func newWorld(t tester, seed uint64) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 7))}
	for i := range w.engines {
		w.engines[i] = iwarp.New()
		w.engines[i].UseRandom([32]byte{byte(i), byte(seed)})
	}
	return w
}

// usual are the settings of an end that a test does not care about.
func usual() iwarp.Settings { return iwarp.Settings{CRC: true, IRD: 16, ORD: 16} }

// connect opens a connection that both ends agree on.
func (w *world) connect(now transport.Time, s shape, settings [2]iwarp.Settings) *link {
	l := w.dial(now, s, settings)
	for next := w.step(now); !l.established(); next = w.step(now) {
		if now = max(now, next); now == never {
			w.t.Fatal("not connected")
		}
	}
	return l
}

func (l *link) established() bool {
	return len(l.events[0]) > 0 && l.events[0][0] == iwarp.Established
}

// dial begins a connection.
func (w *world) dial(now transport.Time, s shape, settings [2]iwarp.Settings) *link {
	if s.mss == 0 {
		s.mss = 1460
	}
	if s.size == 0 {
		s.size = 1 << 18
	}
	l := &link{settings: settings}
	for i := range l.streams {
		l.streams[i] = stream{rng: w.rng, delay: s.delay, cut: s.cut, size: s.size}
	}
	l.conns[0] = w.engines[0].Connect(now, s.mss, &l.settings[0])
	l.conns[1] = w.engines[1].Answer(now, s.mss)
	for i, c := range l.conns {
		c.Owner = i
	}
	w.links = append(w.links, l)
	return l
}

func (w *world) of(c *iwarp.Conn) (*link, int) {
	for _, l := range w.links {
		if i := c.Owner.(int); l.conns[i] == c {
			return l, i
		}
	}
	w.t.Fatal("a connection of nobody")
	return nil, 0
}

// step does all that can be done at now, and returns when something happens next.
func (w *world) step(now transport.Time) (next transport.Time) {
	for busy := true; busy; {
		busy = false
		next = never
		for _, l := range w.links {
			for i := range l.streams {
				s, c := &l.streams[i], l.conns[1-i]
				busy = s.deliver(now, func(b []byte) int { return c.Receive(now, b) }) || busy
				if s.fin && !s.finished && s.pieces.Len() == 0 {
					s.finished, busy = true, true
					c.PeerClosed(now)
				}
				for s.acks.Len() > 0 && s.acks.At(0).at <= now {
					s.acked = s.acks.Pop().to
					l.conns[i].Acknowledged(now, s.acked)
					busy = true
				}
				l.conns[i].Room(s.room())
			}
		}
		for i, e := range w.engines {
			e.Run(now)
			for n, c := e.Transmit(now, w.packet[:]); n > 0; n, c = e.Transmit(now, w.packet[:]) {
				busy = true
				l, from := w.of(c)
				if w.sees != nil {
					w.sees(from, w.packet[:n])
				}
				l.streams[i].write(now, w.packet[:n])
				c.Room(l.streams[i].room())
			}
			for c, what, ok := e.Next(); ok; c, what, ok = e.Next() {
				busy = true
				w.happened(now, c, what)
			}
			busy = busy || e.Ready()
			next = min(next, e.Deadline())
		}
		for _, l := range w.links {
			for i := range l.streams {
				if s := &l.streams[i]; s.next() > now { // what an end does not take yet waits
					next = min(next, s.next())
				}
			}
		}
	}
	return next
}

func (w *world) happened(now transport.Time, c *iwarp.Conn, what iwarp.Event) {
	l, i := w.of(c)
	l.events[i] = append(l.events[i], what)
	switch what {
	case iwarp.Requested:
		switch {
		case l.patient:
		case l.rejects:
			c.Reject(now, l.settings[1].Private)
		default:
			c.Accept(now, &l.settings[1])
		}
	case iwarp.Finish:
		l.streams[i].fin = true
	case iwarp.Gone:
		if _, reset := c.Ending(); reset {
			l.conns[1-i].Lost(now, "reset by the peer")
		}
	}
}
