package cmlink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"
)

// Link keeps the connections to all peers.
type Link struct {
	shared   *shared
	listener net.Listener // nil: none
	greeting greetings

	mu      sync.Mutex
	peers   map[uint32]*peer // by ID
	byURI   map[string]*peer
	waiting map[string]bool // NICs by their identity that were turned away, or removed: they wait before they dial again
	closed  bool

	cancel context.CancelFunc // of shared.ctx
	wg     sync.WaitGroup
}

// Stats returns the counters.
func (l *Link) Stats() Stats {
	c := &l.shared.stats
	return Stats{
		Accepted: c.accepted.Load(), Dialed: c.dialed.Load(), RefusedIdentity: c.refusedIdentity.Load(),
		HandshakeFailed: c.handshakeFailed.Load(), Displaced: c.displaced.Load(), DialFailed: c.dialFailed.Load(), Down: c.down.Load(),
		QueueFull: c.queueFull.Load(), MessagesIn: c.messagesIn.Load(), MessagesOut: c.messagesOut.Load(),
		CertificateEnds: uint64(max(l.shared.identity.Load().Ends().Unix(), 0)),
	}
}

// New starts listening and dialing, and returns. Callbacks may be called before it returns.
func New(cfg Config, h Handler) (*Link, error) {
	if cfg.Identity == nil {
		return nil, errors.New("a link needs an identity")
	}
	l := &Link{shared: newShared(cfg, h), peers: make(map[uint32]*peer), byURI: make(map[string]*peer), waiting: make(map[string]bool)}
	l.shared.ctx, l.cancel = context.WithCancel(context.Background())
	if cfg.Listen != "" {
		ln, err := net.Listen("tcp", cfg.Listen)
		if err != nil {
			l.cancel()
			return nil, err
		}
		l.listener, l.shared.listens = ln, ln.Addr().String()
		l.wg.Go(l.accept)
	}
	if cfg.Identity.dir != "" {
		l.wg.Go(l.watchRevoked)
	}
	for i, p := range cfg.Peers {
		err := l.Set(p)
		if err == nil && len(l.all()) <= i {
			err = fmt.Errorf("peer %s is listed twice", p.Name)
		}
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	return l, nil
}

// Use makes sessions that begin from now on use another certificate of this NIC, and ends those with
// peers whose certificate is of an authority that it trusts no more.
func (l *Link) Use(id *Identity) {
	l.shared.identity.Store(id)
	for _, p := range l.all() {
		p.checkCertificate()
	}
}

// Set adds a peer, or changes the address of one: if this NIC dialed it, it does so again.
func (l *Link) Set(c Peer) error {
	if err := l.checkPeer(&c); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p, same := l.peers[c.ID], l.byURI[c.Identity]
	switch {
	case l.closed:
		return net.ErrClosed
	case p != same:
		return fmt.Errorf("peer %s is listed twice", c.Name)
	case p != nil:
		p.move(c.Addr)
		return nil
	}
	p = newPeer(l.shared, c)
	l.peers[c.ID], l.byURI[c.Identity] = p, p
	wait := p.patience()
	if l.waiting[c.Identity] {
		wait = 0
		delete(l.waiting, c.Identity)
	}
	l.wg.Go(func() { p.run(wait) })
	return nil
}

// maxWaiting bounds the NICs that are noted as waiting. Each has a certificate of an authority that this
// NIC trusts.
const maxWaiting = 4096

// waits notes that a NIC waits because of this one. It may be a peer soon: then this NIC dials it at once,
// whoever's name comes first. l.mu is held.
func (l *Link) waits(uri string) {
	if len(l.waiting) < maxWaiting {
		l.waiting[uri] = true
	}
}

// Remove ends the link to a peer, as soon as what was sent has left, and within lingerTime. It does
// not wait for that. PeerDown is called if the peer was up.
func (l *Link) Remove(id uint32) {
	l.mu.Lock()
	p := l.peers[id]
	if p != nil {
		delete(l.peers, id)
		delete(l.byURI, p.Identity)
		l.waits(p.Identity)
	}
	l.mu.Unlock()
	if p != nil {
		p.leave()
	}
}

// peer returns a peer, or nil.
func (l *Link) peer(id uint32) *peer {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.peers[id]
}

// all returns the peers.
func (l *Link) all() []*peer {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Values(l.peers))
}

