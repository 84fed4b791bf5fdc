package device

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/directory"
	"github.com/falcon-vnic/vnic/device/directory/etcd/etcdtest"
	"github.com/falcon-vnic/vnic/device/fabric"
	"github.com/falcon-vnic/vnic/guestlib"
)

// fleetOfTwo is two NICs that know each other by a directory: an etcd in memory.
type fleetOfTwo struct {
	*world
	etcd *etcdtest.Server
	keys string    // folder of the fleet's authority
	ids  [2]string // folders with the NICs' identities

	mu        sync.Mutex
	authority *cmlink.Authority
}

const fleetPrefix = "/vnic/test/"

func newFleetOfTwo(t *testing.T) *fleetOfTwo {
	t.Helper()
	dir := t.TempDir()
	w := &fleetOfTwo{world: &world{t: t, uplink: fabric.New(devicetest.MTU).Port, helloTimeout: testTime}, etcd: etcdtest.New(), keys: filepath.Join(dir, "keys")}
	must(t, cmlink.Init(w.keys, "test", nil))
	w.reopen()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	w.etcd.Start(l, &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return w.etcdTLS(), nil }})
	t.Cleanup(w.etcd.Stop)
	cm := [2]string{freeAddress(t), freeAddress(t)}
	for i := range w.nics {
		w.ids[i] = filepath.Join(dir, fmt.Sprint("identity", i+1))
		must(t, os.Mkdir(w.ids[i], 0o700))
		cert, key, err := w.authority.Issue(w.subject(i))
		must(t, err)
		must(t, cmlink.Replace(w.ids[i], w.name(i), cert, key))
		must(t, os.WriteFile(filepath.Join(w.ids[i], "ca.pem"), w.roots(), 0o600))
		w.grant(i, directory.Grant{Allow: []directory.Allowed{{Tenant: 7}}})

		w.sockets[i] = filepath.Join(dir, fmt.Sprintf("nic%d.sock", i+1))
		cfg := devicetest.Config(t, i+1, w.sockets[i], cm)
		cfg.Peers, cfg.CM.Identity = nil, w.ids[i]
		cfg.Directory.Etcd = &config.Etcd{Endpoints: []string{"https://" + l.Addr().String()}, Prefix: fleetPrefix}
		cfg.Functions[0].VFs = cfg.Functions[0].VFs[:3] // those of tenant 7
		w.start(i, cfg, Deps{})
	}
	w.meet()
	return w
}

func (w *fleetOfTwo) name(i int) string { return fmt.Sprint(i + 1) }

func (w *fleetOfTwo) subject(i int) cmlink.Subject {
	return cmlink.Subject{Common: w.name(i), Identity: cmlink.URI("test", w.name(i)), Life: 24 * time.Hour}
}

// reopen makes the authority what is in its folder now.
func (w *fleetOfTwo) reopen() {
	w.t.Helper()
	a, err := cmlink.OpenAuthority(w.keys)
	must(w.t, err)
	w.mu.Lock()
	w.authority = a
	w.mu.Unlock()
}

func (w *fleetOfTwo) roots() []byte {
	w.t.Helper()
	b, err := w.authority.Roots()
	must(w.t, err)
	return b
}

// etcdTLS returns what etcd shows of itself, and whom it trusts: it asks for certificates of the fleet.
func (w *fleetOfTwo) etcdTLS() *tls.Config {
	w.mu.Lock()
	defer w.mu.Unlock()
	cert, key, err := w.authority.Issue(cmlink.Subject{Common: "etcd", At: "127.0.0.1", Life: time.Hour})
	must(w.t, err)
	pair, err := tls.X509KeyPair(cert, key)
	must(w.t, err)
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(w.roots())
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: trusted, NextProtos: []string{"h2"}}
}

// grant writes what a NIC may claim.
func (w *fleetOfTwo) grant(i int, g directory.Grant) {
	w.etcd.Put(directory.GrantKey(fleetPrefix, w.name(i)), directory.Encode(g))
}

