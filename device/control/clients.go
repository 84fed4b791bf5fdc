package control

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
)

// Clients bounds the connections of an HTTP server. When there are too many, a new connection
// replaces the oldest one whose request is not being processed. So clients that open many
// connections, and send or read slowly, cannot keep others away.
type Clients struct {
	most   int
	mu     sync.Mutex
	oldest []*client // the oldest first
}

type client struct {
	conn net.Conn
	busy bool
}

type clientKey struct{}

// BoundClients limits a server to most connections. It must be called before the server serves.
func BoundClients(s *http.Server, most int) *Clients {
	c := &Clients{most: most}
	s.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, clientKey{}, c.add(conn))
	}
	s.ConnState = func(conn net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			c.remove(conn)
		}
	}
	return c
}

func (c *Clients) add(conn net.Conn) *client {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := &client{conn: conn}
	if len(c.oldest) >= c.most {
		i := slices.IndexFunc(c.oldest, func(o *client) bool { return !o.busy })
		if i < 0 {
			_ = conn.Close() // all others are busy
			return n
		}
		_ = c.oldest[i].conn.Close()
		c.oldest = slices.Delete(c.oldest, i, i+1)
	}
	c.oldest = append(c.oldest, n)
	return n
}

func (c *Clients) remove(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.oldest = slices.DeleteFunc(c.oldest, func(o *client) bool { return o.conn == conn })
}

// Busy protects the connection of a request from being replaced until done is called.
func (c *Clients) Busy(r *http.Request) (done func()) {
	n, ok := r.Context().Value(clientKey{}).(*client)
	if !ok {
		return func() {}
	}
	c.set(n, true)
	return func() { c.set(n, false) }
}

func (c *Clients) set(n *client, busy bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n.busy = busy
}

// KnownHosts returns a function that reports whether a Host header names an HTTP server of this NIC:
// by an IP address, localhost, the machine's name, or one of names. A web page may make its own name
// resolve to this server (DNS rebinding). A browser then lets the page read the answers, and only
// the Host header shows that another site is meant. Pages of other names cannot read the answers,
// since we send no CORS headers. No page's name can be an address, and localhost is resolved locally
// (RFC 6761 §6.3).
func KnownHosts(names []string) func(host string) bool {
	if own, err := os.Hostname(); err == nil {
		names = append([]string{own}, names...)
	}
	return func(host string) bool {
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		host = strings.TrimSuffix(host, ".")
		if host == "" || strings.EqualFold(host, "localhost") { // no Host: HTTP/1.0, which no browser uses
			return true
		}
		if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
			return true
		}
		return slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(host, strings.TrimSuffix(name, ".")) })
	}
}
