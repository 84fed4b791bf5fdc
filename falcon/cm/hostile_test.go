package cm

import (
	"bytes"
	"errors"
	"math/rand"
	"testing"
)

// reqTo is a valid REQ of host 1 to host 2.
func reqTo(change func(*REQ)) []byte {
	q := REQ{
		SenderID: 0xabc, Service: 1, Tenant: 7, Function: fnOf(1, 0), PeerFunction: fnOf(2, 0), SGID: gidOf(1, 0), DGID: gidOf(2, 0),
		QPN: 4, Offer: Offer{CID: 5, MTU: 1024, SA: SA{SPI: 9, Key: make([]byte, 16)}},
	}
	if change != nil {
		change(&q)
	}
	return Encode(&q)
}

// answers returns the messages with which n answers a message of host 1.
func answers(t *testing.T, n *node, msg []byte) (got []Message) {
	t.Helper()
	to := n.w.nodes[1]
	to.inbox = nil
	n.inbox = append(n.inbox, input{from: 1, msg: msg})
	for n.deliver() {
	}
	for _, in := range to.inbox {
		m, err := parse(in.msg)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, m)
	}
	to.inbox = nil
	return got
}

func TestRefusedRequestsAreAnsweredCountedAndForgotten(t *testing.T) {
	_, _, b := two(t, func(c *Config) { c.Backlog = 3 }) // two for one source, one free for another
	for name, tt := range map[string]struct {
		change func(*REQ)
		want   Reason
		count  func(Stats) uint64
	}{
		"tenant not shared":           {func(q *REQ) { q.Tenant = 8 }, ReasonTenant, func(s Stats) uint64 { return s.TenantRefused }},
		"source GID of another":       {func(q *REQ) { q.SGID = gidOf(1, 1) }, ReasonGID, func(s Stats) uint64 { return s.GIDRefused }},
		"source function not theirs":  {func(q *REQ) { q.Function = fnOf(3, 0) }, ReasonGID, func(s Stats) uint64 { return s.GIDRefused }},
		"source GID never offered":    {func(q *REQ) { q.SGID = gidOf(3, 1) }, ReasonGID, func(s Stats) uint64 { return s.GIDRefused }},
		"GID of another function":     {func(q *REQ) { q.DGID = gidOf(2, 1) }, ReasonGID, func(s Stats) uint64 { return s.GIDRefused }},
		"GID that is not here":        {func(q *REQ) { q.DGID = gidOf(9, 1) }, ReasonGID, func(s Stats) uint64 { return s.GIDRefused }},
		"key for another shard":       {func(q *REQ) { q.Offer.Shard = 1 }, ReasonGID, func(s Stats) uint64 { return s.GIDRefused }},
		"function without a listener": {func(q *REQ) { q.PeerFunction, q.DGID, q.Offer.Shard = fnOf(2, 1), gidOf(2, 1), 1 }, ReasonNoListener, func(s Stats) uint64 { return s.NoListener }},
		"service without a listener":  {func(q *REQ) { q.Service = 2 }, ReasonNoListener, func(s Stats) uint64 { return s.NoListener }},
	} {
		before := tt.count(b.m.Stats())
		got := answers(t, b, reqTo(tt.change))
		if len(got) != 1 {
			t.Fatalf("%s: answers %v", name, got)
		}
		if rej, ok := got[0].(*REJ); !ok || rej.Reason != tt.want || rej.ReceiverID != 0xabc || rej.SenderID != 0 {
			t.Errorf("%s: answer %+v", name, got[0])
		}
		if tt.count(b.m.Stats()) != before+1 {
			t.Errorf("%s: not counted", name)
		}
	}
	if len(b.m.conns.byID) != 0 || len(b.m.conns.functions) != 0 {
		t.Error("refused requests leave something")
	}
	for i := range uint32(3) {
		got := answers(t, b, reqTo(func(q *REQ) { q.SenderID = 1 + i }))
		if refused := len(got) == 1; refused != (i == 2) {
			t.Errorf("request %d with a backlog of 2: %v", i, got)
		}
	}
}

