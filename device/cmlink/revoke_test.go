package cmlink

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"log/slog"
	"math/big"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestACertificateThatIsOverLeavesTheList: one that has just ended stays, since a clock may be behind, and so
// does one of another authority, whatever it says.
func TestACertificateThatIsOverLeavesTheList(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	if err := errors.Join(Init(dir, "lab", nil), Init(other, "lab", nil)); err != nil {
		t.Fatal(err)
	}
	a, err := OpenAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	b, err := OpenAuthority(other)
	if err != nil {
		t.Fatal(err)
	}
	// made returns a certificate that ended some time ago.
	made := func(by *Authority, number int64, ago time.Duration) *x509.Certificate {
		t.Helper()
		end := time.Now().Add(-ago)
		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(number), NotBefore: end.Add(-time.Hour), NotAfter: end}, by.cert, by.key.Public(), by.key)
		if err != nil {
			t.Fatal(err)
		}
		c, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	var list []byte
	revoke := func(certs ...*x509.Certificate) (serials string) {
		t.Helper()
		if list, err = a.Revoke(list, nil, certs...); err != nil {
			t.Fatal(err)
		}
		is, err := authorities{a.cert}.parseRevoked(list)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range is.RevokedCertificateEntries {
			serials += e.SerialNumber.String()
		}
		return serials
	}
	good := []*x509.Certificate{made(a, 1, -time.Hour), made(a, 2, -time.Hour), made(a, 3, -time.Hour)}
	for _, step := range []struct {
		certs []*x509.Certificate
		want  string
	}{
		{nil, ""},
		{good, "123"},
		{good, "123"}, // each once
		{[]*x509.Certificate{made(a, 1, time.Hour), made(b, 2, 25*time.Hour), made(b, 4, -time.Hour)}, "123"},
		{[]*x509.Certificate{made(a, 2, 25*time.Hour), made(a, 5, 25*time.Hour)}, "13"},
		{nil, "13"},
	} {
		if got := revoke(step.certs...); got != step.want {
			t.Errorf("%q is revoked, want %q", got, step.want)
		}
	}
}

