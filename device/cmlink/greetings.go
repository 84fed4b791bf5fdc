package cmlink

import (
	"net"
	"net/netip"
	"slices"
	"sync"
)

const (
	// maxStrangers bounds the connections without a proved identity from addresses that are no
	// peer's, in total.
	maxStrangers = 32
	// maxPerAddress bounds those from one address, whether a peer's or a stranger's.
	maxPerAddress = 4
)

// greetings holds the connections that have not yet proved an identity. Anyone can make them, so
// they are bounded, and a new one is always accepted. If needed it replaces the oldest one that has
// sent nothing, else the oldest. An honest peer needs one round trip and a few milliseconds.
//
// Each peer address has its own count, apart from all others, so strangers cannot take its places.
type greetings struct {
	mu     sync.Mutex
	oldest []*greeting // the oldest first
}

// greeting is one such connection.
type greeting struct {
	conn      net.Conn
	addr      netip.Addr // of the other end
	source    netip.Prefix
	known     bool // the address is a peer's
	spoke     bool // its ClientHello has come
	displaced bool // a newer connection replaced it
}

// source returns the prefix that counts as one address: an IPv6 host can choose from a /64.
func source(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := a.BitLen()
	if a.Is6() {
		bits = 64
	}
	p, _ := a.Prefix(bits) // fails only for the zero Addr, which is one source like others
	return p
}

// add adds a connection. It returns the connection that it replaces, if any.
func (g *greetings) add(c *greeting) (displaced *greeting) {
	g.mu.Lock()
	defer g.mu.Unlock()
	sameAddress := func(o *greeting) bool { return o.source == c.source }
	stranger := func(o *greeting) bool { return !o.known }
	switch {
	case g.count(sameAddress) >= maxPerAddress:
		displaced = g.displace(sameAddress)
	case !c.known && g.count(stranger) >= maxStrangers:
		displaced = g.displace(stranger)
	}
	g.oldest = append(g.oldest, c)
	return displaced
}

func (g *greetings) count(of func(*greeting) bool) (n int) {
	for _, o := range g.oldest {
		if of(o) {
			n++
		}
	}
	return n
}

// displace removes and returns the oldest that has sent nothing, else the oldest.
func (g *greetings) displace(among func(*greeting) bool) *greeting {
	i := slices.IndexFunc(g.oldest, func(o *greeting) bool { return among(o) && !o.spoke })
	if i < 0 {
		i = slices.IndexFunc(g.oldest, among)
	}
	o := g.oldest[i]
	o.displaced = true
	g.oldest = slices.Delete(g.oldest, i, i+1)
	return o
}

// heard records that a connection's ClientHello has come.
func (g *greetings) heard(c *greeting) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c.spoke = true
}

// remove removes a connection. It reports whether the connection had not been replaced.
func (g *greetings) remove(c *greeting) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.oldest = slices.DeleteFunc(g.oldest, func(o *greeting) bool { return o == c })
	return !c.displaced
}
