package device

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/fabric"
	"github.com/falcon-vnic/vnic/guestlib"
)

// TestNoLostWakeup tests a driver against a shard's thread: it posts one request at a time, after
// pauses about as long as the thread looks for work before it sleeps, and polls for the completion
// without arming, so that nothing but its own post can wake the thread. Run it with -race.
func TestNoLostWakeup(t *testing.T) {
	w := newWorld(t)
	a, b := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
	connect(t, a, b, 1)
	const total = 1000
	before := w.counter(0, "shard.doorbells")
	r := rand.New(rand.NewPCG(1, 2))
	wr := guestlib.SendWR{Opcode: guestlib.Write, Flags: guestlib.Signaled, SGL: []guestlib.SGE{a.mr.SGE(0, 64)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
	for i := range total {
		if err := a.qp.PostSend(&wr); err != nil {
			t.Fatal(err)
		}
		a.spin(t, fmt.Sprintf("request %d of %d", i, total))
		for until := time.Now().Add(time.Duration(r.IntN(2*int(config.DefaultSpin))) * time.Duration(i%3)); time.Now().Before(until); {
			runtime.Gosched()
		}
	}
	t.Logf("%d doorbells for %d requests", w.counter(0, "shard.doorbells")-before, total)
}

// spin polls for one completion without ever arming.
func (e *endpoint) spin(t testing.TB, what string) {
	t.Helper()
	var wc [1]guestlib.WC
	deadline := time.Now().Add(testTime)
	for i := 0; ; i++ {
		pause(i)
		n, err := e.cq.Poll(wc[:])
		switch {
		case err != nil:
			t.Fatal(err)
		case n == 1 && wc[0].Err() != nil:
			t.Fatal(wc[0].Err())
		case n == 1:
			return
		case time.Now().After(deadline):
			t.Fatalf("%s: lost", what)
		}
	}
}

// pause waits between two polls of a client. A client that never blocks keeps Go from looking for
// input of its own process from sockets, so it spins only at first.
func pause(i int) {
	if i < 10_000 { // a sleep takes a millisecond, however short it is
		runtime.Gosched()
		return
	}
	time.Sleep(10 * time.Microsecond)
}

// TestAShardWithIdleFunctionsSleeps checks that with 64 functions attached and nothing to do the shard's thread sleeps.
// The limit is on its number of Steps, not on its time.
func TestAShardWithIdleFunctionsSleeps(t *testing.T) {
	const functions = 64
	w := newWorldWith(t, fabric.New(devicetest.MTU).Port, func(i int, c *config.Config) {
		pf := &c.Functions[0]
		pf.VFCount = functions + 4
		pf.VFs = pf.VFs[:4]
		for n := len(pf.VFs) + 1; n <= pf.VFCount; n++ {
			f := pf.VFs[0].Function
			f.Address, f.MAC = netip.AddrFrom4([4]byte{192, 168, byte(101 + i), byte(n)}), config.FunctionMAC(c.CM.Name, 0, uint16(n))
			pf.VFs = append(pf.VFs, config.VF{VF: uint16(n), Function: f})
		}
	})
	var first *endpoint
	for n := range functions {
		d, err := guestlib.Open(testContext(t), fmt.Sprintf("unix://%s?function=pf0.vf%d", w.sockets[0], n+5), guestlib.Options{Memory: 8 << 20})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		if e := newEndpoint(t, d); first == nil {
			first = e
		}
	}
	b := newEndpoint(t, w.open(1, "pf0.vf1"))
	connect(t, first, b, 1)
	for range 100 { // the thread learns to spin
		first.do(t, guestlib.SendWR{Opcode: guestlib.Write, SGL: []guestlib.SGE{first.mr.SGE(0, 64)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
	}
	const idle = 3 * time.Second
	time.Sleep(idle / 3) // acknowledgements and timers of the last request
	steps, cpu := w.counter(0, "shard.steps"), w.nics[0].cpuTime(t)
	time.Sleep(idle)
	steps, cpu = w.counter(0, "shard.steps")-steps, w.nics[0].cpuTime(t)-cpu
	t.Logf("%d functions, %v idle: %d steps, %v of processor time", functions, idle, steps, cpu)
	// A Step with its sleep takes about 20 µs: this many are about 1 % of a core. A thread that
	// looked for work all the time would do a million.
	if most := uint64(idle / 100 / (20 * time.Microsecond)); steps > most {
		t.Errorf("%d steps in %v of idleness, want at most %d", steps, idle, most)
	}
}

// cpuTime returns the processor time of the shard's thread.
func (n *NIC) cpuTime(t testing.TB) time.Duration {
	t.Helper()
	var u unix.Rusage
	var err error
	if stopped := n.units[0].Do(func(int64) { err = unix.Getrusage(unix.RUSAGE_THREAD, &u) }); stopped != nil || err != nil {
		t.Fatal(stopped, err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestArmingRingsNoBell checks that clients that sleep before every completion send no doorbell to
// arm, and that none sleeps for ever: also while others poll the same CQ or wait for solicited
// completions only (DRV-709, DEV-709). Run it with -race. (DEV-805)
func TestArmingRingsNoBell(t *testing.T) {
	w := newWorld(t)
	a, b := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
	connect(t, a, b, 1)
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	var others sync.WaitGroup
	for range 2 {
		others.Go(func() {
			for ctx.Err() == nil {
				_ = a.cq.WaitSolicited(ctx)
				runtime.Gosched()
			}
		})
	}
	const total = 2000
	sends := w.counter(0, "shard.doorbells")
	slept := 0
	for i := range total {
		wr := guestlib.SendWR{ID: uint64(i), Opcode: guestlib.Write, Flags: guestlib.Signaled, SGL: []guestlib.SGE{a.mr.SGE(0, 64)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
		if err := a.qp.PostSend(&wr); err != nil {
			t.Fatal(err)
		}
		var wc [1]guestlib.WC
		for {
			n, err := a.cq.Poll(wc[:])
			if err != nil {
				t.Fatal(err)
			}
			if n == 1 {
				break
			}
			slept++
			if err := a.cq.Wait(ctx); err != nil {
				t.Fatalf("completion %d of %d: %v", i, total, err)
			}
		}
		if wc[0].Err() != nil || wc[0].ID != uint64(i) {
			t.Fatalf("completion %d: %+v", i, wc[0])
		}
	}
	cancel()
	others.Wait()
	// A post may need a doorbell; arming, which the driver did at least as often, needs none.
	if rung := w.counter(0, "shard.doorbells") - sends; rung > total {
		t.Errorf("%d doorbells for %d posts: arming rings", rung, total)
	} else {
		t.Logf("%d doorbells, slept %d times", rung, slept)
	}
	if slept < total/10 {
		t.Errorf("slept only %d times", slept)
	}
}