func TestARepeatedREQOpensNoSecondConnection(t *testing.T) {
	_, _, b := two(t, nil)
	for range 3 {
		if got := answers(t, b, reqTo(nil)); got != nil {
			t.Fatalf("answer %v", got)
		}
	}
	if len(b.order) != 1 || b.m.Stats().DuplicateREQ != 2 {
		t.Fatalf("%d requests, stats %+v", len(b.order), b.m.Stats())
	}
	if err := b.accept(b.order[0]); err != nil {
		t.Fatal(err)
	}
	got := answers(t, b, reqTo(nil))
	if len(got) != 1 {
		t.Fatalf("answers %v", got)
	}
	if _, ok := got[0].(*REP); !ok {
		t.Errorf("answer %+v, want the REP again", got[0])
	}
}

// TestAnAnswerWithOtherValuesThanRequestedIsRefused: the peer answers with values that were not
// requested.
func TestAnAnswerWithOtherValuesThanRequestedIsRefused(t *testing.T) {
	for name, change := range map[string]func(*Offer){
		"larger MTU": func(o *Offer) { o.MTU = 2048 },
		"unordered":  func(o *Offer) { o.Ordered = false },
		"in error":   func(o *Offer) { o.CompleteInError = true },
	} {
		w, a, b := two(t, nil)
		id, _ := a.connect(0, 2, 0, 1)
		rep := REP{SenderID: 5, ReceiverID: id, Offer: Offer{CID: 1, MTU: 1024, Ordered: true, SA: SA{SPI: 1, Key: make([]byte, 16)}}}
		change(&rep.Offer)
		b.inbox = nil
		a.inbox = append(a.inbox, input{from: 2, msg: Encode(&rep)})
		a.deliver()
		wantEnd(t, a, id, OutUnreachable, ReasonInvalid)
		if a.conns[id].opened {
			t.Errorf("%s: it was opened", name)
		}
		m, err := parse(b.inbox[0].msg)
		if rej, ok := m.(*REJ); err != nil || !ok || rej.ReceiverID != 5 {
			t.Errorf("%s: answer %+v, %v", name, m, err)
		}
		w.settle()
		wantEmpty(t, w)
	}
}

func TestOnlyThePeerOfAConnectionMayEndIt(t *testing.T) {
	w := newWorld(t.Fatalf)
	a, b := w.add(1, 2, 3), w.add(2, 1)
	w.add(3, 1)
	if err := b.m.Listen(fnOf(2, 0), 1); err != nil {
		t.Fatal(err)
	}
	w.setLink(1, 2, true, nil)
	w.setLink(1, 3, true, nil)
	w.settle()
	ida, idb := establish(t, w, a, b)
	for _, m := range []Message{
		&DREQ{idb, ida, ReasonDisconnect}, &REJ{SenderID: idb, ReceiverID: ida, Reason: ReasonStale},
		&RTU{idb, ida}, &DREP{idb, ida},
	} {
		_ = a.m.Receive(w.now, 3, Encode(m))
		a.drain()
	}
	for _, m := range []Message{
		&DREQ{idb + 1, ida, ReasonDisconnect}, &REJ{SenderID: idb + 1, ReceiverID: ida, Reason: ReasonStale},
		&REJ{SenderID: 0, ReceiverID: ida, Reason: ReasonStale},
	} {
		_ = a.m.Receive(w.now, 2, Encode(m))
		a.drain()
	}
	if !a.conns[ida].live() {
		t.Errorf("ended: %+v", a.conns[ida])
	}
	if err := a.m.Receive(w.now, 2, Encode(&DREP{idb, ida})); !errors.Is(err, ErrProtocol) {
		t.Errorf("DREP for an established connection: %v", err)
	}
}

