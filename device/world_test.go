package device

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/fabric"
	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/internal/leak"
	"github.com/falcon-vnic/vnic/qemu"
)

func TestMain(m *testing.M) { leak.Main(m) }

// testTime is the longest that a test waits for anything.
const testTime = 2 * time.Minute

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTime)
	t.Cleanup(cancel)
	return ctx
}

// world is two NICs on an in-memory fabric, with their connection managers linked over loopback
// TCP.
type world struct {
	t       testing.TB
	uplink  func(name string) (tap.Uplink, error)
	nics    [2]*NIC
	sockets [2]string
	stop    [2]func() error

	helloTimeout time.Duration // for NICs that start
}

func newWorld(t testing.TB) *world {
	t.Helper()
	return newWorldOn(t, fabric.New(devicetest.MTU).Port)
}

func newWorldOn(t testing.TB, uplink func(name string) (tap.Uplink, error)) *world {
	t.Helper()
	return newWorldWith(t, uplink, func(int, *config.Config) {})
}

// profileSeed runs all tests with real clients under the hostile profile.
var profileSeed = flag.Uint64("profile.seed", 0, "put all functions under the hostile profile with this seed")

// shards is the number of shards of the tests' NICs.
var shards = flag.Int("shards", 1, "give NICs so many shards")

// useShards gives NICs n shards until the test ends.
func useShards(t testing.TB, n int) {
	before := *shards
	*shards = n
	t.Cleanup(func() { *shards = before })
}

func (w *world) shake() {
	if *profileSeed == 0 {
		return
	}
	for i, n := range w.nics {
		list, err := n.Functions(context.Background())
		must(w.t, err)
		for _, f := range list {
			_, err := n.InjectFault(context.Background(), control.FaultChange{Function: f.ID, Profile: guest.HostileProfile, Seed: *profileSeed + uint64(i)})
			must(w.t, err)
		}
	}
}

// newWorldWith lets the caller change the configurations.
func newWorldWith(t testing.TB, uplink func(name string) (tap.Uplink, error), change func(i int, c *config.Config)) *world {
	t.Helper()
	dir := t.TempDir()
	w := &world{t: t, uplink: uplink, helloTimeout: testTime}
	keys := filepath.Join(dir, "keys")
	if err := cmlink.Init(keys, "test", []string{"1", "2"}); err != nil {
		t.Fatal(err)
	}
	var cm [2]string
	for i := range cm {
		cm[i] = freeAddress(t)
	}
	for i := range w.nics {
		w.sockets[i] = filepath.Join(dir, fmt.Sprintf("nic%d.sock", i+1))
		id, err := cmlink.Load(keys, fmt.Sprint(i+1))
		if err != nil {
			t.Fatal(err)
		}
		cfg := devicetest.Config(t, i+1, w.sockets[i], cm)
		cfg.NIC.Shards = *shards
		change(i, cfg)
		w.start(i, cfg, Deps{Identity: id})
	}
	w.waitPeers()
	w.shake()
	return w
}

func (w *world) start(i int, cfg *config.Config, deps Deps) {
	t := w.t
	t.Helper()
	port, err := w.uplink(cfg.NIC.Name)
	if err != nil {
		t.Fatal(err)
	}
	bare, err := qemu.ListenUnix(w.sockets[i], nil)
	if err != nil {
		t.Fatal(err)
	}
	deps.Uplink, deps.Attachments, deps.Log = port, []Attachment{{Name: "bare", Attachment: bare}}, testLog(t)
	deps.Record = recorded(t, cfg)
	n, err := NewNIC(cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	n.sessions.HelloTimeout = w.helloTimeout
	w.nics[i] = n
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	select {
	case <-n.Ready():
	case err := <-done:
		t.Fatal(err)
	}
	stopped := false
	w.stop[i] = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(testTime):
			return fmt.Errorf("NIC %d does not stop", i+1)
		}
	}
	t.Cleanup(func() {
		if err := w.stop[i](); err != nil {
			t.Error(err)
		}
	})
}

// waitPeers waits until the NICs can reach each other's connection manager.
func (w *world) waitPeers() {
	w.t.Helper()
	w.until("peers up", func() bool {
		for _, n := range w.nics {
			v, err := n.NIC(context.Background())
			if err != nil || !v.Peers[0].Up {
				return false
			}
		}
		return true
	})
}

// until polls for a condition that other goroutines bring about.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(testTime); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("not in %s: %s", testTime, what)
		}
	}
}

