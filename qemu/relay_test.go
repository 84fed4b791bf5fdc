package qemu

import (
	"bytes"
	"errors"
	"io"
	"math/rand"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/nettest"
	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/guestmem"
	"github.com/falcon-vnic/vnic/qemu/internal/sockettest"
	"github.com/falcon-vnic/vnic/qemu/vhostnet"
	"github.com/falcon-vnic/vnic/qemu/vhosttest"
	"github.com/falcon-vnic/vnic/qemu/virtqueue"
	"github.com/falcon-vnic/vnic/qemu/vsock"
	"github.com/falcon-vnic/vnic/queues"
)

// handed is an Acceptor of connections made elsewhere.
type handed struct {
	conns chan *net.UnixConn
	done  chan struct{}
	once  sync.Once
}

func newHanded() *handed {
	return &handed{conns: make(chan *net.UnixConn, 1), done: make(chan struct{})}
}

func (h *handed) AcceptUnix() (*net.UnixConn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

func (h *handed) Close() error {
	h.once.Do(func() { close(h.done) })
	return nil
}

// worker runs the rings of a relay.
type worker struct {
	queues.Attachment
	dev *VhostUser
	in  *handed
}

// startWorker starts a worker and gives it to the relay.
func startWorker(t *testing.T, r *VhostRelay, path string) *worker {
	t.Helper()
	w := newWorker(t, r, path)
	w.serve(t)
	r.Attach(w.connect)
	return w
}

// newWorker returns a worker that does not serve yet.
func newWorker(t *testing.T, r *VhostRelay, path string) *worker {
	t.Helper()
	w := &worker{in: newHanded()}
	fd, err := unix.FcntlInt(r.Ledger.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	opt := quiet()
	if opt.Ledger, err = MapLedger(os.NewFile(uintptr(fd), "ledger")); err != nil {
		t.Fatal(err)
	}
	if w.dev, err = NewVhostUser(w.in, path, testCID, opt); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.dev.Close() })
	return w
}

func (w *worker) connect() (*net.UnixConn, error) {
	ours, theirs, err := sockettest.New()
	if err == nil {
		w.in.conns <- theirs
	}
	return ours, err
}

func (w *worker) serve(t *testing.T) {
	t.Helper()
	var err error
	if w.Attachment, err = w.dev.Listen(testPort); err != nil {
		t.Fatal(err)
	}
	w.dev.Serve()
}

func startRelay(t *testing.T) (r *VhostRelay, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "g.sock")
	r, err := ListenVhostRelay(path, testCID, quiet())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r, path
}

