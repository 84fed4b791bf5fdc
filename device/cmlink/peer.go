package cmlink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"
)

// peer is another NIC. Its goroutine runs one session after another.
type peer struct {
	Peer
	shared  *shared
	dials   bool           // this NIC dials it
	arrived chan *tls.Conn // the newest connection that the peer dialed, already verified; capacity 1

	mu       sync.Mutex
	session  *session // nil: down
	note     string   // why it is down
	replaced []time.Time
	twice    string    // note that two NICs seem to have its host number
	noticed  time.Time // then
	refused  string    // note about a NIC that claimed to be this peer and was refused
	refusal  time.Time // then
}

// A peer that dials again replaces its connection. If that happens twiceCount times within
// twiceTime, or from another address while the old connection is alive, two NICs probably have the
// same host number and take the link from each other.
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
	p.twice, p.noticed = fmt.Sprintf("two NICs seem to have host number %d: at %s and %s", p.Host, old, is), now
	p.shared.refusals.Warn("connection management: two NICs seem to have one host number", "host", p.Host, "first", old, "second", is,
		"remedy", "give each NIC its own nic.host and identity")
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
		return fmt.Errorf("link to host %d: %w", p.Host, ErrDown)
	}
	select {
	case <-s.ended:
		return fmt.Errorf("link to host %d: %w", p.Host, ErrDown)
	case s.queue <- msg:
		return nil
	default:
		p.shared.stats.queueFull.Add(1)
		s.end(ErrFull)
		return fmt.Errorf("link to host %d: %w", p.Host, ErrFull)
	}
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
	if c == nil {
		return
	}
	p.arrived <- c // there is room, since only offer sends, under p.mu
	if p.session != nil {
		p.replace(c)
	}
}

// run keeps the peer connected until the Link closes.
func (p *peer) run() {
	ctx := p.shared.ctx
	wait, told := newBackoff(p.shared.cfg), false
	for {
		conn, err := p.connect(ctx)
		switch {
		case ctx.Err() != nil:
			if conn != nil {
				_ = conn.NetConn().Close()
			}
			return
		case err != nil:
			level := slog.LevelDebug
			if !told {
				level = slog.LevelWarn // warn once only, the rest would be the same
			}
			told = true
			p.say(unreached(err))
			p.shared.cfg.Log.Log(ctx, level, "connection management: peer not reached, trying on", "host", p.Host, "addr", p.Addr, "err", err)
		default:
			started := time.Now()
			p.serve(conn, conn.NetConn(), conn.ConnectionState().PeerCertificates[0])
			told = false
			wait.lasted(time.Since(started))
		}
		if p.dials && !sleep(ctx, wait.next()) {
			return
		}
	}
}

// unreached says why a peer that we dial is down, and the remedy if one end refuses the other.
func unreached(err error) string {
	switch {
	case errors.Is(err, ErrIdentity):
		return fmt.Sprintf("is refused: %v; %s", err, remedyFor(err))
	case alerted(err):
		return fmt.Sprintf("refuses this NIC: %v; its log and `vnic show nic` there say why", err)
	}
	return "not reached: " + err.Error()
}

// connect returns the next connection: dialed, or received. It returns nil when the Link closes.
func (p *peer) connect(ctx context.Context) (*tls.Conn, error) {
	if p.dials {
		return p.dial(ctx)
	}
	where := p.shared.listens
	p.say("waits for it to dial " + where)
	late := time.AfterFunc(p.shared.cfg.Patience, func() {
		p.shared.cfg.Log.Warn("connection management: the peer does not dial", "host", p.Host, "waited", p.shared.cfg.Patience,
			"remedy", "is it running, and does it list "+where+" as cm of host "+strconv.Itoa(int(p.shared.cfg.Identity.Host))+"?")
	})
	defer late.Stop()
	select {
	case c := <-p.arrived:
		// Tells the dialer that its certificate was accepted.
		_ = c.SetWriteDeadline(time.Now().Add(p.shared.cfg.Handshake))
		if _, err := c.Write(appendFrame(nil, nil)); err != nil {
			_ = c.NetConn().Close()
			return nil, err
		}
		p.shared.stats.accepted.Add(1)
		return c, nil
	case <-ctx.Done():
		return nil, nil
	}
}

