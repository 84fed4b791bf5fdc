package fleet

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/directory"
	"github.com/falcon-vnic/vnic/device/directory/etcd"
	"github.com/falcon-vnic/vnic/device/metrics"
	"github.com/falcon-vnic/vnic/device/netns"
)

func TestMain(m *testing.M) { vnictest.Main(m) }

// world is a fleet with an etcd of one member.
type world struct {
	t   testing.TB
	dir string
	folder
	endpoint string           // of the first member
	more     []string         // of further ones
	member   *vnictest.Member // the first
	members  []*vnictest.Member
	spaces   []*netns.Space // of the members; none: all are in the test's namespace
	metrics  string         // URL of the signer's
	apart    bool           // commands are processes, so that they are in the namespace of the test's thread
}

// newWorld makes a fleet as docs/fleet.md does.
func newWorld(t testing.TB) *world {
	t.Helper()
	vnictest.RequireEtcd(t)
	w := &world{t: t, dir: filepath.Join(vnictest.EtcdDir(t), "fleet"), endpoint: vnictest.FreeEndpoint(t)}
	w.make()
	return w
}

func (w *world) make() {
	t := w.t
	t.Helper()
	args := []string{"init", "--endpoint", w.endpoint}
	for _, e := range w.more {
		args = append(args, "--endpoint", e)
	}
	if out := w.must(args...); !strings.Contains(out, "etcd --config-file") {
		t.Fatal(out)
	}
	for i := range 1 + len(w.more) {
		var in *netns.Space
		if w.spaces != nil {
			in = w.spaces[i]
		}
		m := vnictest.StartEtcd(t, filepath.Join(w.dir, fmt.Sprintf("etcd-%d.yaml", i+1)), in)
		if w.members = append(w.members, m); i == 0 {
			w.member = m
		}
	}
	w.must("init")
	w.folder.dir = w.dir
	if err := w.open(); err != nil {
		t.Fatal(err)
	}
}

func (w *world) run(args ...string) (string, error) {
	w.t.Helper()
	if args[0] != "join" && args[0] != "status" {
		args = append(args, "--dir", w.dir)
	}
	if w.apart {
		out, said, code := vnictest.Run(w.t, append([]string{"fleet"}, args...)...)
		if code != 0 {
			return out, errors.New(said)
		}
		return out, nil
	}
	return vnictest.Here(w.t, Command(), args...)
}

func (w *world) must(args ...string) string {
	w.t.Helper()
	out, err := w.run(args...)
	if err != nil {
		w.t.Fatalf("vnic fleet %v: %v\n%s", args, err, out)
	}
	return out
}

// fails runs a command that must fail, saying what is given.
func (w *world) fails(want string, args ...string) {
	w.t.Helper()
	out, err := w.run(args...)
	if err == nil || !strings.Contains(err.Error(), want) {
		w.t.Errorf("vnic fleet %v: %v, want %q\n%s", args, err, want, out)
	}
}

// signs runs a signer until the test ends. It reports what it signed, also by metrics.
func (w *world) signs(life time.Duration) *lines {
	out := &lines{}
	signer := &watcher{folder: &w.folder, user: userRoot, sign: true, life: life, out: out}
	s, err := metrics.ServeValues("127.0.0.1:0", signer.metrics()...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.metrics = "http://" + s.Addr().String() + "/metrics"
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { _ = signer.run(ctx) })
	w.t.Cleanup(func() { cancel(); done.Wait(); _ = s.Close() })
	return out
}

// lines is a buffer for several goroutines.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) { l.mu.Lock(); defer l.mu.Unlock(); return l.b.Write(b) }

func (l *lines) String() string { l.mu.Lock(); defer l.mu.Unlock(); return l.b.String() }

// as returns a client of etcd with a host's certificate.
func (w *world) as(keys, name string) *clientv3.Client {
	w.t.Helper()
	id, err := cmlink.Load(keys, name)
	if err != nil {
		w.t.Fatal(err)
	}
	k, err := etcd.Dial(w.is.Endpoints, etcd.TLS(id.TLSCertificate(), id.Roots()))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = k.Close() })
	return k
}