// TestRelayedConnectionIsANetConn: a connection through a relay behaves like one without.
func TestRelayedConnectionIsANetConn(t *testing.T) {
	for _, slots := range []bool{false, true} {
		r, path := startRelay(t)
		w := startWorker(t, r, path)
		g, err := vhosttest.Start(path, vhosttest.Options{Slots: slots})
		if err != nil {
			t.Fatal(err)
		}
		nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
			if c1, err = g.Dial(testPort, time.Minute); err != nil {
				return nil, nil, nil, err
			}
			c2, err = w.Accept()
			return c1, c2, func() { c1.Close(); c2.Close() }, err
		})
		for range 3 {
			if err := g.Reboot(); err != nil {
				t.Fatal(err)
			}
			c, s := dialGuest(t, g, w)
			echo(t, c, s, 100_000)
		}
		if err := g.Kill(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAWaitingGuestFindsThePort: a guest that connects while no worker runs is answered by the next
// worker's port, however long that one takes to open it.
func TestAWaitingGuestFindsThePort(t *testing.T) {
	r, path := startRelay(t)
	g, err := vhosttest.Start(path, vhosttest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Kill()
	dialed := make(chan error, 1)
	go func() {
		c, err := g.Dial(testPort, time.Minute)
		if err == nil {
			err = c.Close()
		}
		dialed <- err
	}()
	w := newWorker(t, r, path)
	attached := make(chan struct{})
	go func() {
		defer close(attached)
		r.Attach(w.connect)
	}()
	time.Sleep(50 * time.Millisecond)
	w.serve(t)
	<-attached
	if err := <-dialed; err != nil {
		t.Fatal(err)
	}
	if _, err := w.Accept(); err != nil {
		t.Error(err)
	}
}

// echo sends n bytes to the other end and back.
func echo(t *testing.T, c, s net.Conn, n int) {
	t.Helper()
	go func() { _, _ = io.CopyN(s, s, int64(n)) }()
	want, got := make([]byte, n), make([]byte, n)
	rand.New(rand.NewSource(int64(n))).Read(want)
	go func() { _, _ = c.Write(want) }()
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := io.ReadFull(c, got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("%d bytes differ", n)
	}
}

// TestAReplacedWorkerResetsFlowsAndTakesNewOnes kills the worker in the middle of traffic, again and again, while the guest
// reboots, is killed, or goes on. The guest's earlier flows are reset, even if the guest only
// waits, and new ones work.
func TestAReplacedWorkerResetsFlowsAndTakesNewOnes(t *testing.T) {
	r, path := startRelay(t)
	g, err := vhosttest.Start(path, vhosttest.Options{}) // nobody there yet
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = g.Kill() }()
	rnd := rand.New(rand.NewSource(7))
	for round := range 30 {
		w := startWorker(t, r, path)
		c, s := dialGuest(t, g, w)
		echo(t, c, s, 1+rnd.Intn(300_000))
		go func() { _, _ = io.Copy(s, s) }()
		go func() { _, _ = io.Copy(io.Discard, c) }()
		busy := make(chan error, 1)
		go func() { // until the flow is reset
			b := make([]byte, 10_000)
			_ = c.SetWriteDeadline(time.Now().Add(time.Minute))
			for {
				if _, err := c.Write(b); err != nil {
					busy <- err
					return
				}
			}
		}()
		time.Sleep(time.Duration(rnd.Intn(3000)) * time.Microsecond)
		// A killed worker removes nothing from the ledger.
		notes := readLedger(t, r)
		r.Detach()
		if err := w.dev.Close(); err != nil {
			t.Fatal(err)
		}
		writeLedger(t, r, notes)
		switch round % 3 {
		case 0: // a reboot while nobody runs the rings
			if err := g.Reboot(); err != nil {
				t.Fatal(err)
			}
		case 1: // another QEMU
			if err := g.Kill(); err != nil {
				t.Fatal(err)
			}
			if g, err = vhosttest.Start(path, vhosttest.Options{Slots: round%2 == 0}); err != nil {
				t.Fatal(err)
			}
		}
		next := startWorker(t, r, path)
		if err := <-busy; errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("round %d: a flow of the worker before was not reset: %v", round, err)
		}
		c2, s2 := dialGuest(t, g, next)
		echo(t, c2, s2, 100_000)
		r.Detach()
		if err := next.dev.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAPausedGuestHearsThatItsFlowsAreGone: pausing a guest ends the host's side of its flows. When it
// goes on, the guest's side ends too, whether the worker is the same or the next, and other flows work.
func TestAPausedGuestHearsThatItsFlowsAreGone(t *testing.T) {
	for _, replaced := range []bool{false, true} {
		r, path := startRelay(t)
		w := startWorker(t, r, path)
		g, err := vhosttest.Start(path, vhosttest.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Kill()
		c, s := dialGuest(t, g, w)
		echo(t, c, s, 10_000)
		if replaced {
			r.Detach()
			if err := w.dev.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := g.Pause(); err != nil {
			t.Fatal(err)
		}
		if replaced {
			w = startWorker(t, r, path)
		}
		for what, c := range map[string]net.Conn{"host": s, "guest": c} {
			_ = c.SetReadDeadline(time.Now().Add(time.Minute))
			if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("replaced %t: the %s's end: %v", replaced, what, err)
			}
		}
		c, s = dialGuest(t, g, w)
		echo(t, c, s, 10_000)
	}
}

// TestFlowsAreResetHoweverTheirWorkerEnds: a guest that only waits learns that its flow is gone, also a
// forwarded one, when the worker shuts down, and when the next one ends before it has the guest.
func TestFlowsAreResetHoweverTheirWorkerEnds(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, r *VhostRelay, path string, w *worker){
		"it shuts down": func(t *testing.T, r *VhostRelay, _ string, w *worker) {
			if err := w.dev.Close(); err != nil {
				t.Error(err)
			}
			r.Detach()
		},
		"it is killed, and the next one at once": func(t *testing.T, r *VhostRelay, path string, w *worker) {
			notes := readLedger(t, r) // a killed worker removes nothing from the ledger
			r.Detach()
			if err := w.dev.Close(); err != nil {
				t.Error(err)
			}
			writeLedger(t, r, notes)
			newWorker(t, r, path)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, path := startRelay(t)
			w := startWorker(t, r, path)
			to := filepath.Join(t.TempDir(), "vsock")
			if err := w.dev.Forward(to); err != nil {
				t.Fatal(err)
			}
			g, err := vhosttest.Start(path, vhosttest.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer g.Kill()
			l, err := g.Listen(22)
			if err != nil {
				t.Fatal(err)
			}
			if _, answer := ask(t, to, "CONNECT 22\n"); answer != "OK 22\n" {
				t.Fatal(answer)
			}
			c, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			end(t, r, path, w)
			startWorker(t, r, path)
			_ = c.SetReadDeadline(time.Now().Add(time.Minute))
			if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the guest's end: %v", err)
			}
		})
	}
}

func readLedger(t *testing.T, r *VhostRelay) []byte {
	t.Helper()
	b := make([]byte, vsock.LedgerSize)
	if _, err := r.Ledger.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return b
}

func writeLedger(t *testing.T, r *VhostRelay, b []byte) {
	t.Helper()
	if _, err := r.Ledger.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
}

// TestRelayAnswersAlone: without a worker, QEMU gets the index at which the ring is.
func TestRelayAnswersAlone(t *testing.T) {
	r, path := startRelay(t)
	w := startWorker(t, r, path)
	g, err := vhosttest.Start(path, vhosttest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = g.Kill() }()
	c, s := dialGuest(t, g, w)
	echo(t, c, s, 200_000)
	r.Detach()
	if err := w.dev.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		used, err := g.Used(i)
		if err != nil {
			t.Fatal(err)
		}
		if base, err := g.StopRing(uint32(i)); err != nil || base != uint32(used) || base == 0 {
			t.Errorf("ring %d: base %d (%v), used index %d", i, base, err, used)
		}
	}
}