// TestOnlyWhoWasAskedMayAnswer: an answer is refused as one for an unknown connection, and changes
// nothing, if it comes from a third NIC that guesses the connection's ID, if the connection has
// sent no request, or if another ID answered first.
func TestOnlyWhoWasAskedMayAnswer(t *testing.T) {
	w := newWorld(t.Fatalf)
	a, b, c := w.add(1, 2, 3), w.add(2, 1), w.add(3, 1)
	if err := b.m.Listen(fnOf(2, 0), 1); err != nil {
		t.Fatal(err)
	}
	w.setLink(1, 2, true, nil)
	w.setLink(1, 3, true, nil)
	w.settle()
	id, _ := a.connect(0, 2, 0, 1)
	answer := func(what string, from, to *node, id, sender uint32) {
		t.Helper()
		rep := REP{SenderID: sender, ReceiverID: id, Offer: Offer{CID: 1, MTU: 1024, Ordered: true, SA: SA{SPI: 1, Key: make([]byte, 16)}}}
		_ = to.m.Receive(w.now, from.host, Encode(&rep))
		sent := len(from.inbox)
		to.drain()
		if len(from.inbox) != sent+1 {
			t.Fatalf("%s: %d messages sent", what, len(from.inbox)-sent)
		}
		m, err := parse(from.inbox[sent].msg)
		if rej, ok := m.(*REJ); err != nil || !ok || rej.Reason != ReasonStale || rej.ReceiverID != sender {
			t.Errorf("%s: answer %+v, %v", what, m, err)
		}
		from.inbox = from.inbox[:sent]
	}
	answer("of a third NIC", c, a, id, 5)
	w.settle()
	idb := b.waiting()[0]
	answer("to who was asked", a, b, idb, id)
	if err := b.accept(idb); err != nil {
		t.Fatal(err)
	}
	w.settle()
	answer("of a third NIC later", c, a, id, idb)
	answer("by another ID", b, a, id, idb+1)
	if !a.conns[id].estab || !a.conns[id].live() || !b.conns[idb].live() {
		t.Errorf("after answers of others: %+v, %+v", a.conns[id], b.conns[idb])
	}
}

// TestAHostilePeerChangesNothingOfOthers sends changed and random messages to a NIC with
// connections in every state. It must neither fail nor grow.
func TestAHostilePeerChangesNothingOfOthers(t *testing.T) {
	r := rand.New(rand.NewSource(7))
	w, a, b := two(t, func(c *Config) { c.MaxPerPeer, c.MaxPerFunction, c.Backlog = 8, 8, 4 })
	establish(t, w, a, b)
	var corpus [][]byte
	for _, m := range samples() {
		corpus = append(corpus, Encode(m))
	}
	corpus = append(corpus, reqTo(nil))
	for i := range 50_000 {
		msg := bytes.Clone(corpus[r.Intn(len(corpus))])
		switch r.Intn(3) {
		case 0:
			for range 1 + r.Intn(3) {
				msg[r.Intn(len(msg))] = byte(r.Intn(256))
			}
		case 1: // names that exist
			if len(b.order) > 0 && len(msg) >= 12 {
				id := b.order[r.Intn(len(b.order))]
				msg[8], msg[9], msg[10], msg[11] = byte(id>>24), byte(id>>16), byte(id>>8), byte(id)
			}
		case 2:
			if MessageType(msg[1]) == TypeREQ {
				msg = reqTo(func(q *REQ) { q.SenderID = 1 + r.Uint32()%64 })
			}
		}
		_ = b.m.Receive(w.now, 1, msg)
		b.drain()
		a.inbox = nil
		if ids := b.waiting(); len(ids) > 0 && i%3 == 0 {
			_ = b.accept(ids[0])
		}
		if i%10 == 0 {
			w.now += 50 * ms
			b.m.Advance(w.now)
			b.drain()
		}
		if len(b.m.conns.byID) > 8 || len(b.m.dir.claims.all) > MaxEndpoints || len(b.m.conns.functions) > 8 {
			t.Fatalf("tables grew: %d connections, %d routes", len(b.m.conns.byID), len(b.m.dir.claims.all))
		}
	}
	if b.m.Stats().Established == 0 || b.m.Stats().Malformed == 0 {
		t.Errorf("the test does not reach deep: %+v", b.m.Stats())
	}
}

// TestAMessageForAnUnknownConnectionIsAnsweredIfThePeerWaits: a message for an unknown connection
// is counted, and answered if the peer would otherwise repeat it.
func TestAMessageForAnUnknownConnectionIsAnsweredIfThePeerWaits(t *testing.T) {
	_, a, b := two(t, nil)
	if got := answers(t, b, Encode(&DREP{7, 8})); got != nil || b.m.Stats().UnknownConnection != 1 {
		t.Errorf("DREP: answers %v, %d counted", got, b.m.Stats().UnknownConnection)
	}
	got := answers(t, b, Encode(&DREQ{7, 8, ReasonDisconnect}))
	if len(got) != 1 || b.m.Stats().UnknownConnection != 2 {
		t.Fatalf("DREQ: answers %v, %d counted", got, b.m.Stats().UnknownConnection)
	}
	if drep, ok := got[0].(*DREP); !ok || *drep != (DREP{8, 7}) {
		t.Errorf("DREQ: answer %+v", got[0])
	}
	if a.m.Stats().UnknownConnection != 0 {
		t.Error("counted at the other end")
	}
}
