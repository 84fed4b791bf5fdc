package cmlink

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// another returns the identity of a host under another CA.
func another(t *testing.T, domain, name string) *Identity {
	t.Helper()
	dir := t.TempDir()
	if err := Init(dir, domain, []string{name}); err != nil {
		t.Fatal(err)
	}
	return loaded(t, dir, name)
}

// TestBothSidesSayWhoRefusesWhom: a NIC whose certificate is refused, and the NIC that refuses it,
// both report it, whichever of them dials.
func TestBothSidesSayWhoRefusesWhom(t *testing.T) {
	quiet := func(c *Config) { c.Log = slog.New(slog.DiscardHandler) }
	says := func(l *Link, host uint32, all ...string) {
		t.Helper()
		await(t, "a note of host "+fmt.Sprint(host), func() bool {
			note := l.Note(host)
			for _, want := range all {
				if !strings.Contains(note, want) {
					return false
				}
			}
			return true
		})
	}
	// The one that listens refuses the other's authority; so does the other, if it comes to that
	// first.
	b, _ := accepting(t, func(c *Config) { quiet(c); c.Peers[0].Addr = "127.0.0.1:9" })
	a, _ := dialing(t, b.Addr().String(), func(c *Config) { quiet(c); c.Identity = another(t, "lab", "1") })
	says(a, 2, "is refused", "authority", "`vnic keys init`")
	says(b, 1, "refuses this NIC", "its log")

	// One authority, but the listener knows another identity as its peer.
	c, _ := accepting(t, func(c *Config) { quiet(c); c.Peers[0].Identity = URI("elsewhere", "1") })
	d, _ := dialing(t, c.Addr().String(), quiet)
	says(c, 1, "says it is vnic://lab/host/1 is refused", "compare peers[]")
	says(d, 2, "refuses this NIC")
}

// TestTheCountersTellWhenCertificatesExpire: the counters contain the time at which the first of the certificates
// expires.
func TestTheCountersTellWhenCertificatesExpire(t *testing.T) {
	id := another(t, "lab", "2")
	l, _ := accepting(t, func(c *Config) { c.Identity = id })
	if ends := l.Stats().CertificateEnds; ends != uint64(id.cert.Leaf.NotAfter.Unix()) || ends != uint64(id.Ends().Unix()) {
		t.Errorf("%d, want %d", ends, id.cert.Leaf.NotAfter.Unix())
	}
}

func (c *from) SetWriteDeadline(time.Time) error { return nil }

// TestTwoPeersOfOneNumberAreNoticed: a peer that dials four times in half a minute, or from another
// address while its link is up, is reported as two NICs for a minute.
func TestTwoPeersOfOneNumberAreNoticed(t *testing.T) {
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
			p := &peer{shared: s, Peer: Peer{ID: 1, Name: "1"}}
			l := &Link{shared: s, peers: map[uint32]*peer{1: p}}
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
				if says := strings.Contains(l.Note(1), "two NICs seem to have the name 1"); says != c.says {
					t.Errorf("%s: %v later: %q", name, c.after, l.Note(1))
				}
			}
		})
	}
}