func (p *peer) dial(ctx context.Context) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, p.shared.cfg.Handshake)
	defer cancel()
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.Addr)
	if err != nil {
		p.shared.stats.dialFailed.Add(1)
		return nil, err
	}
	conn := tls.Client(raw, tlsConfig(p.shared.cfg.Identity, x509.ExtKeyUsageServerAuth, func(uri string) error {
		if uri != p.Identity {
			return fmt.Errorf("%w: %s answered at %s, want %s", ErrIdentity, uri, p.Addr, p.Identity)
		}
		return nil
	}))
	if err := p.welcome(ctx, conn); err != nil {
		_ = raw.Close()
		p.shared.refuse(p.Addr, err)
		return nil, err
	}
	p.shared.stats.dialed.Add(1)
	return conn, nil
}

// welcome does the handshake and waits until the other side has accepted this NIC.
func (p *peer) welcome(ctx context.Context, conn *tls.Conn) error {
	if err := conn.HandshakeContext(ctx); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	switch msg, err := readFrame(conn); {
	case err != nil:
		return fmt.Errorf("not accepted by host %d: %w", p.Host, err)
	case msg != nil:
		return fmt.Errorf("host %d: first frame has %d bytes, want an empty one", p.Host, len(msg))
	case !stop():
		return ctx.Err()
	}
	return nil
}

// serve runs a session from PeerUp to PeerDown.
func (p *peer) serve(conn, raw net.Conn, cert *x509.Certificate) {
	s := &session{conn: conn, raw: raw, cert: cert, queue: make(chan []byte, p.shared.cfg.Queue), ended: make(chan struct{})}
	p.mu.Lock()
	p.session = s // set before PeerUp, which may call Send
	if len(p.arrived) > 0 {
		s.end(errDialedAgain)
	}
	p.mu.Unlock()
	p.shared.handler.PeerUp(p.Host)
	p.shared.cfg.Log.Info("connection management: link up", "host", p.Host, "remote", conn.RemoteAddr())

	stop := context.AfterFunc(p.shared.ctx, func() { s.end(net.ErrClosed) })
	written := make(chan struct{})
	go func() {
		defer close(written)
		p.write(s)
	}()
	p.read(s)
	<-written
	stop()

	p.mu.Lock()
	p.session = nil
	p.mu.Unlock()
	p.shared.stats.down.Add(1)
	reason := reasonFor(s.reason)
	p.shared.cfg.Log.Info("connection management: link down", "host", p.Host, "reason", reason)
	p.shared.handler.PeerDown(p.Host, reason)
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
			p.shared.handler.Message(p.Host, msg)
		}
	}
}

// write sends queued messages, combining those that wait, and the keepalive.
func (p *peer) write(s *session) {
	idle := time.NewTicker(p.shared.cfg.Keepalive)
	defer idle.Stop()
	var buf []byte
	for {
		buf = buf[:0]
		n := uint64(0)
		select {
		case <-s.ended:
			return
		case <-idle.C:
			if err := p.shared.cfg.Identity.checkRevoked(s.cert); errors.Is(err, ErrRevoked) {
				s.end(err)
				return
			}
			buf = appendFrame(buf, nil)
		case msg := <-s.queue:
			buf = appendFrame(buf, msg)
			n++
			for more := true; more && len(buf) < MaxMessage; {
				select {
				case msg := <-s.queue:
					buf = appendFrame(buf, msg)
					n++
				default:
					more = false
				}
			}
		}
		_ = s.conn.SetWriteDeadline(time.Now().Add(3 * p.shared.cfg.Keepalive))
		if _, err := s.conn.Write(buf); err != nil {
			s.end(err)
			return
		}
		p.shared.stats.messagesOut.Add(n)
	}
}