// record returns what a NIC says of itself in etcd.
func (w *fleetOfTwo) record(i int) directory.Host {
	h, _ := directory.ParseHost([]byte(w.etcd.Get(directory.HostKey(fleetPrefix, w.name(i)))))
	return h
}

func (w *fleetOfTwo) directory(i int) control.Directory {
	w.t.Helper()
	d, err := w.nics[i].Directory(context.Background())
	must(w.t, err)
	return d
}

// peers returns a NIC's peers, and those of them to which there is a link.
func (w *fleetOfTwo) peers(i int) (all, up []string) {
	w.t.Helper()
	list, err := w.nics[i].Peers(context.Background())
	must(w.t, err)
	for _, p := range list {
		if all = append(all, p.Name); p.Up {
			up = append(up, p.Name)
		}
	}
	return all, up
}

// meet waits until the NICs have links to each other.
func (w *fleetOfTwo) meet() {
	w.t.Helper()
	w.until("each other's peers", func() bool {
		_, a := w.peers(0)
		_, b := w.peers(1)
		return slices.Equal(a, []string{"2"}) && slices.Equal(b, []string{"1"})
	})
}

// works writes from a VF of one NIC to one of the other by a new connection.
func (w *fleetOfTwo) works(from, to string, service uint64) {
	w.t.Helper()
	a, b := newEndpoint(w.t, w.open(0, from)), newEndpoint(w.t, w.open(1, to))
	connect(w.t, a, b, service)
	a.do(w.t, guestlib.SendWR{Opcode: guestlib.Write, SGL: []guestlib.SGE{a.mr.SGE(0, 4096)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
	must(w.t, a.dev.Close())
	must(w.t, b.dev.Close())
}

// offers lists the functions that a NIC's record tells of.
func (w *fleetOfTwo) offers(i int) (list []string) {
	for _, f := range w.record(i).Functions {
		list = append(list, fmt.Sprintf("%s %v", f.Name, f.Addresses[0]))
	}
	return list
}

// TestNICsFindEachOtherByADirectory: NICs that name no peers have each other. A claim that is not granted is
// refused and shown, a host that is revoked is nobody's peer, and one that has ended leaves its record to
// nobody.
func TestNICsFindEachOtherByADirectory(t *testing.T) {
	w := newFleetOfTwo(t)
	w.works("h1.pf0.vf1", "h2.pf0.vf1", 1)
	for i := range w.nics {
		if d := w.directory(i); d.Kind != "etcd" || d.Name != w.name(i) || !d.Watching || d.Keeping != "" || d.Hosts != 2 || d.Peers != 1 || len(d.Refused) != 0 || len(d.Problems) != 0 {
			t.Errorf("%+v", d)
		}
		if w.counter(i, "directory.watching") != 1 || w.counter(i, "directory.hosts") != 2 {
			t.Error("the counters know nothing of it")
		}
	}
	if want := []string{"pf0.vf1 192.168.100.11", "pf0.vf2 192.168.100.12", "pf0.vf3 192.168.100.13"}; !slices.Equal(w.offers(0), want) {
		t.Errorf("NIC 1 offers %v", w.offers(0))
	}

	// A third host says that it has an address of NIC 1, and one of a tenant that nobody has granted to it.
	third := directory.Host{Instance: "x", Underlay: "10.99.0.3:1000", CM: "127.0.0.1:1", Functions: []directory.Function{
		{Name: "pf0.vf1", Tenant: 7, Addresses: []netip.Addr{netip.MustParseAddr("192.168.100.11")}},
		{Name: "pf0.vf2", Tenant: 9, Addresses: []netip.Addr{netip.MustParseAddr("192.168.100.99")}},
	}}
	w.etcd.Put(directory.GrantKey(fleetPrefix, "3"), directory.Encode(directory.Grant{Allow: []directory.Allowed{{Tenant: 7}}}))
	w.etcd.Put(directory.HostKey(fleetPrefix, "3"), directory.Encode(third))
	for i := range w.nics {
		w.until("both claims are refused", func() bool { return len(w.directory(i).Refused) == 2 })
		for _, r := range w.directory(i).Refused {
			if r.Host != "3" || !strings.Contains(r.Why, "claimed it before") && !strings.Contains(r.Why, "not granted") {
				t.Errorf("%+v", r)
			}
		}
		if n := w.counter(i, "directory.refused"); n != 2 {
			t.Errorf("%d claims were refused", n)
		}
	}
	w.etcd.Delete(directory.GrantKey(fleetPrefix, "3"), directory.HostKey(fleetPrefix, "3"))

	w.grant(1, directory.Grant{Revoked: true})
	w.until("the revoked one is no peer", func() bool { all, _ := w.peers(0); return len(all) == 0 })
	w.grant(1, directory.Grant{Allow: []directory.Allowed{{Tenant: 7}}})
	w.meet()
	w.works("h1.pf0.vf1", "h2.pf0.vf1", 2)

	must(t, w.stop[1]())
	if has := w.etcd.Get(directory.HostKey(fleetPrefix, "2")); has != "" {
		t.Errorf("the record of a NIC that has ended: %s", has)
	}
	w.until("the link is down", func() bool { _, up := w.peers(0); return len(up) == 0 })
	if all, _ := w.peers(0); !slices.Equal(all, []string{"2"}) {
		t.Errorf("the peer that has just ended is forgotten: %v", all)
	}
}

// TestANICWithoutADirectorySaysSo: its peers are those of the configuration.
func TestANICWithoutADirectorySaysSo(t *testing.T) {
	w := newWorld(t)
	if d, err := w.nics[0].Directory(t.Context()); err != nil || d.Kind != "static" || d.Peers != 1 {
		t.Errorf("%+v, %v", d, err)
	}
}

// TestAFunctionMovesByADirectory: a function that the directory moves to another NIC is there with its
// address, and gone where it was. What the other NIC cannot take stays where it is, and both the NIC and its record
// say why.
func TestAFunctionMovesByADirectory(t *testing.T) {
	w := newFleetOfTwo(t)
	at := netip.MustParseAddr("192.168.100.11")
	moves := func(as string, set map[string]string) {
		move := directory.Move{Function: as, Tenant: 7, Addresses: []netip.Addr{at}, From: "1", Moving: true, Set: set}
		w.grant(1, directory.Grant{Allow: []directory.Allowed{{Tenant: 7}, {Tenant: 7, Addresses: []netip.Addr{at}}}, Moves: []directory.Move{move}})
	}
	for _, c := range []struct {
		as   string
		set  map[string]string
		says string
	}{
		{"pf0.vf99", nil, "there is no function"},
		{"pf0.vf4", map[string]string{"weight": "none"}, "weight"},
		{"pf0.vf4", map[string]string{"color": "red"}, "color"},
	} {
		moves(c.as, c.set)
		w.until("NIC 2 says why it cannot, "+c.says, func() bool {
			d := w.directory(1)
			return len(d.Problems) == 1 && strings.HasPrefix(d.Problems[0], c.as) && strings.Contains(d.Problems[0], c.says) && strings.Contains(w.record(1).Problems[c.as], c.says)
		})
		if !slices.Contains(w.offers(0), "pf0.vf1 192.168.100.11") || slices.ContainsFunc(w.offers(1), func(s string) bool { return strings.Contains(s, at.String()) }) {
			t.Errorf("NIC 1 offers %v, NIC 2 %v", w.offers(0), w.offers(1))
		}
	}
	if w.counter(1, "directory.not_done") == 0 {
		t.Error("the counters know nothing of it")
	}

	moves("pf0.vf4", map[string]string{"weight": "7"})
	w.until("NIC 2 has it, and NIC 1 has not", func() bool {
		return slices.Contains(w.offers(1), "pf0.vf4 192.168.100.11") && !slices.Contains(w.offers(0), "pf0.vf1 192.168.100.11")
	})
	w.until("all is done", func() bool { return len(w.directory(1).Problems) == 0 && len(w.record(1).Problems) == 0 })
	list, err := w.nics[1].Functions(t.Context())
	must(t, err)
	for _, f := range list {
		if f.ID == "h2.pf0.vf4" && (f.Weight != 7 || f.Addr != at.String() || f.Tenant != 7) {
			t.Errorf("%+v", f)
		}
	}
	w.meet()
	w.works("h1.pf0.vf2", "h2.pf0.vf2", 1)
}

// TestANICFollowsItsFleetToAnotherAuthority: it trusts what an authority that it trusts has signed, asks for
// a certificate of the new one, has its links again with that, and trusts the old one no more when that is
// dropped. It takes nothing that somebody else has signed.
func TestANICFollowsItsFleetToAnotherAuthority(t *testing.T) {
	w := newFleetOfTwo(t)
	old := w.authority
	tells := func(by *cmlink.Authority, revoked string) {
		signature, err := by.SignRoots(w.roots())
		must(t, err)
		w.etcd.Put(directory.AuthorityKey(fleetPrefix), directory.Encode(directory.Authority{Roots: string(w.roots()), Signature: signature, Revoked: revoked}))
	}
	settled := func(what string, ok func(h directory.Host) bool) {
		t.Helper()
		w.until(what, func() bool { return ok(w.record(0)) && ok(w.record(1)) })
	}

	// Both are trusted.
	must(t, cmlink.Next(w.keys))
	next, err := cmlink.OpenNext(w.keys)
	must(t, err)
	tells(next, "") // nobody trusts it yet
	for i := range w.nics {
		w.until("what a stranger has signed is refused", func() bool {
			d := w.directory(i)
			return len(d.Problems) == 1 && strings.Contains(d.Problems[0], "no authority that this NIC trusts has signed them")
		})
	}
	tells(old, "")
	settled("both authorities are trusted", func(h directory.Host) bool { return len(h.Authorities) == 2 })

	// The new one signs.
	must(t, cmlink.Switch(w.keys))
	w.reopen()
	tells(old, "")
	for i := range w.nics {
		w.signs(i)
	}
	settled("both have certificates of the new one", func(h directory.Host) bool { return h.Authority == w.authority.Serial() })
	w.meet()

	// The old one is dropped.
	must(t, cmlink.Drop(w.keys))
	w.reopen()
	tells(w.authority, "")
	settled("the new one alone is trusted", func(h directory.Host) bool { return len(h.Authorities) == 1 && h.Authority == w.authority.Serial() })
	w.meet()
	w.works("h1.pf0.vf1", "h2.pf0.vf1", 1)

	// A certificate is revoked.
	revoked, err := w.authority.Revoke(nil, nil, w.nics[1].links.identity().TLSCertificate().Leaf)
	must(t, err)
	tells(w.authority, string(revoked))
	w.until("the link is down", func() bool { _, up := w.peers(0); return len(up) == 0 })
	w.until("NIC 1 has the list", func() bool {
		_, err := os.Stat(filepath.Join(w.ids[0], "ca.crl"))
		return err == nil && len(w.directory(0).Problems) == 0
	})
}

// signs signs what a NIC asks for, when it does.
func (w *fleetOfTwo) signs(i int) {
	w.t.Helper()
	key := directory.RenewKey(fleetPrefix, w.name(i))
	w.until("a request for a certificate", func() bool { return w.etcd.Get(key) != "" })
	csr, err := x509.ParseCertificateRequest([]byte(w.etcd.Get(key)))
	must(w.t, err)
	cert, err := w.authority.Sign(w.subject(i), csr.PublicKey)
	must(w.t, err)
	if block, _ := pem.Decode(cert); block == nil {
		w.t.Fatal("no certificate")
	}
	w.etcd.Put(directory.CertKey(fleetPrefix, w.name(i)), string(cert))
}
