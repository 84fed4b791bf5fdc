package etcd

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/falcon-vnic/vnic/device/directory"
	"github.com/falcon-vnic/vnic/device/directory/etcd/etcdtest"
	"github.com/falcon-vnic/vnic/internal/leak"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// world is an etcd in memory with clients. What takes long, such as a silence, clients leap over (skip).
type world struct {
	t     *testing.T
	etcd  *etcdtest.Server
	still bool // for clients that are added, only what they skip passes

	mu sync.Mutex
	at *bufconn.Listener // nil: nobody listens
}

const prefix = "/vnic/test/"

// testTime is the longest that a test waits for anything.
const testTime = 2 * time.Minute

// newWorld returns an etcd that has grants for h1 and h2.
func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	w := &world{t: t, etcd: etcdtest.New()}
	for i, name := range []string{"h1", "h2"} {
		w.etcd.Put(directory.GrantKey(prefix, name), directory.Encode(directory.Grant{Allow: []directory.Allowed{{Tenant: 1, Addresses: []netip.Addr{addressOf(i)}}}}))
	}
	w.start()
	t.Cleanup(w.stop)
	return w
}

func addressOf(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}) }

func (w *world) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at = bufconn.Listen(1 << 16)
	w.etcd.Start(w.at, nil)
}

func (w *world) stop() {
	w.mu.Lock()
	w.at = nil
	w.mu.Unlock()
	w.etcd.Stop()
}

func (w *world) dial(ctx context.Context, _ string) (net.Conn, error) {
	w.mu.Lock()
	l := w.at
	w.mu.Unlock()
	if l == nil {
		return nil, errors.New("connect: connection refused")
	}
	return l.DialContext(ctx)
}

// until waits for what other goroutines bring about.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(testTime); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("not in %v: %s", testTime, what)
		}
	}
}

// nic is a client with what its NIC has seen.
type nic struct {
	*Client
	w      *world
	name   string
	record directory.Host
	log    syncBuffer
	ahead  atomic.Int64 // of the time, by what was skipped
	end    func()       // ends it, and returns when it has ended
}

// skip has time pass for the NIC.
func (n *nic) skip(d time.Duration) {
	n.ahead.Add(int64(d))
	n.Look(context.Background(), func(*directory.View) {}) // it looks at its clock
}

type syncBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

// count returns how often the log says something.
func (b *syncBuffer) count(what string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Count(b.String(), what)
}

