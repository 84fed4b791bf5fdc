package rof

import (
	"cmp"
	"maps"
	"slices"

	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

const (
	LinkPatience       vtime.Time = 2e9  // that datagrams wait for a connection
	linkPauseMin       vtime.Time = 1e9  // between two attempts, doubled each time
	linkPauseMax       vtime.Time = 30e9 // at most
	linkIdleTime       vtime.Time = 30e9 // that a connection is kept without a handle
	passivePerFunction            = 8    // links that one function may open to another
	spareLinks                    = 64   // links without a handle that are kept, beyond those that the function may have
)

// Links holds the links of one function, which carry the datagrams of its address handles.
type Links struct {
	e      *Engine
	id     uint32 // of the function
	of     *verbs.Objects
	timers *verbs.Timers

	byKey   map[LinkKey]*Link
	passive map[*Link]struct{} // opened by peers
	serial  uint32             // of the next link
	held    int                // datagrams in the links' queues
	holding list.List[Link]    // links that hold datagrams; first the one whose destination was heard of longest ago
}

var _ verbs.Destinations = (*Links)(nil)

// NewLinks makes the links of function id, whose objects are of.
func (e *Engine) NewLinks(id uint32, of *verbs.Objects, timers *verbs.Timers) *Links {
	return &Links{e: e, id: id, of: of, timers: timers, byKey: map[LinkKey]*Link{}, passive: map[*Link]struct{}{}}
}

// NextLink removes and returns a link that wants a connection, nil if there is none. The caller
// must call its Open or Refused.
func (e *Engine) NextLink() *Link {
	for len(e.linksWanted) > 0 {
		l := e.linksWanted[0]
		e.linksWanted = e.linksWanted[:copy(e.linksWanted, e.linksWanted[1:])]
		if l.state == linkWanted && l.in.of.Working() {
			return l
		}
	}
	return nil
}

// Each calls f for each link that address handles may use.
func (s *Links) Each(f func(*Link)) {
	for _, l := range s.byKey {
		f(l)
	}
}

// Find returns the link with that key, nil if there is none.
func (s *Links) Find(key LinkKey) *Link { return s.byKey[key] }

// Len returns the number of links for handles, Held the number of datagrams that all links hold.
func (s *Links) Len() int  { return len(s.byKey) }
func (s *Links) Held() int { return s.held }

// To implements verbs.Destinations.
func (s *Links) To(to *verbs.Address, ordered bool) verbs.Destination {
	key := LinkKey{GID: to.GID, SGID: to.SGID, TrafficClass: to.TrafficClass, HopLimit: to.HopLimit, Ordered: ordered}
	l := s.byKey[key]
	if l == nil {
		l = s.newLink(key)
		s.byKey[key] = l
	}
	if l.handles == 0 && l.conn == nil {
		l.flow = to.FlowLabel
	}
	if l.handles++; l.handles == 1 && l.state == linkOpen {
		s.timers.Stop(&l.timer)
	}
	return l
}

func (s *Links) newLink(key LinkKey) *Link {
	l := &Link{in: s, to: key, pause: linkPauseMin, serial: s.serial}
	s.serial++
	return l
}

// Accept returns a passive link for the connection that function from asks for, nil if there are
// too many.
func (s *Links) Accept(key LinkKey, from uint32) *Link {
	n := 0
	for l := range s.passive {
		if l.from == from {
			n++
		}
	}
	if !s.of.Working() || n >= passivePerFunction || len(s.passive) >= s.of.Limits().Links {
		return nil
	}
	l := s.byKey[key]
	if l == nil || l.state == linkOpen || l.state == linkWanted {
		l = s.newLink(key)
		if s.byKey[key] == nil {
			s.byKey[key] = l
		}
	}
	l.passive, l.from = true, from
	s.passive[l] = struct{}{}
	return l
}

// Close ends all links together with the function. They are closed in the order they were made, so
// that a run is reproducible from a seed.
func (s *Links) Close(now vtime.Time) {
	all := slices.Collect(maps.Values(s.byKey))
	for l := range s.passive {
		if s.byKey[l.to] != l {
			all = append(all, l)
		}
	}
	slices.SortFunc(all, func(a, b *Link) int { return cmp.Compare(a.serial, b.serial) })
	for _, l := range all {
		l.handles = 0
		l.close(now)
	}
	clear(s.byKey)
}

// Link carries the datagrams between a function and one other function, for all their UD queue
// pairs of one ordering. One queue pair may use many links, and the reverse (RDMA over Falcon
// §6.6.3); an address handle selects the links. When a handle is created, or at the first send, the
// link asks the device for its connection. Until it opens, datagrams wait in the link for a short
// while.
//
//	        Want                Open
//	idle ─────────▶ wanted ───────────▶ open
//	 ▲                 │ Refused,         │ the peer closed it, or it was lost,
//	 │ later           ▼ or too long      │ or no handle names it for a while
//	 └───────────── refused ◀─────────────┘ idle
//
// While a link is refused, its datagrams are lost, like those to an address where nobody is. When
// another function opens a link, this function gets a passive link. The number of passive links is
// limited, and the function's own handles use them if they fit.
type Link struct {
	in      *Links
	to      LinkKey
	own     [16]byte // our address on its connection
	state   linkState
	passive bool   // the peer opened it
	from    uint32 // passive: the function that opened it
	handles int    // number of handles that use it
	flow    uint32 // flow label of the first handle
	timer   timer.Handle
	pause   vtime.Time // before the next attempt
	serial  uint32     // of the function's links

	conn    *datagramConn // nil unless the link is open
	queue   queue
	holding list.Node[Link] // in Links.holding
}

// LinkKey identifies a link of a function, by the headers that its datagrams have.
type LinkKey struct {
	GID          [16]byte // of the other function
	SGID         [16]byte // of ours
	TrafficClass uint8
	HopLimit     uint8
	Ordered      bool // datagrams of strongly ordered queue pairs arrive in the order sent (RDMA over Falcon §6.4)
}

type linkState uint8

const (
	linkIdle linkState = iota
	linkWanted
	linkOpen
	linkRefused
)

// Key returns the key of the link.
func (l *Link) Key() LinkKey { return l.to }

// FlowLabel returns the flow label that the link's first handle asked for. All datagrams of the
// link take one path.
func (l *Link) FlowLabel() uint32 { return l.flow }

// Handles returns the number of address handles that use the link.
func (l *Link) Handles() int { return l.handles }

// Function returns the number of the function that the link belongs to.
func (l *Link) Function() uint32 { return l.in.id }

// Passive reports whether the peer opened the link.
func (l *Link) Passive() bool { return l.passive }

// Connected reports whether the link has a connection.
func (l *Link) Connected() bool { return l.conn != nil }

// Want implements verbs.Destination: it asks the device for the connection.
func (l *Link) Want(now vtime.Time) {
	if l.state != linkIdle {
		return
	}
	l.state, l.queue.stalled = linkWanted, false
	l.in.timers.Set(&l.timer, l, now+LinkPatience)
	l.in.e.linksWanted = append(l.in.e.linksWanted, l)
}

// Open gives the link its connection, over a pipe that has not delivered anything yet. own is the
// function's address on that connection.
func (l *Link) Open(now vtime.Time, pipe Pipe, own [16]byte) {
	l.state, l.own, l.pause = linkOpen, own, linkPauseMin
	l.conn = newDatagramConn(l, pipe)
	l.in.timers.Stop(&l.timer)
	l.rest(now)
	l.resume(now)
}

// Refused reports that no connection can be had now. Sends are lost until the next attempt.
func (l *Link) Refused(now vtime.Time) {
	if l.state == linkOpen {
		return // too late
	}
	l.lose()
	if l.passive && l.handles == 0 {
		l.remove()
		return
	}
	l.state = linkRefused
	l.in.timers.Set(&l.timer, l, now+l.pause)
	l.pause = min(2*l.pause, linkPauseMax)
	l.wake()
}

// Disconnected closes a connection that the peer has ended or that has been lost.
func (l *Link) Disconnected(now vtime.Time) {
	if l.conn == nil {
		return
	}
	l.close(now)
	l.in.of.Settle(now)
}

// Owns reports whether the link has the connection over pipe.
func (l *Link) Owns(pipe Pipe) bool { return l.conn != nil && l.conn.pipe == pipe }

// Leave implements verbs.Destination. The link is kept for a while, because another handle may soon
// use it. The number of unused links is limited, in case a function makes and destroys handles
// faster than links expire.
func (l *Link) Leave(now vtime.Time) {
	in := l.in
	l.handles--
	if l.handles == 0 && !l.passive && len(in.byKey) > 2*in.of.Counts()[abi.ObjectAH]+in.of.Limits().Links+spareLinks {
		l.close(now)
		return
	}
	l.rest(now)
}

// rest starts the timer that closes a link without handles. A passive link is closed by the peer.
func (l *Link) rest(now vtime.Time) {
	if l.handles == 0 && !l.passive && l.state != linkWanted {
		l.in.timers.Set(&l.timer, l, now+linkIdleTime)
	}
}

// Due handles the timer of the link, whose meaning depends on the state.
func (l *Link) Due(now vtime.Time) {
	switch {
	case l.state == linkWanted:
		l.Refused(now)
	case l.handles == 0 && !l.passive:
		l.close(now)
	case l.state == linkRefused:
		l.state = linkIdle
	}
}

// close ends the connection. Datagrams in flight complete as lost.
func (l *Link) close(now vtime.Time) {
	c := l.conn
	l.conn, l.state, l.passive = nil, linkIdle, false
	delete(l.in.passive, l)
	l.in.timers.Stop(&l.timer)
	l.in.timers.Stop(&l.queue.patience)
	l.lose()
	if c != nil {
		c.close(now)
	}
	if l.handles == 0 {
		l.remove()
	}
	l.wake()
}

// remove removes a link that nobody uses.
func (l *Link) remove() {
	l.in.timers.Stop(&l.timer)
	delete(l.in.passive, l)
	if l.in.byKey[l.to] == l {
		delete(l.in.byKey, l.to)
	}
}
