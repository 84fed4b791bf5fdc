package cm

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

// two returns hosts 1 and 2, linked, function 0 of host 2 listening on service 1.
func two(t *testing.T, change func(*Config)) (w *world, a, b *node) {
	t.Helper()
	w = newWorld(t.Fatalf)
	a, b = w.add(1, 2), w.add(2, 1)
	if change != nil {
		for _, n := range []*node{a, b} {
			change(&n.cfg)
			n.start()
		}
	}
	if err := b.m.Listen(fnOf(2, 0), 1); err != nil {
		t.Fatal(err)
	}
	w.setLink(1, 2, true, nil)
	w.settle()
	return w, a, b
}

// establish connects function 0 of a to function 0 of b.
func establish(t *testing.T, w *world, a, b *node) (ida, idb uint32) {
	t.Helper()
	ida, err := a.connect(0, b.host, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	w.settle()
	if len(b.waiting()) != 1 {
		t.Fatalf("requests waiting: %v", b.waiting())
	}
	idb = b.waiting()[0]
	if err := b.accept(idb); err != nil {
		t.Fatal(err)
	}
	w.settle()
	if !a.conns[ida].estab || !b.conns[idb].estab {
		t.Fatalf("not established: %+v %+v", a.conns[ida], b.conns[idb])
	}
	return ida, idb
}

func wantEnd(t *testing.T, n *node, id uint32, kind OutputKind, reason Reason) {
	t.Helper()
	if r := n.conns[id]; r.end != kind || r.reason != reason {
		t.Errorf("host %d, connection %d: ended by %v (%v), want %v (%v)", n.host, id, r.end, r.reason, kind, reason)
	}
}

// wantEmpty waits out every timer; then nothing may be left.
func wantEmpty(t *testing.T, w *world) {
	t.Helper()
	w.settle()
	for range 100 {
		w.advance(1000 * ms)
		w.settle()
	}
	w.checkRest()
	for _, n := range w.nodes {
		if len(n.m.conns.byID) != 0 || len(n.cids) != 0 {
			t.Errorf("host %d: %d connections, %d CIDs left", n.host, len(n.m.conns.byID), len(n.cids))
		}
	}
}

func TestEstablishAndDisconnect(t *testing.T) {
	w, a, b := two(t, nil)
	w.now = 5 * ms
	ida, idb := establish(t, w, a, b)
	w.checkRest()
	if sa, sb := a.m.Stats(), b.m.Stats(); sa.Received == 0 || sa.Received != sb.Sent || sb.Received != sa.Sent {
		t.Errorf("%d sent and %d received, %d received and %d sent", sa.Sent, sb.Received, sa.Received, sb.Sent)
	}
	p := a.conns[ida].params
	if p.MTU != 1024 || !p.Ordered || p.QPN != 16 || p.PeerQPN != 99 || p.RemoteTime != 5_000_000_000 || !p.Active {
		t.Errorf("parameters %+v", p)
	}
	if string(a.conns[ida].private) != "rep" {
		t.Errorf("private data %q", a.conns[ida].private)
	}
	if a.m.Deadline() != 1<<63-1 {
		t.Error("a timer runs while all rests")
	}
	if err := a.disconnect(ida); err != nil {
		t.Fatal(err)
	}
	w.settle()
	wantEnd(t, a, ida, OutDisconnected, ReasonLocal)
	wantEnd(t, b, idb, OutDisconnected, ReasonDisconnect)
	if len(a.cids) != 1 || len(b.cids) != 1 {
		t.Error("the CIDs are free before the time-wait is over")
	}
	if err := b.disconnect(idb); !errors.Is(err, ErrNotFound) {
		t.Errorf("disconnect of an ended connection: %v", err)
	}
	wantEmpty(t, w)
}

func TestBothSidesMayDisconnectAtOnce(t *testing.T) {
	w, a, b := two(t, nil)
	ida, idb := establish(t, w, a, b)
	if err := errors.Join(a.disconnect(ida), b.disconnect(idb)); err != nil {
		t.Fatal(err)
	}
	wantEmpty(t, w)
	wantEnd(t, a, ida, OutDisconnected, ReasonLocal)
	wantEnd(t, b, idb, OutDisconnected, ReasonLocal)
	if s := a.m.Stats(); s.Retries != 0 {
		t.Errorf("a DREQ was repeated: %+v", s)
	}
}

func TestConnectTellsWhyItRefuses(t *testing.T) {
	w, a, b := two(t, func(c *Config) { c.MaxPerFunction = 2 })
	ok := ConnectRequest{Function: fnOf(1, 0), Tenant: 7, QPN: 1, SGID: gidOf(1, 0), DGID: gidOf(2, 0)}
	for name, tt := range map[string]struct {
		change func(*ConnectRequest)
		want   error
	}{
		"no route":            {func(r *ConnectRequest) { r.DGID = gidOf(9, 1) }, ErrNoRoute},
		"other tenant":        {func(r *ConnectRequest) { r.Tenant = 8 }, ErrNotLocal},
		"foreign source":      {func(r *ConnectRequest) { r.SGID = gidOf(1, 1) }, ErrNotLocal},
		"QPN":                 {func(r *ConnectRequest) { r.QPN = 1 << 24 }, ErrInvalid},
		"MTU":                 {func(r *ConnectRequest) { r.MTU = 100 }, ErrInvalid},
		"private data":        {func(r *ConnectRequest) { r.Private = make([]byte, 65) }, ErrInvalid},
		"function, not ours":  {func(r *ConnectRequest) { r.Function = fnOf(2, 0) }, ErrNotLocal},
		"function, not known": {func(r *ConnectRequest) { r.Function = fnOf(1, 77) }, ErrNotLocal},
	} {
		r := ok
		tt.change(&r)
		if _, err := a.m.Connect(w.now, r); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
	for i, f := range []uint32{0, 0, 0, 1, 1} {
		_, err := a.connect(f, 2, 0, 1)
		if want := i == 2; errors.Is(err, ErrLimit) != want {
			t.Errorf("connection %d: %v", i, err)
		}
	}
	a.maxCIDs = 0
	w.setLink(1, 2, false, nil)
	w.settle()
	if _, err := a.m.Connect(w.now, ok); !errors.Is(err, ErrPeerDown) {
		t.Errorf("link down: %v", err)
	}
	a.maxCIDs = 1000
	wantEmpty(t, w)
	_ = b
}

func TestResourcesAreReturnedWhenTheyRunOut(t *testing.T) {
	w, a, b := two(t, nil)
	a.maxCIDs = 0
	if _, err := a.connect(0, 2, 0, 1); err == nil || !strings.Contains(err.Error(), "no CID left") {
		t.Fatalf("connect without CIDs: %v", err)
	}
	if len(a.m.conns.byID) != 0 || len(a.m.conns.functions) != 0 {
		t.Error("something is left of it")
	}
	a.maxCIDs, b.maxCIDs = 1, 0
	ida, err := a.connect(0, 2, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	w.settle()
	idb := b.waiting()[0]
	if err := b.accept(idb); err == nil {
		t.Fatal("accepted without a CID")
	}
	b.maxCIDs = 1
	if err := b.accept(idb); err != nil {
		t.Fatalf("accept a second time: %v", err)
	}
	w.settle()
	if !a.conns[ida].estab {
		t.Error("not established")
	}
}

func TestARejectionReachesTheRequesterWithItsReason(t *testing.T) {
	w, a, b := two(t, nil)
	ida, _ := a.connect(0, 2, 0, 1)
	w.settle()
	idb := b.waiting()[0]
	if err := b.m.Accept(w.now, fnOf(2, 1), idb, 1, 0, nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("another function accepts: %v", err)
	}
	if err := b.m.Accept(w.now, fnOf(2, 0), idb, 1<<24, 0, nil); !errors.Is(err, ErrInvalid) {
		t.Errorf("accept with QPN 2^24: %v", err)
	}
	if err := b.m.Accept(w.now, fnOf(2, 0), idb, 1, 0, make([]byte, 65)); !errors.Is(err, ErrInvalid) {
		t.Errorf("accept with too much private data: %v", err)
	}
	if err := b.m.Reject(w.now, fnOf(2, 0), idb, 1, make([]byte, 65)); !errors.Is(err, ErrInvalid) {
		t.Errorf("reject with too much private data: %v", err)
	}
	if err := b.reject(idb, 28); err != nil {
		t.Fatal(err)
	}
	w.settle()
	wantEnd(t, a, ida, OutRejected, ReasonConsumer)
	if r := a.conns[ida]; r.consumer != 28 || string(r.private) != "no" {
		t.Errorf("%+v", r)
	}
	if len(a.cids)+len(b.cids) != 0 {
		t.Error("a refused request keeps its CID")
	}
	wantEmpty(t, w)
}

func TestCallsInTheWrongState(t *testing.T) {
	w, a, b := two(t, nil)
	ida, idb := establish(t, w, a, b)
	if err := a.m.Accept(w.now, fnOf(1, 0), ida, 1, 0, nil); !errors.Is(err, ErrState) {
		t.Errorf("accept: %v", err)
	}
	if err := b.m.Reject(w.now, fnOf(2, 0), idb, 1, nil); !errors.Is(err, ErrState) {
		t.Errorf("reject: %v", err)
	}
	if err := a.m.Disconnect(w.now, fnOf(1, 1), ida); !errors.Is(err, ErrNotFound) {
		t.Errorf("disconnect by another function: %v", err)
	}
	w.checkRest()
}

func TestRetryAndGiveUp(t *testing.T) {
	w, a, b := two(t, nil)
	ida, _ := a.connect(0, 2, 0, 1)
	sent := len(b.inbox)
	w.advance(7500 * ms) // the peer handles nothing
	if n := len(b.inbox) - sent; n != 7 {
		t.Errorf("%d REQ repeated in 7.5 s, want 7", n)
	}
	if n := a.m.Stats().Retries; n != 7 {
		t.Errorf("%d of them counted", n)
	}
	w.advance(1000 * ms)
	wantEnd(t, a, ida, OutUnreachable, ReasonTimeout)
	if len(a.cids) != 1 {
		t.Error("the CID is free before the time-wait is over")
	}
	w.settle() // REQ × 8, then the REJ that withdraws it
	wantEnd(t, b, b.order[0], OutUnreachable, ReasonTimeout)
	wantEmpty(t, w)
}

func TestListenerNeverAnswers(t *testing.T) {
	w, a, b := two(t, func(c *Config) { c.AcceptTimeout = 2000 * ms })
	ida, _ := a.connect(0, 2, 0, 1)
	w.settle()
	w.advance(2500 * ms)
	w.settle()
	wantEnd(t, b, b.order[0], OutUnreachable, ReasonTimeout)
	wantEnd(t, a, ida, OutRejected, ReasonTimeout)
	wantEmpty(t, w)
}

func TestAFunctionThatGoesEndsItsConnections(t *testing.T) {
	w, a, b := two(t, nil)
	ida, idb := establish(t, w, a, b)
	pend, _ := a.connect(1, 2, 0, 1)
	w.settle()
	b.functionGone(fnOf(2, 0))
	w.settle()
	wantEnd(t, a, ida, OutDisconnected, ReasonFunctionGone)
	wantEnd(t, a, pend, OutRejected, ReasonFunctionGone)
	if !b.conns[idb].closed {
		t.Error("the Falcon connection stays open")
	}
	if err := b.m.Unlisten(fnOf(2, 0), 1); !errors.Is(err, ErrNotFound) {
		t.Errorf("its listener is still there: %v", err)
	}
	wantEmpty(t, w)
	if len(b.m.conns.functions) != 0 {
		t.Errorf("counts left: %+v", b.m.conns.functions)
	}
}

func TestAFunctionsListenersAreUniqueAndLimited(t *testing.T) {
	_, a, _ := two(t, func(c *Config) { c.MaxListeners = 2 })
	fn := fnOf(1, 0)
	if err := errors.Join(a.m.Listen(fn, 1), a.m.Listen(fn, 2), a.m.Listen(fnOf(1, 1), 1)); err != nil {
		t.Fatal(err)
	}
	if err := a.m.Listen(fn, 1); !errors.Is(err, ErrInUse) {
		t.Errorf("twice: %v", err)
	}
	if err := a.m.Listen(fn, 3); !errors.Is(err, ErrLimit) {
		t.Errorf("a third: %v", err)
	}
	if err := errors.Join(a.m.Unlisten(fn, 1), a.m.Listen(fn, 3), a.m.Unlisten(fn, 2), a.m.Unlisten(fn, 3), a.m.Unlisten(fnOf(1, 1), 1)); err != nil {
		t.Fatal(err)
	}
	if len(a.m.conns.functions) != 0 || len(a.m.services.byFunction) != 0 {
		t.Error("something is left")
	}
}

// TestNamesOfEverything keeps the strings of the enums complete.
func TestNamesOfEverything(t *testing.T) {
	for s := range numStates {
		if strings.Contains(s.String(), "(") {
			t.Error(s)
		}
	}
	for e := range numEvents {
		if strings.Contains(e.String(), "(") {
			t.Error(e)
		}
	}
	for k := OutSend; k <= OutRekeyWanted; k++ {
		if strings.Contains(k.String(), "(") {
			t.Error(k)
		}
	}
	for r := range reasonWireEnd {
		if strings.Contains(r.String(), "(") {
			t.Error(r)
		}
	}
	for c := range numClasses {
		if strings.Contains(c.String(), "(") {
			t.Error(c)
		}
	}
}

func BenchmarkConnect(bm *testing.B) {
	w := newWorld(bm.Fatalf)
	a, b := w.add(1, 2), w.add(2, 1)
	if err := b.m.Listen(fnOf(2, 0), 1); err != nil {
		bm.Fatal(err)
	}
	w.setLink(1, 2, true, nil)
	w.settle()
	for bm.Loop() {
		id, err := a.connect(0, 2, 0, 1)
		if err != nil {
			bm.Fatal(err)
		}
		w.settle()
		if err := b.accept(b.order[0]); err != nil {
			bm.Fatal(err)
		}
		w.settle()
		_ = a.disconnect(id)
		w.settle()
		w.advance(3000 * ms)
		clear(a.conns)
		clear(b.conns)
		a.order, b.order = nil, nil
	}
	bm.ReportMetric(float64(bm.N)/bm.Elapsed().Seconds(), "falcon/cm_setup_per_s")
}

// TestFunctionsOfOneNICConnectLikeOthers connects two functions of one NIC, without any link: the
// same steps, private data and ends as between two NICs, and no key.
func TestFunctionsOfOneNICConnectLikeOthers(t *testing.T) {
	w := newWorld(t.Fatalf)
	a := w.add(1)
	if err := a.m.Listen(fnOf(1, 1), 5); err != nil {
		t.Fatal(err)
	}
	id, err := a.connect(0, 1, 1, 5)
	if err != nil {
		t.Fatal(err)
	}
	w.settle()
	request := a.waiting()[0]
	if r := a.conns[request]; string(r.private) != "req" || r.fn != fnOf(1, 1) {
		t.Fatalf("request %+v", r)
	}
	if err := a.accept(request); err != nil {
		t.Fatal(err)
	}
	w.settle()
	w.checkRest()
	p, q := a.conns[id].params, a.conns[request].params
	if p.Peer != Self || q.Peer != Self || p.LocalCID != q.RemoteCID || q.LocalCID != p.RemoteCID || p.TxKey != nil || string(a.conns[id].private) != "rep" {
		t.Fatalf("ends %+v and %+v", p, q)
	}
	if err := a.disconnect(request); err != nil {
		t.Fatal(err)
	}
	w.settle()
	wantEnd(t, a, id, OutDisconnected, ReasonDisconnect)
	wantEnd(t, a, request, OutDisconnected, ReasonLocal)

	id, err = a.connect(0, 1, 1, 5)
	if err != nil {
		t.Fatal(err)
	}
	w.settle()
	if err := a.reject(a.waiting()[0], 9); err != nil {
		t.Fatal(err)
	}
	w.settle()
	if wantEnd(t, a, id, OutRejected, ReasonConsumer); a.conns[id].consumer != 9 || string(a.conns[id].private) != "no" {
		t.Fatalf("rejected with %+v", a.conns[id])
	}
	id, err = a.connect(0, 1, 2, 5)
	if err != nil {
		t.Fatal(err)
	}
	w.settle()
	wantEnd(t, a, id, OutRejected, ReasonNoListener)
	wantEmpty(t, w)
}

// TestFunctionsOfOneNICInOtherTenantsAreApart keeps functions of one NIC in different tenants
// apart.
func TestFunctionsOfOneNICInOtherTenantsAreApart(t *testing.T) {
	w := newWorld(t.Fatalf)
	a := w.add(1)
	a.local[1].Tenant = 8
	a.start()
	if err := a.m.Listen(fnOf(1, 1), 5); err != nil {
		t.Fatal(err)
	}
	if _, err := a.connect(0, 1, 1, 5); !errors.Is(err, ErrNoRoute) {
		t.Fatalf("connection into another tenant: %v", err)
	}
	_, err := a.m.Connect(0, ConnectRequest{Function: fnOf(1, 0), Tenant: 8, Service: 5, SGID: gidOf(1, 0), DGID: gidOf(1, 1)})
	if !errors.Is(err, ErrNotLocal) {
		t.Fatalf("connection under another tenant's name: %v", err)
	}
}

// TestTheLargestValidArgumentsAreTaken: the largest valid arguments of a function are accepted.
func TestTheLargestValidArgumentsAreTaken(t *testing.T) {
	w, a, b := two(t, nil)
	for name, tt := range map[string]struct {
		change func(*ConnectRequest)
		want   error
	}{
		"QPN":           {func(r *ConnectRequest) { r.QPN = max24 }, nil},
		"private data":  {func(r *ConnectRequest) { r.Private = make([]byte, MaxPrivate) }, nil},
		"MTU":           {func(r *ConnectRequest) { r.MTU = MinMTU }, nil},
		"MTU too small": {func(r *ConnectRequest) { r.MTU = MinMTU - 1 }, ErrInvalid},
	} {
		r := ConnectRequest{Function: fnOf(1, 0), Tenant: 7, QPN: 1, Service: 1, SGID: gidOf(1, 0), DGID: gidOf(2, 0)}
		tt.change(&r)
		if _, err := a.m.Connect(w.now, r); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	a.drain()
	w.settle()
	ids := b.waiting()
	if len(ids) != 3 {
		t.Fatalf("%d requests", len(ids))
	}
	if err := b.m.Accept(w.now, fnOf(2, 0), ids[0], max24, 0, make([]byte, MaxPrivate)); err != nil {
		t.Error(err)
	}
	if err := b.m.Reject(w.now, fnOf(2, 0), ids[1], 1, make([]byte, MaxPrivate)); err != nil {
		t.Error(err)
	}
}

// TestOneFunctionOfAPeerCannotTakeAllConnections: one function of a peer can have at most three
// quarters of the connections that the peer may request, and the next function finds room.
func TestOneFunctionOfAPeerCannotTakeAllConnections(t *testing.T) {
	_, _, b := two(t, func(c *Config) { c.MaxPerPeer = 8 })
	taken := func(fn, first uint32) (n int) {
		for i := range uint32(20) {
			got := answers(t, b, reqTo(func(q *REQ) {
				q.SenderID, q.Function, q.SGID = first+i, fnOf(1, fn), gidOf(1, fn)
			}))
			if len(got) == 0 {
				n++
				continue
			}
			if rej, ok := got[0].(*REJ); !ok || rej.Reason != ReasonNoResources {
				t.Fatalf("answer %+v", got[0])
			}
		}
		return n
	}
	if n := taken(0, 100); n != 6 {
		t.Errorf("%d of 8 for one function, want 6", n)
	}
	if n := taken(1, 200); n != 2 {
		t.Errorf("%d for the next, want what is left", n)
	}
	if p := b.m.Peers()[0]; p.Connections != 8 || b.m.Stats().LimitRefused != 32 {
		t.Errorf("%d connections, %d refused", p.Connections, b.m.Stats().LimitRefused)
	}
}

// TestAnOfferForAnotherShardIsRefused: an offer for a shard that does not have the function is
// invalid.
func TestAnOfferForAnotherShardIsRefused(t *testing.T) {
	_, a, b := two(t, nil)
	for shard, good := range map[uint8]bool{shardOf(0): true, 1 - shardOf(0): false} {
		id, err := a.connect(0, 2, 0, 1)
		if err != nil {
			t.Fatal(err)
		}
		b.inbox = nil
		rep := REP{SenderID: 5 + uint32(shard), ReceiverID: id, Offer: Offer{Shard: shard, CID: 1, MTU: 1000, Ordered: true, SA: SA{SPI: 1, Key: make([]byte, 16)}}}
		a.inbox = append(a.inbox, input{from: 2, msg: Encode(&rep)})
		a.deliver()
		if r := a.conns[id]; r.estab != good || good != (r.end == 0) {
			t.Errorf("shard %d: %+v", shard, r)
		}
		if want := map[bool]uint64{false: 1}[good]; !good && a.m.Stats().BadREP != want {
			t.Errorf("%d bad offers counted", a.m.Stats().BadREP)
		}
	}
}

// TestEachUnansweredMessageIsRepeatedInTime: each message that waits for an answer is repeated in
// time, as often as configured. The CID of an ended connection is freed only after its TIME-WAIT.
func TestEachUnansweredMessageIsRepeatedInTime(t *testing.T) {
	w, a, b := two(t, nil)
	if _, err := a.connect(0, 2, 0, 1); err != nil {
		t.Fatal(err)
	}
	w.settle()
	id := b.waiting()[0]
	if err := b.accept(id); err != nil {
		t.Fatal(err)
	}
	sent := func(n *node, from PeerID) (count int) { // since it was asked last
		for _, in := range n.inbox {
			if in.kind == inMessage && in.from == from {
				count++
			}
		}
		n.inbox = nil
		return count
	}
	check := func(what string, got, want int) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %d messages, want %d", what, got, want)
		}
	}
	check("REP", sent(a, 2), 1)
	w.advance(1000*ms - 1)
	check("REP before a second", sent(a, 2), 0)
	w.advance(1)
	check("REP after a second", sent(a, 2), 1)
	w.advance(6000 * ms)
	check("REP after seven", sent(a, 2), 6)
	if b.conns[id].end != 0 {
		t.Error("given up before its time")
	}
	timeouts := b.m.Stats().Timeouts
	w.advance(1000 * ms)
	wantEnd(t, b, id, OutUnreachable, ReasonTimeout)
	if n := b.m.Stats().Timeouts - timeouts; n != 1 {
		t.Errorf("%d timeouts counted", n)
	}
	w.advance(2000*ms - 1)
	if len(b.cids) != 1 {
		t.Error("the CID is free before it has rested for two seconds")
	}
	w.advance(1)
	if len(b.cids) != 0 || b.m.Stats().Timeouts-timeouts != 1 {
		t.Errorf("%d CIDs after two seconds, %d timeouts", len(b.cids), b.m.Stats().Timeouts-timeouts)
	}

	w, a, b = two(t, nil)
	ida, _ := establish(t, w, a, b)
	if err := a.disconnect(ida); err != nil {
		t.Fatal(err)
	}
	check("DREQ", sent(b, 1), 1)
	w.advance(500*ms - 1)
	check("DREQ before half a second", sent(b, 1), 0)
	w.advance(1)
	check("DREQ after half a second", sent(b, 1), 1)
	w.advance(1000 * ms)
	check("DREQ after three halves", sent(b, 1), 2)
	if c := a.m.conns.byID[ida]; c.state != StateDreqSent {
		t.Errorf("in %v", c.state)
	}
	w.advance(500 * ms)
	check("DREQ after two seconds", sent(b, 1), 0)
	if c := a.m.conns.byID[ida]; c.state != StateTimeWait {
		t.Errorf("in %v", c.state)
	}
}

// TestConnectionIDsAreNeverZeroOrUsedTwice: connection IDs are never 0 and never used twice, and
// connections are listed in their order.
func TestConnectionIDsAreNeverZeroOrUsedTwice(t *testing.T) {
	_, a, _ := two(t, nil)
	a.m.conns.lastID = math.MaxUint32 - 2
	for range 5 {
		if _, err := a.connect(0, 2, 0, 1); err != nil {
			t.Fatal(err)
		}
	}
	a.m.conns.lastID = math.MaxUint32 - 3 // names that are in use
	for range 20 {
		if _, err := a.connect(1, 2, 0, 1); err != nil {
			t.Fatal(err)
		}
	}
	var ids []uint32
	for _, c := range a.m.Connections() {
		ids = append(ids, c.ID)
		if c.TxKey != nil {
			t.Error("a list of connections shows a key")
		}
	}
	want := []uint32{}
	for id := uint32(1); id <= 22; id++ {
		want = append(want, id)
	}
	want = append(want, math.MaxUint32-2, math.MaxUint32-1, math.MaxUint32)
	if !slices.Equal(ids, want) {
		t.Errorf("names %v, want %v", ids, want)
	}
	of := a.m.conns.of(fnOf(1, 1))
	for i, c := range of {
		if i > 0 && of[i-1].id >= c.id {
			t.Errorf("connections of a function are not in order: %d, %d", of[i-1].id, c.id)
		}
	}
}

// TestARejectedRequestEndsAtOnceWhileTheLinkIsDown: a request that its function rejects while the
// link is down ends at once, and causes no illegal event.
func TestARejectedRequestEndsAtOnceWhileTheLinkIsDown(t *testing.T) {
	w, a, b := two(t, nil)
	if _, err := a.connect(0, 2, 0, 1); err != nil {
		t.Fatal(err)
	}
	w.settle()
	id := b.waiting()[0]
	b.m.peers.byID[1].up = false // in the moment before PeerDown
	if err := b.disconnect(id); err != nil {
		t.Fatal(err)
	}
	if s := b.m.Stats(); s.IllegalEvents != 0 || b.m.conns.byID[id] != nil {
		t.Errorf("%d illegal events, or it is still there", s.IllegalEvents)
	}
}

// TestADisconnectWaitsOnlyForAPeerThatIsUp: a disconnect waits for a peer that is up, not for one
// that is down.
func TestADisconnectWaitsOnlyForAPeerThatIsUp(t *testing.T) {
	for _, tc := range []struct {
		up   bool
		want State
	}{{true, StateDreqSent}, {false, StateTimeWait}} {
		w, a, b := two(t, nil)
		ida, _ := establish(t, w, a, b)
		if !tc.up {
			w.setLink(1, 2, false, nil)
			w.settle()
		}
		if err := a.disconnect(ida); err != nil {
			t.Fatal(err)
		}
		if c := a.m.conns.byID[ida]; c.state != tc.want {
			t.Errorf("peer up %v: state %v, want %v", tc.up, c.state, tc.want)
		}
	}
}
