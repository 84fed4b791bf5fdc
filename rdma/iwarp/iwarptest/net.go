package iwarptest

import (
	"math"
	"math/rand/v2"

	"github.com/falcon-vnic/vnic/internal/ring"
	"github.com/falcon-vnic/vnic/rdma/iwarp"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// T is a test, of package testing or of rapid.
type T interface {
	Helper()
	Error(args ...any)
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
}

// Never is when nothing happens any more.
const Never = transport.Time(math.MaxInt64)

// stream is one direction of a TCP connection in virtual time. It has all bytes arrive, in order, but
// late and cut anywhere, and takes only as many as it has room for.
type stream struct {
	rng      *rand.Rand
	delay    transport.Time // longest
	cut      int            // longest piece; 0: pieces are as they were written
	size     int            // bytes that are written and not acknowledged
	data     []byte         // what did not arrive is behind read
	read     int
	written  uint64
	arrived  uint64
	acked    uint64 // at the sender
	pieces   ring.Queue[mark]
	acks     ring.Queue[mark]
	fin      bool
	finished bool // the fin has arrived
}

// mark says how far a stream has come by a time.
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
		got := take(s.data[s.read:][:n])
		if s.read += got; s.read > len(s.data)/2 {
			s.data, s.read = s.data[:copy(s.data, s.data[s.read:])], 0
		}
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
	at := Never
	if s.pieces.Len() > 0 {
		at = s.pieces.At(0).at
	}
	if s.acks.Len() > 0 {
		at = min(at, s.acks.At(0).at)
	}
	return at
}

// Net is the engines of two NICs with connections between them.
type Net struct {
	Engines [2]*iwarp.Engine
	Sees    func(from int, b []byte) // all frames and FPDUs that are sent; nil: nobody

	t      T
	rng    *rand.Rand
	links  []*Link
	packet [1 << 16]byte
}

// Link is a connection. End 0 asked for it.
type Link struct {
	Conns    [2]*iwarp.Conn
	Settings [2]iwarp.Settings
	Events   [2][]iwarp.Event
	Rejects  bool // end 1 does

	streams [2]stream // from each
}

// Shape is how the streams of a connection behave.
type Shape struct {
	Delay transport.Time // longest
	Cut   int            // longest piece; 0: pieces are FPDUs
	Size  int            // bytes under way; 0: 256 KiB
	MSS   int            // 0: 1460
}

// New makes a network whose streams are cut by seed.
func New(t T, seed uint64) *Net {
	n := &Net{t: t, rng: rand.New(rand.NewPCG(seed, 7))}
	for i := range n.Engines {
		n.Engines[i] = iwarp.New()
		n.Engines[i].UseRandom([32]byte{byte(i), byte(seed)})
	}
	return n
}

// Usual returns the settings of an end that a test does not care about.
func Usual() iwarp.Settings { return iwarp.Settings{CRC: true, IRD: 16, ORD: 16} }

// Dial begins a connection.
func (n *Net) Dial(now transport.Time, s Shape, settings [2]iwarp.Settings) *Link {
	if s.MSS == 0 {
		s.MSS = 1460
	}
	if s.Size == 0 {
		s.Size = 1 << 18
	}
	l := &Link{Settings: settings}
	for i := range l.streams {
		l.streams[i] = stream{rng: n.rng, delay: s.Delay, cut: s.Cut, size: s.Size}
	}
	l.Conns[0] = n.Engines[0].Connect(now, s.MSS, &l.Settings[0])
	l.Conns[1] = n.Engines[1].Answer(now, s.MSS)
	for i, c := range l.Conns {
		c.Owner = end{l, i}
	}
	n.links = append(n.links, l)
	return l
}

// end is an end of a connection.
type end struct {
	link  *Link
	index int
}

// Connect makes a connection that both ends agree on.
func (n *Net) Connect(now transport.Time, s Shape, settings [2]iwarp.Settings) *Link {
	l := n.Dial(now, s, settings)
	for next := n.Step(now); len(l.Events[0]) == 0; next = n.Step(now) {
		if now = max(now, next); now == Never {
			n.t.Fatal("not connected")
		}
	}
	if l.Events[0][0] != iwarp.Established {
		n.t.Fatalf("not connected: events %v", l.Events)
	}
	return l
}

// Step does all that can be done at now, and returns when something happens next.
func (n *Net) Step(now transport.Time) (next transport.Time) {
	for busy := true; busy; {
		busy = false
		for _, l := range n.links {
			for i := range l.streams {
				busy = l.arrive(now, i) || busy
			}
		}
		for _, e := range n.Engines {
			e.Run(now)
			busy = n.transmit(now, e) || busy
			for c, what, ok := e.Next(); ok; c, what, ok = e.Next() {
				busy = true
				at := c.Owner.(end)
				at.link.happened(now, at.index, what)
			}
			busy = busy || e.Ready()
		}
	}
	next = min(n.Engines[0].Deadline(), n.Engines[1].Deadline())
	for _, l := range n.links {
		for i := range l.streams {
			if at := l.streams[i].next(); at > now { // what an end does not take yet waits
				next = min(next, at)
			}
		}
	}
	return next
}

// Settle lets time pass until nothing happens any more, and returns when that is.
func (n *Net) Settle(now transport.Time) transport.Time {
	for next := n.Step(now); next != Never; next = n.Step(now) {
		now = max(now, next)
	}
	return now
}

// transmit moves what an engine sends to the streams.
func (n *Net) transmit(now transport.Time, e *iwarp.Engine) (any bool) {
	for {
		k, c := e.Transmit(now, n.packet[:])
		if k == 0 {
			return any
		}
		any = true
		at := c.Owner.(end)
		if n.Sees != nil {
			n.Sees(at.index, n.packet[:k])
		}
		s := &at.link.streams[at.index]
		s.write(now, n.packet[:k])
		c.Room(s.room())
	}
}

// arrive delivers what has arrived of the stream from end i, and what was acknowledged.
func (l *Link) arrive(now transport.Time, i int) (any bool) {
	s, from, to := &l.streams[i], l.Conns[i], l.Conns[1-i]
	any = s.deliver(now, func(b []byte) int { return to.Receive(now, b) })
	if s.fin && !s.finished && s.pieces.Len() == 0 {
		s.finished, any = true, true
		to.PeerClosed(now)
	}
	for s.acks.Len() > 0 && s.acks.At(0).at <= now {
		s.acked, any = s.acks.Pop().to, true
		from.Acknowledged(now, s.acked)
	}
	from.Room(s.room())
	return any
}

func (l *Link) happened(now transport.Time, i int, what iwarp.Event) {
	l.Events[i] = append(l.Events[i], what)
	c := l.Conns[i]
	switch what {
	case iwarp.Requested:
		if l.Rejects {
			c.Reject(now, l.Settings[1].Private)
		} else {
			c.Accept(now, &l.Settings[1])
		}
	case iwarp.Finish:
		l.streams[i].fin = true
	case iwarp.Gone:
		if _, reset := c.Ending(); reset {
			l.Conns[1-i].Lost(now, "reset by the peer")
		}
	}
}
