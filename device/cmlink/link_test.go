package cmlink

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/falcon-vnic/vnic/internal/leak"
)

func TestMain(m *testing.M) {
	code := leak.Code(m)
	if dir, err := fabricKeys(); err == nil {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// fabricKeys makes identities once; they are not changed by tests.
var fabricKeys = sync.OnceValues(func() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "cmlink"); err == nil {
		err = Init(dir, "lab", []string{"1", "2", "3"})
	}
	return dir, err
})

func identity(t *testing.T, name string) *Identity {
	t.Helper()
	dir, err := fabricKeys()
	if err != nil {
		t.Fatal(err)
	}
	return loaded(t, dir, name)
}

func loaded(t *testing.T, dir, name string) *Identity {
	t.Helper()
	id, err := Load(dir, name)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// recorder is a Handler that checks the order of the calls.
type recorder struct {
	t      *testing.T
	events chan string
	mu     sync.Mutex
	up     map[uint32]bool
	reason error // of the last PeerDown
}

func newRecorder(t *testing.T) *recorder {
	return &recorder{t: t, events: make(chan string, 100_000), up: map[uint32]bool{}}
}

func (r *recorder) set(host uint32, from, to bool, what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.up[host] != from {
		r.t.Errorf("%s of host %d while up is %v", what, host, r.up[host])
	}
	r.up[host] = to
}

func (r *recorder) PeerUp(h uint32) {
	r.set(h, false, true, "PeerUp")
	r.events <- fmt.Sprintf("up %d", h)
}

func (r *recorder) PeerDown(h uint32, reason error) {
	r.set(h, true, false, "PeerDown")
	if reason == nil {
		r.t.Error("PeerDown without a reason")
	}
	r.mu.Lock()
	r.reason = reason
	r.mu.Unlock()
	r.events <- fmt.Sprintf("down %d", h)
}

func (r *recorder) PeerRevoked(h uint32) {
	r.set(h, false, false, "PeerRevoked")
	r.events <- fmt.Sprintf("revoked %d", h)
}

func (r *recorder) Message(h uint32, msg []byte) {
	r.set(h, true, true, "Message")
	r.events <- fmt.Sprintf("msg %d %s", h, msg)
}

// wait returns when the event has come; it skips events before it.
func (r *recorder) wait(want string) {
	r.t.Helper()
	timeout := time.After(2 * time.Minute)
	for {
		select {
		case got := <-r.events:
			if got == want {
				return
			}
		case <-timeout:
			r.t.Fatalf("no %q", want)
		}
	}
}

// next returns when the event has come, and accepts no other before it.
func (r *recorder) next(want string) {
	r.t.Helper()
	select {
	case got := <-r.events:
		if got != want {
			r.t.Fatalf("%s, want %s", got, want)
		}
	case <-time.After(2 * time.Minute):
		r.t.Fatalf("no %q", want)
	}
}

func quick(c Config) Config {
	c.BackoffMin, c.BackoffMax = time.Millisecond, 20*time.Millisecond
	return c
}

func start(t *testing.T, c Config) (*Link, *recorder) {
	t.Helper()
	r := newRecorder(t)
	l, err := New(quick(c), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l, r
}

// accepting is a host 2 that expects host 1.
func accepting(t *testing.T, change func(*Config)) (*Link, *recorder) {
	t.Helper()
	c := Config{Listen: "127.0.0.1:0", Identity: identity(t, "2"), Peers: []Peer{{ID: 1, Name: "1"}}}
	if change != nil {
		change(&c)
	}
	return start(t, c)
}

func dialing(t *testing.T, addr string, change func(*Config)) (*Link, *recorder) {
	t.Helper()
	c := Config{Identity: identity(t, "1"), Peers: []Peer{{ID: 2, Name: "2", Addr: addr}}}
	if change != nil {
		change(&c)
	}
	return start(t, c)
}

func TestMessagesBothWays(t *testing.T) {
	b, rb := accepting(t, nil)
	a, ra := dialing(t, b.Addr().String(), nil)
	ra.wait("up 2")
	rb.wait("up 1")
	for i := range 500 {
		if err := errors.Join(a.Send(2, fmt.Appendf(nil, "a%d", i)), b.Send(1, fmt.Appendf(nil, "b%d", i))); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 500 { // in order, none missing
		if got := <-rb.events; got != fmt.Sprintf("msg 1 a%d", i) {
			t.Fatalf("message %d: %q", i, got)
		}
		if got := <-ra.events; got != fmt.Sprintf("msg 2 b%d", i) {
			t.Fatalf("message %d: %q", i, got)
		}
	}
	big := bytes.Repeat([]byte("x"), MaxMessage)
	if err := a.Send(2, big); err != nil {
		t.Fatal(err)
	}
	rb.wait("msg 1 " + string(big))
	for _, n := range []int{0, MaxMessage + 1} {
		if err := a.Send(2, make([]byte, n)); !errors.Is(err, ErrTooLong) {
			t.Errorf("message of %d bytes: %v", n, err)
		}
	}
	if err := a.Send(9, []byte("x")); !errors.Is(err, ErrDown) {
		t.Errorf("message to a stranger: %v", err)
	}
	if s := a.Stats(); s.Dialed != 1 || s.MessagesIn != 500 {
		t.Errorf("stats %+v", s)
	}
}

func TestALostPeerIsDialedAgain(t *testing.T) {
	b, rb := accepting(t, nil)
	addr := b.Addr().String()
	var log syncBuffer
	a, ra := dialing(t, addr, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	for i := range 3 {
		ra.wait("up 2")
		rb.wait("up 1")
		if err := b.Send(1, fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
		ra.wait(fmt.Sprintf("msg 2 %d", i))
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		rb.wait("down 1")
		ra.wait("down 2")
		if err := a.Send(2, []byte("x")); !errors.Is(err, ErrDown) {
			t.Errorf("send while down: %v", err)
		}
		await(t, "a peer that is lost again is not told of", func() bool { return strings.Count(log.String(), "peer not reached") > i })
		if n := strings.Count(log.String(), "peer not reached"); n != i+1 {
			t.Errorf("%d warnings in %d times:\n%s", n, i+1, log.String())
		}
		b, rb = accepting(t, func(c *Config) { c.Listen = addr })
	}
	ra.wait("up 2")
	await(t, "downs are not counted", func() bool { s := a.Stats(); return s.Dialed >= 4 && s.Down >= 3 && s.DialFailed >= 3 })
}

// TestEndedLinksComeBack: whichever side ends the link, it ends for the given reason, and comes up
// again.
func TestEndedLinksComeBack(t *testing.T) {
	b, rb := accepting(t, nil)
	a, ra := dialing(t, b.Addr().String(), nil)
	a.End(9, errors.New("nobody"))
	for _, c := range []struct {
		l        *Link
		r, other *recorder
		host     uint32
	}{{a, ra, rb, 2}, {b, rb, ra, 1}} {
		c.r.wait(fmt.Sprintf("up %d", c.host))
		c.other.wait(fmt.Sprintf("up %d", 3-c.host))
		why := errors.New("enough")
		c.l.End(c.host, why)
		c.r.wait(fmt.Sprintf("down %d", c.host))
		c.other.wait(fmt.Sprintf("down %d", 3-c.host))
		c.r.mu.Lock()
		if !errors.Is(c.r.reason, why) {
			t.Errorf("ended for %v", c.r.reason)
		}
		c.r.mu.Unlock()
	}
	ra.wait("up 2")
	rb.wait("up 1")
}

func TestThreeHostsConnectToEachOther(t *testing.T) {
	c, rc := start(t, Config{Listen: "127.0.0.1:0", Identity: identity(t, "3"), Peers: []Peer{{ID: 1, Name: "1"}, {ID: 2, Name: "2"}}})
	b, rb := start(t, Config{
		Listen: "127.0.0.1:0", Identity: identity(t, "2"),
		Peers: []Peer{{ID: 1, Name: "1"}, {ID: 3, Name: "3", Addr: c.Addr().String()}},
	})
	_, ra := start(t, Config{Identity: identity(t, "1"), Peers: []Peer{
		{ID: 2, Name: "2", Addr: b.Addr().String()},
		{ID: 3, Name: "3", Addr: c.Addr().String()},
	}})
	for range 2 {
		for _, r := range []*recorder{ra, rb, rc} {
			if got := <-r.events; !strings.HasPrefix(got, "up ") {
				t.Fatal(got)
			}
		}
	}
}

func TestIdentityIsChecked(t *testing.T) {
	stranger := t.TempDir()
	if err := Init(stranger, "lab", []string{"1", "2"}); err != nil {
		t.Fatal(err)
	}
	fake1, err := Load(stranger, "1")
	if err != nil {
		t.Fatal(err)
	}
	fake2, _ := Load(stranger, "2")
	for name, tt := range map[string]struct {
		dialer, acceptor func(*Config)
		dialerRefuses    bool
	}{
		"dialer of another CA": {dialer: func(c *Config) {
			*c = Config{Identity: &Identity{Name: "1", Domain: "lab", cert: fake1.cert, trusted: c.Identity.trusted}, Peers: c.Peers}
		}},
		"acceptor of another CA": {acceptor: func(c *Config) {
			c.Identity = &Identity{Name: "2", Domain: "lab", cert: fake2.cert, trusted: c.Identity.trusted}
		}, dialerRefuses: true},
		"acceptor has another name":       {acceptor: func(c *Config) { c.Identity = identity(t, "3") }, dialerRefuses: true},
		"dialer is no peer":               {acceptor: func(c *Config) { c.Peers = nil }},
		"dialer's identity is not listed": {acceptor: func(c *Config) { c.Peers = []Peer{{ID: 1, Name: "1", Identity: "vnic://elsewhere/host/1"}} }},
	} {
		t.Run(name, func(t *testing.T) {
			b, rb := accepting(t, tt.acceptor)
			a, ra := dialing(t, b.Addr().String(), tt.dialer)
			refuser := b
			if tt.dialerRefuses {
				refuser = a
			}
			for refuser.Stats().RefusedIdentity < 3 { // it goes on trying
				time.Sleep(time.Millisecond)
			}
			select {
			case e := <-ra.events:
				t.Errorf("dialer: %s", e)
			case e := <-rb.events:
				t.Errorf("acceptor: %s", e)
			default:
			}
		})
	}
}

// rawDial is a host 1 of which the test writes the bytes.
func rawDial(t *testing.T, addr string) *tls.Conn {
	t.Helper()
	conn, err := tls.Dial("tcp", addr, tlsConfig(identity(t, "1"), x509.ExtKeyUsageServerAuth, func(string) error { return nil }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if msg, err := readFrame(conn); msg != nil || err != nil {
		t.Fatalf("first frame %q, %v", msg, err)
	}
	if _, err := readClock(conn); err != nil {
		t.Fatal(err)
	}
	return conn
}

func TestBadFramesEndTheSession(t *testing.T) {
	b, rb := accepting(t, nil)
	for name, bytes := range map[string][]byte{
		"too long": {0, 1, 0, 1}, "huge": {0xff, 0xff, 0xff, 0xff}, "cut": {0, 0, 0, 9, 1, 2},
		"a cut clock": {0, 0, 0, 0, 1, 2},
	} {
		conn := rawDial(t, b.Addr().String())
		rb.wait("up 1")
		if _, err := conn.Write(bytes); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(name, "cut") {
			_ = conn.Close()
		}
		rb.wait("down 1")
	}
}

func TestStrangersDoNotMatter(t *testing.T) {
	var log syncBuffer
	b, rb := accepting(t, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	for range 2 * maxStrangers {
		c, err := net.Dial("tcp", b.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
		_ = c.Close()
	}
	a, ra := dialing(t, b.Addr().String(), nil)
	ra.wait("up 2")
	rb.wait("up 1")
	for b.Stats().HandshakeFailed+b.Stats().Displaced < 2*maxStrangers {
		time.Sleep(time.Millisecond)
	}
	if n := strings.Count(log.String(), "peer refused"); n < 1 || n >= maxStrangers {
		t.Errorf("%d lines logged for %d strangers:\n%s", n, 2*maxStrangers, log.String())
	}
	_ = a
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// TestNewConnectionReplacesOld: a peer comes back before the end of its old connection was noticed.
func TestNewConnectionReplacesOld(t *testing.T) {
	b, rb := accepting(t, nil)
	first := rawDial(t, b.Addr().String())
	rb.wait("up 1")
	second := rawDial(t, b.Addr().String())
	rb.wait("down 1")
	rb.wait("up 1")
	if _, err := readFrame(first); err == nil {
		t.Error("the first connection still lives")
	}
	if _, err := second.Write(appendFrame(nil, []byte("hi"))); err != nil {
		t.Fatal(err)
	}
	rb.wait("msg 1 hi")
}

// TestPeersTellTheirClocks: a NIC knows how far a peer's clock is from its own while the link is up, from its
// beginning on.
func TestPeersTellTheirClocks(t *testing.T) {
	b, _ := accepting(t, func(c *Config) { c.Clock = func() time.Time { return time.Now().Add(-time.Hour) } })
	a, ra := dialing(t, b.Addr().String(), nil)
	ra.wait("up 2")
	// A keepalive may take a while to arrive.
	if ahead := a.Ahead(2); ahead > -time.Hour || ahead < -2*time.Hour {
		t.Errorf("a clock that is an hour behind is %v ahead", ahead)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	ra.wait("down 2")
	if ahead := a.Ahead(2) + a.Ahead(9); ahead != 0 {
		t.Errorf("the clock of a peer that is down is %v ahead", ahead)
	}
}

// TestPeersWithoutClocks: a peer whose keepalives carry no clock, which it says by ALPN, gets none.
func TestPeersWithoutClocks(t *testing.T) {
	b, rb := accepting(t, nil)
	cfg := tlsConfig(identity(t, "1"), x509.ExtKeyUsageServerAuth, func(string) error { return nil })
	cfg.NextProtos = []string{protocolFirst}
	conn, err := tls.Dial("tcp", b.Addr().String(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	rb.wait("up 1")
	for _, bytes := range [][]byte{appendFrame(nil, nil), appendFrame(nil, []byte("hi"))} {
		if _, err := conn.Write(bytes); err != nil {
			t.Fatal(err)
		}
	}
	rb.wait("msg 1 hi")
	if err := b.Send(1, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	for {
		msg, err := readFrame(conn)
		if err != nil {
			t.Fatal(err)
		}
		if msg != nil {
			if string(msg) != "hello" {
				t.Errorf("message %q", msg)
			}
			break
		}
	}
	if ahead := b.Ahead(1); ahead != 0 {
		t.Errorf("its clock is %v ahead", ahead)
	}
}

// TestALinkLivesWhileBothSidesDo runs two sessions over a pipe in virtual time: they stay up as long as both sides
// are alive, tell each other their clocks, and end when one falls silent.
func TestALinkLivesWhileBothSidesDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		side := func(id uint32, ahead time.Duration) (*peer, *recorder) {
			r := newRecorder(t)
			s := newShared(Config{Identity: &Identity{}, Clock: func() time.Time { return time.Now().Add(ahead) }}, r)
			s.ctx = t.Context()
			return newPeer(s, Peer{ID: id}), r
		}
		session := func(c net.Conn) *session {
			s := newSession(c, c, nil)
			s.clocks = true
			return s
		}
		a, ra := side(2, 0)
		b, rb := side(1, time.Minute)
		ca, cb := net.Pipe()
		var wg sync.WaitGroup
		wg.Go(func() { a.serve(session(ca)) })
		wg.Go(func() { b.serve(session(cb)) })
		time.Sleep(time.Hour)
		synctest.Wait()
		if !ra.up[2] || !rb.up[1] {
			t.Error("an idle link went down")
		}
		if a.ahead != time.Minute || b.ahead != -time.Minute {
			t.Errorf("a clock that is a minute ahead is %v ahead, the other %v", a.ahead, b.ahead)
		}
		a.session.end(errors.New("test"))
		wg.Wait()

		c, rc := side(2, 0)
		cc, silent := net.Pipe()
		wg.Go(func() { _, _ = io.Copy(io.Discard, silent) })
		begin := time.Now()
		wg.Go(func() { c.serve(session(cc)) })
		rc.wait("down 2")
		if d := time.Since(begin); d != 6*time.Second {
			t.Errorf("a silent peer was given up after %v", d)
		}
		wg.Wait()
	})
}

func TestFullQueueBreaksTheConnection(t *testing.T) {
	b, rb := accepting(t, func(c *Config) { c.Queue = 4 })
	conn := rawDial(t, b.Addr().String()) // reads nothing more
	rb.wait("up 1")
	msg := make([]byte, MaxMessage)
	var err error
	for range 10_000 {
		if err = b.Send(1, msg); err != nil {
			break
		}
	}
	if !errors.Is(err, ErrFull) {
		t.Fatalf("10000 × 64 KiB queued, last error %v", err)
	}
	rb.wait("down 1")
	if b.Stats().QueueFull != 1 {
		t.Errorf("stats %+v", b.Stats())
	}
	_ = conn
}

func TestConfigIsChecked(t *testing.T) {
	id := identity(t, "2")
	for why, c := range map[string]Config{
		"needs an identity":          {},
		"peer 2 is this NIC":         {Identity: id, Peers: []Peer{{ID: 2, Name: "2"}}},
		"listed twice":               {Identity: id, Peers: []Peer{{ID: 3, Name: "3", Addr: "127.0.0.1:1"}, {ID: 3, Name: "3", Addr: "127.0.0.1:1"}}},
		"want address:port":          {Identity: id, Peers: []Peer{{ID: 3, Name: "3", Addr: "nowhere"}}},
		"is the identity of NIC 4":   {Identity: id, Peers: []Peer{{ID: 3, Name: "3", Addr: "127.0.0.1:1", Identity: "vnic://lab/host/4"}}},
		"want vnic://":               {Identity: id, Peers: []Peer{{ID: 3, Name: "3", Addr: "127.0.0.1:1", Identity: "x"}}},
		"this NIC none to listen on": {Identity: id, Peers: []Peer{{ID: 1, Name: "1"}}},
		"listen tcp: address 99999":  {Identity: id, Listen: "127.0.0.1:99999"},
	} {
		if l, err := New(c, nil); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("want an error with %q, got %v", why, err)
			if l != nil {
				_ = l.Close()
			}
		}
	}
}

func TestCloseWhileConnecting(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0") // accepts in its backlog, says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	for range 20 {
		l, err := New(Config{Identity: identity(t, "1"), Peers: []Peer{{ID: 2, Name: "2", Addr: ln.Addr().String()}}}, newRecorder(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add(appendFrame(nil, []byte("hello")))
	f.Add(appendFrame(nil, nil))
	f.Add([]byte{0, 1, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		msg, err := readFrame(bytes.NewReader(b))
		if err == nil && !bytes.HasPrefix(b, appendFrame(nil, msg)) {
			t.Fatalf("%x read as %x", b, msg)
		}
	})
}

// TestAMessageHasUpTo64KiB: a message has up to 64 KiB. A truncated message gives another error
// than the end of the stream.
func TestAMessageHasUpTo64KiB(t *testing.T) {
	longest := bytes.Repeat([]byte("x"), MaxMessage)
	if msg, err := readFrame(bytes.NewReader(appendFrame(nil, longest))); err != nil || !bytes.Equal(msg, longest) {
		t.Errorf("the longest: %d bytes, %v", len(msg), err)
	}
	_, err := readFrame(bytes.NewReader(appendFrame(nil, append(longest, 'x'))))
	if err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("a byte more: %v", err)
	}
	whole := appendFrame(nil, []byte("hello"))
	for n := range whole {
		want := io.ErrUnexpectedEOF
		if n == 0 {
			want = io.EOF
		}
		if _, err := readFrame(bytes.NewReader(whole[:n])); !errors.Is(err, want) {
			t.Errorf("%d bytes: %v, want %v", n, err, want)
		}
	}
}

// from is a connection from an address. It records what is written to it.
type from struct {
	net.Conn
	addr   string
	writes []int
	wrote  func()
}

func (c *from) RemoteAddr() net.Addr {
	a, _ := net.ResolveTCPAddr("tcp", c.addr)
	return a
}

func (c *from) Close() error { return nil }

func (c *from) Write(b []byte) (int, error) {
	c.writes = append(c.writes, len(b))
	c.wrote()
	return len(b), nil
}

// TestWaitingMessagesAreSentTogether: waiting messages are sent together, up to about the length of
// the longest message; each is counted.
func TestWaitingMessagesAreSentTogether(t *testing.T) {
	for _, tc := range []struct{ messages, writes []int }{
		{[]int{1, 2, 3}, []int{6 + 3*frameHeader}},
		{[]int{MaxMessage - frameHeader, 10}, []int{MaxMessage, 10 + frameHeader}},
		{[]int{MaxMessage - frameHeader - 1, 10, 20}, []int{MaxMessage - 1 + 10 + frameHeader, 20 + frameHeader}},
		{[]int{MaxMessage, MaxMessage}, []int{MaxMessage + frameHeader, MaxMessage + frameHeader}},
	} {
		s := newShared(Config{Identity: &Identity{}}, nil)
		s.ctx = t.Context()
		p, c := &peer{shared: s}, &from{}
		link := newSession(c, c, nil)
		for _, n := range tc.messages {
			link.put(make([]byte, n), 10)
		}
		c.wrote = func() {
			if len(c.writes) == len(tc.writes) {
				link.end(io.EOF)
			}
		}
		p.write(link)
		if out := s.stats.messagesOut.Load(); !slices.Equal(c.writes, tc.writes) || out != uint64(len(tc.messages)) {
			t.Errorf("%v: written %v, %d messages", tc.messages, c.writes, out)
		}
	}
}
