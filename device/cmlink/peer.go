package cmlink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"
)

// peer is another NIC. Its goroutine runs one session after another. Of the two NICs the one whose
// name comes first dials. The other one waits; if nobody has dialed it after Config.Patience, it
// dials too, as the first may be unable to: behind NAT, or without the other's address. From then on
// it dials as soon as the link is down. If both dial at a time, the first one's connection counts. A peer
// that this NIC turned away before, or had removed, is dialed at once: it waits before it dials again.
type peer struct {
	Peer    // but for its address, which may change
	shared  *shared
	ctx     context.Context // canceled when the Link closes or the peer is removed
	cancel  context.CancelFunc
	first   bool           // this NIC's name comes first
	arrived chan *tls.Conn // the newest connection that the peer dialed, already verified; capacity 1
	moved   chan struct{}  // it has another address; capacity 1

	lastMu sync.Mutex        // also held in PeerUp and PeerRevoked, so that nothing new is taken for what was agreed before
	last   *x509.Certificate // of the last session, while the peer is down; nil also if it is revoked

	mu       sync.Mutex
	addr     string        // "address:port"; "": not known
	yield    func()        // ends the dialing under way, for a connection of the first NIC
	session  *session      // nil: down
	leaving  bool          // it is no peer any more
	note     string        // why it is down
	ahead    time.Duration // how far its clock is, in the last keepalive; 0 also if that is not known
	replaced []time.Time
	twice    string    // note that two NICs seem to have its name
	noticed  time.Time // then
	refused  string    // note about a NIC that claimed to be this peer and was refused
	refusal  time.Time // then
}

func newPeer(s *shared, c Peer) *peer {
	p := &peer{Peer: c, addr: c.Addr, shared: s, first: compareNames(s.identity.Load().Name, c.Name) < 0, arrived: make(chan *tls.Conn, 1), moved: make(chan struct{}, 1)}
	p.ctx, p.cancel = context.WithCancel(s.ctx)
	return p
}

// address returns the peer's "address:port".
func (p *peer) address() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.addr
}

// at reports whether the peer is at an address.
func (p *peer) at(addr netip.Addr) bool {
	a, err := netip.ParseAddrPort(p.address())
	return err == nil && a.Addr().Unmap() == addr
}

var errMoved = errors.New("the peer has another address now")

// move changes the peer's address. A session that this NIC dialed ends, and it dials again at once.
func (p *peer) move(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.addr == addr {
		return
	}
	p.addr = addr
	if p.session != nil {
		if !p.session.dialed {
			return
		}
		p.session.end(errMoved)
	}
	select {
	case p.moved <- struct{}{}:
	default:
	}
}

// lingerTime is how long a link to a removed peer may take to send what waits.
const lingerTime = 500 * time.Millisecond

// farewellTime is how long a farewell may take that passes by the queue.
const farewellTime = 100 * time.Millisecond

var errRemoved = errors.New("the peer was removed")

// leave ends the peer's link when its queue is empty, or after lingerTime, with the farewell: its sender may not know
// that the link is up. While this NIC dials, the peer may have the link already: then it is told once this NIC has it,
// too.
func (p *peer) leave() {
	p.mu.Lock()
	s, dials := p.session, p.yield != nil
	p.leaving = true
	p.mu.Unlock()
	switch {
	case s != nil:
		s.finish(p.shared.cfg.Farewell)
	case !dials:
		p.cancel()
		return
	}
	time.AfterFunc(lingerTime, p.cancel)
}

// leaves reports whether it is no peer any more.
func (p *peer) leaves() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.leaving
}

// farewell says on a connection that is about to be closed that the other end is no peer any more. That end may have
// the connection as its link already, and would keep what was agreed on an earlier one.
func (p *peer) farewell(conn net.Conn) {
	if msg := p.shared.cfg.Farewell; msg != nil {
		_ = conn.SetWriteDeadline(time.Now().Add(farewellTime))
		_, _ = conn.Write(appendFrame(nil, msg))
	}
}

// checkCertificate ends the session if the peer's certificate is revoked, or is of an authority that is
// trusted no more.
func (p *peer) checkCertificate() {
	p.mu.Lock()
	s := p.session
	p.mu.Unlock()
	if s == nil {
		return
	}
	err := p.shared.identity.Load().stillGood(s.cert)
	if errors.Is(err, ErrRevoked) {
		p.farewell(s.conn)
	}
	if errors.Is(err, ErrRevoked) || errors.Is(err, errDropped) {
		s.end(err)
	}
}

