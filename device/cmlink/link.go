package cmlink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Handler receives what happens on the links. See the package comment for the
// order of the calls.
type Handler interface {
	PeerUp(host uint8)
	PeerDown(host uint8, reason error)
	// Message hands over msg; it is the handler's.
	Message(host uint8, msg []byte)
}

// Peer is a NIC a link is kept to.
type Peer struct {
	Host     uint8
	Addr     string // "address:port" it listens on; used if its host id is higher than ours
	Identity string // URI expected; "": URI(our domain, Host)
}

// Config sets up a Link. Zero durations and sizes take the default.
type Config struct {
	Listen   string // "address:port"; may be "" if no peer has a lower host id
	Identity *Identity
	Peers    []Peer
	Log      *slog.Logger // nil: none

	Keepalive  time.Duration // an empty frame is sent after this much silence; three times as long without any frame ends the connection; default 2 s
	Handshake  time.Duration // bound on TCP connect and TLS handshake; default 5 s
	Hello      time.Duration // bound on the time until who dialed us has sent its ClientHello; default 1 s
	Patience   time.Duration // how long a peer that is to dial us may take before the log says so; default 10 s
	BackoffMin time.Duration // wait before dialing again, doubled each time up to BackoffMax, ±50 %; default 100 ms
	BackoffMax time.Duration // default 5 s
	Queue      int           // messages waiting to be sent to one peer; default 16384
}

