package falcon_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// TestTheLevelReportedIsTheFunctionsIfItFillsFirst: the level reported to the peer is that of the
// function if the function fills first.
func TestTheLevelReportedIsTheFunctionsIfItFillsFirst(t *testing.T) {
	limit := credit.NoLimit()
	limit[credit.NetPktRx] = 64
	node := credit.New(nil, limit)
	s := newSingle(t, ackProfile(1, 100*us), func(cfg *falcon.ConnConfig) { cfg.Credits = node })
	s.ulp.OnPull = noAnswer
	for range 48 {
		node.TakeOne(credit.NetPktRx, false)
	}
	s.want(s.pullRequest(500, 7, false), wire.DropNone)
	got := only(s.advance(200*us), wire.TypeBACK)
	if len(got) == 0 || ack(t, got[0].Packet).RxOccupancy != 24 {
		t.Errorf("sent %v, want level 24 of 32 with 49 of 64 contexts in use", got)
	}
}

// TestPeersMayHaveMoreTransactionsThanThisSide: a peer may have more transactions in progress than
// this side ever would.
func TestPeersMayHaveMoreTransactionsThanThisSide(t *testing.T) {
	s := newSingle(t, testProfile(), func(cfg *falcon.ConnConfig) { cfg.Ordered = false })
	s.want(s.pullRequest(500, 7+falcon.MaxTxWindow-1, false), wire.DropNone)
	s.want(s.pullRequest(501, 7+falcon.MaxTxWindow, false), wire.DropResource)
}

func TestCase11_ResourceExhausted(t *testing.T) {
	for _, kind := range []wire.PacketType{wire.TypePushData, wire.TypePullRequest} {
		p := newPair(t, func(cfg *[2]falcon.Config, _ *falcon.ConnConfig, _ *sim.Impairment) {
			cfg[1].RxContexts = 1
		})
		p.ulp[1].OnPush = func(falcon.Time, *falcon.Event, uint64) {}
		p.ulp[1].OnPull = func(falcon.Time, *falcon.Event, uint64) {}
		p.delayNth(0, kind, 2, 3*us) // so that the third is not at the head of line
		if kind == wire.TypePushData {
			p.push(p.a, 100, 1, 2, 3)
		} else {
			p.pull(p.a, 100, 1, 2, 3)
		}
		p.run(20 * us)
		nacks := p.packets(1, wire.TypeNACK)
		if len(nacks) == 0 {
			t.Fatalf("%v: no NACK", kind)
		}
		n, _ := wire.ParseNack(nacks[0].Packet)
		want := uint32(302)
		if kind == wire.TypePullRequest {
			want = 102
		}
		if n.Code != wire.NackResource || n.PSN != want || n.Request != (kind == wire.TypePullRequest) {
			t.Errorf("NACK %+v", n)
		}
		p.ulp[1].OnPush, p.ulp[1].OnPull = nil, nil
		for _, e := range p.ulp[1].Events {
			p.ulp[1].HandleEvent(p.Now, &falcon.Event{Kind: e.Kind, Conn: e.Conn, RSN: e.RSN, Length: e.Length})
		}
		p.run(20 * ms)
		ev := falcon.EvPushDone
		if kind == wire.TypePullRequest {
			ev = falcon.EvPullDone
		}
		equal(t, "completed", p.tags(0, ev), []uint64{1, 2, 3})
	}
}

// TestAPushLongerThanTheMTUIsDropped: a push longer than the MTU is dropped, whether it is in
// order, waits or is sent again. One as long as the MTU, which may be a whole cell, is accepted.
func TestAPushLongerThanTheMTUIsDropped(t *testing.T) {
	s := sized(t, falcon.Config{Profile: testProfile(), CellBytes: 40}, func(cfg *falcon.ConnConfig) { cfg.MTU = 40 })
	s.ulp.OnPush = func(now falcon.Time, ev *falcon.Event, _ uint64) {
		ev.Conn.NackPush(now, ev.RSN, wire.NackRNR, 1, 0)
	}
	push := func(seq uint32, n int) wire.Drop {
		p := wire.PushData{Header: s.header(wire.TypePushData, 200+seq, 7+seq, false), RequestLength: uint16(n)}
		return s.receive(append(p.Append(nil), make([]byte, n)...))
	}
	s.want(push(1, 41), wire.DropLength)
	s.want(push(0, 41), wire.DropLength)
	if st := s.e.Stats(); st.RxCells != 0 || st.RxContexts != 0 || s.count(falcon.EvPush) != 0 {
		t.Errorf("%d cells, %d contexts, %d delivered", st.RxCells, st.RxContexts, s.count(falcon.EvPush))
	}
	s.want(push(1, 40), wire.DropNone)
	if st := s.e.Stats(); st.RxCells != 1 || st.RxContexts != 1 {
		t.Errorf("%d cells, %d contexts", st.RxCells, st.RxContexts)
	}
	s.want(push(0, 40), wire.DropNone) // the ULP is not ready for it
	s.want(push(0, 41), wire.DropLength)
	s.want(push(0, 40), wire.DropNone)
	if n := s.count(falcon.EvPush); n != 2 {
		t.Errorf("%d delivered, want the first push, twice", n)
	}
}

