package cmlink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"
)

// flood keeps n connections open to addr from the address from. Each sends nothing or, with hello,
// stops after a TLS ClientHello. A connection that is closed is opened again, until stop.
func flood(t *testing.T, n int, from, addr string, hello bool) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	var wg, first sync.WaitGroup
	first.Add(n)
	for range n {
		wg.Go(func() {
			begun := sync.OnceFunc(first.Done)
			defer begun()
			for ctx.Err() == nil {
				c, err := d.DialContext(ctx, "tcp", addr)
				if err != nil {
					continue
				}
				end := context.AfterFunc(ctx, func() { _ = c.Close() })
				if hello {
					_ = tls.Client(&mute{Conn: c}, &tls.Config{InsecureSkipVerify: true}).Handshake()
				}
				begun()
				_, _ = c.Read(make([]byte, 4096))
				_, _ = c.Read(make([]byte, 4096)) // until it is closed
				end()
				_ = c.Close()
			}
		})
	}
	first.Wait()
	return func() {
		cancel()
		wg.Wait()
	}
}

// mute hides from TLS the bytes that the other side sends, so that the handshake stops after its
// first flight.
type mute struct{ net.Conn }

func (m *mute) Read([]byte) (int, error) { return 0, errors.New("not read") }

// TestSilentClientsKeepNoPeerAway: 200 connections without a proved identity keep no peer away, whatever their
// source.
func TestSilentClientsKeepNoPeerAway(t *testing.T) {
	for _, tt := range []struct {
		name, from string
		hello      bool
	}{
		{"strangers", "127.0.0.9", false},
		{"strangers with a hello", "127.0.0.9", true},
		{"beside the peer", "127.0.0.1", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, rb := accepting(t, func(c *Config) { c.Peers = []Peer{{ID: 1, Name: "1", Addr: "127.0.0.1:1"}} })
			defer flood(t, 200, tt.from, b.Addr().String(), tt.hello)()
			for range 3 { // and it is not luck
				a, ra := dialing(t, b.Addr().String(), nil)
				ra.wait("up 2")
				rb.wait("up 1")
				if err := a.Close(); err != nil {
					t.Fatal(err)
				}
				rb.wait("down 1")
			}
			b.greeting.mu.Lock()
			if n := len(b.greeting.oldest); n > maxStrangers+maxPerAddress {
				t.Errorf("%d connections that have proved nothing", n)
			}
			b.greeting.mu.Unlock()
		})
	}
}

// TestSilenceIsShort: a connection that sends nothing is closed after Hello, one that stops after
// its ClientHello after Handshake.
func TestSilenceIsShort(t *testing.T) {
	b, _ := accepting(t, func(c *Config) { c.Hello, c.Handshake = 10*time.Millisecond, time.Hour })
	c, err := net.Dial("tcp", b.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("something was said to one who says nothing")
	}
	for b.Stats().HandshakeFailed == 0 {
		time.Sleep(time.Millisecond)
	}
	// The hello has to come in time, so a busy machine may need a longer one. What follows it takes
	// twice as long.
	for hello := 10 * time.Millisecond; ; hello *= 2 {
		b, _ := accepting(t, func(c *Config) { c.Hello, c.Handshake = hello, time.Hour })
		raw, err := net.Dial("tcp", b.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		slow := &slowConn{Conn: raw, pause: 2 * hello}
		err = tls.Client(slow, tlsConfig(identity(t, "1"), x509.ExtKeyUsageServerAuth, func(string) error { return nil })).Handshake()
		if err == nil {
			return
		}
		if hello > 5*time.Second {
			t.Fatalf("the time for the hello goes on after it: %v", err)
		}
	}
}

// slowConn pauses before each write except the first.
type slowConn struct {
	net.Conn
	pause  time.Duration
	writes int
}

func (c *slowConn) Write(b []byte) (int, error) {
	if c.writes++; c.writes > 1 {
		time.Sleep(c.pause)
	}
	return c.Conn.Write(b)
}

// TestANewConnectionReplacesTheOldestSilentOne: checks which connection a new one replaces.
func TestANewConnectionReplacesTheOldestSilentOne(t *testing.T) {
	g := &greetings{}
	from := func(addr string, known bool) *greeting {
		return &greeting{source: source(netip.MustParseAddr(addr)), known: known}
	}
	add := func(c, want *greeting) {
		t.Helper()
		if got := g.add(c); got != want {
			t.Fatalf("%v took the place of %v, not of %v", c, got, want)
		}
	}
	a := make([]*greeting, maxPerAddress)
	for i := range a {
		a[i] = from("10.0.0.1", true)
		add(a[i], nil)
	}
	g.heard(a[0])
	add(from("10.0.0.1", true), a[1]) // the oldest that is silent
	if g.remove(a[1]) || !g.remove(a[2]) {
		t.Error("a[1] has its place, or a[2] has none")
	}
	var first *greeting
	for i := range maxStrangers { // each /64 is one source
		c := from(fmt.Sprintf("2001:db8:0:%x::%x", i, i), false)
		if i == 0 {
			first = c
		}
		add(c, nil)
	}
	for range 2 * maxPerAddress {
		add(from("10.0.0.2", true), nil)
		g.oldest = g.oldest[:len(g.oldest)-1]
	}
	add(from("2001:db8:1::1", false), first)
	for _, o := range g.oldest {
		g.heard(o)
	}
	add(from("10.0.0.1", true), nil) // in the place of the one removed
	g.heard(g.oldest[len(g.oldest)-1])
	add(from("10.0.0.1", true), a[0]) // all have spoken: the oldest
	if s := source(netip.MustParseAddr("::ffff:10.0.0.1%eth0")); s != a[0].source {
		t.Error(s)
	}
}