// checkPeer checks a peer and completes it.
func (l *Link) checkPeer(c *Peer) error {
	self := l.shared.identity.Load()
	if c.Identity == "" {
		c.Identity = URI(self.Domain, c.Name)
	}
	if _, name, err := ParseURI(c.Identity); err != nil {
		return fmt.Errorf("peer %s: %w", c.Name, err)
	} else if name != c.Name {
		return fmt.Errorf("peer %s: %s is the identity of NIC %s", c.Name, c.Identity, name)
	}
	switch {
	case c.Name == self.Name:
		return fmt.Errorf("peer %s is this NIC", c.Name)
	case c.Addr == "" && l.listener == nil:
		return fmt.Errorf("peer %s has no address to dial, and this NIC none to listen on: one of the two is needed", c.Name)
	case c.Addr != "":
		if _, _, err := net.SplitHostPort(c.Addr); err != nil {
			return fmt.Errorf("peer %s: address %q: %w (want address:port)", c.Name, c.Addr, err)
		}
	}
	return nil
}

// Addr returns the address listened on, or nil if there is none.
func (l *Link) Addr() net.Addr {
	if l.listener == nil {
		return nil
	}
	return l.listener.Addr()
}

// Note returns a problem with a peer, or what the link waits for; "": nothing.
func (l *Link) Note(id uint32) string {
	p := l.peer(id)
	if p == nil {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.twice != "" && time.Since(p.noticed) < 2*twiceTime:
		return p.twice
	case p.session == nil && p.refused != "" && time.Since(p.refusal) < 2*twiceTime:
		return p.refused
	case p.session == nil:
		return p.note
	}
	return ""
}

// Ahead returns how far a peer's clock is ahead of this NIC's, less the time that its last keepalive took;
// 0 also if that is not known.
func (l *Link) Ahead(id uint32) time.Duration {
	p := l.peer(id)
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ahead
}

// Send queues a message for a peer; msg must not be changed afterwards. It does not block. Errors:
// ErrDown, ErrTooLong, ErrFull.
func (l *Link) Send(id uint32, msg []byte) error {
	p := l.peer(id)
	if p == nil {
		return fmt.Errorf("no link to peer %d: %w", id, ErrDown)
	}
	if len(msg) == 0 || len(msg) > MaxMessage {
		return fmt.Errorf("message of %d bytes, want 1 to %d: %w", len(msg), MaxMessage, ErrTooLong)
	}
	return p.send(msg)
}

// End breaks the connection to a peer. PeerDown gets the reason, and the link connects again as
// after any other break. End does not block.
func (l *Link) End(id uint32, reason error) {
	if p := l.peer(id); p != nil {
		p.end(reason)
	}
}

// Close ends all connections and waits for every goroutine. PeerDown is called first for peers that
// are up.
func (l *Link) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.cancel()
	var err error
	if l.listener != nil {
		err = l.listener.Close()
		if errors.Is(err, net.ErrClosed) {
			err = nil
		}
	}
	l.wg.Wait()
	for _, p := range l.all() {
		p.offer(nil)
	}
	return err
}

// accept accepts connections of peers.
func (l *Link) accept() {
	for {
		c, err := l.listener.Accept()
		if err != nil {
			if l.shared.ctx.Err() != nil {
				return
			}
			l.shared.cfg.Log.Warn("connection management: accept failed", "err", err)
			if !sleep(l.shared.ctx, time.Second) { // most likely there are no file descriptors left
				return
			}
			continue
		}
		remote, _ := c.RemoteAddr().(*net.TCPAddr)
		addr := remote.AddrPort().Addr().Unmap()
		g := &greeting{conn: c, addr: addr, source: source(addr), known: l.knows(addr)}
		if o := l.greeting.add(g); o != nil {
			_ = o.conn.Close() // its greet notices
		}
		l.wg.Go(func() { l.greet(g) })
	}
}

// knows reports whether a peer is at an address.
func (l *Link) knows(addr netip.Addr) bool {
	return slices.ContainsFunc(l.all(), func(p *peer) bool { return p.at(addr) })
}

