package guestlib

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/guestlib/internal/fakedev"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Objects in use cannot be destroyed. After their users they can, in any order, and all their
// memory is freed.
func TestObjectsInUseCannotBeDestroyed(t *testing.T) {
	_, url := startNIC(t, nil)
	ctx := testContext(t)
	d := openDevice(t, url)
	before := d.pool.InUse()
	e := newEndpoint(t, d, QPConfig{})
	if err := e.pd.Dealloc(ctx); !errors.Is(err, ErrBusy) {
		t.Errorf("PD with MR and QP: %v", err)
	}
	if err := e.cq.Destroy(ctx); !errors.Is(err, ErrBusy) {
		t.Errorf("CQ with QP: %v", err)
	}
	if err := e.mr.buf.Free(); !errors.Is(err, ErrBusy) {
		t.Errorf("buffer with MR: %v", err)
	}
	for range 2 { // the second time does nothing
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
	if after := d.pool.InUse(); after != before {
		t.Errorf("%d bytes of device memory in use, %d before", after, before)
	}
	if err := e.qp.PostRecv(&RecvWR{}); !errors.Is(err, ErrClosed) {
		t.Errorf("PostRecv on a destroyed QP: %v", err)
	}
	if _, err := e.cq.Poll(make([]WC, 1)); !errors.Is(err, ErrClosed) {
		t.Errorf("Poll of a destroyed CQ: %v", err)
	}
	if err := e.cq.Wait(ctx); !errors.Is(err, ErrClosed) {
		t.Errorf("Wait on a destroyed CQ: %v", err)
	}
	if _, err := e.pd.RegMR(ctx, e.mr.buf, LocalWrite); !errors.Is(err, ErrClosed) {
		t.Errorf("RegMR of a freed buffer: %v", err)
	}
}

// After a CQ could not be destroyed, waiting on it still works.
func TestBusyCQKeepsWorking(t *testing.T) {
	a, b := newPair(t, QPConfig{})
	ctx := testContext(t)
	woken := make(chan error, 1)
	go func() { woken <- a.cq.Wait(ctx) }()
	if err := a.cq.Destroy(ctx); !errors.Is(err, ErrBusy) {
		t.Fatal(err)
	}
	if err := a.qp.PostSend(&SendWR{Opcode: Write, Flags: Signaled, SGL: []SGE{a.mr.SGE(0, 1)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}); err != nil {
		t.Fatal(err)
	}
	if err := <-woken; err != nil {
		t.Fatal(err)
	}
}

// Completions of a destroyed QP that were not polled do not appear, and are not mistaken for those
// of another QP.
func TestDestroyDropsCompletions(t *testing.T) {
	a, b := newPair(t, QPConfig{})
	ctx := testContext(t)
	wr := SendWR{ID: 1, Opcode: Write, Flags: Signaled, SGL: []SGE{a.mr.SGE(0, 1)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
	for range 3 {
		if err := a.qp.PostSend(&wr); err != nil {
			t.Fatal(err)
		}
	}
	for { // all three are there
		a.cq.mu.Lock()
		all := a.cq.filled(2)
		a.cq.mu.Unlock()
		if all {
			break
		}
		if err := a.cq.Wait(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.qp.Destroy(ctx); err != nil {
		t.Fatal(err)
	}
	if n, err := a.cq.Poll(make([]WC, 8)); n != 0 || err != nil {
		t.Errorf("%d completions of a destroyed QP, %v", n, err)
	}
}

// Closing a device ends everything that waits, and everything fails cleanly afterwards.
func TestCloseWhileBusy(t *testing.T) {
	a, b := newPair(t, QPConfig{})
	ctx := testContext(t)
	l, err := a.dev.Listen(ctx, 9)
	if err != nil {
		t.Fatal(err)
	}
	waits := map[string]func() error{
		"Wait":     func() error { return a.cq.Wait(ctx) },
		"Accept":   func() error { _, err := l.Accept(ctx); return err },
		"commands": func() error { return repeat(func() error { _, err := a.dev.AllocPD(ctx); return err }) },
		"posting":  func() error { return repeat(func() error { return a.qp.PostRecv(&RecvWR{}) }) },
		"polling":  func() error { return repeat(func() error { _, err := a.cq.Poll(make([]WC, 1)); return err }) },
		"making":   func() error { return repeat(func() error { _, err := a.dev.CreateCQ(ctx, 2); return err }) },
	}
	type end struct {
		name string
		err  error
	}
	ends := make(chan end)
	for name, f := range waits {
		go func() { ends <- end{name, f()} }()
	}
	if err := a.dev.Close(); err != nil {
		t.Error(err)
	}
	for range waits {
		if e := <-ends; !errors.Is(e.err, ErrClosed) {
			t.Errorf("%s: %v", e.name, e.err)
		}
	}
	if err := a.qp.Destroy(ctx); err != nil {
		t.Error("QP:", err)
	}
	if err := a.cq.Destroy(ctx); err != nil {
		t.Error("CQ:", err)
	}
	if err := a.mr.Dereg(ctx); err != nil {
		t.Error("MR:", err)
	}
	if _, err := a.dev.Alloc(1); !errors.Is(err, ErrClosed) {
		t.Error("Alloc:", err)
	}
	// The peer learns it.
	<-b.qp.Down()
	if e := <-b.dev.Events(); e.Type != abi.EventDisconnected || e.QP != b.qp {
		t.Error(e)
	}
	if s := b.qp.State(); s != abi.QPStateErr {
		t.Error(s)
	}
}

// repeat calls f until it fails for good.
func repeat(f func() error) error {
	for {
		if err := f(); err != nil && !errors.Is(err, ErrQueueFull) && !errors.Is(err, ErrNoResources) {
			return err
		}
	}
}

func TestADisconnectFlushesThePeersReceives(t *testing.T) {
	a, b := newPair(t, QPConfig{})
	ctx := testContext(t)
	if err := a.qp.PostRecv(&RecvWR{ID: 3}); err != nil {
		t.Fatal(err)
	}
	if err := b.qp.Disconnect(ctx); err != nil {
		t.Fatal(err)
	}
	if wc := next(t, a.cq); wc.ID != 3 || wc.Status != abi.WCWRFlushErr {
		t.Errorf("%+v", wc)
	}
	<-a.qp.Down()
	if err := a.qp.Disconnect(ctx); err != nil {
		t.Error("the other side was faster:", err)
	}
	if _, err := a.dev.Connect(ctx, a.qp, b.dev.GID(), 1, nil); !errors.Is(err, ErrState) {
		t.Errorf("connect a QP in ERR: %v", err)
	}
}

func TestAFailedConnectSaysWhy(t *testing.T) {
	_, url := startNIC(t, nil)
	ctx := testContext(t)
	a := newEndpoint(t, openDevice(t, url), QPConfig{})
	b := newEndpoint(t, openDevice(t, url), QPConfig{})
	nobody, _ := ParseGID("10.9.9.9")
	if _, err := a.dev.Connect(ctx, a.qp, nobody, 1, nil); !errors.Is(err, ErrUnreachable) {
		t.Errorf("unknown GID: %v", err)
	}
	if _, err := a.dev.Connect(ctx, a.qp, b.dev.GID(), 1, nil); !errors.Is(err, ErrRefused) {
		t.Errorf("no listener: %v", err)
	}
	if _, err := a.dev.Connect(ctx, a.qp, b.dev.GID(), 1, make([]byte, 65)); !errors.Is(err, ErrInvalid) {
		t.Errorf("long private data: %v", err)
	}
	l, err := b.dev.Listen(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.dev.Listen(ctx, 1); !errors.Is(err, ErrBusy) {
		t.Errorf("second listener: %v", err)
	}
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			r.Reject(ctx, 77, []byte("not today"))
		}
	}()
	_, err = a.dev.Connect(ctx, a.qp, b.dev.GID(), 1, nil)
	var re *RejectedError
	if !errors.As(err, &re) || re.Reason != 77 || string(re.Private) != "not today" || !errors.Is(err, ErrRefused) {
		t.Errorf("rejected: %v", err)
	}

	// The caller has given up: the QP is in ERR, because the peer may be connected already.
	cctx, cancel := context.WithCancel(ctx)
	go func() {
		l.Accept(ctx)
		cancel()
	}()
	if _, err := a.dev.Connect(cctx, a.qp, b.dev.GID(), 1, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if s := a.qp.State(); s != abi.QPStateErr {
		t.Error(s)
	}
	if err := l.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Accept(ctx); !errors.Is(err, ErrClosed) {
		t.Errorf("Accept of a closed listener: %v", err)
	}
	if l, err = b.dev.Listen(ctx, 1); err != nil {
		t.Errorf("listen again: %v", err)
	}
}

// TestAListenerThatEndsRejectsWhatNobodyAccepted: whoever called does not wait for an answer that nobody can give.
func TestAListenerThatEndsRejectsWhatNobodyAccepted(t *testing.T) {
	_, url := startNIC(t, nil)
	ctx := testContext(t)
	a, b := newEndpoint(t, openDevice(t, url), QPConfig{}), openDevice(t, url)
	l, err := b.Listen(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	said := make(chan error, 1)
	go func() {
		_, err := a.dev.Connect(ctx, a.qp, b.GID(), 1, nil)
		said <- err
	}()
	for len(l.requests) == 0 && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	if err := l.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-said; !errors.Is(err, ErrRefused) {
		t.Errorf("the caller is told %v", err)
	}
}

// TestNoRequestStaysWithAListenerThatEnds: a request that comes while the listener closes is
// rejected, too. The device is closed, so that closing a listener takes no time.
func TestNoRequestStaysWithAListenerThatEnds(t *testing.T) {
	_, url := startNIC(t, nil)
	d := openDevice(t, url)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	for range 5000 {
		l := &Listener{dev: d, admin: d.admin.Load(), service: 1, requests: make(chan *ConnectRequest, listenBacklog), closed: make(chan struct{})}
		d.cm.listeners[1] = l
		var requests sync.WaitGroup
		for range 4 {
			requests.Go(func() { d.cm.request(d, &abi.AsyncEvent{Service: 1}) })
		}
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		requests.Wait()
		if n := len(l.requests); n > 0 {
			t.Fatalf("%d requests get no answer", n)
		}
	}
}

// Requests beyond the backlog are rejected, not kept.
func TestRequestsBeyondTheBacklogAreRejected(t *testing.T) {
	_, url := startNIC(t, nil)
	ctx := testContext(t)
	a, b := openDevice(t, url), openDevice(t, url)
	if _, err := b.Listen(ctx, 1); err != nil {
		t.Fatal(err)
	}
	e := newEndpoint(t, a, QPConfig{})
	refused := make(chan error, listenBacklog+1)
	cctx, cancel := context.WithCancel(ctx)
	for range listenBacklog + 1 {
		qp, err := e.pd.CreateQP(ctx, QPConfig{SendCQ: e.cq, SendEntries: 2, RecvEntries: 2})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			_, err := a.Connect(cctx, qp, b.GID(), 1, nil)
			refused <- err
		}()
	}
	if err := <-refused; !errors.Is(err, ErrRefused) {
		t.Errorf("one too many: %v", err)
	}
	cancel()
	for range listenBacklog {
		if err := <-refused; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

func TestAURLNamesItsDeviceOrIsRefused(t *testing.T) {
	for s, want := range map[string]target{
		"vsock://2:7000":                      {scheme: "vsock", cid: 2, port: 7000, function: AssignedFunction},
		"vsock://2":                           {scheme: "vsock", cid: 2, port: abi.Port, function: AssignedFunction},
		"vsock://2:7001?function=pf0.vf1":     {scheme: "vsock", cid: 2, port: 7001, function: 1},
		"vsock://1:7000?memory=/dev/shm/f":    {scheme: "vsock", cid: 1, port: 7000, memory: "/dev/shm/f", function: AssignedFunction},
		"unix:///run/vnic.sock":               {scheme: "unix", path: "/run/vnic.sock", function: AssignedFunction},
		"unix:///a?function=h3.pf2.vf4095":    {scheme: "unix", path: "/a", function: 3<<16 | 2<<12 | 4095},
		"unix:///a?function=pf15":             {scheme: "unix", path: "/a", function: 15 << 12},
		"unix:///a?function=h255.pf15.vf4095": {scheme: "unix", path: "/a", function: 0xffffff},
	} {
		got, err := parseURL(s)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", s, got, err, want)
		}
	}
	for _, s := range []string{
		"", "2:7000", "tcp://1:2", "vsock://host:7000", "vsock://2:70000000000", "vsock://2:7000/x", "unix://run/x", "unix:", "unix:///a?function=vf1",
		"unix:///a?function=pf0.vf4096", "unix:///a?function=pf16", "unix:///a?function=pf0.x", "unix:///a?function=pf0.vf1.", "unix:///a?fn=1", "unix:///a?memory=/x", "unix:///a?function=pf0&function=pf1", "vsock://%zz",
	} {
		if got, err := parseURL(s); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %+v, %v", s, got, err)
		}
	}
}

func TestGIDsAndFunctionsAreReadFromText(t *testing.T) {
	for s, want := range map[string]string{"10.1.2.3": "10.1.2.3", "::ffff:10.1.2.3": "10.1.2.3", "fd00::1": "fd00::1"} {
		if g, err := ParseGID(s); err != nil || g.String() != want {
			t.Errorf("%s: %v, %v", s, g, err)
		}
	}
	for _, s := range []string{"", "10.1.2", "fe80::1%eth0"} {
		if _, err := ParseGID(s); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v", s, err)
		}
	}
	for s, want := range map[string]string{"": "assigned", "pf1": "pf1.vf0", "h1.pf0.vf2": "h1.pf0.vf2"} {
		if f, err := ParseFunctionID(s); err != nil || f.String() != want {
			t.Errorf("%s: %v, %v", s, f, err)
		}
	}
}

// TestResetWaitsForAnObjectInUse: Reset beside a command that holds its object, as SRQ.Resize, lets
// the command have its answer, also when an event of the object comes first.
func TestResetWaitsForAnObjectInUse(t *testing.T) {
	var hold atomic.Bool
	held, release := make(chan struct{}), make(chan struct{})
	nic, url := startNIC(t, func(s *fakedev.Server) {
		s.Break = func(habit string) bool { return habit == "unknown commands succeed" } // it knows no SRQs
		s.Message = func(_ *fakedev.Session, h abi.MsgHeader, _ []byte) bool {
			if h.Type == abi.MsgDoorbell && hold.Swap(false) {
				close(held)
				<-release
			}
			return true
		}
	})
	ctx := testContext(t)
	d := openDevice(t, url)
	pd, err := d.AllocPD(ctx)
	if err != nil {
		t.Fatal(err)
	}
	srq, err := pd.CreateSRQ(ctx, SRQConfig{})
	if err != nil {
		t.Fatal(err)
	}
	hold.Store(true)
	resized, reset := make(chan error, 1), make(chan error, 1)
	go func() { resized <- srq.Resize(ctx, 128) }()
	<-held
	go func() { reset <- d.Reset(ctx) }()
	for d.objects.srqs.get(srq.srqn) != nil { // until Reset has got to it
		time.Sleep(time.Millisecond)
	}
	nic.Session(0).Out.Send(0, &abi.AsyncEvent{Type: abi.EventSRQLimit, Number: srq.srqn})
	close(release)
	if err := errors.Join(<-resized, <-reset, d.Err()); err != nil {
		t.Error(err)
	}
}

// again moves QPs to RESET and back to INIT.
func again(t *testing.T, qps ...*QP) {
	t.Helper()
	for _, q := range qps {
		for _, attr := range []QPAttr{
			{Mask: abi.QPAttrState, State: abi.QPStateReset},
			{Mask: abi.QPAttrState | abi.QPAttrAccess, State: abi.QPStateInit, Access: allAccess},
		} {
			if err := q.Modify(testContext(t), attr); err != nil {
				t.Fatal(err)
			}
			if s := q.State(); s != attr.State {
				t.Errorf("the QP is in %s", s)
			}
			if err := q.PostRecv(&RecvWR{ID: 4}); attr.State == abi.QPStateReset && !errors.Is(err, ErrState) || attr.State == abi.QPStateInit && err != nil {
				t.Errorf("PostRecv in %s: %v", attr.State, err)
			}
		}
	}
}

// wire wires two endpoints.
func wire(t *testing.T, a, b *endpoint) {
	t.Helper()
	ctx := testContext(t)
	if err := errors.Join(a.qp.Wire(ctx, b.qp.Address()), b.qp.Wire(ctx, a.qp.Address())); err != nil {
		t.Fatal(err)
	}
}

// TestAQPBeginsAgainAfterRESET: nothing of what was posted before RESET is carried out or completes
// after it, and the QP takes as much work as a new one (DRV-601, DEV-610).
func TestAQPBeginsAgainAfterRESET(t *testing.T) {
	_, url := startNIC(t, nil)
	a := newEndpoint(t, openDevice(t, url), QPConfig{})
	b := newEndpoint(t, openDevice(t, url), QPConfig{})
	write := func(id uint64, at int) *SendWR {
		return &SendWR{ID: id, Opcode: Write, Flags: Signaled, SGL: []SGE{a.mr.SGE(at, 1)}, RemoteAddr: b.mr.Addr() + uint64(at), RKey: b.mr.RKey()}
	}
	post := func(wr *SendWR) {
		t.Helper()
		if err := a.qp.PostSend(wr); err != nil {
			t.Fatal(err)
		}
	}
	wire(t, a, b)
	a.mr.Bytes()[0] = 1
	post(write(1, 0))
	if wc := next(t, a.cq); wc.ID != 1 || wc.Err() != nil {
		t.Fatal(wc)
	}
	post(write(2, 0))
	if err := a.cq.Wait(testContext(t)); err != nil { // its completion is not polled
		t.Fatal(err)
	}
	post(&SendWR{ID: 3, Opcode: Send, Flags: Signaled}) // waits for a receive
	again(t, a.qp, b.qp)
	wire(t, a, b)
	a.mr.Bytes()[0] = 77
	for i := range uint64(200) { // more than the queue holds
		post(write(10+i, 1))
		if wc := next(t, a.cq); wc.ID != 10+i || wc.Err() != nil {
			t.Fatal(wc)
		}
	}
	if v := b.mr.Bytes()[0]; v != 1 {
		t.Errorf("a request from before RESET wrote %d", v)
	}
	post(&SendWR{ID: 5, Opcode: Send, Flags: Signaled})
	if wc := next(t, b.cq); wc.ID != 4 || wc.Err() != nil { // of the receive that was posted in INIT
		t.Error(wc)
	}
	if wc := next(t, a.cq); wc.ID != 5 || wc.Err() != nil {
		t.Error(wc)
	}
}

// TestAConnectedQPConnectsAgainAfterRESET: RESET ends the connection, whose last event does not
// change the state of the QP any more.
func TestAConnectedQPConnectsAgainAfterRESET(t *testing.T) {
	a, b := newPair(t, QPConfig{})
	for range 3 {
		down := b.qp.Down()
		again(t, a.qp)
		<-down
		again(t, b.qp)
		connectPair(t, a, b, 2, "", "")
	}
}

// TestAQPWhoseRESETFailsGoesOn: as if nobody had asked.
func TestAQPWhoseRESETFailsGoesOn(t *testing.T) {
	a, b := newPair(t, QPConfig{})
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.qp.Modify(over, QPAttr{Mask: abi.QPAttrState, State: abi.QPStateReset}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err := a.qp.PostSend(&SendWR{ID: 1, Opcode: Write, Flags: Signaled, SGL: []SGE{a.mr.SGE(0, 1)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}); err != nil {
		t.Fatal(err)
	}
	if wc := next(t, a.cq); wc.ID != 1 || wc.Err() != nil {
		t.Error(wc)
	}
}

// TestRESETBesidePostsAndPolls: a QP may go to RESET while other goroutines post to it and poll its
// CQ. The race detector makes this test stronger.
func TestRESETBesidePostsAndPolls(t *testing.T) {
	_, url := startNIC(t, nil)
	a := newEndpoint(t, openDevice(t, url), QPConfig{})
	b := newEndpoint(t, openDevice(t, url), QPConfig{})
	wr := SendWR{ID: 1, Opcode: Write, Flags: Signaled, SGL: []SGE{a.mr.SGE(0, 1)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
	var end atomic.Bool
	var others sync.WaitGroup
	others.Go(func() {
		for !end.Load() {
			if err := a.qp.PostSend(&wr); err != nil && !errors.Is(err, ErrState) && !errors.Is(err, ErrQueueFull) {
				t.Error(err)
				return
			}
		}
	})
	others.Go(func() {
		var wc [8]WC
		for !end.Load() {
			if _, err := a.cq.Poll(wc[:]); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 10 {
		wire(t, a, b)
		again(t, a.qp, b.qp)
	}
	end.Store(true)
	others.Wait()
}
