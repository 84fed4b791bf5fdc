package device

import (
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/qemu"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// ringing is an attachment whose sessions can ring without messages.
type ringing struct {
	queues.Attachment
	bell *devicetest.Bell
	mu   sync.Mutex
	asks []uint32
}

type ringingSession struct {
	queues.Session
	a *ringing
}

func (a *ringing) Accept() (queues.Session, error) {
	s, err := a.Attachment.Accept()
	if err != nil {
		return nil, err
	}
	return &ringingSession{s, a}, nil
}

func (s *ringingSession) Bell(function uint32) (queues.Bell, error) {
	s.a.mu.Lock()
	defer s.a.mu.Unlock()
	s.a.asks = append(s.a.asks, function)
	return s.a.bell, nil
}

// serveRinging serves another unix socket of a NIC, whose client has a bell.
func serveRinging(t *testing.T, w *world, name string) (*ringing, string) {
	t.Helper()
	socket := w.sockets[0] + ".ring"
	bare, err := qemu.ListenUnix(socket, nil)
	if err != nil {
		t.Fatal(err)
	}
	a := &ringing{Attachment: bare, bell: devicetest.NewBell(t)}
	var accepting sync.WaitGroup
	accepting.Go(func() { w.nics[0].accept(Attachment{Name: name, Attachment: a}) })
	t.Cleanup(func() {
		a.Close()
		accepting.Wait()
	})
	return a, socket
}

// TestBellsWithoutMessages rings by shared memory: records have the effect of a doorbell message,
// and a guest that breaks the rules there loses its function. (DEV-1004, DEV-1005)
func TestBellsWithoutMessages(t *testing.T) {
	w := newWorld(t)
	a, socket := serveRinging(t, w, "bare")
	c := dialRaw(t, socket)
	r := c.hello(abi.FunctionAssigned)
	if r.Status != abi.StatusOK {
		t.Fatal(r.Status)
	}
	if len(a.asks) != 1 || a.asks[0] != r.Function {
		t.Fatalf("asked for the bell of %#x, want %#x", a.asks, r.Function)
	}
	before := w.counter(0, "shard.doorbells")
	a.bell.Post(t, abi.Doorbell{Kind: abi.DoorbellSQ, Queue: 1})
	a.bell.Post(t, abi.Doorbell{Kind: abi.DoorbellRQ, Queue: 1})
	w.until("two doorbells", func() bool { return w.counter(0, "shard.doorbells") == before+2 })

	_ = a.bell.Mem.Store32(abi.QueueHeaderProducer, 1<<20)
	a.bell.Kick()
	if reason := c.expectEnd(); !strings.Contains(reason, ring.ErrIndex.Error()) {
		t.Errorf("the guest was told %q", reason)
	}
	if !a.bell.Closed.Load() {
		t.Error("a session that has ended keeps its bell")
	}
	// The function is free for the next driver.
	a.bell = devicetest.NewBell(t)
	if r := dialRaw(t, socket).hello(abi.FunctionAssigned); r.Status != abi.StatusOK {
		t.Error(r.Status)
	}
}

// TestEveryRecordOfABellIsTaken tests a driver against a shard's thread: one record at a time, after pauses about
// as long as the thread looks for work before it sleeps. No record is left behind, and a thread
// that looks is not rung for (DRV-1003, DEV-1003). Run it with -race.
func TestEveryRecordOfABellIsTaken(t *testing.T) {
	w := newWorld(t)
	a, socket := serveRinging(t, w, "bare")
	if r := dialRaw(t, socket).hello(abi.FunctionAssigned); r.Status != abi.StatusOK {
		t.Fatal(r.Status)
	}
	const total = 1000
	kicks, r := 0, rand.New(rand.NewPCG(3, 4))
	for i := range uint32(total) {
		if a.bell.Post(t, abi.Doorbell{Kind: abi.DoorbellSQ, Queue: 1}) {
			kicks++
		}
		deadline := time.Now().Add(testTime)
		for n := 0; a.bell.Taken() != i+1; n++ {
			pause(n)
			if time.Now().After(deadline) {
				t.Fatalf("record %d of %d: lost", i, total)
			}
		}
		for until := time.Now().Add(time.Duration(r.IntN(2*int(config.DefaultSpin))) * time.Duration(i%3)); time.Now().Before(until); {
			pause(0)
		}
	}
	t.Logf("%d kicks for %d records", kicks, total)
	if kicks == 0 {
		t.Error("the thread never slept: nothing was shown")
	}
}

// TestAHammeredBellKeepsNoShardAwake checks that a guest that rings all the time without a record keeps neither the
// shard awake nor others waiting, and that its records are found again later. (DEV-1007)
func TestAHammeredBellKeepsNoShardAwake(t *testing.T) {
	w := newWorld(t)
	a, socket := serveRinging(t, w, "bare")
	if r := dialRaw(t, socket).hello(0x0002); r.Status != abi.StatusOK { // pf0.vf2
		t.Fatal(r.Status)
	}
	e, b := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
	connect(t, e, b, 1)
	write := guestlib.SendWR{Opcode: guestlib.Write, SGL: []guestlib.SGE{e.mr.SGE(0, 64)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
	e.do(t, write)

	stop := make(chan struct{})
	var hammer sync.WaitGroup
	hammer.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Microsecond): // leave the machine's processors to others
				a.bell.Kick()
			}
		}
	})
	const length = time.Second
	time.Sleep(length / 2) // the mutes get longer
	steps, begin := w.counter(0, "shard.steps"), time.Now()
	time.Sleep(length)
	steps = w.counter(0, "shard.steps") - steps
	took := time.Since(begin) // more than length if the machine is busy
	muted := w.counter(0, "shard.bells_muted")
	for range 10 {
		e.do(t, write) // others are served meanwhile
	}
	close(stop)
	hammer.Wait()
	t.Logf("%d steps in %v, muted %d times", steps, took, muted)
	if muted == 0 || float64(steps) > 500*took.Seconds() {
		t.Errorf("a guest that rings for nothing made %d steps in %v, muted %d times", steps, took, muted)
	}
	for i := range uint32(3) { // late the first time, then as usual
		a.bell.Post(t, abi.Doorbell{Kind: abi.DoorbellSQ, Queue: 1})
		w.until("the record is taken", func() bool { return a.bell.Taken() == i+1 })
		time.Sleep(10 * time.Millisecond)
	}
}