// checkLast tells the handler if the peer is down and the certificate of its last session is revoked: what was agreed
// then is still in use, and a NIC must not keep that by closing its link.
func (p *peer) checkLast() {
	p.lastMu.Lock()
	defer p.lastMu.Unlock()
	if p.last != nil && errors.Is(p.shared.identity.Load().checkRevoked(p.last), ErrRevoked) {
		p.last = nil
		p.shared.handler.PeerRevoked(p.ID)
	}
}

// A peer that dials again replaces its connection. If that happens twiceCount times within
// twiceTime, or from another address while the old connection is alive, two NICs probably have the
// same certificate and take the link from each other.
const (
	twiceCount = 4
	twiceTime  = 30 * time.Second
)

// replace ends the session because the peer dialed a new connection. p.mu is held.
func (p *peer) replace(c *tls.Conn) {
	now := time.Now()
	p.replaced = append(p.replaced, now)
	if len(p.replaced) > twiceCount {
		p.replaced = p.replaced[1:]
	}
	old, is := host(p.session.conn), host(c)
	p.session.end(errDialedAgain)
	if old == is && (len(p.replaced) < twiceCount || now.Sub(p.replaced[0]) > twiceTime) {
		return
	}
	p.twice, p.noticed = fmt.Sprintf("two NICs seem to have the name %s: at %s and %s", p.Name, old, is), now
	p.shared.refusals.Warn("connection management: two NICs seem to have one name", "peer", p.Name, "first", old, "second", is,
		"remedy", "give each NIC a certificate of its own")
}

// host returns the address of the other end, without its port.
func host(c net.Conn) string {
	h, _, err := net.SplitHostPort(c.RemoteAddr().String())
	if err != nil {
		return c.RemoteAddr().String()
	}
	return h
}

// refuse records that a NIC that claimed to be the peer was refused.
func (p *peer) refuse(note string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused, p.refusal = note, time.Now()
}

// say records why the peer is down.
func (p *peer) say(note string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.note = note
}

func (p *peer) send(msg []byte) error {
	p.mu.Lock()
	s := p.session
	p.mu.Unlock()
	if s == nil {
		return fmt.Errorf("link to peer %s: %w", p.Name, ErrDown)
	}
	select {
	case <-s.ended:
		return fmt.Errorf("link to peer %s: %w", p.Name, ErrDown)
	default:
	}
	if !s.put(msg, p.shared.cfg.Queue) {
		p.shared.stats.queueFull.Add(1)
		s.end(ErrFull)
		return fmt.Errorf("link to peer %s: %w", p.Name, ErrFull)
	}
	return nil
}

func (p *peer) end(reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.session != nil {
		p.session.end(reason)
	}
}

var errDialedAgain = errors.New("the peer dialed again")

// offer passes the peer a connection that it dialed; nil means that no more will come. An earlier
// connection is closed: the peer would not have dialed again if it still worked.
func (p *peer) offer(c *tls.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case old := <-p.arrived:
		_ = old.NetConn().Close()
	default:
	}
	if c == nil || p.ctx.Err() != nil {
		if c != nil {
			_ = c.NetConn().Close()
		}
		return
	}
	p.arrived <- c // there is room, since only offer sends, under p.mu
	switch {
	case p.session != nil:
		p.replace(c)
	case p.yield != nil && !p.first:
		p.yield()
	}
}

// run keeps the peer connected until the Link closes or the peer is removed. It dials after a delay, if the
// peer has not dialed by then.
func (p *peer) run(delay time.Duration) {
	defer p.offer(nil) // what has arrived meanwhile; ctx is done, so no more comes
	ctx := p.ctx
	wait, told := newBackoff(p.shared.cfg), false
	for {
		conn, dialed, err := p.connect(ctx, delay)
		switch {
		case ctx.Err() != nil || p.leaves():
			if conn != nil {
				if p.leaves() {
					p.farewell(conn)
				}
				_ = conn.NetConn().Close()
			}
			return
		case err != nil:
			level := slog.LevelDebug
			if !told {
				level = slog.LevelWarn // warn once only, the rest would be the same
			}
			told = true
			p.say(p.unreached(err))
			p.shared.cfg.Log.Log(ctx, level, "connection management: peer not reached, trying again", "peer", p.Name, "addr", p.address(), "err", err)
			delay = wait.next()
		default:
			started := time.Now()
			s := newSession(conn, conn.NetConn(), conn.ConnectionState().PeerCertificates[0])
			s.dialed, s.clocks = dialed, clocked(conn)
			p.serve(s)
			told = false
			wait.lasted(time.Since(started))
			if delay = p.patience(); dialed || delay == 0 {
				delay = wait.next()
			}
		}
	}
}

