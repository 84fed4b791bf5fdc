package cmlink

import (
	"log/slog"
	"strings"
	"testing"
)

// another returns the identity of a host under another CA.
func another(t *testing.T, domain string, host uint8) *Identity {
	t.Helper()
	dir := t.TempDir()
	if err := Init(dir, domain, []uint8{host}); err != nil {
		t.Fatal(err)
	}
	id, err := Load(dir, host)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// TestBothSidesSayWhoRefusesWhom: a NIC whose certificate is refused, and the NIC that refuses it,
// both report it, whichever of them dials.
func TestBothSidesSayWhoRefusesWhom(t *testing.T) {
	quiet := func(c *Config) { c.Log = slog.New(slog.DiscardHandler) }
	says := func(l *Link, host uint8, all ...string) {
		t.Helper()
		await(t, "a note of host "+string('0'+host), func() bool {
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
	a, _ := dialing(t, b.Addr().String(), func(c *Config) { quiet(c); c.Identity = another(t, "lab", 1) })
	says(a, 2, "is refused", "authority", "`vnic keys init`")
	says(b, 1, "refuses this NIC", "its log")

	// One authority, but the listener knows another identity as its peer.
	c, _ := accepting(t, func(c *Config) { quiet(c); c.Peers[0].Identity = URI("elsewhere", 1) })
	d, _ := dialing(t, c.Addr().String(), quiet)
	says(c, 1, "says it is vnic://lab/host/1 is refused", "compare peers[]")
	says(d, 2, "refuses this NIC")
}

// TestCertificateEnds: the counters contain the time at which the first of the certificates
// expires.
func TestCertificateEnds(t *testing.T) {
	id := another(t, "lab", 2)
	l, _ := accepting(t, func(c *Config) { c.Identity = id })
	if ends := l.Stats().CertificateEnds; ends != uint64(id.cert.Leaf.NotAfter.Unix()) || ends != uint64(id.Ends().Unix()) {
		t.Errorf("%d, want %d", ends, id.cert.Leaf.NotAfter.Unix())
	}
}
