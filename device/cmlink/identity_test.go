package cmlink

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestInitAndLoad(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0))
	dir := filepath.Join(t.TempDir(), "keys")
	if err := Init(dir, "lab.example", []string{"1", "255"}); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{
		"ca.pem": 0o644, "ca.key": 0o600, "host-1.pem": 0o644, "host-1.key": 0o600, "host-255.pem": 0o644, "host-255.key": 0o600,
	} {
		st, err := os.Stat(filepath.Join(dir, name))
		if err != nil || st.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, st, err)
		}
	}
	id, err := Load(dir, "255")
	if err != nil {
		t.Fatal(err)
	}
	if id.URI() != "vnic://lab.example/host/255" || id.Name != "255" || id.Domain != "lab.example" {
		t.Errorf("%+v", id)
	}
	if ca := id.cert.Leaf; ca.IsCA || ca.NotAfter.Year() < 2030 {
		t.Errorf("certificate %+v", ca)
	}

	before, _ := os.ReadFile(filepath.Join(dir, "ca.pem"))
	err = Init(dir, "lab.example", []string{"7"})
	if err == nil || !strings.Contains(err.Error(), "ca.pem exists and is not overwritten") {
		t.Errorf("a second Init: %v", err)
	}
	if err := Add(dir, "lab.example", []string{"2"}); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir, "2"); err != nil {
		t.Error(err)
	}
	if err := Add(dir, "lab.example", []string{"3", "2"}); err == nil || !strings.Contains(err.Error(), "host-2.pem exists") {
		t.Errorf("a host twice: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "host-3.pem")); err == nil {
		t.Error("a refused Add wrote a file")
	}
	after, _ := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if string(before) != string(after) {
		t.Error("the CA changed")
	}
}

func TestInitRefusesBadNamesAndWritesNothing(t *testing.T) {
	for _, d := range []string{"", "Lab", "a b", "a/b", "-x", "x.", "a..b", strings.Repeat("x", 64)} {
		dir := t.TempDir()
		if err := Init(dir, d, []string{"1"}); err == nil || !strings.Contains(err.Error(), "domain") {
			t.Errorf("domain %q: %v", d, err)
		}
		if names, _ := os.ReadDir(dir); len(names) != 0 {
			t.Errorf("domain %q: files were written", d)
		}
	}
	if err := Init(t.TempDir(), "lab", []string{"1", "1"}); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("a host twice: %v", err)
	}
}