// TestDeadWorkerIsFollowedByTheNext: a worker that dies before it has begun does not affect QEMU.
func TestDeadWorkerIsFollowedByTheNext(t *testing.T) {
	r, path := startRelay(t)
	g, err := vhosttest.Start(path, vhosttest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = g.Kill() }()
	r.Attach(func() (*net.UnixConn, error) {
		ours, theirs, err := sockettest.New()
		if err == nil {
			theirs.Close() // as good as dead
		}
		return ours, err
	})
	if err := g.Reboot(); err != nil {
		t.Fatal(err)
	}
	w := startWorker(t, r, path)
	c, s := dialGuest(t, g, w)
	echo(t, c, s, 1000)
}

// TestLedgerOfFlowsIsSealedAndWhole: memory that could shrink, or is too small, is refused as a
// ledger.
func TestLedgerOfFlowsIsSealedAndWhole(t *testing.T) {
	for _, c := range []struct {
		size  int64
		seals int
		good  bool
	}{
		{vsock.LedgerSize, unix.F_SEAL_SHRINK, true},
		{vsock.LedgerSize, 0, false},
		{vsock.LedgerSize - 1, unix.F_SEAL_SHRINK, false},
	} {
		fd, err := unix.MemfdCreate("ledger", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), "ledger")
		if err := f.Truncate(c.size); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, c.seals); err != nil {
			t.Fatal(err)
		}
		if l, err := MapLedger(f); (err == nil) != c.good || (l != nil) != c.good {
			t.Errorf("%d bytes with seals %#x: %v", c.size, c.seals, err)
		}
	}
}