// patience returns how long the peer may take to dial this NIC, before this NIC dials.
func (p *peer) patience() time.Duration {
	if p.first || p.shared.listens == "" {
		return 0
	}
	return p.shared.cfg.Patience
}

// unreached says why a peer that we dial is down, and the remedy if one end refuses the other.
func (p *peer) unreached(err error) string {
	waits := ""
	if p.patience() > 0 {
		waits = p.waits() + "; "
	}
	return waits + unreached(err)
}

// waits says that this NIC waits to be dialed.
func (p *peer) waits() string { return "waits for it to dial " + p.shared.listens }

func unreached(err error) string {
	switch {
	case errors.Is(err, ErrIdentity):
		return fmt.Sprintf("is refused: %v; %s", err, remedyFor(err))
	case alerted(err):
		return fmt.Sprintf("refuses this NIC: %v; its log and `vnic show nic` there say why", err)
	}
	return "not reached: " + err.Error()
}

// connect returns the next connection: one that arrived, or one that this NIC dialed, after a delay.
// It returns nil when the Link closes.
func (p *peer) connect(ctx context.Context, delay time.Duration) (conn *tls.Conn, dialed bool, err error) {
	if p.patience() > 0 && delay == p.patience() {
		p.say(p.waits())
		defer p.complain(ctx).Stop()
	}
	for {
		var due <-chan time.Time
		if p.address() != "" {
			t := time.NewTimer(delay)
			defer t.Stop()
			due = t.C
		}
		select {
		case c := <-p.arrived:
			return p.welcome(c)
		case <-ctx.Done():
			return nil, false, nil
		case <-p.moved:
			delay = min(delay, p.patience()) // no longer than for a new peer
			continue
		case <-due:
		}
		if conn, err = p.dial(ctx); err == nil {
			return conn, true, nil
		}
		select {
		case c := <-p.arrived:
			return p.welcome(c)
		default:
			return nil, false, err
		}
	}
}

// complain has the log say that the peer does not dial, when patience is over.
func (p *peer) complain(ctx context.Context) *time.Timer {
	return time.AfterFunc(p.shared.cfg.Patience, func() {
		if ctx.Err() == nil {
			p.shared.cfg.Log.Warn("connection management: the peer does not dial", "peer", p.Name, "waited", p.shared.cfg.Patience,
				"remedy", "is it running, and does it list "+p.shared.listens+" as cm of peer "+p.shared.identity.Load().Name+"?")
		}
	})
}

// welcome tells the dialer that its certificate was accepted.
func (p *peer) welcome(c *tls.Conn) (conn *tls.Conn, dialed bool, err error) {
	_ = c.SetWriteDeadline(time.Now().Add(p.shared.cfg.Handshake))
	if _, err := c.Write(appendKeepalive(nil, clocked(c), p.shared.cfg.Clock())); err != nil {
		_ = c.NetConn().Close()
		return nil, false, err
	}
	p.shared.stats.accepted.Add(1)
	return c, false, nil
}

func (p *peer) dial(ctx context.Context) (*tls.Conn, error) {
	addr := p.address()
	ctx, cancel := context.WithTimeout(ctx, p.shared.cfg.Handshake)
	defer cancel()
	p.mu.Lock()
	if p.yield = cancel; len(p.arrived) > 0 && !p.first {
		cancel()
	}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.yield = nil
		p.mu.Unlock()
	}()
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		p.shared.stats.dialFailed.Add(1)
		return nil, err
	}
	conn := tls.Client(raw, tlsConfig(p.shared.identity.Load(), x509.ExtKeyUsageServerAuth, func(uri string) error {
		if uri != p.Identity {
			return fmt.Errorf("%w: %s answered at %s, want %s", ErrIdentity, uri, addr, p.Identity)
		}
		return nil
	}))
	if err := p.enter(ctx, conn); err != nil {
		if p.leaves() && conn.ConnectionState().HandshakeComplete {
			p.farewell(conn)
		}
		_ = raw.Close()
		if ctx.Err() != context.Canceled { // it yielded otherwise, or the Link closes
			p.shared.refuse(addr, err)
		}
		return nil, err
	}
	p.shared.stats.dialed.Add(1)
	return conn, nil
}

// enter does the handshake and waits until the other side has accepted this NIC.
func (p *peer) enter(ctx context.Context, conn *tls.Conn) error {
	if err := conn.HandshakeContext(ctx); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	msg, err := readFrame(conn)
	if msg == nil && err == nil {
		err = p.hear(conn, clocked(conn))
	}
	switch {
	case err != nil:
		return fmt.Errorf("not accepted by %s: %w", p.Name, err)
	case msg != nil:
		return fmt.Errorf("%s: first frame is a message of %d bytes, want a keepalive", p.Name, len(msg))
	case !stop():
		return ctx.Err()
	}
	return nil
}