func TestLoadRefusesBadFilesWithARemedy(t *testing.T) {
	dir := t.TempDir()
	if err := Init(dir, "lab", []string{"1", "2"}); err != nil {
		t.Fatal(err)
	}
	other := t.TempDir()
	if err := Init(other, "lab", []string{"1"}); err != nil {
		t.Fatal(err)
	}
	cp := func(to, from string) {
		b, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	in := func(d, name string) string { return filepath.Join(d, name) }
	for _, tt := range []struct {
		why    string
		name   string
		change func(d string)
	}{
		{"host-9.key: make it: vnic keys add --dir", "9", func(string) {}},
		{"host-9.key: copy host-9.pem and host-9.key from where ca.key is", "9", func(d string) { _ = os.Remove(in(d, "ca.key")) }},
		{"for the first NIC of all, make them: vnic keys init --dir", "1", func(d string) { _ = os.RemoveAll(d) }},
		{"there is no " + "/", "1", func(d string) { _ = os.Remove(in(d, "host-1.pem")) }},
		{"ca.pem: copy ca.pem from where `vnic keys init` was run", "1", func(d string) { _ = os.Remove(in(d, "ca.pem")) }},
		{"chmod 600", "1", func(d string) { _ = os.Chmod(in(d, "host-1.key"), 0o640) }},
		{"not that of NIC 1: copy the files of NIC 1, or correct cm.name", "1", func(d string) {
			cp(in(d, "host-1.pem"), in(d, "host-2.pem"))
			cp(in(d, "host-1.key"), in(d, "host-2.key"))
		}},
		{"are not a pair of certificate and key: copy both", "1", func(d string) { cp(in(d, "host-1.key"), in(d, "host-2.key")) }},
		{"of another authority: copy ca.pem, host-1.pem and host-1.key from one folder", "1", func(d string) { cp(in(d, "ca.pem"), in(other, "ca.pem")) }},
		{"no certificate in it", "1", func(d string) { _ = os.WriteFile(in(d, "ca.pem"), []byte("x"), 0o600) }},
		{"are not a pair of certificate and key: copy both", "1", func(d string) { _ = os.WriteFile(in(d, "host-1.pem"), []byte("x"), 0o600) }},
	} {
		d := t.TempDir()
		if err := os.CopyFS(d, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		for _, k := range []string{"host-1.key", "host-2.key"} {
			_ = os.Chmod(in(d, k), 0o600)
		}
		tt.change(d)
		if _, err := Load(d, tt.name); err == nil || !strings.Contains(err.Error(), tt.why) {
			t.Errorf("want an error with %q, got %v", tt.why, err)
		}
	}
}

func TestAURIReadsAsItWasWritten(t *testing.T) {
	for _, name := range []string{"7", "300", "a", "rack1.row-2", strings.Repeat("x", MaxName)} {
		if d, n, err := ParseURI(URI("lab.example", name)); d != "lab.example" || n != name || err != nil {
			t.Error(d, n, err)
		}
	}
	for _, s := range []string{
		"", "vnic://lab/host/", "vnic://lab/host/-1", "vnic://lab/host/A", "vnic://lab/host/..", "vnic://lab/host/a%2fb", "vnic://lab/host/%61", "vnic://lab/host/" + strings.Repeat("x", MaxName+1), "http://lab/host/1", "vnic:///host/1",
		"vnic://lab/host/1/x", "vnic://lab/host/1?x", "vnic://u@lab/host/1", "vnic://lab:7/host/1", "vnic://lab/hst/1", "\x00",
	} {
		if _, _, err := ParseURI(s); err == nil {
			t.Errorf("%q was taken", s)
		}
	}
}

func TestVerifyWantsTheUsage(t *testing.T) {
	dir := t.TempDir()
	if err := Init(dir, "lab", []string{"1"}); err != nil {
		t.Fatal(err)
	}
	id, err := Load(dir, "1")
	if err != nil {
		t.Fatal(err)
	}
	ok := func(string) error { return nil }
	if err := verify(id, nil, x509.ExtKeyUsageClientAuth, ok); err == nil {
		t.Error("no certificate was taken")
	}
	if err := verify(id, []*x509.Certificate{id.cert.Leaf}, x509.ExtKeyUsageCodeSigning, ok); err == nil {
		t.Error("the wrong usage was taken")
	}
	if err := verify(id, []*x509.Certificate{id.cert.Leaf}, x509.ExtKeyUsageClientAuth, ok); err != nil {
		t.Error(err)
	}
}

// TestTimesOfCertificates: the remedy for an expired certificate depends on whose it is. A new CA,
// which affects every host's identity, is advised only if the old one has expired; an expired CA
// makes no further identities.
func TestTimesOfCertificates(t *testing.T) {
	now := time.Now()
	day := 24 * time.Hour
	for name, c := range map[string]struct {
		caEnds, begins, ends time.Duration
		want, never          string
	}{
		"the host's is over":      {99 * day, -9 * day, -day, "renew it (`vnic keys renew 1`)", "keys init"},
		"the authority's is over": {-day, -9 * day, -day, "make a new one in another folder (`vnic keys init`)", "keys add"},
		"it has not begun":        {99 * day, 9 * day, 99 * day, "set the clock", "keys"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			tmpl := &x509.Certificate{
				SerialNumber: serial(), NotBefore: now.Add(-100 * day), NotAfter: now.Add(c.caEnds),
				IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
			}
			der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
			if err != nil {
				t.Fatal(err)
			}
			caCert, caKey := caPaths(dir)
			if err := writePair(caCert, caKey, der, key); err != nil {
				t.Fatal(err)
			}
			ca, err := readCertificate(caCert)
			if err != nil {
				t.Fatal(err)
			}
			host := *ca
			host.NotBefore, host.NotAfter = now.Add(c.begins), now.Add(c.ends)
			if err := issueAll(dir, "lab", []string{"1"}, &host, key); err != nil {
				t.Fatal(err)
			}
			_, err = Load(dir, "1")
			_, why, _ := strings.Cut(fmt.Sprint(err), ";")
			if !strings.Contains(why, c.want) || strings.Contains(why, c.never) {
				t.Errorf("%v", err)
			}
			if err := Add(dir, "lab", []string{"2"}); (err != nil) != (c.caEnds < 0) || err != nil && !strings.Contains(err.Error(), "make a new authority") {
				t.Errorf("another host: %v", err)
			}
		})
	}
}

// TestAnUnreadableIdentityIsNotToBeReplaced: if a file may not be read, the error says so, and does not advise to make
// another.
func TestAnUnreadableIdentityIsNotToBeReplaced(t *testing.T) {
	err := explainFile(&fs.PathError{Op: "open", Path: "/k/host-1.key", Err: fs.ErrPermission}, "make it")
	if !errors.Is(err, fs.ErrPermission) || strings.Contains(err.Error(), "make it") || !strings.Contains(err.Error(), "chown") {
		t.Error(err)
	}
	if err := explainFile(ErrIdentity, "make it"); !errors.Is(err, ErrIdentity) || strings.Contains(err.Error(), "make it") {
		t.Error(err)
	}
}

// TestRefusalsSayWhatHelps: the log of a refused peer advises a remedy that fits the reason.
func TestRefusalsSayWhatHelps(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("%w: %w", ErrIdentity, x509.CertificateInvalidError{Reason: x509.Expired}), "`vnic keys show` there"},
		{fmt.Errorf("%w: %w", ErrIdentity, x509.UnknownAuthorityError{}), "files of one `vnic keys init`"},
		{fmt.Errorf("%w: of host 3", ErrRevoked), "it stays out"},
		{fmt.Errorf("%w: vnic://lab/host/9 is not a peer of this NIC", ErrIdentity), "compare peers[] here"},
		{fmt.Errorf("not accepted by host 2: %w", &net.OpError{Op: "remote error", Err: errors.New("tls: bad certificate")}), "its log says why"},
		{errDisplaced, "firewall"},
		{io.EOF, "not a vnic NIC"},
	} {
		if got := remedyFor(c.err); !strings.Contains(got, c.want) {
			t.Errorf("%v: %s", c.err, got)
		}
	}
}

// TestNamesOfNICsAndDomains: what a name is made of lets it be part of a path, a URI and a label.
func TestNamesOfNICsAndDomains(t *testing.T) {
	for d, ok := range map[string]bool{
		"a": true, "az09": true, "0": true, "a-b.c": true, strings.Repeat("x", 63): true, strings.Repeat("x", 64): false,
		"": false, ".": false, "..": false, "a\nb": false, "a b": false, "a%b": false, "a_b": false, "a`b": false, "a{b": false, "a/b": false, "a:b": false, "a-": false, ".a": false, "a..b": false,
		"A": false, "ä": false,
	} {
		if err := CheckName(d); (err == nil) != ok {
			t.Errorf("%q: %v", d, err)
		}
	}
}