func (c *Config) defaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&c.Keepalive, 2*time.Second)
	def(&c.Handshake, 5*time.Second)
	def(&c.Hello, time.Second)
	def(&c.Patience, 10*time.Second)
	def(&c.BackoffMin, 100*time.Millisecond)
	def(&c.BackoffMax, 5*time.Second)
	if c.Queue <= 0 {
		c.Queue = 16384
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

// Errors of Send.
var (
	ErrDown    = errors.New("the link is down")
	ErrTooLong = errors.New("message too long")
	ErrFull    = errors.New("send queue full, connection broken")
)

// Link keeps the connections to all peers.
type Link struct {
	cfg      Config
	handler  Handler
	listener net.Listener // nil: none
	peers    map[uint8]*peer
	byURI    map[string]*peer
	addrs    map[netip.Addr]bool // of peers
	greeting greetings
	refusals limiter
	stats    counters

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

type counters struct {
	accepted, dialed, refusedIdentity, handshakeFailed, ousted, dialFailed, down, queueFull, messagesIn, messagesOut atomic.Uint64
}

// Stats counts events since New.
type Stats struct {
	Accepted        uint64 // connections that came up, by who dialed
	Dialed          uint64
	RefusedIdentity uint64 // peers that could not prove who they are
	HandshakeFailed uint64 // for any other reason
	Ousted          uint64 // unproved connections that had to go for newer ones: too many at a time
	DialFailed      uint64
	Down            uint64 // connections that ended
	QueueFull       uint64 // of them, by a full send queue
	MessagesIn      uint64
	MessagesOut     uint64
}

// Stats returns the counters.
func (l *Link) Stats() Stats {
	c := &l.stats
	return Stats{
		Accepted: c.accepted.Load(), Dialed: c.dialed.Load(), RefusedIdentity: c.refusedIdentity.Load(),
		HandshakeFailed: c.handshakeFailed.Load(), Ousted: c.ousted.Load(), DialFailed: c.dialFailed.Load(), Down: c.down.Load(),
		QueueFull: c.queueFull.Load(), MessagesIn: c.messagesIn.Load(), MessagesOut: c.messagesOut.Load(),
	}
}

// New listens, starts dialing and returns. Callbacks may come before it does.
func New(cfg Config, h Handler) (*Link, error) {
	cfg.defaults()
	if cfg.Identity == nil {
		return nil, errors.New("cmlink: no identity given")
	}
	l := &Link{
		cfg: cfg, handler: h,
		peers: make(map[uint8]*peer), byURI: make(map[string]*peer),
		addrs: make(map[netip.Addr]bool),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	accepts := false
	for _, p := range cfg.Peers {
		if err := l.addPeer(p); err != nil {
			l.cancel()
			return nil, err
		}
		accepts = accepts || p.Host < cfg.Identity.Host
	}
	if accepts || cfg.Listen != "" {
		if cfg.Listen == "" {
			l.cancel()
			return nil, fmt.Errorf("cmlink: host %d has peers with lower ids, which dial it: an address to listen on is needed", cfg.Identity.Host)
		}
		ln, err := net.Listen("tcp", cfg.Listen)
		if err != nil {
			l.cancel()
			return nil, fmt.Errorf("cmlink: %w", err)
		}
		l.listener = ln
		l.wg.Go(l.accept)
	}
	for _, p := range l.peers {
		l.wg.Go(p.run)
	}
	return l, nil
}

func (l *Link) addPeer(c Peer) error {
	self := l.cfg.Identity
	if c.Identity == "" {
		c.Identity = URI(self.Domain, c.Host)
	}
	if _, n, err := ParseURI(c.Identity); err != nil {
		return fmt.Errorf("cmlink: peer host %d: %w", c.Host, err)
	} else if n != c.Host {
		return fmt.Errorf("cmlink: peer host %d: identity %s is that of host %d", c.Host, c.Identity, n)
	}
	switch {
	case c.Host == self.Host:
		return fmt.Errorf("cmlink: peer host %d is this host", c.Host)
	case l.peers[c.Host] != nil:
		return fmt.Errorf("cmlink: peer host %d is listed twice", c.Host)
	case c.Host > self.Host:
		if _, _, err := net.SplitHostPort(c.Addr); err != nil {
			return fmt.Errorf("cmlink: peer host %d: address %q: %w (want address:port)", c.Host, c.Addr, err)
		}
	}
	if a, err := netip.ParseAddrPort(c.Addr); err == nil {
		l.addrs[a.Addr().Unmap()] = true
	}
	p := &peer{link: l, Peer: c, dials: c.Host > self.Host, arrived: make(chan *tls.Conn, 1)}
	l.peers[c.Host] = p
	l.byURI[c.Identity] = p
	return nil
}

// Addr is the address listened on, nil if there is none.
func (l *Link) Addr() net.Addr {
	if l.listener == nil {
		return nil
	}
	return l.listener.Addr()
}

// Send queues a message for a peer; msg must not be changed afterwards. It does
// not block. Errors: ErrDown, ErrTooLong, ErrFull.
func (l *Link) Send(host uint8, msg []byte) error {
	p := l.peers[host]
	if p == nil {
		return fmt.Errorf("cmlink: host %d is no peer: %w", host, ErrDown)
	}
	if len(msg) == 0 || len(msg) > MaxMessage {
		return fmt.Errorf("cmlink: message of %d bytes, want 1 to %d: %w", len(msg), MaxMessage, ErrTooLong)
	}
	return p.send(msg)
}

// Close ends all connections and waits for every goroutine. Peers that are up
// get PeerDown before.
func (l *Link) Close() error {
	l.cancel()
	var err error
	if l.listener != nil {
		err = l.listener.Close()
		if errors.Is(err, net.ErrClosed) {
			err = nil
		}
	}
	l.wg.Wait()
	for _, p := range l.peers {
		p.offer(nil)
	}
	return err
}

// accept takes connections of peers with lower ids.
func (l *Link) accept() {
	for {
		c, err := l.listener.Accept()
		if err != nil {
			if l.ctx.Err() != nil {
				return
			}
			l.cfg.Log.Warn("connection management: accept failed", "err", err)
			if !sleep(l.ctx, time.Second) { // out of descriptors, most likely
				return
			}
			continue
		}
		remote, _ := c.RemoteAddr().(*net.TCPAddr)
		addr := remote.AddrPort().Addr().Unmap()
		g := &greeting{conn: c, source: source(addr), known: l.addrs[addr]}
		if o := l.greeting.add(g); o != nil {
			_ = o.conn.Close() // its greet sees it
		}
		l.wg.Go(func() { l.greet(g) })
	}
}

// greet finds out who dialed and hands the connection to that peer.
func (l *Link) greet(g *greeting) {
	p, conn, err := l.prove(g)
	switch {
	case !l.greeting.remove(g):
		l.refuse(g.conn.RemoteAddr().String(), errOusted)
	case err != nil:
		l.refuse(g.conn.RemoteAddr().String(), err)
	default:
		p.offer(conn)
		return
	}
	_ = g.conn.Close()
}

// prove does the handshake. Until the ClientHello has come the time for it is short: those who
// say nothing are most of those who mean no good.
func (l *Link) prove(g *greeting) (p *peer, conn *tls.Conn, err error) {
	ctx, cancel := context.WithTimeout(l.ctx, l.cfg.Handshake)
	defer cancel()
	cfg := tlsConfig(l.cfg.Identity, x509.ExtKeyUsageClientAuth, func(uri string) error {
		p = l.byURI[uri]
		if uri == l.cfg.Identity.URI() {
			return fmt.Errorf("%w: %s is this NIC's own: another NIC has its host number", ErrIdentity, uri)
		}
		if p == nil {
			return fmt.Errorf("%w: %s is no peer of this NIC", ErrIdentity, uri)
		}
		if p.dials {
			return fmt.Errorf("%w: %s must be dialed, not dial", ErrIdentity, uri)
		}
		return nil
	})
	spoke := false
	cfg.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		spoke = true
		l.greeting.heard(g)
		return nil, g.conn.SetReadDeadline(time.Time{}) // ctx goes on
	}
	if err := g.conn.SetReadDeadline(time.Now().Add(l.cfg.Hello)); err != nil {
		return nil, nil, err
	}
	conn = tls.Server(g.conn, cfg)
	err = conn.HandshakeContext(ctx)
	if !spoke && errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("no TLS ClientHello within %v", l.cfg.Hello)
	}
	return p, conn, err
}

var errOusted = fmt.Errorf("more than %d connections from one address, or %d from strangers, had not proved who they are", maxPerAddress, maxStrangers)

// refuse counts and logs a connection that failed before it was one.
func (l *Link) refuse(remote string, err error) {
	if l.ctx.Err() != nil {
		return
	}
	switch {
	case errors.Is(err, errOusted):
		l.stats.ousted.Add(1)
	case errors.Is(err, ErrIdentity):
		l.stats.refusedIdentity.Add(1)
	default:
		l.stats.handshakeFailed.Add(1)
	}
	if skipped, ok := l.refusals.allow(time.Now()); ok {
		l.cfg.Log.Warn("connection management: peer refused", "remote", remote, "err", err, "not_logged", skipped,
			"remedy", "check peers[].identity and that both NICs use identities of one `vnic keys init`")
	}
}

// limiter lets one event in five seconds through.
type limiter struct {
	mu      sync.Mutex
	last    time.Time
	skipped int
}

func (r *limiter) allow(now time.Time) (skipped int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.last.IsZero() && now.Sub(r.last) < 5*time.Second {
		r.skipped++
		return 0, false
	}
	skipped, r.skipped, r.last = r.skipped, 0, now
	return skipped, true
}

// sleep waits; it returns false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