// TestWhatADroppedAuthoritySignedLeavesTheList: nobody takes it any more. One of another authority stays,
// whatever its number, and so does all if the list of authorities is of somebody else.
func TestWhatADroppedAuthoritySignedLeavesTheList(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	if err := errors.Join(Init(dir, "lab", []string{"1"}), Init(other, "lab", []string{"1"})); err != nil {
		t.Fatal(err)
	}
	read := func(dir string) *x509.Certificate {
		t.Helper()
		path, _ := pairPaths(dir, "1")
		c, err := readCertificate(path)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	open := func(dir string) *Authority {
		t.Helper()
		a, err := OpenAuthority(dir)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	was := read(dir)
	if err := errors.Join(Next(dir), Switch(dir), Renew(dir, []string{"1"})); err != nil {
		t.Fatal(err)
	}
	a, is := open(dir), read(dir)
	roots, err := a.Roots()
	if err != nil {
		t.Fatal(err)
	}
	signature, err := a.SignRoots(roots)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := open(other).SignRoots(roots)
	if err != nil {
		t.Fatal(err)
	}
	forged := *read(other)
	forged.SerialNumber = is.SerialNumber
	var list []byte
	for i, step := range []struct {
		signature []byte
		then      func(string) error
		was       bool
	}{{signature, nil, true}, {foreign, Drop, true}, {signature, nil, false}} {
		if step.then != nil {
			if err := step.then(dir); err != nil {
				t.Fatal(err)
			}
		}
		dropped, err := a.Dropped(roots, step.signature)
		if err != nil {
			t.Fatal(err)
		}
		if list, err = a.Revoke(list, dropped, was, is, &forged); err != nil {
			t.Fatal(err)
		}
		if Revokes(list)(was) != step.was || !Revokes(list)(is) {
			t.Errorf("step %d: revoked is the old one: %t, the new one: %t", i, Revokes(list)(was), Revokes(list)(is))
		}
	}
}

// TestARevokedPeerIsCutOff: a peer whose certificate is revoked loses its link to a running NIC and gets no new
// one, and cannot start itself. It is told before. A new certificate for it is accepted.
func TestARevokedPeerIsCutOff(t *testing.T) {
	dir := t.TempDir()
	load := func(name string) *Identity { return loaded(t, dir, name) }
	if err := Init(dir, "lab", []string{"1", "2", "3"}); err != nil {
		t.Fatal(err)
	}
	old := load("1")
	b, rb := accepting(t, func(c *Config) { c.Identity, c.Farewell = load("2"), []byte("bye") })
	a, ra := dialing(t, b.Addr().String(), func(c *Config) { c.Identity = old })
	ra.wait("up 2")
	rb.wait("up 1")
	if err := errors.Join(Revoke(dir, "1"), Revoke(dir, "3")); err != nil {
		t.Fatal(err)
	}
	ra.wait("msg 2 bye")
	rb.wait("down 1") // the link that is up is cut
	rb.mu.Lock()
	reason := rb.reason
	rb.mu.Unlock()
	if !errors.Is(reason, ErrRevoked) {
		t.Errorf("down because of %v", reason)
	}
	if err := Revoke(dir, "1"); err == nil || !strings.Contains(err.Error(), "revoked already") {
		t.Error(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	_, ra = dialing(t, b.Addr().String(), func(c *Config) { c.Identity = old })
	for b.Stats().RefusedIdentity < 2 {
		select {
		case e := <-ra.events:
			t.Fatal(e)
		case e := <-rb.events:
			t.Fatal(e)
		default:
		}
	}
	if _, err := Load(dir, "1"); !errors.Is(err, ErrIdentity) || !strings.Contains(err.Error(), "it is revoked") {
		t.Error(err)
	}
	certPath, keyPath := pairPaths(dir, "1")
	if err := errors.Join(os.Remove(certPath), os.Remove(keyPath), Add(dir, "lab", []string{"1"})); err != nil {
		t.Fatal(err)
	}
	_, ra = dialing(t, b.Addr().String(), func(c *Config) { c.Identity = load("1") })
	ra.wait("up 2")

	list, err := Describe(dir)
	if err != nil || len(list) != 4 || list[0].Identity != "" || list[1].Revoked || !list[3].Revoked || !list[3].Key || list[2].Identity != "vnic://lab/host/2" {
		t.Errorf("%+v, %v", list, err)
	}
	// A list of somebody else lets nobody in.
	other := t.TempDir()
	if err := errors.Join(Init(other, "lab", []string{"1"}), Revoke(other, "1"), os.Rename(revokedPath(other), revokedPath(dir))); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir, "2"); err == nil || !strings.Contains(err.Error(), "ca.crl") {
		t.Error(err)
	}
}

// TestARevokedPeerThatIsDownIsReportedOnce: what was agreed on its last link must end, too. A list that changes for
// the sake of others does not report it again, nor a certificate that it has replaced.
func TestARevokedPeerThatIsDownIsReportedOnce(t *testing.T) {
	dir := t.TempDir()
	load := func(name string) *Identity { return loaded(t, dir, name) }
	if err := Init(dir, "lab", []string{"1", "2", "3"}); err != nil {
		t.Fatal(err)
	}
	b, rb := start(t, Config{Listen: "127.0.0.1:0", Identity: load("3"), Peers: []Peer{{ID: 1, Name: "1"}, {ID: 2, Name: "2"}}, Revoked: time.Millisecond})
	visit := func(name string) { // the peer comes up and goes down
		t.Helper()
		a, _ := start(t, Config{Identity: load(name), Peers: []Peer{{ID: 3, Name: "3", Addr: b.Addr().String()}}})
		rb.next("up " + name)
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		rb.next("down " + name)
	}
	revoke := func(name string) {
		t.Helper()
		if err := Revoke(dir, name); err != nil {
			t.Fatal(err)
		}
		rb.next("revoked " + name)
	}
	again := func(name string) { // another certificate for it
		t.Helper()
		certPath, keyPath := pairPaths(dir, name)
		if err := errors.Join(os.Remove(certPath), os.Remove(keyPath), Add(dir, "lab", []string{name})); err != nil {
			t.Fatal(err)
		}
	}
	visit("1")
	visit("2")
	revoke("1")
	revoke("2")
	again("1")
	visit("1")
	again("2")
	visit("2")
	revoke("2")
	revoke("1")
	if err := b.Close(); err != nil { // nothing follows that
		t.Fatal(err)
	}
	if len(rb.events) > 0 {
		t.Errorf("then %s", <-rb.events)
	}
}

// TestARevokedPeerThatGoesDownItselfIsReported: nobody else finds a certificate that is revoked in the moment in which
// the link ends for another reason.
func TestARevokedPeerThatGoesDownItselfIsReported(t *testing.T) {
	dir := t.TempDir()
	if err := Init(dir, "lab", []string{"1", "2"}); err != nil {
		t.Fatal(err)
	}
	var ids [2]*Identity
	for i, name := range []string{"1", "2"} {
		ids[i] = loaded(t, dir, name)
	}
	b, rb := accepting(t, func(c *Config) { c.Identity, c.Revoked = ids[1], time.Hour })
	a, _ := dialing(t, b.Addr().String(), func(c *Config) { c.Identity, c.Revoked = ids[0], time.Hour })
	rb.next("up 1")
	if err := errors.Join(Revoke(dir, "1"), a.Close()); err != nil {
		t.Fatal(err)
	}
	rb.next("down 1")
	rb.next("revoked 1")
}

// listFile is the list of revoked certificates in the folder of NICs 1 and 2. What is written to it looks the same from
// outside, as a file does before and after a change of its mode.
type listFile struct {
	t            *testing.T
	ids          [2]*Identity
	path         string
	good, broken []byte // it revokes NIC 1; it is none
	at           time.Time
}

// newListFile returns a list that is not there yet.
func newListFile(t *testing.T) *listFile {
	t.Helper()
	dir := t.TempDir()
	l := &listFile{t: t, path: revokedPath(dir), at: time.Now()}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(Init(dir, "lab", []string{"1", "2"}))
	for i, name := range []string{"1", "2"} {
		l.ids[i] = loaded(t, dir, name)
	}
	must(Revoke(dir, "1"))
	var err error
	l.good, err = os.ReadFile(l.path)
	must(err)
	l.broken = bytes.Repeat([]byte("x"), len(l.good))
	l.remove()
	return l
}

func (l *listFile) write(b []byte) {
	l.t.Helper()
	if err := errors.Join(os.WriteFile(l.path, b, 0o644), os.Chtimes(l.path, l.at, l.at)); err != nil {
		l.t.Fatal(err)
	}
}

func (l *listFile) remove() {
	l.t.Helper()
	if err := os.Remove(l.path); err != nil {
		l.t.Fatal(err)
	}
}

// TestAListThatCannotBeReadIsObeyedWhenItCan: the file may look the same then, as after a change of its mode.
func TestAListThatCannotBeReadIsObeyedWhenItCan(t *testing.T) {
	list := newListFile(t)
	var log syncBuffer
	b, rb := accepting(t, func(c *Config) {
		c.Identity, c.Revoked, c.Log = list.ids[1], 20*time.Millisecond, slog.New(slog.NewTextHandler(&log, nil))
	})
	dialing(t, b.Addr().String(), func(c *Config) { c.Identity = list.ids[0] })
	rb.next("up 1")
	list.write(list.broken)
	await(t, "the log does not name the list", func() bool { return strings.Contains(log.String(), list.path) })
	list.write(list.good)
	rb.next("down 1")
	rb.mu.Lock()
	defer rb.mu.Unlock()
	if !errors.Is(rb.reason, ErrRevoked) {
		t.Errorf("down because of %v", rb.reason)
	}
}

// TestTheLogSaysOnceThatAListCannotBeRead: not at each look, but again after the list could be read, or was removed.
func TestTheLogSaysOnceThatAListCannotBeRead(t *testing.T) {
	list := newListFile(t)
	synctest.Test(t, func(t *testing.T) {
		var log syncBuffer
		l, err := New(Config{Identity: list.ids[1], Log: slog.New(slog.NewTextHandler(&log, nil))}, newRecorder(t))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		for i, step := range []struct {
			change func()
			lines  int
		}{
			{func() {}, 0},
			{func() { list.write(list.broken) }, 1},
			{func() { list.write(list.good) }, 1},
			{func() { list.at = list.at.Add(time.Second); list.write(list.broken) }, 2},
			{list.remove, 2},
			{func() { list.write(list.broken) }, 3},
		} {
			step.change()
			time.Sleep(time.Minute + time.Millisecond) // many looks; none is while the next change is made
			if n := strings.Count(log.String(), list.path); n != step.lines {
				t.Errorf("step %d: %d lines, want %d:\n%s", i, n, step.lines, log.String())
			}
		}
	})
}

func TestTheDomainIsThatOfTheCA(t *testing.T) {
	dir := t.TempDir()
	if _, err := DomainOf(dir); err == nil || strings.Contains(err.Error(), "--domain") {
		t.Errorf("an empty folder: %v", err)
	}
	if err := Init(dir, "lab", []string{"7"}); err != nil {
		t.Fatal(err)
	}
	if domain, err := DomainOf(dir); err != nil || domain != "lab" {
		t.Errorf("%q, %v", domain, err)
	}
	path, _ := pairPaths(dir, "7")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if domain, err := DomainOf(dir); err != nil || domain != "lab" {
		t.Errorf("only a CA: %q, %v", domain, err)
	}
}