// add starts a NIC; without an instance, it has no record and only looks on.
func (w *world) add(name, instance string) *nic {
	n := &nic{w: w, name: name, record: directory.Host{
		Instance: instance, Underlay: "10.9.0." + strings.TrimPrefix(name, "h") + ":1000", CM: "10.9.0.1:7471",
		Functions: []directory.Function{{Name: "pf0.vf1", Tenant: 1, Addresses: []netip.Addr{addressOf(int(name[1] - '1'))}}},
	}}
	n.Client = New(Config{Endpoints: []string{"http://etcd:2379"}, Prefix: prefix, Name: name, Log: slog.New(slog.NewTextHandler(&n.log, nil))})
	n.options = []grpc.DialOption{grpc.WithContextDialer(w.dial)}
	if clock := n.clock; w.still {
		n.clock = n.ahead.Load
	} else {
		n.clock = func() vtime.Time { return clock() + n.ahead.Load() }
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	n.end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(n.end)
	if instance != "" {
		n.Record(ctx, n.record)
	}
	return n
}

// key returns the key of the NIC's record.
func (n *nic) key() string { return directory.HostKey(prefix, n.name) }

// settled reports whether the NIC sees these hosts and no others, and has its record in etcd.
func (n *nic) settled(hosts ...string) bool {
	st := n.Status()
	return st.Watching && st.Keeping == "" && n.w.etcd.Get(n.key()) == directory.Encode(n.record) && slices.Equal(n.sees(), hosts)
}

// sees returns the hosts that the NIC has as peers, or itself, and whose records are there.
func (n *nic) sees() (names []string) {
	n.Look(context.Background(), func(v *directory.View) {
		hosts, _ := v.Decide()
		for i := range hosts {
			if !hosts[i].Gone {
				names = append(names, hosts[i].Name)
			}
		}
	})
	slices.Sort(names)
	return names
}

func TestMain(m *testing.M) { leak.Main(m) }

// TestAHostIsInEtcdAsLongAsItRuns: its record is there with what it said last, and stays without anything
// being written; when the host ends, it is gone at once, and the others see that.
func TestAHostIsInEtcdAsLongAsItRuns(t *testing.T) {
	w := newWorld(t)
	a, b := w.add("h1", "1"), w.add("h2", "1")
	w.until("both see both", func() bool { return a.settled("h1", "h2") && b.settled("h1", "h2") })
	revision, kept := w.etcd.Revision(), w.etcd.KeptAlive()
	for i := range 5 {
		a.skip(directory.LeaseTTL / 2)
		w.until("its lease is kept alive", func() bool { return w.etcd.KeptAlive() > kept+i })
	}
	w.until("both see both", func() bool { return a.settled("h1", "h2") && b.settled("h1", "h2") })
	if w.etcd.Revision() != revision {
		t.Errorf("%+v, %d changes", a.Status(), w.etcd.Revision()-revision)
	}
	b.record.Version = "another"
	b.Record(t.Context(), b.record)
	w.until("the record changes", func() bool { return b.settled("h1", "h2") })
	b.end()
	if has := w.etcd.Get(b.key()); has != "" {
		t.Errorf("when the host has ended, etcd has %q", has)
	}
	w.until("the other one sees it", func() bool { return a.settled("h1") })
	if st := a.Status(); st.Lists != 1 || st.LeasesLost != 0 || st.Revision != w.etcd.Revision() {
		t.Errorf("%+v, etcd is at %d", st, w.etcd.Revision())
	}
}

// TestWhatFailsBetweenANICAndEtcdIsSeenAndMends: whatever becomes of etcd, the NIC goes on with what it
// knew, says once what is the matter, and has missed nothing when it is over.
func TestWhatFailsBetweenANICAndEtcdIsSeenAndMends(t *testing.T) {
	for name, c := range map[string]struct {
		begin, end       func(w *world, n *nic)
		reading, keeping string // what the NIC says meanwhile; "": it need not notice
		counts           func(s directory.Stats) bool
	}{
		"the member is killed and started again": {
			(*world).killed, (*world).started, "no answer", "etcd is not reached",
			func(s directory.Stats) bool { return s.Failures > 0 && s.Lists == 1 && s.Compactions == 0 },
		},
		"the member is replaced between two requests": {
			func(w *world, _ *nic) { w.stop(); w.start() }, nil, "", "",
			func(s directory.Stats) bool { return s.Lists == 1 && s.LeasesLost == 0 },
		},
		"the member does not answer any more": {
			func(w *world, _ *nic) { w.etcd.Hang(true) },
			func(w *world, _ *nic) { w.etcd.Hang(false) },
			"no answer", "etcd is not reached",
			func(s directory.Stats) bool { return s.Failures > 0 && s.Lists == 1 },
		},
		"etcd has forgotten what the NIC missed": {
			(*world).killed,
			func(w *world, n *nic) { w.etcd.Compact(); w.started(n) },
			"no answer", "etcd is not reached",
			func(s directory.Stats) bool { return s.Compactions == 1 && s.Lists == 2 },
		},
		"the lease runs out": {
			func(w *world, _ *nic) { w.etcd.EndLeases() }, nil, "", "",
			func(s directory.Stats) bool { return s.LeasesLost == 1 && s.Failures == 0 },
		},
		"an operator deletes the record": {
			func(w *world, n *nic) { w.etcd.Delete(n.key()) }, nil, "", "",
			func(s directory.Stats) bool { return s.LeasesLost == 0 && s.Failures == 0 },
		},
		"the member has no leader": {
			func(w *world, _ *nic) { w.etcd.Refuse(rpctypes.ErrGRPCNoLeader) },
			func(w *world, _ *nic) { w.etcd.Refuse(nil) },
			"has no leader", "etcd", // requests are tried again until their time is over
			func(s directory.Stats) bool { return s.Failures > 0 && s.Denied == 0 && s.Lists == 1 },
		},
		"etcd refuses the NIC": {
			func(w *world, _ *nic) { w.etcd.Refuse(rpctypes.ErrGRPCPermissionDenied) },
			func(w *world, _ *nic) { w.etcd.Refuse(nil) },
			"does not let this certificate do that", "does not let this certificate do that",
			func(s directory.Stats) bool { return s.Failures > 0 && s.Denied > 0 && s.Lists == 1 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			n := w.add("h1", "1")
			w.until("it sees itself", func() bool { return n.settled("h1") })
			c.begin(w, n)
			other := directory.Host{Instance: "1", Underlay: "10.9.0.2:1000", CM: "10.9.0.2:7471", Functions: []directory.Function{{Name: "pf0.vf1", Tenant: 1, Addresses: []netip.Addr{addressOf(1)}}}}
			w.etcd.Put(directory.HostKey(prefix, "h2"), directory.Encode(other)) // what it may be about to miss
			if c.reading != "" {
				n.skip(directory.LeaseTTL / 2) // the lease is due
				w.until("it says that the record is not kept", func() bool { return strings.Contains(n.Status().Keeping, c.keeping) })
				n.skip(10 * time.Second) // the watch is quiet
				n.skip(10 * time.Second)
				w.until("it says that it does not watch", func() bool {
					st := n.Status()
					return !st.Watching && strings.Contains(st.Reading, c.reading)
				})
				if !slices.Equal(n.sees(), []string{"h1"}) {
					t.Errorf("meanwhile it sees %v", n.sees())
				}
			}
			if c.end != nil {
				c.end(w, n)
			}
			w.until("all is as before, and nothing is missed", func() bool { return n.settled("h1", "h2") })
			if st := n.Status(); !c.counts(st.Stats) {
				t.Errorf("%+v", st)
			}
			warned, informed := n.log.count("level=WARN"), n.log.count("the fleet is read from etcd")
			if most := 1 + int(n.Status().Compactions); warned != informed || warned > most || c.reading != "" && warned == 0 { // a watch may begin before it is told that it cannot
				t.Errorf("the log has %d warnings, and says %d times that the fleet is read again:\n%s", warned, informed, n.log.String())
			}
		})
	}
}

func (w *world) killed(*nic)  { w.stop() }
func (w *world) started(*nic) { w.start() }

// TestAQuietWatchIsAskedForASignOfLife: while nothing changes, an answer to that is all it takes for a NIC
// to know that it misses nothing.
func TestAQuietWatchIsAskedForASignOfLife(t *testing.T) {
	w := newWorld(t)
	w.still = true // on a busy machine the answer may take long
	n := w.add("h1", "")
	w.until("it watches", func() bool { return n.Status().Watching })
	heard := func() (just bool) {
		n.Look(t.Context(), func(*directory.View) { just = n.session.Deadline(n.clock())-n.clock() > int64(9*time.Second) })
		return just
	}
	for i := range 5 {
		w.until("etcd is asked", func() bool {
			if w.etcd.SignsOfLife() > i {
				return true
			}
			if heard() { // at first also that the watch has begun
				n.skip(12 * time.Second)
			}
			return false
		})
		w.until("the answer is heard", heard)
	}
	if st := n.Status(); !st.Watching || st.Failures != 0 || st.Lists != 1 {
		t.Errorf("%+v", st)
	}
}

// TestANICStartsBeforeEtcd: it says that etcd is not reached, and is in the fleet when etcd is there.
func TestANICStartsBeforeEtcd(t *testing.T) {
	w := newWorld(t)
	w.stop()
	n := w.add("h1", "1")
	w.until("it says so", func() bool {
		st := n.Status()
		return !st.Watching && strings.Contains(st.Reading, "etcd is not reached") && n.log.count("level=WARN") == 1
	})
	w.start()
	w.until("it is in the fleet", func() bool { return n.settled("h1") })
}

// TestAnotherConnectionTakesOverFromTheFirst: a NIC that has another certificate goes on with a new
// connection from where it was, which is no failure, and misses nothing that happens meanwhile.
func TestAnotherConnectionTakesOverFromTheFirst(t *testing.T) {
	w := newWorld(t)
	n := w.add("h1", "1")
	w.until("it sees itself", func() bool { return n.settled("h1") })
	for i := range 20 {
		n.Redial()
		w.etcd.Put(directory.CertKey(prefix, "h1"), strings.Repeat("x", i+1))
		if i%3 == 0 {
			n.skip(time.Second) // the connection is another one before the next change
		}
	}
	w.until("it has seen all", func() bool {
		cert := ""
		n.Look(t.Context(), func(v *directory.View) { cert = v.Certificate("h1") })
		return len(cert) == 20 && n.settled("h1")
	})
	if st := n.Status(); st.Failures != 0 || st.Lists != 1 || n.log.count("level=WARN") != 0 {
		t.Errorf("%+v\n%s", st, n.log.String())
	}
}

// TestTheNICThatStartedLastHasTheName: of two NICs of one name the first says that there is another one,
// and has the record again when that one has ended.
func TestTheNICThatStartedLastHasTheName(t *testing.T) {
	w := newWorld(t)
	first := w.add("h1", "1")
	w.until("it sees itself", func() bool { return first.settled("h1") })
	second := w.add("h1", "2")
	w.until("the second one has the record, and the first one says so", func() bool {
		return second.settled("h1") && strings.Contains(first.Status().Keeping, "another NIC has the name h1")
	})
	first.skip(directory.LeaseTTL)
	if st := first.Status(); st.Yields != 1 || !second.settled("h1") {
		t.Errorf("%+v", st)
	}
	second.end()
	w.until("the first one has the record", func() bool { return first.settled("h1") })
}

// TestANICAsksForItsCertificateByAKey: a key is written besides the record, and an error says what it
// means.
func TestANICAsksForItsCertificateByAKey(t *testing.T) {
	w := newWorld(t)
	n := w.add("h1", "1")
	key := directory.RenewKey(prefix, "h1")
	if err := n.Put(t.Context(), key, "please"); err != nil || w.etcd.Get(key) != "please" {
		t.Errorf("%q, %v", w.etcd.Get(key), err)
	}
	w.etcd.Refuse(rpctypes.ErrGRPCPermissionDenied)
	if err := n.Put(t.Context(), key, "again"); !errors.Is(err, directory.ErrDenied) || w.etcd.Get(key) != "please" {
		t.Errorf("%q, %v", w.etcd.Get(key), err)
	}
}

// TestAnEndpointIsRefusedAtOnce: an endpoint that cannot be one is not tried again.
func TestAnEndpointIsRefusedAtOnce(t *testing.T) {
	for _, e := range []string{"10.0.0.1:2379", "https://10.0.0.1", "ftp://10.0.0.1:2379", "https://:x"} {
		n := New(Config{Endpoints: []string{e}, Prefix: prefix, Name: "h1"})
		if err := n.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "https://10.0.0.1:2379") {
			t.Errorf("%s: %v", e, err)
		}
		if err := n.Put(t.Context(), "key", "value"); err == nil {
			t.Errorf("%s: a key is written", e)
		}
	}
}

// TestNobodyWaitsForAClientThatHasEnded: what is said to a client, or asked of it, when it has ended waits
// for nobody, even if as much waits already as can.
func TestNobodyWaitsForAClientThatHasEnded(t *testing.T) {
	c := New(Config{Prefix: prefix, Name: "h1"})
	for range cap(c.answers) {
		c.answers <- func(vtime.Time) []directory.Ask { return nil }
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c.Record(ctx, directory.Host{})
	c.Look(ctx, func(*directory.View) { t.Error("it looks") })
}
