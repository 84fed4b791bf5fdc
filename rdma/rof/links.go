package rof

import (
	"cmp"
	"maps"
	"slices"

	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/rdma/verbs"
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

// link returns the link with that key, and makes it if there is none.
func (s *Links) link(key LinkKey) *Link {
	l := s.byKey[key]
	if l == nil {
		l = s.newLink(key)
		s.byKey[key] = l
	}
	return l
}

// To implements verbs.Destinations.
func (s *Links) To(to *verbs.Address, ordered bool) verbs.Destination {
	l := s.link(LinkKey{GID: to.GID, SGID: to.SGID, TrafficClass: to.TrafficClass, HopLimit: to.HopLimit, Ordered: ordered})
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
		l.end(now)
	}
	clear(s.byKey)
}
