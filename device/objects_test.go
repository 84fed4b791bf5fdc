package device

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// event waits for one event of a type.
func (e *endpoint) event(t *testing.T, typ abi.EventType) guestlib.Event {
	t.Helper()
	for {
		select {
		case ev := <-e.dev.Events():
			if ev.Type == typ {
				return ev
			}
		case <-time.After(testTime):
			t.Fatalf("no %s event", typ)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestTwoConnectionsTakeReceivesFromOneSRQ uses guests' SRQs over two NICs: two connections take from one queue; it tests
// its limit and its resizing.
func TestTwoConnectionsTakeReceivesFromOneSRQ(t *testing.T) {
	w := newWorld(t)
	ctx := testContext(t)
	a, b := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
	s, err := b.pd.CreateSRQ(ctx, guestlib.SRQConfig{Entries: 8, Limit: 3})
	must(t, err)
	var to [2]*guestlib.QP
	for i := range to {
		x, y := *a, *b
		x.qp, err = a.pd.CreateQP(ctx, guestlib.QPConfig{SendCQ: a.cq})
		must(t, err)
		y.qp, err = b.pd.CreateQP(ctx, guestlib.QPConfig{SendCQ: b.cq, SRQ: s})
		must(t, err)
		connect(t, &x, &y, uint64(10+i))
		to[i] = x.qp
	}
	for i := range 6 {
		must(t, s.PostRecv(&guestlib.RecvWR{ID: uint64(i), SGL: []guestlib.SGE{b.mr.SGE(i*4096, 4096)}}))
	}
	copy(a.mr.Bytes(), bytes.Repeat([]byte("shared "), 100))
	send := func(i int) {
		t.Helper()
		must(t, to[i%2].PostSend(&guestlib.SendWR{ID: uint64(i), Opcode: guestlib.SendImm, Imm: uint32(i), Flags: guestlib.Signaled, SGL: []guestlib.SGE{a.mr.SGE(0, 600)}}))
		if wc := a.next(t); wc.Err() != nil {
			t.Fatal(wc.Err())
		}
		wc := b.next(t)
		if wc.Err() != nil || wc.ID != uint64(i) || wc.Imm != uint32(i) || wc.ByteLen != 600 || !bytes.Equal(b.mr.Bytes()[i*4096:][:600], a.mr.Bytes()[:600]) {
			t.Fatalf("message %d: %+v", i, wc)
		}
	}
	for i := range 4 {
		send(i)
	}
	if ev := b.event(t, abi.EventSRQLimit); ev.SRQ != s {
		t.Fatalf("event %v", ev)
	}
	must(t, s.Resize(ctx, 32)) // two receives move with it
	if q, err := s.Query(ctx); err != nil || q.Entries != 32 || q.Limit != 0 {
		t.Fatalf("query %+v, %v", q, err)
	}
	send(4)
	send(5)
	for i := range 32 {
		must(t, s.PostRecv(&guestlib.RecvWR{ID: uint64(6 + i), SGL: []guestlib.SGE{b.mr.SGE((6+i)*4096, 4096)}}))
	}
	if err := s.PostRecv(&guestlib.RecvWR{}); !errors.Is(err, guestlib.ErrQueueFull) {
		t.Errorf("33 receives in a queue of 32: %v", err)
	}
	if err := s.Resize(ctx, 16); !errors.Is(err, guestlib.ErrQueueFull) {
		t.Errorf("32 receives into a queue of 16: %v", err)
	}
	for i := range 32 {
		send(6 + i)
	}
	if err := s.Destroy(ctx); !errors.Is(err, guestlib.ErrBusy) {
		t.Errorf("destroyed in use: %v", err)
	}
}

// TestOneXRCConnectionReachesSeveralSRQs sends over one XRC connection to two SRQs of a guest, and destroys everything.
func TestOneXRCConnectionReachesSeveralSRQs(t *testing.T) {
	w := newWorld(t)
	ctx := testContext(t)
	a, b := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
	x, err := b.dev.OpenXRCD(ctx)
	must(t, err)
	var srqs [2]*guestlib.SRQ
	for i := range srqs {
		srqs[i], err = b.pd.CreateSRQ(ctx, guestlib.SRQConfig{XRC: x, CQ: b.cq})
		must(t, err)
	}
	from, to := *a, *b
	from.qp, err = a.pd.CreateQP(ctx, guestlib.QPConfig{SendCQ: a.cq, Type: guestlib.XRCSend})
	must(t, err)
	to.qp, err = x.CreateQP(ctx, guestlib.QPConfig{Access: allAccess})
	must(t, err)
	connect(t, &from, &to, 20)
	copy(a.mr.Bytes(), "over XRC")
	for i := range 10 {
		s := srqs[i%2]
		must(t, s.PostRecv(&guestlib.RecvWR{ID: uint64(i), SGL: []guestlib.SGE{b.mr.SGE(i*64, 64)}}))
		from.do(t, guestlib.SendWR{Opcode: guestlib.Send, SGL: []guestlib.SGE{a.mr.SGE(0, 8)}, RemoteSRQN: s.Num()})
		if wc := b.next(t); wc.Err() != nil || wc.ID != uint64(i) || wc.QPN != to.qp.Num() || !bytes.Equal(b.mr.Bytes()[i*64:][:8], []byte("over XRC")) {
			t.Fatalf("message %d: %+v", i, wc)
		}
	}
	from.do(t, guestlib.SendWR{Opcode: guestlib.FetchAdd, CompareAdd: 1, SGL: []guestlib.SGE{a.mr.SGE(64, 8)}, RemoteAddr: b.mr.Addr() + 8192, RKey: b.mr.RKey(), RemoteSRQN: srqs[1].Num()})
	if b.mr.Bytes()[8192] != 1 {
		t.Fatal("atomic over XRC")
	}
	if n, err := b.dev.InUse(ctx); err != nil || n.SRQs != 2 || n.XRCDs != 1 || n.MRs != 1 {
		t.Errorf("in use %+v, %v", n, err)
	}
	if l := b.dev.Limits(); l.MaxSRQ != 256 || l.MaxXRCD != 64 || l.MaxMW != 4096 || l.MaxAH != 4096 || l.MaxQP != 256 {
		t.Errorf("limits %+v", l)
	}
	if err := to.qp.PostSend(&guestlib.SendWR{}); err == nil {
		t.Error("an XRC target sent something")
	}
	if err := x.Close(ctx); !errors.Is(err, guestlib.ErrBusy) {
		t.Errorf("domain in use: %v", err)
	}
	must(t, to.qp.Destroy(ctx))
	for _, s := range srqs {
		must(t, s.Destroy(ctx))
	}
	must(t, x.Close(ctx))
}

// TestAMemoryWindowOpensMemoryUntilItIsInvalidated opens a part of memory to a peer, revokes it in both ways, and changes a
// region's rights.
func TestAMemoryWindowOpensMemoryUntilItIsInvalidated(t *testing.T) {
	w := newWorld(t)
	ctx := testContext(t)
	a, b := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
	connect(t, a, b, 30)
	buf, err := b.dev.Alloc(8192)
	must(t, err)
	m, err := b.pd.RegMR(ctx, buf, guestlib.LocalWrite|guestlib.MWBind|guestlib.ZeroBased)
	must(t, err)
	mw, err := b.pd.AllocMW(ctx)
	must(t, err)
	write := func() {
		a.do(t, guestlib.SendWR{Opcode: guestlib.Write, SGL: []guestlib.SGE{a.mr.SGE(0, 8)}, RemoteAddr: 4096, RKey: mw.RKey()})
	}
	for i := range 3 {
		copy(a.mr.Bytes(), []byte{byte(i + 1)})
		b.do(t, mw.Bind(1, m.Bind(4096, 100, guestlib.RemoteWrite)))
		write()
		if buf.Bytes()[4096] != byte(i+1) {
			t.Fatal("nothing written")
		}
		if err := m.Rereg(ctx, 0, nil); !errors.Is(err, guestlib.ErrBusy) {
			t.Errorf("region with a window registered again: %v", err)
		}
		if i == 1 {
			must(t, b.qp.PostRecv(&guestlib.RecvWR{}))
			a.do(t, guestlib.SendWR{Opcode: guestlib.SendInv, Inline: []byte{}, Imm: mw.RKey()})
			if wc := b.next(t); wc.Flags&guestlib.WCWithInv == 0 || wc.Imm != mw.RKey() {
				t.Fatalf("receive %+v", wc)
			}
			continue
		}
		b.do(t, guestlib.SendWR{Opcode: guestlib.LocalInv, Imm: mw.RKey()})
	}
	must(t, a.qp.PostSend(&guestlib.SendWR{Opcode: guestlib.Write, SGL: []guestlib.SGE{a.mr.SGE(0, 8)}, RemoteAddr: 4096, RKey: mw.RKey()}))
	if wc := a.next(t); wc.Status != abi.WCRemAccessErr {
		t.Fatalf("window was taken back: %+v", wc)
	}
	if ev := b.event(t, abi.EventQPAccessErr); ev.QP != b.qp {
		t.Fatalf("event %v", ev)
	}
	must(t, mw.Dealloc(ctx))
	old := m.RKey()
	must(t, m.Rereg(ctx, guestlib.LocalWrite|guestlib.RemoteRead, nil))
	if m.RKey() != old { // its memory is the same (DEV-933)
		t.Error("with other access it has another key")
	}
	must(t, m.Dereg(context.Background()))
}

// TestCQResizeAndModeration resizes a guest's CQ with completions in it and while the guest waits,
// and moderates its events.
func TestCQResizeAndModeration(t *testing.T) {
	w := newWorld(t)
	ctx := testContext(t)
	a, b := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
	connect(t, a, b, 40)
	post := func(id int) {
		t.Helper()
		must(t, a.qp.PostSend(&guestlib.SendWR{ID: uint64(id), Opcode: guestlib.Write, Flags: guestlib.Signaled, SGL: []guestlib.SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
	}
	id := 0
	for _, n := range []int{512, 64, 300} {
		for i := range 5 {
			post(id + i)
		}
		must(t, a.cq.Resize(ctx, n))
		for i := range 5 {
			post(id + 5 + i)
		}
		for range 10 {
			if wc := a.next(t); wc.Err() != nil || wc.ID != uint64(id) {
				t.Fatalf("completion %+v, want %d", wc, id)
			}
			id++
		}
	}
	waiting := make(chan error, 1)
	go func() { waiting <- a.cq.Wait(ctx) }()
	time.Sleep(10 * time.Millisecond)
	must(t, a.cq.Resize(ctx, 128))
	post(id)
	must(t, <-waiting) // armed in the old area, or in the new
	a.next(t)
	must(t, a.cq.Moderate(ctx, 100, 20*time.Millisecond))
	for try := 1; ; try++ {
		start := time.Now()
		go func() { waiting <- a.cq.Wait(ctx) }()
		time.Sleep(5 * time.Millisecond) // until Wait has armed; if it has not, it finds the completion
		post(id + try)
		must(t, <-waiting)
		took := time.Since(start)
		if a.next(t); took >= 20*time.Millisecond {
			break
		}
		if try == 100 {
			t.Fatalf("woken after %v, the period is 20 ms", took)
		}
	}
}

// TestOrderedConnectionsCompleteRequestsInOrder uses a connection of each ordering, with requests that complete in error and others
// that do not. Ends of different orderings are not connected (DRV-950, DEV-950).
func TestOrderedConnectionsCompleteRequestsInOrder(t *testing.T) {
	w := newWorld(t)
	ctx := testContext(t)
	a, b := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
	mode := abi.ErrorModeCompleteInError
	make1 := func(e *endpoint, o abi.Ordering) *endpoint {
		x := *e
		var err error
		x.qp, err = e.pd.CreateQP(ctx, guestlib.QPConfig{SendCQ: e.cq, Access: allAccess, Ordering: o, ErrorMode: mode})
		must(t, err)
		return &x
	}
	for i, o := range []abi.Ordering{abi.OrderingStrong, abi.OrderingWeak, abi.OrderingUnordered} {
		x, y := make1(a, o), make1(b, o)
		connect(t, x, y, uint64(50+i))
		const n = 30
		for id := range n {
			wr := guestlib.SendWR{ID: uint64(id), Opcode: guestlib.Write, Flags: guestlib.Signaled, SGL: []guestlib.SGE{a.mr.SGE(0, 5000)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
			switch id % 3 {
			case 1:
				wr.RKey ^= 1
			case 2:
				must(t, y.qp.PostRecv(&guestlib.RecvWR{ID: uint64(id), SGL: []guestlib.SGE{b.mr.SGE(8192, 100+900*(id%2))}}))
				wr.Opcode, wr.SGL = guestlib.Send, []guestlib.SGE{a.mr.SGE(0, 500)} // every other one is too long
			}
			must(t, x.qp.PostSend(&wr))
		}
		seen := map[uint64]bool{}
		for k := range n {
			wc := x.next(t)
			bad := wc.ID%3 == 1 || wc.ID%3 == 2 && wc.ID%2 == 0
			if seen[wc.ID] || (wc.Err() != nil) != bad || o != abi.OrderingUnordered && wc.ID != uint64(k) {
				t.Fatalf("%v: completion %d: %+v", o, k, wc)
			}
			seen[wc.ID] = true
		}
		for range n / 3 {
			if wc := y.next(t); (wc.Err() != nil) != (wc.ID%2 == 0) {
				t.Fatalf("%v: receive %+v", o, wc)
			}
		}
		if x.qp.State() != abi.QPStateRTS || y.qp.State() != abi.QPStateRTS {
			t.Fatalf("%v: QPs in %v and %v", o, x.qp.State(), y.qp.State())
		}
	}
	// Ends with different orderings are not connected.
	for i, ordering := range []abi.Ordering{abi.OrderingWeak, abi.OrderingStrong} {
		service := uint64(60 + i)
		x := make1(a, abi.OrderingStrong)
		if ordering == abi.OrderingStrong {
			mode = abi.ErrorModeVerbs
		}
		y := make1(b, ordering)
		l, err := b.dev.Listen(ctx, service)
		must(t, err)
		accepted := make(chan error, 1)
		go func() {
			r, err := l.Accept(ctx)
			if err == nil {
				err = r.Accept(ctx, y.qp, nil)
			}
			accepted <- err
		}()
		if _, err = a.dev.Connect(ctx, x.qp, b.dev.GID(), service, nil); err == nil {
			t.Errorf("a QP is connected to one of another ordering or error mode (%d)", i)
		}
		if err := <-accepted; !errors.Is(err, guestlib.ErrInvalid) {
			t.Errorf("accept: %v", err)
		}
	}
}

// TestTheTargetLimitsREADsInFlight checks that the number of READs that the target accepts limits those that the
// initiator has in flight (DEV-953).
func TestTheTargetLimitsREADsInFlight(t *testing.T) {
	w := newWorld(t)
	ctx := testContext(t)
	a, b := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
	var err error
	a.qp, err = a.pd.CreateQP(ctx, guestlib.QPConfig{SendCQ: a.cq, Access: allAccess, ReadAtomic: 8})
	must(t, err)
	b.qp, err = b.pd.CreateQP(ctx, guestlib.QPConfig{SendCQ: b.cq, Access: allAccess, ReadAtomic: 3})
	must(t, err)
	connect(t, a, b, 70)
	for _, c := range []struct {
		qp       *guestlib.QP
		out, dst uint8
	}{{a.qp, 3, 8}, {b.qp, 3, 3}} {
		q, err := c.qp.Query(ctx)
		must(t, err)
		if q.MaxRdAtomic != c.out || q.MaxDestRdAtomic != c.dst {
			t.Errorf("MaxRdAtomic %d, MaxDestRdAtomic %d, want %d and %d", q.MaxRdAtomic, q.MaxDestRdAtomic, c.out, c.dst)
		}
	}
	for range 20 {
		must(t, a.qp.PostSend(&guestlib.SendWR{Opcode: guestlib.Read, Flags: guestlib.Signaled, SGL: []guestlib.SGE{a.mr.SGE(0, 9000)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
	}
	for range 20 {
		if wc := a.next(t); wc.Err() != nil {
			t.Fatal(wc.Err())
		}
	}
}
