package guestlib

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/guestlib/internal/fakedev"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// restart ends a NIC and starts another in its place.
func restart(t *testing.T, nic *fakedev.Server, url string) *fakedev.Server {
	t.Helper()
	nic.Close()
	return replace(t, url, nil)
}

// replace starts a NIC in the place of one that has ended.
func replace(t *testing.T, url string, setup func(*fakedev.Server)) *fakedev.Server {
	t.Helper()
	next, err := fakedev.Listen(strings.TrimPrefix(url, "unix://"), setup)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { next.Close() })
	return next
}

// enables reports whether a client's message writes ControlEnable.
func enables(h abi.MsgHeader, body []byte) bool {
	var m abi.RegWrite
	if h.Type != abi.MsgRegWrite {
		return false
	}
	m.Unmarshal(body)
	return m.Offset == abi.RegControl && abi.Control(m.Value) == abi.ControlEnable
}

// TestADeviceRecoversWhenItsNICRestarts restarts the NIC again and again (DRV-210). Objects from before fail for ever, with
// the reason. The device recovers by itself, and new objects can use the same buffers.
func TestADeviceRecoversWhenItsNICRestarts(t *testing.T) {
	nic, url := startNIC(t, nil)
	ctx := testContext(t)
	da, db := openDevice(t, url), openDevice(t, url)
	a, b := newEndpoint(t, da, QPConfig{}), newEndpoint(t, db, QPConfig{})
	connectPair(t, a, b, 1, "", "")
	inUse := 0
	for round := range 5 {
		l, err := a.dev.Listen(ctx, 9)
		if err != nil {
			t.Fatal(err)
		}
		ends := make(chan error, 3)
		go func() { ends <- a.cq.Wait(ctx) }()
		go func() { _, err := l.Accept(ctx); ends <- err }()
		// In a PD of this life: a loop that slept through the end of it must not go on in the next.
		pd, buf := a.pd, a.mr.buf
		go func() {
			ends <- repeat(func() error {
				mr, err := pd.RegMR(ctx, buf, LocalWrite)
				if err != nil {
					return err
				}
				return mr.Dereg(ctx)
			})
		}()
		done, doneB := da.Done(), db.Done()
		nic = restart(t, nic, url)
		for range cap(ends) {
			if err := <-ends; !errors.Is(err, ErrNeedsReset) || !errors.Is(err, ErrDeviceLost) {
				t.Errorf("round %d: %v", round, err)
			}
		}
		<-done
		<-doneB
		for _, d := range []*Device{da, db} {
			if err := d.Await(ctx); err != nil {
				t.Fatal(err)
			}
		}
		// Of the life before.
		if err := a.qp.PostSend(&SendWR{Opcode: Send}); !errors.Is(err, ErrClosed) && !errors.Is(err, ErrDeviceLost) {
			t.Errorf("PostSend: %v", err)
		}
		if _, err := a.cq.Poll(make([]WC, 1)); !errors.Is(err, ErrDeviceLost) {
			t.Errorf("Poll: %v", err)
		}
		if _, err := a.pd.RegMR(ctx, a.mr.buf, LocalWrite); !errors.Is(err, ErrDeviceLost) {
			t.Errorf("RegMR in a PD of before: %v", err)
		}
		for _, e := range []*endpoint{a, b} {
			for name, f := range map[string]func(context.Context) error{"QP": e.qp.Destroy, "MR": e.mr.Dereg} {
				if err := f(ctx); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			for name, f := range map[string]func(context.Context) error{"CQ": e.cq.Destroy, "PD": e.pd.Dealloc} {
				if err := f(ctx); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			if err := e.mr.buf.Free(); err != nil {
				t.Error(err)
			}
		}
		a, b = newEndpoint(t, da, QPConfig{}), newEndpoint(t, db, QPConfig{})
		connectPair(t, a, b, 1, "", "")
		if err := a.qp.PostSend(&SendWR{ID: 7, Opcode: Write, Flags: Signaled, SGL: []SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}); err != nil {
			t.Fatal(err)
		}
		if wc := next(t, a.cq); wc.ID != 7 || wc.Err() != nil {
			t.Errorf("%+v", wc)
		}
		if n := db.pool.InUse(); round > 1 && n != inUse {
			t.Errorf("round %d: %d bytes in use, %d before", round, n, inUse)
		} else {
			inUse = n
		}
	}
	select {
	case e := <-da.Events():
		if e.Type != abi.EventFunctionState || abi.State(e.Status) != abi.StateReset || e.Reason == "" {
			t.Errorf("%+v", e)
		}
	default:
		t.Error("no event")
	}
}

// TestSilentDeviceRecovers: a device that sends nothing is given up after HeartbeatTimeout, and
// dialed again.
func TestSilentDeviceRecovers(t *testing.T) {
	var silent atomic.Bool
	_, url := startNIC(t, func(s *fakedev.Server) {
		s.Message = func(_ *fakedev.Session, h abi.MsgHeader, _ []byte) bool {
			if h.Type == abi.MsgHello {
				silent.Store(false)
			}
			return !silent.Load()
		}
	})
	ctx := testContext(t)
	d, err := Open(ctx, url, Options{Memory: 1 << 20, Heartbeat: 10 * time.Millisecond, HeartbeatTimeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	cq, err := d.CreateCQ(ctx, 16)
	if err != nil {
		t.Fatal(err)
	}
	silent.Store(true)
	if err := cq.Wait(ctx); !errors.Is(err, ErrNeedsReset) || !errors.Is(err, ErrTimeout) {
		t.Fatal(err)
	}
	if err := d.Await(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := d.CreateCQ(ctx, 16); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil { // the memory is all back: the reset made sure of it
		t.Error(err)
	}
}

// TestMemoryOfALostDeviceIsKept: memory that is freed while a device is silent is not reused before
// the device is reset, because the device may still access it.
func TestMemoryOfALostDeviceIsKept(t *testing.T) {
	var silent atomic.Bool
	_, url := startNIC(t, func(s *fakedev.Server) {
		s.Message = func(*fakedev.Session, abi.MsgHeader, []byte) bool { return !silent.Load() }
	})
	ctx := testContext(t)
	d, err := Open(ctx, url, Options{Memory: 4 << 20, Heartbeat: 10 * time.Millisecond, HeartbeatTimeout: 2 * time.Second, NoRecovery: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	before := d.pool.InUse()
	e := newEndpoint(t, d, QPConfig{})
	held := d.pool.InUse()
	silent.Store(true)
	<-d.Done()
	if err := errors.Join(e.qp.Destroy(ctx), e.cq.Destroy(ctx), e.mr.Dereg(ctx), e.mr.buf.Free()); err != nil {
		t.Fatal(err)
	}
	if n := d.pool.InUse(); n != held {
		t.Errorf("%d bytes are kept of %d that the device may reach", n, held)
	}
	silent.Store(false)
	if err := d.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	if n := d.pool.InUse(); n != before {
		t.Errorf("%d bytes are in use after the reset, %d before", n, before)
	}
}

// TestWithoutRecoveryOnlyResetBringsTheDeviceBack: only the program's own Reset brings the device back.
func TestWithoutRecoveryOnlyResetBringsTheDeviceBack(t *testing.T) {
	nic, url := startNIC(t, nil)
	ctx := testContext(t)
	d, err := Open(ctx, url, Options{Memory: 1 << 20, NoRecovery: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	nic.Close()
	<-d.Done()
	if err := d.Await(ctx); !errors.Is(err, ErrNeedsReset) {
		t.Error(err)
	}
	if err := d.Reset(ctx); err == nil || errors.Is(d.Err(), ErrClosed) {
		t.Errorf("a reset of nothing: %v, %v", err, d.Err())
	}
	restart(t, nic, url)
	if err := d.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := d.AllocPD(ctx); err != nil {
		t.Fatal(err)
	}
}

// TestCloseWhileLost: a device that does not come back does not hold up Close, nor whoever waits
// for it.
func TestCloseWhileLost(t *testing.T) {
	nic, url := startNIC(t, nil)
	d := openDevice(t, url)
	nic.Close()
	<-d.Done()
	waits := make(chan error)
	go func() { waits <- d.Await(testContext(t)) }()
	short, cancel := context.WithTimeout(testContext(t), 50*time.Millisecond)
	defer cancel()
	if err := d.Await(short); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrNeedsReset) {
		t.Error(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if err := <-waits; !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if err := d.Reset(testContext(t)); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// TestBrokenDeviceStaysLost: a device that broke the protocol is not dialed again.
func TestBrokenDeviceStaysLost(t *testing.T) {
	nic, url := startNIC(t, nil)
	d := openDevice(t, url)
	nic.Session(0).Out.Raw(abi.AppendMessage(nil, abi.MsgAsyncEvent, 0, []byte{1}))
	<-d.Done()
	if err := d.Await(testContext(t)); !errors.Is(err, ErrProtocol) || errors.Is(err, ErrNeedsReset) {
		t.Error(err)
	}
}

// TestARefusedDeviceTriesAgain: the NIC may refuse a lost device for a moment, as while its function
// is another driver's.
func TestARefusedDeviceTriesAgain(t *testing.T) {
	nic, url := startNIC(t, nil)
	d := openDevice(t, url)
	nic.Close()
	<-d.Done()
	var hellos atomic.Int32
	replace(t, url, func(s *fakedev.Server) {
		s.Message = func(_ *fakedev.Session, h abi.MsgHeader, body []byte) bool {
			if h.Type == abi.MsgHello && hellos.Add(1) <= 3 {
				var m abi.Hello
				m.Unmarshal(body)
				m.Function = 99
				m.Marshal(body)
			}
			return true
		}
	})
	if err := d.Await(testContext(t)); err != nil {
		t.Error(err)
	}
	if n := hellos.Load(); n != 4 {
		t.Errorf("%d hellos", n)
	}
}

// TestAwaitReturnsWhenTheLossBecomesFinal: a NIC that breaks the protocol while the device recovers
// ends the recovery, and with it Await. After a Reset the device recovers by itself again.
func TestAwaitReturnsWhenTheLossBecomesFinal(t *testing.T) {
	nic, url := startNIC(t, nil)
	ctx := testContext(t)
	d := openDevice(t, url)
	nic.Close()
	<-d.Done()
	waits := make(chan error)
	go func() { waits <- d.Await(ctx) }()
	var broke atomic.Bool
	nic = replace(t, url, func(s *fakedev.Server) {
		s.Message = func(s *fakedev.Session, h abi.MsgHeader, _ []byte) bool {
			if broke.Swap(true) {
				return true
			}
			s.Out.Raw(abi.AppendMessage(nil, abi.MsgAsyncEvent, 0, []byte{1}))
			return false
		}
	})
	if err := <-waits; !errors.Is(err, ErrProtocol) || errors.Is(err, ErrNeedsReset) {
		t.Fatal(err)
	}
	if err := d.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	done := d.Done()
	restart(t, nic, url)
	<-done
	if err := d.Await(ctx); err != nil {
		t.Error(err)
	}
}

// TestDestroyWithoutTime: an object of an earlier life can be destroyed even if the caller's
// context has ended. It must not ring in the next life, whose queues have the same numbers.
func TestDestroyWithoutTime(t *testing.T) {
	nic, url := startNIC(t, nil)
	d := openDevice(t, url)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for range 10 {
		e := newEndpoint(t, d, QPConfig{})
		done := d.Done()
		nic = restart(t, nic, url)
		<-done
		if err := d.Await(testContext(t)); err != nil {
			t.Fatal(err)
		}
		for name, destroy := range map[string]func(context.Context) error{"QP": e.qp.Destroy, "MR": e.mr.Dereg} {
			if err := destroy(over); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := e.cq.Destroy(over); err != nil {
			t.Errorf("CQ: %v", err)
		}
		if err := e.qp.PostSend(&SendWR{Opcode: Send}); !errors.Is(err, ErrClosed) && !errors.Is(err, ErrDeviceLost) {
			t.Errorf("PostSend: %v", err)
		}
		if _, err := d.AllocPD(testContext(t)); err != nil {
			t.Fatalf("the life that followed: %v", err)
		}
	}
}

// TestADeviceThatAResetDidNotEnableIsLost: if Reset fails while it enables the function, the device
// does not say that it works, and commands fail at once. Another Reset brings it back.
func TestADeviceThatAResetDidNotEnableIsLost(t *testing.T) {
	silent := make(chan struct{}, 1) // the next enable has no answer
	asked := make(chan struct{})
	_, url := startNIC(t, func(s *fakedev.Server) {
		s.Message = func(_ *fakedev.Session, h abi.MsgHeader, body []byte) bool {
			if !enables(h, body) {
				return true
			}
			select {
			case <-silent:
				close(asked)
				return false
			default:
				return true
			}
		}
	})
	ctx := testContext(t)
	d := openDevice(t, url)
	silent <- struct{}{}
	short, cancel := context.WithCancel(ctx)
	go func() {
		<-asked
		cancel()
	}()
	if err := d.Reset(short); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	<-d.Done()
	if err := d.Err(); !errors.Is(err, ErrDeviceLost) || !errors.Is(err, context.Canceled) {
		t.Errorf("Err: %v", err)
	}
	if err := d.Await(ctx); !errors.Is(err, ErrDeviceLost) {
		t.Errorf("Await: %v", err)
	}
	if _, err := d.AllocPD(ctx); !errors.Is(err, ErrDeviceLost) || errors.Is(err, ErrTimeout) {
		t.Errorf("AllocPD: %v", err)
	}
	if err := d.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := d.AllocPD(ctx); err != nil {
		t.Error(err)
	}
}

// TestARecoveryTakesNoMemory: a lost device whose memory is all in use recovers, also after many
// attempts that failed.
func TestARecoveryTakesNoMemory(t *testing.T) {
	var refuse atomic.Bool
	nic, url := startNIC(t, func(s *fakedev.Server) {
		s.Reuse = true
		s.Message = func(s *fakedev.Session, h abi.MsgHeader, body []byte) bool {
			if !refuse.Load() || !enables(h, body) {
				return true
			}
			s.Out.Send(h.Tag, &abi.RegReply{Status: abi.StatusMemoryFault})
			return false
		}
	})
	ctx := testContext(t)
	d, err := Open(ctx, url, Options{Memory: 1 << 20, NoRecovery: true}) // the test makes all attempts
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for err == nil {
		_, err = d.Alloc(abi.PageSize)
	}
	inUse := d.pool.InUse()
	refuse.Store(true)
	nic.Session(0).Hangup()
	<-d.Done()
	for range 20 {
		if err := d.Reset(ctx); !errors.Is(err, ErrInvalid) {
			t.Fatal(err)
		}
	}
	refuse.Store(false)
	if err := d.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	if err := d.Reset(ctx); err != nil { // on the same stream
		t.Fatal(err)
	}
	if _, err := d.AllocPD(ctx); err != nil {
		t.Fatal(err)
	}
	if n := d.pool.InUse(); n != inUse {
		t.Errorf("%d bytes are in use, %d before", n, inUse)
	}
}

// TestACommandWaitsUntilTheFunctionIsEnabled: a command beside Reset is not sent before the function
// is READY, when its doorbell would have no effect (DEV-305).
func TestACommandWaitsUntilTheFunctionIsEnabled(t *testing.T) {
	hold := make(chan struct{}, 1)
	held, release := make(chan struct{}), make(chan struct{})
	_, url := startNIC(t, func(s *fakedev.Server) {
		s.Message = func(_ *fakedev.Session, h abi.MsgHeader, body []byte) bool {
			if enables(h, body) {
				select {
				case <-hold:
					close(held)
					<-release
				default:
				}
			}
			return true
		}
	})
	ctx := testContext(t)
	d := openDevice(t, url)
	hold <- struct{}{}
	reset := make(chan error, 1)
	go func() { reset <- d.Reset(ctx) }()
	<-held
	short, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	if _, err := d.AllocPD(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a command that nothing can answer: %v", err)
	}
	made := make(chan error, 1)
	go func() {
		_, err := d.AllocPD(ctx)
		made <- err
	}()
	close(release)
	if err := errors.Join(<-reset, <-made); err != nil {
		t.Error(err)
	}
}

// TestANewLifeReadsNoCompletionOfTheLast: an event that comes before the function is enabled again
// does not make the driver read what the last life left in the admin queues.
func TestANewLifeReadsNoCompletionOfTheLast(t *testing.T) {
	var events atomic.Bool
	nic, url := startNIC(t, func(s *fakedev.Server) {
		s.Message = func(s *fakedev.Session, h abi.MsgHeader, _ []byte) bool {
			if events.Load() && h.Type != abi.MsgDoorbell {
				s.Out.Send(0, &abi.AsyncEvent{Type: abi.EventLinkState, Status: 1})
			}
			return true
		}
	})
	ctx := testContext(t)
	d := openDevice(t, url)
	events.Store(true)
	if err := d.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	done := d.Done()
	nic.Session(0).Hangup()
	<-done
	if err := d.Await(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := d.AllocPD(ctx); err != nil {
		t.Fatal(err)
	}
}
