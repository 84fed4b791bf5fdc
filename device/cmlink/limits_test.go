package cmlink

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestFrameLimits: a message has up to 64 KiB. A truncated message gives another error than the end
// of the stream.
func TestFrameLimits(t *testing.T) {
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

// TestDomains: checks which names a domain can have.
func TestDomains(t *testing.T) {
	for d, ok := range map[string]bool{
		"a": true, "az09": true, "0": true, "a-b.c": true, strings.Repeat("x", 63): true, strings.Repeat("x", 64): false,
		"a`b": false, "a{b": false, "a/b": false, "a:b": false, "a-": false, ".a": false, "a..b": false,
		"A": false, "ä": false,
	} {
		if err := checkDomain(d); (err == nil) != ok {
			t.Errorf("%q: %v", d, err)
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

func (c *from) Close() error                     { return nil }
func (c *from) SetWriteDeadline(time.Time) error { return nil }

func (c *from) Write(b []byte) (int, error) {
	c.writes = append(c.writes, len(b))
	c.wrote()
	return len(b), nil
}

// TestMessagesTogether: waiting messages are sent together, up to about the length of the longest
// message; each is counted.
func TestMessagesTogether(t *testing.T) {
	for _, tc := range []struct{ messages, writes []int }{
		{[]int{1, 2, 3}, []int{6 + 3*frameHeader}},
		{[]int{MaxMessage - frameHeader, 10}, []int{MaxMessage, 10 + frameHeader}},
		{[]int{MaxMessage - frameHeader - 1, 10, 20}, []int{MaxMessage - 1 + 10 + frameHeader, 20 + frameHeader}},
		{[]int{MaxMessage, MaxMessage}, []int{MaxMessage + frameHeader, MaxMessage + frameHeader}},
	} {
		s := newShared(Config{Identity: &Identity{}}, nil)
		s.ctx = t.Context()
		p, c := &peer{shared: s}, &from{}
		link := &session{conn: c, raw: c, queue: make(chan []byte, 10), ended: make(chan struct{})}
		for _, n := range tc.messages {
			link.queue <- make([]byte, n)
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

// TestTwoOfOneNumber: a peer that dials four times in half a minute, or from another address while
// its link is up, is reported as two NICs for a minute.
func TestTwoOfOneNumber(t *testing.T) {
	const one, other = "10.0.0.1:5", "10.0.0.2:5"
	for name, tc := range map[string]struct {
		again []time.Duration // after the start
		addr  string
		two   bool
	}{
		"once":                      {[]time.Duration{0}, one, false},
		"once from another":         {[]time.Duration{0}, other, true},
		"three times":               {[]time.Duration{0, 1, 2}, one, false},
		"four times":                {[]time.Duration{0, 1, 2, 3}, one, true},
		"in half a minute":          {[]time.Duration{0, 1, 2, twiceTime}, one, true},
		"in a bit more":             {[]time.Duration{0, 1, 2, twiceTime + 1}, one, false},
		"of five the last four":     {[]time.Duration{0, 5, 6, 7, twiceTime + 5}, one, true},
		"of five none four of them": {[]time.Duration{0, 5, 6, twiceTime + 6, twiceTime + 7}, one, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newShared(Config{Identity: &Identity{}}, nil)
			s.ctx = t.Context()
			p := &peer{shared: s, Peer: Peer{Host: 1}}
			l := &Link{shared: s, peers: map[uint8]*peer{1: p}}
			start := time.Now()
			for _, after := range tc.again {
				time.Sleep(time.Until(start.Add(after)))
				old := &from{addr: one}
				p.session = &session{conn: old, raw: old, ended: make(chan struct{})}
				p.replace(tls.Client(&from{addr: tc.addr}, &tls.Config{}))
				if !errors.Is(p.session.reason, errDialedAgain) {
					t.Errorf("%s: the old one goes on", name)
				}
			}
			for _, c := range []struct {
				after time.Duration
				says  bool
			}{{0, tc.two}, {2*twiceTime - 1, tc.two}, {2 * twiceTime, false}} {
				time.Sleep(time.Until(start.Add(tc.again[len(tc.again)-1] + c.after)))
				if says := strings.Contains(l.Note(1), "two NICs seem to have host number 1"); says != c.says {
					t.Errorf("%s: %v later: %q", name, c.after, l.Note(1))
				}
			}
		})
	}
}
