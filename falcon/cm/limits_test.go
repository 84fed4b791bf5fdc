package cm

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

// TestArgumentsAtTheBorder: the largest valid arguments of a function are accepted.
func TestArgumentsAtTheBorder(t *testing.T) {
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

// TestMessagesAtTheBorder: the largest and smallest valid values in messages are accepted.
func TestMessagesAtTheBorder(t *testing.T) {
	for name, change := range map[string]func(*REQ){
		"function":      func(m *REQ) { m.Function = max24 },
		"peer function": func(m *REQ) { m.PeerFunction = max24 },
		"QPN":           func(m *REQ) { m.QPN = max24 },
		"shard":         func(m *REQ) { m.Offer.Shard = MaxShards - 1 },
		"CID":           func(m *REQ) { m.Offer.CID = max24 },
		"least MTU":     func(m *REQ) { m.Offer.MTU = MinMTU },
		"most MTU":      func(m *REQ) { m.Offer.MTU = MaxMTU },
		"version":       func(m *REQ) { m.Offer.SA = SA{Version: 3, SPI: 1, Key: seq(1, 32)} },
		"no data":       func(m *REQ) { m.Private = nil },
	} {
		want := *samples()["req"].(*REQ)
		change(&want)
		got, err := ParseREQ(want.Append(nil))
		if err != nil || string(got.Append(nil)) != string(want.Append(nil)) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for name, m := range map[string]*PORTS{
		"as many as there may be": {make([]Port, MaxPorts)}, "one more": {make([]Port, MaxPorts+1)},
		"the last function": {[]Port{{Function: max24}}}, "one after it": {[]Port{{Function: max24 + 1}}},
	} {
		_, err := ParsePORTS(m.Append(nil))
		if want := strings.HasPrefix(name, "one"); (err != nil) != want {
			t.Errorf("ports, %s: %v", name, err)
		}
	}
	if _, err := PeekType(nil); !errors.Is(err, ErrProtocol) {
		t.Errorf("nothing: %v", err)
	}
	for n := range headerLen + 1 {
		b := []byte{Version, byte(TypeRTU), 0, headerLen}[:n]
		if _, err := PeekType(b); (err == nil) != (n == headerLen) {
			t.Errorf("%d bytes of header: %v", n, err)
		}
	}
}

// TestOffersAtTheBorder: the maximum number of addresses of functions and ports can be offered.
func TestOffersAtTheBorder(t *testing.T) {
	_, a, _ := two(t, nil)
	endpoints, ports := make([]Endpoint, MaxEndpoints+1), make([]Port, MaxPorts+1)
	for i := range endpoints {
		endpoints[i] = Endpoint{7, gid4(10, 9, byte(i>>8), byte(i)), fnOf(1, 0), 0}
	}
	for i := range ports {
		ports[i] = Port{Tenant: 7, Addr: gid4(10, 8, byte(i>>8), byte(i)), Function: fnOf(1, 0)}
	}
	if err := a.m.CheckEndpoints(endpoints); !errors.Is(err, ErrLimit) {
		t.Errorf("%d functions: %v", len(endpoints), err)
	}
	if err := a.m.CheckPorts(ports); !errors.Is(err, ErrLimit) {
		t.Errorf("%d ports: %v", len(ports), err)
	}
	endpoints[5].Tenant, ports[5].Tenant = 8, 8 // which the peer is not told of
	if err := errors.Join(a.m.CheckEndpoints(endpoints), a.m.CheckPorts(ports)); err != nil {
		t.Error(err)
	}
	if err := a.m.CheckPorts([]Port{{Tenant: 7, Function: 1<<24 | fnOf(1, 0)}}); !errors.Is(err, ErrInvalid) {
		t.Errorf("a port of a function of 25 bits: %v", err)
	}
	last := fnOf(255, 0xffff)
	w := newWorld(t.Fatalf)
	m := w.add(255, 2).m
	if err := errors.Join(m.CheckEndpoints([]Endpoint{{7, gidOf(1, 0), last, 0}}), m.CheckPorts([]Port{{Tenant: 7, Function: last}})); err != nil {
		t.Errorf("the last function there is: %v", err)
	}
}

// TestPortsAreTakenBackOnce: a peer to which no ports were announced is not told that there are
// none.
func TestPortsAreTakenBackOnce(t *testing.T) {
	m := portWorld(t)
	said := func(ports ...Port) (to []HostID) {
		t.Helper()
		if err := m.SetPorts(ports); err != nil {
			t.Fatal(err)
		}
		for _, o := range outputs(m) {
			to = append(to, o.Peer)
		}
		return to
	}
	for i, step := range []struct {
		ports []Port
		want  []HostID
	}{
		{nil, nil},
		{[]Port{{8, addr1, 0x010001, 1432}}, []HostID{2}}, // of a tenant that 3 does not share
		{nil, []HostID{2}},
		{nil, nil},
	} {
		if got := said(step.ports...); !slices.Equal(got, step.want) {
			t.Errorf("step %d: told %v, want %v", i, got, step.want)
		}
	}
	m.ForgetPeer(0, 2)
	for _, o := range outputs(m) {
		if o.Kind == OutPorts {
			t.Error("a change is told of ports that a peer did not have")
		}
	}
}

// TestShareOfAPeer: one function of a peer can have at most three quarters of the connections that
// the peer may request, and the next function finds room.
func TestShareOfAPeer(t *testing.T) {
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

// TestBadREPForAnotherShard: an offer for a shard that does not have the function is invalid.
func TestBadREPForAnotherShard(t *testing.T) {
	_, a, b := two(t, nil)
	for shard, good := range map[uint8]bool{shardOf(0): true, 1 - shardOf(0): false} {
		id, err := a.connect(0, 2, 0, 1)
		if err != nil {
			t.Fatal(err)
		}
		b.inbox = nil
		rep := REP{SenderID: 5 + uint32(shard), ReceiverID: id, Offer: Offer{Shard: shard, CID: 1, MTU: 1000, Ordered: true, SA: SA{SPI: 1, Key: make([]byte, 16)}}}
		a.inbox = append(a.inbox, input{from: 2, msg: rep.Append(nil)})
		a.deliver()
		if r := a.conns[id]; r.estab != good || good != (r.end == 0) {
			t.Errorf("shard %d: %+v", shard, r)
		}
		if want := map[bool]uint64{false: 1}[good]; !good && a.m.Stats().BadREP != want {
			t.Errorf("%d bad offers counted", a.m.Stats().BadREP)
		}
	}
}

// TestRepeats: each message that waits for an answer is repeated in time, as often as configured.
// The CID of an ended connection is freed only after its TIME-WAIT.
func TestRepeats(t *testing.T) {
	w, a, b := two(t, nil)
	if _, err := a.connect(0, 2, 0, 1); err != nil {
		t.Fatal(err)
	}
	w.settle()
	id := b.waiting()[0]
	if err := b.accept(id); err != nil {
		t.Fatal(err)
	}
	sent := func(n *node, from HostID) (count int) { // since it was asked last
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

// TestKeysAreRepeated: a new SA is sent again each second until it is confirmed.
func TestKeysAreRepeated(t *testing.T) {
	w, a, b := linked(t)
	a.rekey(sealedBy(2, 0))
	w.advance(3500 * ms) // the peer handles nothing
	if n := len(b.inbox); n != 4 {
		t.Errorf("%d messages in 3.5 s, want 4", n)
	}
	w.settle()
	if n := a.m.Stats().Rekeyed; n != 1 {
		t.Errorf("confirmed %d times", n)
	}
	w.advance(10_000 * ms)
	if len(b.inbox) != 0 || a.m.Deadline() != math.MaxInt64 {
		t.Errorf("%d messages after it was confirmed, next timer %d", len(b.inbox), a.m.Deadline())
	}
}

// TestSPIRefusedAgain: the peer is told a key again exactly when the retry time is over.
func TestSPIRefusedAgain(t *testing.T) {
	w, a, _ := linked(t)
	w.now = 5 * ms
	sa, _ := a.RxSA(sealedBy(2, 0))
	told := func() uint64 {
		a.prevSPI[sealedBy(2, 0)] = sa.SPI // a confirmation may come
		if err := a.m.SPIRefused(w.now, sealedBy(2, 0), sa, 3); err != nil {
			t.Fatal(err)
		}
		a.m.Advance(w.now)
		a.drain()
		w.settle()
		return a.m.Stats().Rekeyed
	}
	for i, step := range []struct {
		after Time
		want  uint64
	}{{0, 1}, {0, 1}, {1000*ms - 1, 1}, {1, 2}, {1, 2}} {
		w.now += step.after
		if got := told(); got != step.want {
			t.Errorf("step %d: told %d times, want %d", i, got, step.want)
		}
	}
	if n := a.m.Stats().SPIRefused; n != 15 {
		t.Errorf("%d packets counted", n)
	}
}

// TestOldConfirmation: a confirmation of an SA that was replaced meanwhile is ignored.
func TestOldConfirmation(t *testing.T) {
	w, a, b := linked(t)
	a.rekey(sealedBy(2, 0))
	w.advance(ms)
	for b.deliver() { // it confirms the new one
	}
	old := REKEYACK{7, ClassFalcon, 0, a.prevSPI[sealedBy(2, 0)], 0}
	if err := a.m.Receive(w.now, 2, old.Append(nil)); err != nil {
		t.Fatal(err)
	}
	if n := a.m.Stats().Rekeyed; n != 0 {
		t.Errorf("%d confirmed by the SPI of the one before", n)
	}
	w.settle()
	if n := a.m.Stats().Rekeyed; n != 1 {
		t.Errorf("confirmed %d times", n)
	}
}

// TestWishForAnotherKey: a peer's request to replace an SA that is being replaced already is not
// passed on; one for the new SA is. A request is fulfilled only by another SA.
func TestWishForAnotherKey(t *testing.T) {
	w, a, b := linked(t)
	old, _ := a.RxSA(sealedBy(2, 0))
	a.rekey(sealedBy(2, 0))
	next, _ := a.RxSA(sealedBy(2, 0))
	for _, step := range []struct {
		spi  uint32
		want uint64
	}{{old.SPI, 0}, {next.SPI, 1}} {
		q := REKEYREQ{7, ClassFalcon, 0, step.spi}
		if err := a.m.Receive(w.now, 2, q.Append(nil)); err != nil {
			t.Fatal(err)
		}
		if n := a.m.Stats().RekeyRequests; n != step.want {
			t.Errorf("wish for another than %#x: %d passed on, want %d", step.spi, n, step.want)
		}
	}

	u := sealedBy(1, 0)
	if err := b.m.RequestRekey(u, old.SPI); err != nil {
		t.Fatal(err)
	}
	p := b.m.peers.byHost[1]
	b.m.keys.learn(p, u, old)
	if _, wanted := p.wants[u]; !wanted {
		t.Error("the SA that is used up fulfils the wish for another")
	}
	b.m.keys.learn(p, u, next)
	if _, wanted := p.wants[u]; wanted {
		t.Error("another SA does not fulfil the wish")
	}
}

// TestConnectionNames: connection IDs are never 0 and never used twice, and connections are listed
// in their order.
func TestConnectionNames(t *testing.T) {
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

// TestNamesOfNothing: values without a name are shown as numbers, addresses in their usual form.
func TestNamesOfNothing(t *testing.T) {
	for got, want := range map[string]string{
		numStates.String():                 "state(7)",
		numEvents.String():                 "event(15)",
		numClasses.String():                "class(2)",
		(OutRekeyWanted + 1).String():      "output(14)",
		(TypePORTS + 1).String():           "type(12)",
		reasonWireEnd.String():             "reason(12)",
		gidString([16]byte(seq(0xa0, 16))): "a0a1:a2a3:a4a5:a6a7:a8a9:aaab:acad:aeaf",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestEndedWithoutALink: a request that its function rejects while the link is down ends at once,
// and causes no illegal event.
func TestEndedWithoutALink(t *testing.T) {
	w, a, b := two(t, nil)
	if _, err := a.connect(0, 2, 0, 1); err != nil {
		t.Fatal(err)
	}
	w.settle()
	id := b.waiting()[0]
	b.m.peers.byHost[1].up = false // in the moment before PeerDown
	if err := b.disconnect(id); err != nil {
		t.Fatal(err)
	}
	if s := b.m.Stats(); s.IllegalEvents != 0 || b.m.conns.byID[id] != nil {
		t.Errorf("%d illegal events, or it is still there", s.IllegalEvents)
	}
}

// TestOutboxKeepsLittle: the memory of a few outputs is reused, that of many is released.
func TestOutboxKeepsLittle(t *testing.T) {
	for room, kept := range map[int]int{1024: 1024, 1025: 0} {
		b := outbox{list: make([]Output, 0, room)}
		b.emit(Output{Kind: OutOpen})
		b.emit(Output{Kind: OutClose})
		var o Output
		if !b.next(&o) || o.Kind != OutOpen || cap(b.list) != room {
			t.Errorf("%v is first, room for %d", o.Kind, cap(b.list))
		}
		if !b.next(&o) || o.Kind != OutClose || cap(b.list) != kept {
			t.Errorf("%v is last, room for %d, want %d", o.Kind, cap(b.list), kept)
		}
		if b.next(&o) {
			t.Error("there is a third")
		}
	}
}
