package cmlink

import (
	"net"
	"net/netip"
	"slices"
	"sync"
)

const (
	// maxStrangers bounds the unproved connections from addresses of no peer, all together.
	maxStrangers = 32
	// maxPerAddress bounds those from one address, a peer's own or a stranger's.
	maxPerAddress = 4
)

// greetings are the connections that have not yet proved who they are. Anybody can make them, so
// they are bounded, and a newcomer always gets in: the one it takes the place of is the oldest that
// has said nothing, else the oldest. An honest peer needs one round trip and a few milliseconds.
//
// Addresses of peers are counted each for itself, apart from all others: strangers cannot take
// their places.
type greetings struct {
	mu     sync.Mutex
	oldest []*greeting // first
}

// greeting is one of them.
type greeting struct {
	conn   net.Conn
	addr   netip.Addr // of the other end
	source netip.Prefix
	known  bool // the address is a peer's
	spoke  bool // its ClientHello has come
	ousted bool // another took its place
}

// source is what counts as one address: an IPv6 host has a /64 to choose from.
func source(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := a.BitLen()
	if a.Is6() {
		bits = 64
	}
	p, _ := a.Prefix(bits) // fails only for the zero Addr, which is one source like others
	return p
}

// add takes a connection in. It returns the one that has to go for it, if any.
func (g *greetings) add(c *greeting) (ousted *greeting) {
	g.mu.Lock()
	defer g.mu.Unlock()
	sameAddress := func(o *greeting) bool { return o.source == c.source }
	stranger := func(o *greeting) bool { return !o.known }
	switch {
	case g.count(sameAddress) >= maxPerAddress:
		ousted = g.oust(sameAddress)
	case !c.known && g.count(stranger) >= maxStrangers:
		ousted = g.oust(stranger)
	}
	g.oldest = append(g.oldest, c)
	return ousted
}

func (g *greetings) count(of func(*greeting) bool) (n int) {
	for _, o := range g.oldest {
		if of(o) {
			n++
		}
	}
	return n
}

// oust removes the oldest that has said nothing, else the oldest.
func (g *greetings) oust(among func(*greeting) bool) *greeting {
	i := slices.IndexFunc(g.oldest, func(o *greeting) bool { return among(o) && !o.spoke })
	if i < 0 {
		i = slices.IndexFunc(g.oldest, among)
	}
	o := g.oldest[i]
	o.ousted = true
	g.oldest = slices.Delete(g.oldest, i, i+1)
	return o
}

// heard notes that the ClientHello of a connection has come.
func (g *greetings) heard(c *greeting) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c.spoke = true
}

// remove takes a connection out. It reports whether it still had its place.
func (g *greetings) remove(c *greeting) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.oldest = slices.DeleteFunc(g.oldest, func(o *greeting) bool { return o == c })
	return !c.ousted
}