// watchRevoked ends the links to peers whose certificate is revoked, soon after ca.crl was replaced, and tells of
// such peers that are down. A list that cannot be read is looked at again until it can: a file's size and time stay
// when its mode changes.
func (l *Link) watchRevoked() {
	dir := l.shared.cfg.Identity.dir
	var last fs.FileInfo // of the list that was read last
	said := ""           // why it cannot be read
	for sleep(l.shared.ctx, l.shared.cfg.Revoked) {
		is, _ := os.Stat(revokedPath(dir)) // what is in the way of that is in the way of reading, too
		if os.SameFile(is, last) && is.ModTime().Equal(last.ModTime()) && is.Size() == last.Size() {
			continue
		}
		list, err := revokedList(dir, l.shared.identity.Load().trusted)
		if err != nil {
			if why := err.Error(); why != said {
				said = why
				l.shared.cfg.Log.Warn("connection management: the list of revoked certificates cannot be read, and no link comes up until it can", "err", err)
			}
			continue
		}
		said = ""
		if list == nil {
			continue // if there is none any more, links that are up stay up
		}
		last = is
		for _, p := range l.all() {
			p.checkCertificate()
			p.checkLast()
		}
	}
}

// greet authenticates a connection and passes it to its peer.
func (l *Link) greet(g *greeting) {
	p, conn, err := l.prove(g)
	switch {
	case !l.greeting.remove(g):
		l.shared.refuse(g.conn.RemoteAddr().String(), errDisplaced)
	case err != nil:
		l.shared.refuse(g.conn.RemoteAddr().String(), err)
	default:
		p.offer(conn)
		return
	}
	_ = g.conn.Close()
}

// prove does the handshake. The time limit is short until the ClientHello has come, since most
// hostile connections send nothing.
func (l *Link) prove(g *greeting) (p *peer, conn *tls.Conn, err error) {
	ctx, cancel := context.WithTimeout(l.shared.ctx, l.shared.cfg.Handshake)
	defer cancel()
	cfg := tlsConfig(l.shared.identity.Load(), x509.ExtKeyUsageClientAuth, func(uri string) error {
		if uri == l.shared.identity.Load().URI() {
			return fmt.Errorf("%w: %s is this NIC's own: another NIC has its name", ErrIdentity, uri)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if p = l.byURI[uri]; p == nil {
			l.waits(uri)
			return fmt.Errorf("%w: %s is not a peer of this NIC", ErrIdentity, uri)
		}
		return nil
	})
	var claims string // the identity that the peer claims but did not prove
	check := cfg.VerifyConnection
	cfg.VerifyConnection = func(cs tls.ConnectionState) error {
		err := check(cs)
		if err != nil && len(cs.PeerCertificates) > 0 {
			claims, _ = identityOf(cs.PeerCertificates[0])
		}
		return err
	}
	spoke := false
	cfg.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		spoke = true
		l.greeting.heard(g)
		return nil, g.conn.SetReadDeadline(time.Time{}) // ctx still limits the handshake
	}
	if err := g.conn.SetReadDeadline(time.Now().Add(l.shared.cfg.Hello)); err != nil {
		return nil, nil, err
	}
	conn = tls.Server(g.conn, cfg)
	err = conn.HandshakeContext(ctx)
	if !spoke && errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("no TLS ClientHello within %v", l.shared.cfg.Hello)
	}
	if c := l.claimed(claims); c != nil && err != nil {
		c.refuse(fmt.Sprintf("a NIC at %s that says it is %s is refused: %v; %s", g.conn.RemoteAddr(), claims, err, remedyFor(err)))
	} else if alerted(err) { // the peer is known by its address only
		for _, c := range l.all() {
			if c.at(g.addr) {
				c.refuse(fmt.Sprintf("a NIC at %s refuses this NIC: %v; its log and `vnic show nic` there say why", g.conn.RemoteAddr(), err))
			}
		}
	}
	return p, conn, err
}

// claimed returns the peer that a claimed identity probably means: the one with that identity, or
// with its name in another domain.
func (l *Link) claimed(uri string) *peer {
	if p := l.named(uri); p != nil {
		return p
	}
	if _, name, err := ParseURI(uri); err == nil {
		for _, p := range l.all() {
			if p.Name == name {
				return p
			}
		}
	}
	return nil
}

// named returns the peer with an identity, or nil.
func (l *Link) named(uri string) *peer {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byURI[uri]
}