// TestLedgerOfRingsIsWhole: memory that is too small for the ledger of a port's rings is refused.
func TestLedgerOfRingsIsWhole(t *testing.T) {
	for _, short := range []int64{0, 1} {
		f, err := newShared("rings", int64(vhostnet.LedgerBytes(2))-short)
		if err != nil {
			t.Fatal(err)
		}
		mem, err := MapRings(f, 2)
		if (err == nil) != (short == 0) || err == nil && len(mem) != vhostnet.LedgerBytes(2) || err != nil && strings.Contains(err.Error(), "%!") {
			t.Errorf("%d bytes too short: %d bytes, %v", short, len(mem), err)
		}
		if mem != nil {
			_ = unix.Munmap(mem)
		}
	}
}

// TestSharedMemoryIsSealed: a worker cannot change the size of shared memory or its seals.
func TestSharedMemoryIsSealed(t *testing.T) {
	f, err := newShared("test", 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, size := range []int64{0, 8192} {
		if err := f.Truncate(size); !errors.Is(err, unix.EPERM) {
			t.Errorf("to %d bytes: %v", size, err)
		}
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); !errors.Is(err, unix.EPERM) {
		t.Errorf("one more seal: %v", err)
	}
}

// TestEachRingHasAPartOfTheLedger: each ring of a port has a part of its ledger of its own.
func TestEachRingHasAPartOfTheLedger(t *testing.T) {
	r, err := NewNetRelay(newHanded(), "port", 2, 1500, quiet())
	if err != nil {
		t.Fatal(err)
	}
	at := 0
	for i := range 4 {
		l := r.rings.of(i)
		if &l[0] != &r.rings[at] || len(l) != virtqueue.LedgerSize {
			t.Errorf("ring %d is elsewhere", i)
		}
		at += len(l)
	}
	if at != len(r.rings) {
		t.Errorf("four rings have %d bytes of %d", at, len(r.rings))
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// relayedPort returns a guest whose port is behind a relay, the worker's port, and what runs a function
// in place of that port's thread.
func relayedPort(t *testing.T, opt vhosttest.NetOptions) (g *vhosttest.NetGuest, p *NetPort, run func(func()) bool) {
	t.Helper()
	var thread sync.Mutex
	run = func(f func()) bool {
		thread.Lock()
		defer thread.Unlock()
		f()
		return true
	}
	path := filepath.Join(t.TempDir(), "p")
	in, err := ListenNet(path)
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewNetRelay(in, "port", 1, 1500, quiet())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	fd, err := unix.FcntlInt(r.Ledger.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	rings, err := MapRings(os.NewFile(uintptr(fd), "ledger"), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(rings) })
	h := newHanded()
	if p, err = NewNetPort(h, vhostnet.Config{Name: "port", MTU: 1500, Ledger: rings, Post: run}, guestmem.NewBudget("port", guestmem.Attachment)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	p.Serve()
	r.Attach(h.dial)
	if g, err = vhosttest.ConnectNet(path, opt); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Kill() })
	return g, p, run
}

// TestARelayedPortServesTheNextDriver: a port with a supervisor carries the frames of a guest that has
// rebooted, or loaded its driver again, with rings of either kind.
func TestARelayedPortServesTheNextDriver(t *testing.T) {
	for name, opt := range map[string]vhosttest.NetOptions{"split": {}, "packed": {Packed: true}} {
		t.Run(name, func(t *testing.T) {
			g, p, run := relayedPort(t, opt)
			for boot := range 3 {
				for range 10 {
					if !g.Transmit(0, vhosttest.Header{}, make([]byte, 100)) {
						t.Fatal("no room")
					}
				}
				got, b := 0, make([]byte, 1<<17)
				run(func() {
					for n, _, _ := p.Read(b); n > 0; n, _, _ = p.Read(b) {
						got++
					}
					p.Settle()
				})
				if got != 10 || !g.Idle(0) {
					t.Fatalf("boot %d: %d frames arrived, fault %q", boot, got, p.Reason())
				}
				if _, err := g.Stop(); err != nil {
					t.Fatal(err)
				}
				if err := g.Boot(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