// serve runs a session from PeerUp to PeerDown.
func (p *peer) serve(s *session) {
	p.mu.Lock()
	if p.leaving {
		p.mu.Unlock()
		p.farewell(s.conn)
		s.end(errRemoved)
		p.cancel()
		return
	}
	p.session = s // set before PeerUp, which may call Send
	switch {
	case len(p.arrived) == 0:
	case s.dialed: // the peer dialed at the same time, and has accepted this one
		_ = (<-p.arrived).NetConn().Close()
	default:
		s.end(errDialedAgain)
	}
	p.mu.Unlock()
	p.checkCertificate() // since the handshake
	p.lastMu.Lock()
	p.last = nil
	p.shared.handler.PeerUp(p.ID)
	p.lastMu.Unlock()
	p.shared.cfg.Log.Info("connection management: link up", "peer", p.Name, "remote", s.conn.RemoteAddr())

	stop := context.AfterFunc(p.ctx, func() { s.end(p.closing()) })
	written := make(chan struct{})
	go func() {
		defer close(written)
		p.write(s)
	}()
	p.read(s)
	<-written
	stop()

	p.mu.Lock()
	p.session, p.ahead = nil, 0
	if p.leaving {
		p.cancel()
	}
	p.mu.Unlock()
	p.shared.stats.down.Add(1)
	reason := reasonFor(s.reason)
	p.shared.cfg.Log.Info("connection management: link down", "peer", p.Name, "reason", reason)
	p.shared.handler.PeerDown(p.ID, reason)
	if errors.Is(reason, ErrRevoked) {
		return
	}
	p.lastMu.Lock()
	p.last = s.cert
	p.lastMu.Unlock()
	p.checkLast() // since the session ended
}

// closing returns why ctx is done.
func (p *peer) closing() error {
	if p.shared.ctx.Err() != nil {
		return net.ErrClosed
	}
	return errRemoved
}

func (p *peer) read(s *session) {
	for {
		_ = s.conn.SetReadDeadline(time.Now().Add(3 * p.shared.cfg.Keepalive))
		msg, err := readFrame(s.conn)
		if err != nil {
			s.end(err)
			return
		}
		if msg != nil {
			p.shared.stats.messagesIn.Add(1)
			p.shared.handler.Message(p.ID, msg)
		} else if err := p.hear(s.conn, s.clocks); err != nil {
			s.end(err)
			return
		}
	}
}

// clocked reports whether keepalives of a connection carry clocks.
func clocked(c *tls.Conn) bool { return c.ConnectionState().NegotiatedProtocol == protocol }

// hear reads the rest of a keepalive: the peer's clock, which is that of a moment ago.
func (p *peer) hear(r io.Reader, clocks bool) error {
	if !clocks {
		return nil
	}
	clock, err := readClock(r)
	if err == nil {
		p.mu.Lock()
		p.ahead = clock.Sub(p.shared.cfg.Clock())
		p.mu.Unlock()
	}
	return err
}

// write sends queued messages, combining those that wait, and the keepalive.
func (p *peer) write(s *session) {
	idle := time.NewTicker(p.shared.cfg.Keepalive)
	defer idle.Stop()
	var buf []byte
	for {
		buf = buf[:0]
		select {
		case <-s.ended:
			return
		case <-idle.C:
			buf = appendKeepalive(buf, s.clocks, p.shared.cfg.Clock())
		case <-s.wake:
		}
		var n int
		var last bool
		buf, n, last = s.take(buf)
		if len(buf) > 0 {
			_ = s.conn.SetWriteDeadline(time.Now().Add(3 * p.shared.cfg.Keepalive))
			if _, err := s.conn.Write(buf); err != nil {
				s.end(err)
				return
			}
			p.shared.stats.messagesOut.Add(uint64(n))
		}
		if last {
			s.end(errRemoved)
			return
		}
	}
}

// backoff is the wait before a peer is dialed again. It doubles each time.
type backoff struct{ least, most, now time.Duration }

func newBackoff(c Config) backoff { return backoff{c.BackoffMin, c.BackoffMax, c.BackoffMin} }

// lasted reports the length of a session. A long session resets the wait. A session that ended at
// once, for example because the peer refuses us, changes nothing.
func (b *backoff) lasted(d time.Duration) {
	if d >= b.most {
		b.now = b.least
	}
}

// next returns how long to wait now, ±50 %, so that the peers of a NIC that was away do not all
// dial it at the same time.
func (b *backoff) next() time.Duration {
	d := b.now
	b.now = min(2*d, b.most)
	return d/2 + rand.N(d)
}