// TestBehindItsHeadOfLineAConnectionHoldsAnEighth: behind its head of line a connection holds an
// eighth of the contexts that are then free, and four in any case, whatever limits them.
func TestBehindItsHeadOfLineAConnectionHoldsAnEighth(t *testing.T) {
	for _, c := range []struct{ engine, function, want int }{
		{80, 1000, 9}, {1000, 80, 9}, {79, 1000, 8}, {10, 1000, 4}, {5, 1000, 4}, {3, 1000, 3},
	} {
		limit := credit.NoLimit()
		limit[credit.NetPktRx] = uint32(c.function)
		s := sized(t, falcon.Config{Profile: testProfile(), RxContexts: c.engine, Credits: credit.New(nil, limit)})
		taken := 0
		for n := uint32(1); n < 30; n++ {
			if s.pullRequest(500+n, 7+n, false) == wire.DropNone {
				taken++
			}
		}
		if taken != c.want {
			t.Errorf("%d contexts, %d of the function: a connection holds %d, want %d", c.engine, c.function, taken, c.want)
		}
	}
}

// TestRequestsAndResponsesOfAPeerHaveOneLimit: unanswered requests and unacknowledged responses
// have one common limit.
func TestRequestsAndResponsesOfAPeerHaveOneLimit(t *testing.T) {
	s := newSingle(t, testProfile(), func(cfg *falcon.ConnConfig) { cfg.Ordered = false })
	s.ulp.OnPull = noAnswer
	const most = 2 * falcon.MaxTxWindow
	for n := range uint32(most) {
		s.want(s.pullRequest(500+n, 7+n, false), wire.DropNone)
		if n < most/2+100 {
			if err := s.c.RespondPull(s.now, 7+n, 1, 8); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.want(s.pullRequest(500+most, 7+most, false), wire.DropResource)
	s.transmit()
	s.ack(wire.Ack{DataBase: 301}) // one response is done
	s.want(s.pullRequest(500+most, 7+most, false), wire.DropNone)
	s.want(s.pullRequest(501+most, 8+most, false), wire.DropResource)
}

// TestCellsMoveToThoseWithFewer: of five cells two connections of a function end up with three and
// two, and so do two functions. Then no cell moves any more.
func TestCellsMoveToThoseWithFewer(t *testing.T) {
	for _, function := range []uint32{0, 1} { // of the second connection, added to that of the first
		s := sized(t, falcon.Config{Profile: testProfile(), RxCells: 5})
		other := s.beside(func(cfg *falcon.ConnConfig) { cfg.LocalFunction += function })
		for n := range uint32(5) {
			s.want(s.pushData(201+n, 8+n, false), wire.DropNone)
		}
		s.want(s.pushData(206, 13, false), wire.DropResource)
		s.with(other, func() {
			for n, want := range []wire.Drop{wire.DropNone, wire.DropNone, wire.DropResource} {
				s.want(s.pushData(201+uint32(n), 8+uint32(n), false), want)
			}
		})
		if a, b := s.c.Info().WaitingForOrder, other.Info().WaitingForOrder; a != 3 || b != 2 {
			t.Errorf("function %d apart: they have %d and %d cells, want 3 and 2", function, a, b)
		}
		s.want(s.pushData(201, 8, false), wire.DropResource) // it was given up, and finds no room
		if st := s.e.Stats(); st.Evicted != 2 {
			t.Errorf("function %d apart: %d cells changed hands, want 2", function, st.Evicted)
		}
	}
}

// TestALongPayloadTakesSeveralCells: payload that waits takes as many cells as its bytes need, of the
// pool and of the credits, and is refused if there are not so many. They are all free afterwards.
func TestALongPayloadTakesSeveralCells(t *testing.T) {
	limit := credit.NoLimit()
	for name, c := range map[string]struct {
		cells  int
		credit uint32
	}{"cells": {9, 100}, "credits": {100, 9}} {
		limit[credit.NetBufRx] = c.credit
		node := credit.New(nil, limit)
		s := sized(t, falcon.Config{Profile: testProfile(), RxCells: c.cells, CellBytes: 100, Credits: node}, func(cfg *falcon.ConnConfig) { cfg.MTU = 400 })
		push := func(seq uint32, n int) wire.Drop {
			p := wire.PushData{Header: s.header(wire.TypePushData, 200+seq, 7+seq, false), RequestLength: uint16(n)}
			payload := make([]byte, n)
			sim.WritePayload(payload, uint64(seq))
			return s.receive(append(p.Append(nil), payload...))
		}
		held := func(want int) {
			t.Helper()
			if got := s.e.Stats().RxCells; got != want || node.InUse()[credit.NetBufRx] != uint32(want) {
				t.Errorf("%s: %d cells are held, %d counted, want %d", name, got, node.InUse()[credit.NetBufRx], want)
			}
		}
		s.want(push(1, 400), wire.DropNone)
		s.want(push(2, 301), wire.DropNone)
		held(8)
		s.want(push(3, 101), wire.DropResource)
		s.want(push(3, 100), wire.DropNone)
		held(9)
		s.want(push(4, 20), wire.DropResource)
		s.want(push(0, 400), wire.DropNone) // the head of line needs none
		held(0)
		if s.count(falcon.EvPush) != 4 || s.ulp.Corrupt != 0 {
			t.Errorf("%s: %d pushes delivered, %d of them corrupt", name, s.count(falcon.EvPush), s.ulp.Corrupt)
		}
	}
}

// TestCellsMoveToThoseWithFewerWhateverTheirPayload: functions with long and short payload end up with
// about as many cells each, not with as many packets.
func TestCellsMoveToThoseWithFewerWhateverTheirPayload(t *testing.T) {
	s := sized(t, falcon.Config{Profile: testProfile(), RxCells: 16, CellBytes: 32}, func(cfg *falcon.ConnConfig) { cfg.MTU = 128 })
	other := s.beside(func(cfg *falcon.ConnConfig) { cfg.LocalFunction++ })
	for n := range uint32(4) {
		p := wire.PushData{Header: s.header(wire.TypePushData, 201+n, 8+n, false), RequestLength: 128}
		s.want(s.receive(append(p.Append(nil), make([]byte, 128)...)), wire.DropNone)
	}
	s.with(other, func() {
		for n := range uint32(30) {
			s.pushData(201+n, 8+n, false)
		}
	})
	if a, b := s.c.Info().WaitingForOrder, other.Info().WaitingForOrder; a != 8 || b != 8 {
		t.Errorf("they have %d and %d cells, want 8 each", a, b)
	}
}

// TestTheLargestGivesUpCells: of several functions that hold more, the one with the most gives up
// cells.
func TestTheLargestGivesUpCells(t *testing.T) {
	s := sized(t, falcon.Config{Profile: testProfile(), RxCells: 12})
	conns := []*falcon.Conn{s.c}
	for i, cells := range []uint32{3, 6, 3} {
		if i > 0 {
			conns = append(conns, s.beside(func(cfg *falcon.ConnConfig) { cfg.LocalCID += uint32(i); cfg.LocalFunction += uint32(i) }))
		}
		s.with(conns[i], func() {
			for n := range cells {
				s.want(s.pushData(201+n, 8+n, false), wire.DropNone)
			}
		})
	}
	last := s.beside(func(cfg *falcon.ConnConfig) { cfg.LocalCID += 9; cfg.LocalFunction += 9 })
	s.with(last, func() {
		for n := range uint32(2) {
			s.want(s.pushData(201+n, 8+n, false), wire.DropNone)
		}
	})
	var got []int
	for _, c := range append(conns, last) {
		got = append(got, c.Info().WaitingForOrder)
	}
	equal(t, "cells", got, []int{3, 4, 3, 2})
}

// TestCellOfAFunctionWithoutCredit: if the function's own cells are used up, one of its connections
// takes a cell of another one, and the cell stays counted once.
func TestCellOfAFunctionWithoutCredit(t *testing.T) {
	limit := credit.NoLimit()
	limit[credit.NetBufRx] = 4
	node := credit.New(nil, limit)
	s := sized(t, falcon.Config{Profile: testProfile(), Credits: node})
	other := s.beside()
	for n := range uint32(4) {
		s.want(s.pushData(201+n, 8+n, false), wire.DropNone)
	}
	s.with(other, func() { s.want(s.pushData(201, 8, false), wire.DropNone) })
	if n := node.InUse()[credit.NetBufRx]; n != 4 {
		t.Errorf("%d cells are counted, want 4", n)
	}
	s.c.Close(s.now)
	other.Close(s.now)
	s.drain()
	if node.InUse() != (credit.Cost{}) || s.e.Stats().CreditErrors != 0 {
		t.Errorf("left: %v, %d errors", node.InUse(), s.e.Stats().CreditErrors)
	}
}

// TestTheLevelReportedCoversTheFunctionsCells: the level reported to the peer also covers the
// function's cells.
func TestTheLevelReportedCoversTheFunctionsCells(t *testing.T) {
	limit := credit.NoLimit()
	limit[credit.NetBufRx] = 64
	node := credit.New(nil, limit)
	s := sized(t, falcon.Config{Profile: testProfile(), Credits: node})
	for range 48 {
		node.TakeOne(credit.NetBufRx, false)
	}
	s.want(s.pushData(201, 8, true), wire.DropNone)
	got := s.transmit()
	if len(got) != 1 || ack(t, got[0].Packet).RxOccupancy != 24 {
		t.Errorf("sent %v, want level 24 of 32 with 49 of 64 cells in use", got)
	}
}

// holes opens connections at the target and sends each as many pushes as its window holds, all but
// the first.
func holes(t *testing.T, e *falcon.Engine, now falcon.Time, conns int, function uint32) {
	t.Helper()
	cfg := sim.Mirror(connConfig(true))
	cfg.LocalFunction = function
	for i := range conns {
		cfg.LocalCID = uint32(0x300000 + i)
		if _, err := e.Open(now, cfg); err != nil {
			t.Fatal(err)
		}
		for n := uint32(1); n < wire.DataWindow; n++ {
			p := wire.PushData{RequestLength: 32, Header: wire.Header{
				CID: cfg.LocalCID, Function: function, Protocol: cfg.Protocol, Type: wire.TypePushData,
				DataBase: cfg.TxDataPSN, ReqBase: cfg.TxReqPSN, PSN: cfg.RxDataPSN + n, RSN: cfg.RxRSN + n,
			}}
			e.Receive(now, falcon.Packet{T1: falcon.FalconTime(now), Data: append(p.Append(nil), make([]byte, 32)...)})
		}
	}
}

// TestHolesTakeTheirShare: 4318 frames on 34 connections that never send the missing packets do not
// take the cells that another connection's pushes need at 2 % loss, whether that connection is of
// another function or of the same.
func TestHolesTakeTheirShare(t *testing.T) {
	took := func(attackers int, function uint32) falcon.Time {
		p := newPair(t, func(_ *[2]falcon.Config, _ *falcon.ConnConfig, imp *sim.Impairment) { imp.Loss = 0.02 })
		p.Tracing = false
		holes(t, p.be, p.Now, attackers, function)
		start, issued := p.Now, uint64(0)
		p.ulp[0].OnEvent = func(now falcon.Time, ev *falcon.Event) {
			for ; issued < 1000 && p.a.Push(now, issued, 1000) == nil; issued++ {
			}
		}
		p.push(p.a, 1000, 9999)
		if !p.Run(start+10000*ms, func() bool { return len(p.ulp[0].Events) >= 1001 && issued == 1000 }) {
			t.Fatalf("%d attackers: %d of 1001 pushes done in 10 s", attackers, len(p.tags(0, falcon.EvPushDone)))
		}
		return p.Now - start
	}
	alone := took(0, 0)
	for _, function := range []uint32{connConfig(true).RemoteFunction, 0x020003} {
		if attacked := took(34, function); attacked > alone*3/2 {
			t.Errorf("function %#x holds cells: pushes took %d µs, %d µs without", function, attacked/us, alone/us)
		}
	}
}

// TestSharesOfCells: if all cells are taken, a function that holds less than others gets theirs,
// and a connection gets those of a connection that holds more; of two that hold the same, neither
// gets any. The connection that lost a cell sends a NACK.
func TestSharesOfCells(t *testing.T) {
	s := newSingle(t, testProfile())
	s.e = falcon.NewEngine(falcon.Config{Profile: testProfile(), RxCells: 200}, s.ulp)
	var err error
	if s.c, err = s.e.Open(s.now, connConfig(true)); err != nil {
		t.Fatal(err)
	}
	holes(t, s.e, s.now, 4, 7)
	if st := s.e.Stats(); st.RxCells != 200 {
		t.Fatalf("%d cells, want all", st.RxCells)
	}
	for i := range 4 { // those that came last took from those that came first
		if n := s.e.Conn(uint32(0x300000 + i)).Info().WaitingForOrder; n < 30 {
			t.Errorf("connection %d has %d of 200 cells, want about 50", i, n)
		}
	}
	taken := uint32(0)
	for n := range uint32(120) {
		if s.pushData(201+n, 8+n, false) == wire.DropNone {
			taken++
		}
	}
	if taken < 99 || taken > 101 {
		t.Errorf("another function got %d of 200 cells, want half", taken)
	}
	nacks := 0
	for _, p := range only(s.transmit(), wire.TypeNACK) {
		if n, _ := wire.ParseNack(p.Packet); n.Code == wire.NackResource && !n.Request {
			nacks++
		}
	}
	if st := s.e.Stats(); uint64(nacks) != st.Evicted+st.RedZone {
		t.Errorf("%d NACKs for %d evicted and %d refused", nacks, st.Evicted, st.RedZone)
	}
	for i := range 4 {
		s.e.Conn(uint32(0x300000 + i)).Close(s.now)
	}
	s.c.Close(s.now)
	s.drain()
	if st := s.e.Stats(); st.RxCells != 0 || st.RxContexts != 0 {
		t.Errorf("%d cells, %d contexts left", st.RxCells, st.RxContexts)
	}
}

// TestContextsWithinCredits: where a function's credits bound its contexts, one of its connections
// does not take them all.
func TestContextsWithinCredits(t *testing.T) {
	limit := credit.NoLimit()
	limit[credit.NetPktRx] = 64
	s := newSingle(t, testProfile(), func(cfg *falcon.ConnConfig) { cfg.Credits = credit.New(nil, limit) })
	taken := 0
	for n := uint32(1); n < 60; n++ {
		if s.pullRequest(500+n, 7+n, false) == wire.DropNone {
			taken++
		}
	}
	if taken > 16 {
		t.Errorf("a connection holds %d of 64 contexts", taken)
	}
	s.want(s.pullRequest(500, 7, false), wire.DropNone) // its head of line goes on
}

// crowded is an engine whose contexts for network requests are all held by requests of another
// connection, and whose ULP does not answer: the red zone.
func crowded(t *testing.T, ordered bool) *single {
	t.Helper()
	s := &single{t: t, now: ms, ulp: &sim.ULP{Record: true}}
	s.ulp.OnPush, s.ulp.OnPull = noAnswer, noAnswer
	s.e = falcon.NewEngine(falcon.Config{Profile: testProfile(), RxContexts: 2}, s.ulp)
	cfg := connConfig(true)
	var err error
	if s.c, err = s.e.Open(s.now, cfg); err != nil {
		t.Fatal(err)
	}
	s.want(s.pushData(200, 7, false), wire.DropNone)
	s.want(s.pullRequest(500, 8, false), wire.DropNone)
	cfg.LocalCID++
	cfg.Ordered = ordered
	if s.c, err = s.e.Open(s.now, cfg); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestCase72_HeadOfLine: in the red zone only heads of line are accepted. On an ordered connection
// that is the RSN expected next, on an unordered one every request is, and the first has a context
// reserved, and so has the oldest push of the window.
func TestCase72_HeadOfLine(t *testing.T) {
	for _, push := range []bool{true, false} {
		request := func(s *single, n uint32) wire.Drop {
			if push {
				return s.pushData(200+n, 7+n, false)
			}
			return s.pullRequest(500+n, 7+n, false)
		}
		s := crowded(t, true)
		s.want(request(s, 1), wire.DropResource)
		s.want(request(s, 0), wire.DropNone)
		s.want(request(s, 2), wire.DropResource)
		s.want(request(s, 1), wire.DropNone) // now it is the head
		s = crowded(t, false)
		s.want(request(s, 1), wire.DropNone)
		s.want(request(s, 2), wire.DropResource)
		refused := uint64(1)
		if push {
			s.want(request(s, 0), wire.DropNone)
		} else {
			s.want(request(s, 0), wire.DropResource)
			refused++
		}
		if st := s.e.Stats(); st.RedZone != refused || st.Drops[wire.DropResource] != refused {
			t.Errorf("push %v: %d in the red zone, %d dropped, want %d", push, st.RedZone, st.Drops[wire.DropResource], refused)
		}
		if n := len(only(s.transmit(), wire.TypeNACK)); n != int(refused) {
			t.Errorf("push %v: %d NACKs, want %d", push, n, refused)
		}
	}
}

// TestCase76_RedZoneOfBuffers: if all cells are taken, a push that must wait for its turn is
// refused. The head of line needs no cell, and its arrival frees the cells of those behind it.
func TestCase76_RedZoneOfBuffers(t *testing.T) {
	s := &single{t: t, now: ms, ulp: &sim.ULP{Record: true}}
	s.e = falcon.NewEngine(falcon.Config{Profile: testProfile(), RxCells: 2}, s.ulp)
	var err error
	if s.c, err = s.e.Open(s.now, connConfig(true)); err != nil {
		t.Fatal(err)
	}
	s.want(s.pushData(201, 8, false), wire.DropNone)
	s.want(s.pushData(203, 10, false), wire.DropNone)
	s.want(s.pushData(202, 9, false), wire.DropResource)
	s.want(s.pullRequest(500, 11, false), wire.DropNone) // needs none
	if st := s.e.Stats(); st.RxCells != 2 || st.RedZone != 1 {
		t.Errorf("%d cells, %d refused", st.RxCells, st.RedZone)
	}
	s.want(s.pushData(200, 7, false), wire.DropNone)
	s.want(s.pushData(202, 9, false), wire.DropNone)
	if n := s.count(falcon.EvPush) + s.count(falcon.EvPull); n != 5 || s.e.Stats().RxCells != 0 {
		t.Errorf("%d delivered, %d cells held", n, s.e.Stats().RxCells)
	}
}

// TestCase76_NetworkPools: the pools for requests from the network are counted at every level. A
// function that has used up its own pool is in its red zone. Another function continues, and one
// with a guarantee gets it whatever the others hold.
func TestCase76_NetworkPools(t *testing.T) {
	limit := func(contexts, cells uint32) credit.Cost {
		c := credit.NoLimit()
		c[credit.NetPktRx], c[credit.NetBufRx] = contexts, cells
		return c
	}
	nic := credit.New(nil, limit(6, 3))
	host := credit.New(nic, credit.NoLimit())
	fns := [3]*credit.Node{credit.New(host, limit(4, 2)), credit.New(host, credit.NoLimit()), credit.New(host, credit.NoLimit())}
	if err := fns[2].Guarantee(credit.Cost{credit.NetPktRx: 1, credit.NetBufRx: 1}); err != nil {
		t.Fatal(err)
	}
	s := &single{t: t, now: ms, ulp: &sim.ULP{Record: true}}
	s.ulp.OnPush, s.ulp.OnPull = noAnswer, noAnswer
	s.e = falcon.NewEngine(falcon.Config{Profile: testProfile()}, s.ulp)
	var conns [3]*falcon.Conn
	for i := range conns {
		cfg := connConfig(true)
		cfg.LocalCID, cfg.LocalFunction, cfg.Credits = uint32(i+1), uint32(i+1), fns[i]
		var err error
		if conns[i], err = s.e.Open(s.now, cfg); err != nil {
			t.Fatal(err)
		}
	}
	ahead := func(i int, n uint32) wire.Drop { // not the head of line: takes a context and a cell
		s.c = conns[i]
		return s.pushData(200+n, 7+n, false)
	}
	s.want(ahead(0, 1), wire.DropNone)
	s.want(ahead(0, 2), wire.DropNone)
	s.want(ahead(0, 3), wire.DropResource) // its cells
	s.want(ahead(1, 1), wire.DropResource) // the NIC's third is set aside
	s.want(ahead(2, 1), wire.DropNone)     // for this one
	s.want(ahead(2, 2), wire.DropResource)
	s.c = conns[1]
	for n := range uint32(3) { // pulls need contexts only
		s.want(s.pullRequest(500+n, 10+n, false), wire.DropNone)
	}
	s.want(s.pullRequest(503, 13, false), wire.DropResource) // the NIC's contexts
	s.want(ahead(1, 0), wire.DropNone)                       // but its head of line is taken
	if got := nic.InUse(); got[credit.NetPktRx] != 7 || got[credit.NetBufRx] != 3 {
		t.Errorf("NIC holds %v", got)
	}
	for _, c := range conns {
		c.Close(s.now)
	}
	s.drain()
	if nic.InUse() != (credit.Cost{}) || s.e.Stats().CreditErrors != 0 {
		t.Errorf("left: %v, %d errors", nic.InUse(), s.e.Stats().CreditErrors)
	}
}