func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), vnictest.Limit)
	w.t.Cleanup(cancel)
	return ctx
}

// TestAHostJoinsByATokenOnce: a token is good once and for a while, and only for its holder; errors
// say what is wrong.
func TestAHostJoinsByATokenOnce(t *testing.T) {
	w := newWorld(t)
	said := w.signs(hostLife)
	dir := t.TempDir()
	file := filepath.Join(dir, "a.token")
	w.must("grant", "a", "--allow", "1:10.0.0.1", "--token", file)
	if out := w.must("hosts"); !strings.Contains(out, "new") || !strings.Contains(out, "1:10.0.0.1") {
		t.Error(out)
	}
	keys := filepath.Join(dir, "a")
	if out := w.must("join", "--token", file, "--dir", keys); !strings.Contains(out, "directory: {etcd: {endpoints: ["+w.endpoint+"], prefix: /vnic/lab}}") {
		t.Error(out)
	}
	id, err := cmlink.Load(keys, "a")
	if err != nil || id.URI() != "vnic://lab/host/a" {
		t.Fatal(id, err)
	}
	w.fails("is not overwritten", "join", "--token", file, "--dir", keys)
	w.fails("the token was used before", "join", "--token", file, "--dir", filepath.Join(dir, "other"))

	w.must("grant", "b", "--token", file, "--life", "1s")
	vnictest.Eventually(t, "the end of the token's life", func() error {
		_, err := readToken(nil, file)
		if err == nil {
			return fmt.Errorf("it is still good")
		}
		return nil
	})
	w.fails("the token expired on", "join", "--token", file, "--dir", filepath.Join(dir, "b"))
	// A host whose clock is behind is told by etcd.
	var id2 string
	w.change(file, func(t *token) { t.Ends, id2 = time.Now().Add(time.Hour), t.ID })
	k, err := w.dial(userRoot)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	vnictest.Eventually(t, "the end of the lease", func() error {
		if r, err := k.Get(w.ctx(), w.tokenKey(id2)); err != nil || len(r.Kvs) > 0 {
			return fmt.Errorf("the token is there: %v", err)
		}
		return nil
	})
	w.fails("the token has expired", "join", "--token", file, "--dir", filepath.Join(dir, "b"))
	w.must("grant", "b", "--token", file)
	w.change(file, func(t *token) { t.Name = "a" })
	w.fails("was not made by the holder of the token", "join", "--token", file, "--dir", filepath.Join(dir, "b"))
	for _, want := range []string{"a: signed a certificate\n", "; get another token (vnic fleet grant a) (1 refused so far)\n", "made by the holder of the token (3 refused so far)\n"} {
		vnictest.Eventually(t, "a word", func() error {
			if text := said.String(); !strings.Contains(text, want) {
				return fmt.Errorf("no %q in %s", want, text)
			}
			return nil
		})
	}
	r, err := http.Get(w.metrics)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if b, err := io.ReadAll(r.Body); err != nil || !regexp.MustCompile(`(?ms)^vnic_fleet_refused_total 3$.*^vnic_fleet_signed_total 1$.*^vnic_fleet_watching 1$`).Match(b) {
		t.Errorf("%v: %s", err, b)
	}
	if err := os.WriteFile(file, []byte("eyJuYW1lIjo"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.fails("not a token of vnic fleet grant", "join", "--token", file)
}

// change rewrites a token.
func (w *world) change(file string, f func(*token)) {
	w.t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		w.t.Fatal(err)
	}
	text, _ := base64.StdEncoding.DecodeString(strings.TrimSpace(string(b)))
	var is token
	if err := json.Unmarshal(text, &is); err != nil {
		w.t.Fatal(err)
	}
	f(&is)
	if err := os.WriteFile(file, []byte(base64.StdEncoding.EncodeToString([]byte(directory.Encode(is)))), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// TestATokenFromBeforeARevocationIsRefused: a token ends with the host's revocation, and stays ended when the
// host is let in again. One of another host, and one from after it, are good.
func TestATokenFromBeforeARevocationIsRefused(t *testing.T) {
	w := newWorld(t)
	w.signs(hostLife)
	before, others := w.grants("a", "1"), w.grants("b", "1")
	w.must("revoke", "a")
	after := w.grants("a", "1")
	dir := t.TempDir()
	w.fails("the token has expired", "join", "--token", before, "--dir", filepath.Join(dir, "before"))
	w.must("join", "--token", after, "--dir", filepath.Join(dir, "after"))
	w.must("join", "--token", others, "--dir", filepath.Join(dir, "others"))
}

// between is a client's keys, whose first transaction comes after something else.
type between struct {
	clientv3.KV
	first func()
}

func (b *between) Txn(ctx context.Context) clientv3.Txn {
	if f := b.first; f != nil {
		b.first = nil
		f()
	}
	return b.KV.Txn(ctx)
}

// TestNoCertificateIsSignedPastARevocation: a host that is revoked after the signer has looked at its grant gets
// no certificate, neither by a token nor by its own request. If the grant only changes, it does.
func TestNoCertificateIsSignedPastARevocation(t *testing.T) {
	w := newWorld(t)
	csr := newCSR(t)
	for _, is := range []struct {
		name      string
		meanwhile []string
		signed    bool
	}{
		{"a", []string{"revoke", "a"}, false},
		{"b", []string{"allow", "b", "2"}, true},
	} {
		k, err := w.dial(userRoot)
		if err != nil {
			t.Fatal(err)
		}
		defer k.Close()
		keys := &between{KV: k.KV}
		k.KV = keys
		given := func() int64 {
			t.Helper()
			r, err := k.Get(w.ctx(), w.signedPrefix(is.name), clientv3.WithPrefix(), clientv3.WithCountOnly())
			if err != nil {
				t.Fatal(err)
			}
			return r.Count
		}
		signs := func(what string, sign func(*token) error) {
			t.Helper()
			tok, err := readToken(nil, w.grants(is.name, "1"))
			if err != nil {
				t.Fatal(err)
			}
			before := given()
			keys.first = func() { w.must(is.meanwhile...) }
			err = sign(tok)
			if signed := given() > before; signed != is.signed || (err == nil) != is.signed {
				t.Errorf("%s, meanwhile %v: signed %v, %v", what, is.meanwhile, signed, err)
			}
		}
		signs("by a request", func(tok *token) error {
			_, err := (&watcher{folder: &w.folder, k: k, life: hostLife}).renew(w.ctx(), tok.Name, csr)
			return err
		})
		signs("by a token", func(tok *token) error {
			_, err := w.sign(w.ctx(), k, tok.ID, []byte(directory.Encode(request{tok.Name, csr, mac(tok.Secret, csr)})), hostLife)
			return err
		})
	}
}

// joins lets a host in and returns its folder.
func (w *world) joins(name string, allow ...string) string {
	w.t.Helper()
	token := w.grants(name, allow...)
	keys := filepath.Join(filepath.Dir(token), "keys")
	w.must("join", "--token", token, "--dir", keys)
	return keys
}

// grants lets a host in and returns the file of its token.
func (w *world) grants(name string, allow ...string) string {
	w.t.Helper()
	token := filepath.Join(w.t.TempDir(), "token")
	args := []string{"grant", name, "--token", token}
	for _, a := range allow {
		args = append(args, "--allow", a)
	}
	w.must(args...)
	return token
}

// TestARoleHoldsWhatAHostMayWrite: with its certificate a host writes its own record and no other, and
// reads nothing beside the fleet; a stranger and a revoked host get nowhere.
func TestARoleHoldsWhatAHostMayWrite(t *testing.T) {
	w := newWorld(t)
	w.signs(hostLife)
	keys := w.joins("a", "1")
	w.joins("b", "1")
	k := w.as(keys, "a")
	p := w.is.Prefix
	if _, err := k.Put(w.ctx(), directory.HostKey(p, "a"), "{}"); err != nil {
		t.Error(err)
	}
	for _, key := range []string{directory.HostKey(p, "b"), directory.HostKey(p, "ab"), directory.GrantKey(p, "a"), directory.AuthorityKey(p), directory.CertKey(p, "a"), w.tokenKey("x"), "/vnic/other/hosts/a"} {
		if _, err := k.Put(w.ctx(), key, "{}"); err == nil || !strings.Contains(etcd.Explain(err).Error(), "does not let this certificate do that") {
			t.Errorf("%s: %v", key, err)
		}
	}
	for _, key := range []string{directory.Aside(p), "/vnic/other/"} {
		if _, err := k.Get(w.ctx(), key, clientv3.WithPrefix()); err == nil {
			t.Errorf("%s is read", key)
		}
	}
	other := t.TempDir()
	if err := cmlink.Init(other, "lab", []string{"a"}); err != nil {
		t.Fatal(err)
	}
	id, err := cmlink.Load(other, "a")
	if err != nil {
		t.Fatal(err)
	}
	own, err := cmlink.Load(keys, "a")
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := etcd.Dial(w.is.Endpoints, etcd.TLS(id.TLSCertificate(), own.Roots()))
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	vnictest.Eventually(t, "the refusal of another authority's certificate", func() error { // a busy etcd may not say it in time
		short, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		_, err := stranger.Get(short, p)
		if err == nil {
			t.Fatal("a certificate of another authority reads")
		}
		err = etcd.Explain(etcd.Why(short, err, w.is.Endpoints, etcd.TLS(id.TLSCertificate(), own.Roots())))
		if strings.Contains(err.Error(), "etcd refuses this certificate") {
			return nil
		}
		return err
	})
	w.must("revoke", "a")
	vnictest.Eventually(t, "the end of its rights", func() error {
		if _, err := k.Get(w.ctx(), p); err == nil {
			return fmt.Errorf("a revoked host reads")
		}
		return nil
	})
	if out := w.must("hosts"); !strings.Contains(out, "revoked") {
		t.Error(out)
	}
	w.fails("unknown host c", "revoke", "c")
}

// TestGrantsAreEachForOneHost: an address is granted to one host alone, allow adds and drops, and move
// changes both grants at once.
func TestGrantsAreEachForOneHost(t *testing.T) {
	w := newWorld(t)
	w.must("grant", "a", "--allow", "1:10.0.0.1")
	w.fails("there is no tenant 0; tenants are 1 to 4294967295", "grant", "b", "--allow", "0")
	w.fails("there is no tenant 0", "grant", "b", "--allow", "0:10.0.0.1")
	w.fails("is granted to a", "grant", "b", "--allow", "1:10.0.0.1")
	w.must("grant", "b", "--allow", "1:10.0.0.2")
	w.fails("is granted to b", "allow", "a", "1:10.0.0.2")
	w.fails("unknown host c; the fleet's hosts are a, b", "allow", "c", "1:10.0.0.2")
	w.fails(`"1:x": write TENANT`, "allow", "a", "1:x")
	w.must("allow", "a", "1:10.0.0.3", "2")
	w.must("allow", "--drop", "a", "1:10.0.0.1")
	if out := w.must("hosts"); !strings.Contains(out, "1:10.0.0.3,2:any") {
		t.Error(out)
	}
	w.fails("no host has", "move", "1:10.0.0.3", "b")
	k, err := w.dial(userOperator)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	for i, name := range []string{"a", "b"} {
		h := directory.Host{Underlay: fmt.Sprintf("10.9.0.%d:1000", i+1), CM: "10.9.0.1:7471", Functions: []directory.Function{}}
		fn := directory.Function{Name: "pf0.vf1", MAC: fmt.Sprintf("02:00:00:00:00:%02x", i+1), Tenant: 1}
		a, _ := directory.ParseAddress([]string{"1:10.0.0.3", "1:10.0.0.2"}[i])
		fn.Addresses = append(fn.Addresses, a.Addr)
		h.Functions = append(h.Functions, fn)
		if _, err := k.Put(w.ctx(), directory.HostKey(w.is.Prefix, name), directory.Encode(h)); err != nil {
			t.Fatal(err)
		}
	}
	if out := w.must("functions"); !strings.Contains(out, "10.0.0.3") || !strings.Contains(out, "pf0.vf1") {
		t.Error(out)
	}
	w.fails("a is not granted 1:10.0.0.9; it may have 1:10.0.0.3,2:any", "allow", "--drop", "a", "1:10.0.0.9")
	w.fails("b/pf0.vf1 is in use: it has 1:10.0.0.2", "move", "a/pf0.vf1", "b")
	w.fails(`--as "vf4": write it as pf0.vf2`, "move", "a/pf0.vf1", "b", "--as", "vf4")
	w.fails("--set colour: unknown setting; use one of address", "move", "a/pf0.vf1", "b", "--as", "pf0.vf4", "--set", "colour=red")
	w.fails("--set mac: the function has its own", "move", "a/pf0.vf1", "b", "--as", "pf0.vf4", "--set", "mac=02:00:00:00:00:02")
	// No NIC is there that takes it: it stays where it is, and both may have what they might before.
	may := func(name string) string {
		g, _, err := w.readGrant(w.ctx(), k, name)
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(g.Allow, func(a, b directory.Allowed) int { return cmp.Compare(a.Tenant, b.Tenant) })
		return directory.Encode(g)
	}
	before := may("a") + may("b")
	w.fails("b: it has not taken pf0.vf4 within 1s. a still has it", "move", "a/pf0.vf1", "b", "--as", "pf0.vf4", "--wait", "1s")
	w.says(k, "b", func(h *directory.Host) { h.Problems = map[string]string{"pf0.vf4": "there is no pf0.vf4"} }, func() {
		w.fails("b: there is no pf0.vf4. a still has it", "move", "a/pf0.vf1", "b", "--as", "pf0.vf4")
	})
	if after := may("a") + may("b"); after != before {
		t.Errorf("grants are\n%s, were\n%s", after, before)
	}
	w.says(k, "b", func(h *directory.Host) {
		h.Functions = append(h.Functions, directory.Function{Name: "pf0.vf4", Tenant: 1, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.3")}})
	}, func() {
		if out := w.must("move", "a/pf0.vf1", "b", "--as", "pf0.vf4"); out != "1:10.0.0.3: from a to b/pf0.vf4\n" {
			t.Error(out)
		}
	})
	if g := may("b"); !strings.Contains(g, `"from":"a"`) || strings.Contains(g, "moving") {
		t.Error(g)
	}
	if out := w.must("hosts"); !strings.Contains(out, "it is granted to b") {
		t.Error(out)
	}
	began := time.Now() // a still says that it has it, which is no answer to a move back
	w.must("move", "1:10.0.0.3", "a", "--as", "pf0.vf1", "--wait", "1s")
	if took := time.Since(began); took < time.Second {
		t.Errorf("moved back after %v by what the host said before", took)
	}
	w.must("revoke", "b")
	w.must("revoke", "b")
	w.fails("host b is revoked: vnic fleet grant b lets it in again", "allow", "b", "4")
}

// TestOfTwoMovesToOneHostEachEndsByItself: two functions move to one host at a time, which takes one of them. That
// one is there, and the other is still where it was, with its grant. Both cannot go to one function.
func TestOfTwoMovesToOneHostEachEndsByItself(t *testing.T) {
	w := newWorld(t)
	w.grants("a", "1:10.0.0.1", "1:10.0.0.2")
	w.grants("b", "1:10.0.0.3")
	k, err := w.dial(userOperator)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	fn := func(i byte) directory.Function {
		return directory.Function{Name: fmt.Sprint("pf0.vf", i), MAC: fmt.Sprintf("02:00:00:00:00:%02x", i), Tenant: 1, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, i})}}
	}
	put := func(name, at string, h directory.Host) {
		t.Helper()
		h.Underlay, h.CM = at+":1000", at+":7471"
		if _, err := k.Put(w.ctx(), directory.HostKey(w.is.Prefix, name), directory.Encode(h)); err != nil {
			t.Fatal(err)
		}
	}
	put("a", "10.9.0.1", directory.Host{Functions: []directory.Function{fn(1), fn(2)}})
	put("b", "10.9.0.2", directory.Host{})
	grant := func(name string) directory.Grant {
		t.Helper()
		g, _, err := w.readGrant(w.ctx(), k, name)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	// begins begins a move to b, the nth, and returns how it ends.
	begins := func(n int, function string) <-chan error {
		t.Helper()
		end := make(chan error, 1)
		go func() {
			_, err := w.run("move", function, "b", "--wait", "1m")
			end <- err
		}()
		vnictest.Eventually(t, "the beginning of a move", func() error {
			if g := grant("b"); len(g.Moves) != n {
				return fmt.Errorf("%+v", g)
			}
			return nil
		})
		return end
	}
	first := begins(1, "a/pf0.vf1")
	w.fails("b/pf0.vf1 is to have 1:10.0.0.1, which moves there from a; name another function of b by --as", "move", "a/pf0.vf2", "b", "--as", "pf0.vf1")
	second := begins(2, "a/pf0.vf2")
	put("b", "10.9.0.2", directory.Host{Functions: []directory.Function{fn(2)}, Problems: map[string]string{"pf0.vf1": "its port cannot be made"}})
	if err := <-first; err == nil || !strings.Contains(err.Error(), "b: its port cannot be made. a still has it") {
		t.Errorf("the move that b cannot take: %v", err)
	}
	if err := <-second; err != nil {
		t.Errorf("the move that b takes: %v", err)
	}
	a, b := grant("a"), grant("b")
	if may := allowedText(&a); may != "1:10.0.0.1" {
		t.Errorf("a may have %s", may)
	}
	if may := allowedText(&b); may != "1:10.0.0.3,1:10.0.0.2" || len(b.Moves) != 1 || b.Moves[0].Function != "pf0.vf2" || b.Moves[0].Moving {
		t.Errorf("b may have %s, %+v", may, b.Moves)
	}
}

// revokedNow returns the serial numbers in the list of revoked certificates, and how many are kept.
func (w *world) revokedNow(k *clientv3.Client) (serials []*big.Int, kept int64) {
	t := w.t
	t.Helper()
	is, _, err := w.readAuthority(w.ctx(), k)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode([]byte(is.Revoked))
	list, err := x509.ParseRevocationList(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list.RevokedCertificateEntries {
		serials = append(serials, e.SerialNumber)
	}
	n, err := k.Get(w.ctx(), w.revokedPrefix(), clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		t.Fatal(err)
	}
	return serials, n.Count
}

func newCSR(t *testing.T) []byte {
	t.Helper()
	key, _, err := cmlink.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return csr
}

// TestAHostGetsAnotherCertificateOnlyIfItNeedsOne: not for a key that it has one for, and not soon after it got one.
// If another authority signs, it gets one at once. Requests are gone when they are answered.
func TestAHostGetsAnotherCertificateOnlyIfItNeedsOne(t *testing.T) {
	w := newWorld(t)
	w.grants("a", "1")
	k, err := w.dial(userRoot)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	signer := &watcher{folder: &w.folder, k: k, life: hostLife}
	asks := func(csr []byte, signed bool, why string) {
		t.Helper()
		key := directory.RenewKey(w.is.Prefix, "a")
		if _, err := k.Put(w.ctx(), key, string(csr)); err != nil {
			t.Fatal(err)
		}
		is, err := signer.renew(w.ctx(), "a", csr)
		if is != signed || (why == "") != (err == nil) || !strings.Contains(fmt.Sprint(err), why) {
			t.Errorf("signed: %v, %v; want %v, %q", is, err, signed, why)
		}
		if r, err := k.Get(w.ctx(), key); err != nil || len(r.Kvs) > 0 {
			t.Errorf("the request is there, %v", err)
		}
	}
	first, second := newCSR(t), newCSR(t)
	asks(first, true, "")
	asks(first, false, "")
	asks(second, false, "and gets another one after 43m12s")
	if err := errors.Join(cmlink.Next(w.dir), cmlink.Switch(w.dir)); err != nil {
		t.Fatal(err)
	}
	asks(second, true, "")
	w.must("revoke", "a")
	asks(first, false, "a is not in the fleet")
}

// TestAllCertificatesOfARevokedHostAreRevoked: also those that were renewed and have not ended, however many. Otherwise
// they would be good again when the host is let in again.
func TestAllCertificatesOfARevokedHostAreRevoked(t *testing.T) {
	w := newWorld(t)
	w.grants("a", "1")
	k, err := w.dial(userRoot)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	csr := newCSR(t)
	var certs []string
	for range 250 { // etcd takes 128 in one transaction
		cert, err := w.certify("a", csr, hostLife)
		if err != nil {
			t.Fatal(err)
		}
		then, err := w.giveCertificate(w.ctx(), k, "a", cert)
		if err == nil {
			_, err = k.Txn(w.ctx()).Then(then...).Commit()
		}
		if err != nil {
			t.Fatal(err)
		}
		certs = append(certs, cert)
	}
	w.must("revoke", "a")
	list, kept := w.revokedNow(k)
	for _, text := range certs {
		c, err := certificateOf(text)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(list, func(s *big.Int) bool { return s.Cmp(c.SerialNumber) == 0 }) {
			t.Errorf("certificate %x is not revoked", c.SerialNumber)
		}
	}
	if kept != int64(len(certs)) {
		t.Errorf("%d certificates are kept, want %d", kept, len(certs))
	}
	if r, err := k.Get(w.ctx(), w.signedPrefix("a"), clientv3.WithPrefix()); err != nil || len(r.Kvs) > 0 {
		t.Errorf("%v, %v", r, err)
	}
}

// TestTheListOfRevokedForgetsWhatIsOver: the entry of a host that was revoked goes, with what is kept of it,
// when the list changes after its certificate is over.
func TestTheListOfRevokedForgetsWhatIsOver(t *testing.T) {
	w := newWorld(t)
	w.signs(hostLife)
	serials := map[string]*big.Int{}
	for _, name := range []string{"a", "b", "c"} {
		id, err := cmlink.Load(w.joins(name, "1"), name)
		if err != nil {
			t.Fatal(err)
		}
		serials[name] = id.TLSCertificate().Leaf.SerialNumber
	}
	k, err := w.dial(userRoot)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	// listed returns the hosts whose certificates are in the list, and for how many one is kept.
	listed := func() (names string, kept int64) {
		t.Helper()
		list, kept := w.revokedNow(k)
		for _, e := range list {
			for name, s := range serials {
				if e.Cmp(s) == 0 {
					names += name
				}
			}
		}
		return names, kept
	}
	w.must("revoke", "a")
	w.must("revoke", "b")
	if names, kept := listed(); names != "ab" || kept != 2 {
		t.Errorf("revoked: %s, kept: %d", names, kept)
	}
	// Two months later, but by a certificate in place of the clock.
	ca, err := tls.LoadX509KeyPair(w.path("ca.pem"), w.path("ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	end := time.Now().Add(-25 * time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: serials["a"], NotBefore: end.Add(-hostLife), NotAfter: end}, ca.Leaf, ca.Leaf.PublicKey, ca.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	over := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if _, err := k.Put(w.ctx(), w.revokedKey(&x509.Certificate{SerialNumber: serials["a"]}), string(over)); err != nil {
		t.Fatal(err)
	}
	w.must("revoke", "c")
	if names, kept := listed(); names != "bc" || kept != 2 {
		t.Errorf("revoked: %s, kept: %d", names, kept)
	}
	w.must("authority", "next")
	if names, kept := listed(); names != "bc" || kept != 2 {
		t.Errorf("revoked: %s, kept: %d", names, kept)
	}
}

// says has a host write another record as soon as a function moves there, while f runs.
func (w *world) says(k *clientv3.Client, name string, change func(*directory.Host), f func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.ctx())
	key := directory.HostKey(w.is.Prefix, name)
	r, err := k.Get(ctx, key)
	if err != nil {
		w.t.Fatal(err)
	}
	h, err := directory.ParseHost(r.Kvs[0].Value)
	if err != nil {
		w.t.Fatal(err)
	}
	change(&h)
	changes := k.Watch(ctx, directory.GrantKey(w.is.Prefix, name), clientv3.WithRev(r.Header.Revision+1))
	var done sync.WaitGroup
	done.Go(func() {
		<-changes
		if _, err := k.Put(ctx, key, directory.Encode(h)); err != nil {
			w.t.Error(err)
		}
	})
	f()
	done.Wait()
	cancel()
}

// TestAnAuthorityThatWasNotPublishedIsPublishedNext: the next authority is in the folder, and etcd was not reached
// then. The same step tells the fleet of it, once.
func TestAnAuthorityThatWasNotPublishedIsPublishedNext(t *testing.T) {
	w := newWorld(t)
	if err := cmlink.Next(w.dir); err != nil {
		t.Fatal(err)
	}
	w.must("authority", "next")
	k, err := w.dial(userOperator)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	is, _, err := w.readAuthority(w.ctx(), k)
	if err != nil {
		t.Fatal(err)
	}
	if roots, err := os.ReadFile(w.path("ca.pem")); err != nil || is.Roots != string(roots) {
		t.Errorf("the fleet trusts\n%sthe folder has\n%s%v", is.Roots, roots, err)
	}
	w.fails("one is being replaced already", "authority", "next")
}

// TestEtcdThatDoesNotKnowUsSaysSo: what is wrong with a prefix or an endpoint is said, and counted.
func TestEtcdThatDoesNotKnowUsSaysSo(t *testing.T) {
	w := newWorld(t)
	w.must("init", "--domain", "lab", "--prefix", "/vnic/lab", "--endpoint", w.endpoint)
	w.fails("has lab, and keeps it; leave --domain out", "init", "--domain", "other")
	w.fails("has /vnic/lab/, and keeps it; leave --prefix out", "init", "--prefix", "/other")
	w.signs(hostLife)
	keys := w.joins("a", "1")
	id, err := cmlink.Load(keys, "a")
	if err != nil {
		t.Fatal(err)
	}
	says := func(endpoint, prefix, want string, denied bool) {
		t.Helper()
		c := etcd.New(etcd.Config{Endpoints: []string{endpoint}, Prefix: prefix, Name: "a", TLS: func() *tls.Config { return etcd.TLS(id.TLSCertificate(), id.Roots()) }})
		ctx, cancel := context.WithCancel(context.Background())
		var done sync.WaitGroup
		done.Go(func() { _ = c.Run(ctx) })
		defer done.Wait()
		defer cancel()
		vnictest.Eventually(t, want, func() error {
			if st := c.Status(); st.Watching || !strings.Contains(st.Reading, want) || (st.Denied > 0) != denied {
				return fmt.Errorf("%+v", st)
			}
			return nil
		})
	}
	says(w.endpoint, "/vnic/other", "the prefix is another fleet's", true)
	says(vnictest.FreeEndpoint(t), w.is.Prefix, "etcd is not reached", false)
	other := newWorld(t)
	says(other.endpoint, w.is.Prefix, "another authority than ca.pem", true)
}