// open attaches a bare client to a VF of NIC i.
func (w *world) open(i int, function string) *guestlib.Device {
	w.t.Helper()
	return w.openWith(i, function, guestlib.Options{Memory: 16 << 20})
}

func (w *world) openWith(i int, function string, o guestlib.Options) *guestlib.Device {
	w.t.Helper()
	d, err := guestlib.Open(testContext(w.t), "unix://"+w.sockets[i]+"?function="+function, o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { d.Close() })
	return d
}

// Range of ports that freeAddress cycles through: below those that the kernel gives to clients.
const firstCMPort, cmPorts = 10000, 20000

var nextCMPort int

// freeAddress returns a loopback address that nobody else will take before it is used: it belongs
// to this process alone.
func freeAddress(t testing.TB) string {
	t.Helper()
	pid := os.Getpid()
	ip := net.IPv4(127, 64|byte(pid>>16), byte(pid>>8), byte(pid))
	for range cmPorts {
		addr := net.JoinHostPort(ip.String(), strconv.Itoa(firstCMPort+nextCMPort))
		nextCMPort = (nextCMPort + 1) % cmPorts
		if l, err := net.Listen("tcp", addr); err == nil {
			l.Close()
			return addr
		}
	}
	t.Fatalf("no port of %s is free", ip)
	return ""
}

// testLog writes to the test's log; benchmarks log nothing.
func testLog(t testing.TB) *slog.Logger {
	if _, ok := t.(*testing.B); ok {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(logWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

type logWriter struct{ t testing.TB }

func (w logWriter) Write(b []byte) (int, error) {
	w.t.Helper()
	w.t.Log(strings.TrimSuffix(string(b), "\n"))
	return len(b), nil
}

// counter reads one of NIC i's counters.
func (w *world) counter(i int, name string) uint64 {
	w.t.Helper()
	c, err := w.nics[i].Counters(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	v, ok := c[name]
	if !ok {
		w.t.Fatalf("no counter %s", name)
	}
	return v
}

// endpoint is a client's end of a connection.
type endpoint struct {
	dev *guestlib.Device
	pd  *guestlib.PD
	cq  *guestlib.CQ
	qp  *guestlib.QP
	mr  *guestlib.MR
}

const allAccess = guestlib.LocalWrite | guestlib.RemoteWrite | guestlib.RemoteRead | guestlib.RemoteAtomic

func newEndpoint(t testing.TB, d *guestlib.Device) *endpoint {
	t.Helper()
	ctx := testContext(t)
	e := &endpoint{dev: d}
	var err error
	if e.pd, err = d.AllocPD(ctx); err != nil {
		t.Fatal(err)
	}
	if e.cq, err = d.CreateCQ(ctx, 256); err != nil {
		t.Fatal(err)
	}
	if e.qp, err = e.pd.CreateQP(ctx, guestlib.QPConfig{SendCQ: e.cq, Access: allAccess}); err != nil {
		t.Fatal(err)
	}
	buf, err := d.Alloc(4 << 20)
	if err != nil {
		t.Fatal(err)
	}
	if e.mr, err = e.pd.RegMR(ctx, buf, allAccess); err != nil {
		t.Fatal(err)
	}
	return e
}

// connect makes a connection from a to b.
func connect(t testing.TB, a, b *endpoint, service uint64) {
	t.Helper()
	ctx := testContext(t)
	l, err := b.dev.Listen(ctx, service)
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			err = r.Accept(ctx, b.qp, []byte("welcome"))
		}
		accepted <- err
	}()
	priv, err := a.dev.Connect(ctx, a.qp, b.dev.GID(), service, []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	if string(priv) != "welcome" {
		t.Errorf("private data %q", priv)
	}
}

// next waits for one completion.
func (e *endpoint) next(t testing.TB) guestlib.WC {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTime)
	defer cancel()
	var wc [1]guestlib.WC
	for {
		n, err := e.cq.Poll(wc[:])
		if err != nil {
			t.Fatal(err)
		}
		if n == 1 {
			return wc[0]
		}
		if err := e.cq.Wait(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// do posts a signaled request and waits for its success.
func (e *endpoint) do(t testing.TB, wr guestlib.SendWR) {
	t.Helper()
	wr.Flags |= guestlib.Signaled
	if err := e.qp.PostSend(&wr); err != nil {
		t.Fatal(err)
	}
	if wc := e.next(t); wc.Err() != nil {
		t.Fatalf("%+v: %v", wr, wc.Err())
	}
}
